"""Answers that give way in the middle, in a simulated pool: what chat gains, what it costs, and when it pays.

    python -m tests.benchmarks.give_way.bench [tiers] [limits] [caching] [policies]

Prints the tables of docs/results/continue.md; by default all of them. Takes some 90 s of CPU.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from math import inf

from policies.fairness import FAIRNESS
from policies.pool.preemption import InterruptRules
from tests.simulation.giving_way import SCENES, Found, Setting, play, prompt_s, step_s

RULES = InterruptRules(times_max=8, tokens_between_min=64)
RATES = (0.5, 1.0, 2.0, 4.0)
COLUMNS = "TTFT p50 / p99 s | p99 beyond its prompt, steps | most, alone | tokens/s | given way (most) | computed again"


def row(name: str, found: Found, base: Found | None = None) -> None:
    ratio = "" if base is None else f" ({found.tokens_per_s / base.tokens_per_s:.3f})"
    alone = "-" if found.steps_alone == inf else f"{found.steps_alone:.1f}"
    print(
        f"| {name} | {found.ttft_p50_s:.3f} / {found.ttft_p99_s:.3f} | {found.steps_p99:.1f} |"
        f" {alone} | {found.tokens_per_s:.0f}{ratio} | {found.interruptions} ({found.interruptions_max}) |"
        f" {found.recomputed_tokens} |",
        flush=True,
    )


def head(title: str, *names: str) -> None:
    print(f"\n{title}\n\n| {' | '.join(names)} | {COLUMNS} |\n|{'---|' * (len(names) + 6)}")


def tiers() -> None:
    """A chat tier with a target beside a preemptible batch tier."""
    head("tiers", "scene", "chat/s", "gives way")
    for scene in SCENES:
        for rate in RATES:
            setting = Setting(scene=scene, chat_rate_per_s=rate)
            base = play(setting)
            row(f"{scene} | {rate:g} | no", base)
            row(f"{scene} | {rate:g} | yes", play(replace(setting, rules=RULES)), base)


def limits() -> None:
    """How often one answer may give way, and after how many tokens again."""
    head("limits (together, 4 chat/s)", "times_max", "tokens_between_min")
    setting = Setting(chat_rate_per_s=4.0)
    base = play(setting)
    row("0 | -", base)
    for times_max, tokens in ((1, 64), (2, 64), (4, 64), (8, 1), (8, 16), (8, 64), (8, 256), (16, 64), (64, 1)):
        row(f"{times_max} | {tokens}", play(replace(setting, rules=InterruptRules(times_max, tokens))), base)


def caching() -> None:
    """Engines that keep no prefixes compute everything again."""
    head("without prefix caching", "scene", "chat/s", "gives way")
    for scene in SCENES:
        for rate in (1.0, 4.0):
            setting = Setting(scene=scene, chat_rate_per_s=rate, is_cached=False)
            base = play(setting)
            row(f"{scene} | {rate:g} | no", base)
            row(f"{scene} | {rate:g} | yes", play(replace(setting, rules=RULES)), base)


def policies() -> None:
    """Two tenants of one tier: one fills all slots before the other comes."""
    head("policies (together, 1 chat/s, one tier)", "policy", "preempt_service")
    for fairness in sorted(FAIRNESS):
        setting = Setting(fairness=fairness, by_tier=False)
        base = play(setting)
        row(f"{fairness} | never", base)
        for service in (2_000.0, 20_000.0):
            row(f"{fairness} | {service:g}", play(replace(setting, rules=RULES, preempt_service=service)), base)


TABLES: dict[str, Callable[[], None]] = {"tiers": tiers, "limits": limits, "caching": caching, "policies": policies}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)}")
    chosen = parser.parse_args().tables or list(TABLES)
    print(f"a step of {1e3 * step_s():.1f} ms half way through the answers, a chat prompt of {1e3 * prompt_s():.1f} ms")
    for name in chosen:
        TABLES[name]()


if __name__ == "__main__":
    main()
