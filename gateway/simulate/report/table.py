"""Table: the figures of all policies as one table and as JSON, in the words that docs/simulate.md explains.

The table is Markdown with its columns aligned, for a terminal or a document.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gateway.simulate.report.findings import (
    Figures,
    Findings,
    GroupFindings,
    Setting,
    TenantFindings,
)
from gateway.simulate.session_findings import SessionFindings

NOTHING = "-"


def _seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"


def _difference(figures: Figures) -> str:
    if figures.difference_bound is None:
        return f"{figures.difference_max:.0f} (no bound)"
    used = "-" if figures.bound_used_ratio is None else f"{figures.bound_used_ratio:.2%}"
    return f"{figures.difference_max:.0f} ({used} of {figures.difference_bound:.0f})"


def _ttft(tenant: TenantFindings) -> str:
    return f"{_seconds(tenant.ttft_p50_s)} / {_seconds(tenant.ttft_p99_s)}"


COLUMNS: Mapping[str, Callable[[Findings], str]] = {
    "policy": lambda run: run.policy,
    "tokens/s": lambda run: f"{run.figures.throughput_tokens_per_s:.0f}",
    "Jain": lambda run: _ratio(run.figures.jain),
    "max difference (part of bound)": lambda run: _difference(run.figures),
    "owed/s": lambda run: f"{run.figures.owed_service_per_s:.0f}",
    "quietest TTFT p50 / p99 s": lambda run: _ttft(run.tenants[run.quietest]),
    "loudest TTFT p50 / p99 s": lambda run: _ttft(run.tenants[run.loudest]),
    "refused": lambda run: str(sum(run.figures.refused.values())),
    "preemptions": lambda run: str(run.figures.preemptions),
    "prefix hits": lambda run: _ratio(run.figures.hit_ratio),
}
TENANT_COLUMNS: Mapping[str, Callable[[TenantFindings], str]] = {
    "weight": lambda tenant: f"{tenant.weight:g}",
    "requests": lambda tenant: str(tenant.requests),
    "served": lambda tenant: str(tenant.served),
    "refused": lambda tenant: ", ".join(f"{count} {why}" for why, count in sorted(tenant.refused.items())) or "0",
    "asked service": lambda tenant: f"{tenant.asked_service:.0f}",
    "service": lambda tenant: f"{tenant.service:.0f}",
    "TTFT p50 s": lambda tenant: _seconds(tenant.ttft_p50_s),
    "TTFT p99 s": lambda tenant: _seconds(tenant.ttft_p99_s),
}

GROUP_COLUMNS: Mapping[str, Callable[[GroupFindings], str]] = {
    "weight": lambda group: NOTHING if group.weight is None else f"{group.weight:g}",
    "tenants": lambda group: str(group.tenants),
    "requests": lambda group: str(group.requests),
    "served": lambda group: str(group.served),
    "asked service": lambda group: f"{group.asked_service:.0f}",
    "service": lambda group: f"{group.service:.0f}",
    "share": lambda group: f"{group.share:.1%}",
}

SESSION_COLUMNS: Mapping[str, Callable[[SessionFindings], str]] = {
    "sessions": lambda found: str(found.sessions),
    "turns": lambda found: str(found.turns),
    "turn wait p50 / p99 / max s": lambda found: (
        f"{_seconds(found.turn_wait_p50_s)} / {_seconds(found.turn_wait_p99_s)} / {_seconds(found.turn_wait_max_s)}"
    ),
    "session p50 / p90 s": lambda found: f"{_seconds(found.session_p50_s)} / {_seconds(found.session_p90_s)}",
    "held turns (mean s)": lambda found: f"{found.held_turns} ({_seconds(found.held_mean_s)})",
    "held / paused at once": lambda found: f"{found.held_max} / {found.paused_max}",
    "pauses (yields)": lambda found: f"{found.pauses} ({found.yields})",
    "eta": lambda found: " ".join(f"{eta:.2f}" for eta in found.etas.values()) or NOTHING,
}


def rows(runs: Sequence[Findings]) -> list[list[str]]:
    """The header, and one line per policy."""
    return [list(COLUMNS), *([column(run) for column in COLUMNS.values()] for run in runs)]


def tenant_rows(run: Findings) -> list[list[str]]:
    """The header, and one line per tenant, the loudest first."""
    lines = [[name, *(column(tenant) for column in TENANT_COLUMNS.values())] for name, tenant in run.tenants.items()]
    return [["tenant", *TENANT_COLUMNS], *lines]


def group_rows(run: Findings) -> list[list[str]]:
    """The header, and one line per group, the one with the most service first."""
    lines = [[name, *(column(group) for column in GROUP_COLUMNS.values())] for name, group in run.groups.items()]
    return [[f"{run.policy}: group", *GROUP_COLUMNS], *lines]


def session_rows(runs: Sequence[Findings]) -> list[list[str]]:
    """The header, and one line per policy; empty where no call belongs to a session."""
    found = [(run.policy, run.sessions) for run in runs if run.sessions is not None]
    lines = [[policy, *(column(sessions) for column in SESSION_COLUMNS.values())] for policy, sessions in found]
    return [["policy", *SESSION_COLUMNS], *lines] if lines else []


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose first column is text and whose other columns are figures."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    header, *body = [_line(line, widths) for line in lines]
    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return "\n".join([header, f"|{rule}|", *body])


def as_json(setting: Setting, runs: Sequence[Findings]) -> dict[str, Any]:
    """The setting and all findings, except the curves."""
    policies = [
        {
            "policy": run.policy,
            **asdict(run.figures),
            "tenants": {name: asdict(tenant) for name, tenant in run.tenants.items()},
            **({"groups": {name: asdict(group) for name, group in run.groups.items()}} if run.groups else {}),
            **({} if run.sessions is None else {"sessions": asdict(run.sessions)}),
        }
        for run in runs
    ]
    return {"setting": dict(setting.facts), "policies": policies}


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cells[0].ljust(widths[0]),
        *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)),
    ]
    return f"| {' | '.join(padded)} |"
