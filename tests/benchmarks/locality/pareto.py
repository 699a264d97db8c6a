"""What does locality cost in fairness? The slack knob and DLPM on Mooncake's conversations, as a table and a plot.

    python tests/benchmarks/locality/pareto.py [--plot FILE.svg]

Every policy plays the whole trace on four engines: with one queue before all of them, from which whatever is next is
placed by load or by cached prefix, and with a queue before each, chosen on arrival by D2LPM. Runs are deterministic
and independent, and take all cores for some minutes.
"""

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from gateway.simulate.compare import PolicyComparison

ROOT = Path(__file__).parents[3]
TRACE = ROOT / "tests/benchmarks/data/mooncake_conversation_trace.jsonl.gz"
TENANTS = "block:2:20"  # the first block that not all prompts share names a conversation; of 20 tenants, all alike
ENGINE, ENGINES = "a800-llama3.1-8b", 4
KV_TOKENS = 2_000_000  # an engine's: four times the GPU's, as with an offload to host memory
PLACEMENTS = {
    "placed by load": "least-reserved",
    "placed by prefix": "longest-prefix",
    "a queue per engine (D2LPM)": "d2lpm:quantum_service=50000",
}
NO_END = "1e12"  # a slack in which all tenants are always level
SLACKS = ("0", "50000", "200000", "1000000", NO_END)
QUANTA = ("50000", "200000", "1000000")
NAMES = {"0": "0 (VTC)", NO_END: "no end (LPM)"}


class Line(NamedTuple):
    """Points that are one policy with one parameter after another."""

    says: str
    policy: str  # with {} for the parameter
    parameters: Sequence[str]
    placement: str


LINES = tuple(
    Line(f"{name}, {where}", policy, parameters, placement)
    for where, placement in PLACEMENTS.items()
    for name, policy, parameters in (
        ("slack Q", "slack:slack_service={}", SLACKS),
        ("DLPM quantum", "dlpm:quantum_service={}", QUANTA),
    )
)


class Point(NamedTuple):
    """What a run came to; the difference is the largest of two tenants' services while both waited."""

    line: str
    parameter: str
    hit_ratio: float
    tokens_per_s: float
    difference: float
    jain: float
    ttft_s_p50: float
    refused: int


def measured(line: Line, parameter: str) -> Point:
    comparison = PolicyComparison(
        trace=TRACE,
        tenants=TENANTS,
        policies=(line.policy.format(parameter),),
        placements=(line.placement,),
        price="extend",
        share_ratio_max=1.0,
        engine=ENGINE,
        engines=ENGINES,
        kv_tokens_max=KV_TOKENS,
    )
    _, (findings,) = comparison.run(_quietly)
    figures = findings.figures
    return Point(
        line=line.says,
        parameter=NAMES.get(parameter) or f"{int(parameter):,}",
        hit_ratio=figures.hit_ratio or 0.0,
        tokens_per_s=figures.throughput_tokens_per_s,
        difference=figures.difference_max,
        jain=figures.jain or 0.0,
        ttft_s_p50=figures.ttft_p50_s or 0.0,
        refused=sum(figures.refused.values()),
    )


def _quietly(_label: str, _bytes: int) -> Callable[[int], None]:
    return lambda _read: None


def table(points: Sequence[Point]) -> Iterator[str]:
    yield "| policy | parameter | prefix hits | tokens/s | max difference | Jain | TTFT p50, s | refused |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for point in points:
        yield (
            f"| {point.line} | {point.parameter} | {point.hit_ratio:.3f} | {point.tokens_per_s:,.0f}"
            f" | {point.difference:,.0f} | {point.jain:.3f} | {point.ttft_s_p50:.0f} | {point.refused} |"
        )


def plot(points: Sequence[Point], path: Path) -> None:
    """Draw hit rate and throughput over service difference, a line per policy."""
    import matplotlib as mpl  # noqa: PLC0415 - the table needs no plots
    from matplotlib.figure import Figure  # noqa: PLC0415

    from gateway.simulate.report.plots import COLOURS, STYLE  # noqa: PLC0415

    measures: dict[str, Callable[[Point], float]] = {
        "prefix hit rate": lambda point: point.hit_ratio,
        "tokens per second": lambda point: point.tokens_per_s,
    }
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 4.0), layout="constrained")
        panels: list[Any] = list(figure.subplots(1, len(measures)))
        for axes, (says, measure) in zip(panels, measures.items(), strict=True):
            for colour, line in zip(COLOURS, LINES, strict=False):
                of_line = [point for point in points if point.line == line.says]
                differences = [point.difference for point in of_line]
                axes.plot(
                    differences, list(map(measure, of_line)), marker="o", markersize=3.5, color=colour, label=line.says
                )
            axes.set(xscale="log", xlabel="largest service difference of two tenants that waited", ylabel=says)
            axes.set_xticks([200_000, 500_000, 1_000_000, 2_000_000])
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.xaxis.set_minor_formatter(lambda _value, _place: "")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
        figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw an SVG there")
    arguments = parser.parse_args()
    # Spawned, not forked, as `make tables` does.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        runs = [pool.submit(measured, line, parameter) for line in LINES for parameter in line.parameters]
        points = [run.result() for run in runs]
    print("\n".join(table(points)))
    if arguments.plot:
        plot(points, arguments.plot)


if __name__ == "__main__":
    main()
