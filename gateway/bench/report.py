"""The results of a bench as tables."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.bench.run import Compared, Found

UNKNOWN = "-"


def print_report(found: Found) -> None:
    console = Console()
    console.print(Text(f"{found.model} at {found.backend}, directly and through a gateway before it\n"))
    console.print(_overhead(found))
    console.print(Text(f"\n{_cpu(found)}\n"))
    if found.shares:
        console.print(_shares(found))
    if found.failed_calls:
        console.print(Text(f"\n{found.failed_calls} calls failed, the last with: {_printable(found.failure or '')}"))
    if not found.is_whole:
        console.print(Text("\nIt was stopped before its end: what was measured by then is above."))


def _overhead(found: Found) -> Table:
    table = _table("ms", "direct p50", "p99", "gateway p50", "p99", "added", "samples")
    rows = {
        "whole answer of one token": found.request,
        "first token": found.first_token,
        "token to token": found.token,
    }
    for name, compared in rows.items():
        if compared is not None:
            table.add_row(name, *_cells(compared))
    return table


def _cells(compared: Compared) -> list[str]:
    direct, through = compared.direct, compared.gateway
    times = (direct.median_ms, direct.p99_ms, through.median_ms, through.p99_ms)
    counts = f"{direct.samples} and {through.samples}"
    return [*(f"{each:.2f}" for each in times), f"{compared.added_ms:+.3f}", counts]


def _cpu(found: Found) -> str:
    """The gateway's own part, which does not depend on how fast the server is."""
    idle = UNKNOWN if found.cpu_idle_ratio is None else f"{found.cpu_idle_ratio:.1%}"
    return (
        f"CPU time of the gateway's process: {_microseconds(found.cpu_us_per_request)} a request,"
        f" {_microseconds(found.cpu_us_per_chunk)} a chunk of a stream (idle: {idle} of a core, taken off)"
    )


def _microseconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f} us"


def _shares(found: Found) -> Table:
    table = _table("tenant", "weight", "calls", "service/s", "share", "by weight", "ratio")
    for share in found.shares:
        table.add_row(
            share.tenant, f"{share.weight:g}", str(share.calls), f"{share.service_per_s:.1f}", f"{share.share:.1%}",
            f"{share.share_by_weight:.1%}", f"{share.ratio:.3f}",
        )  # fmt: skip
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _printable(text: str) -> str:
    """A server's words, without control characters."""
    return "".join(each if each.isprintable() else " " for each in text)
