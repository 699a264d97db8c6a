"""Plots: four plots of a run as SVG, drawn by matplotlib. Only this module needs matplotlib, which may be missing.

Equal curves give equal bytes: no dates, ids from a fixed salt, text as text.
"""

from collections.abc import Callable, Mapping
from io import StringIO
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gateway.simulate.report.findings import Curves, Findings, Points

SMOOTHED_POINTS = 64
SIZE_INCHES = (7.2, 2.9)
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e")
STYLE: Any = {
    "svg.hashsalt": "fairlead",
    "svg.fonttype": "none",  # text stays text: found, read aloud, and a tenth of the size
    "text.parse_math": False,  # a tenant's name is no formula
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "lines.linewidth": 1.2,
}


def service_over_time(axes: Axes, run: Findings) -> None:
    for colour, (tenant, points) in zip(COLOURS, run.curves.service.items(), strict=False):
        axes.plot(*_axes(_smoothed(points)), color=colour, label=_label(tenant))
    axes.set(title="Service per tenant", xlabel="time, s", ylabel="service per second")
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def difference_over_time(axes: Axes, run: Findings) -> None:
    axes.plot(*_axes(run.curves.difference), color=COLOURS[0], label="largest difference")
    bound = run.figures.difference_bound
    if bound is not None:
        axes.axhline(bound, color=COLOURS[2], linestyle="--", label=f"bound of the policy, {bound:.0f}")
    axes.set(title="Service difference of tenants that wait", xlabel="time, s", ylabel="service over weight")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, loc="best", frameon=False)


def ttft_distribution(axes: Axes, run: Findings) -> None:
    for colour, (tenant, points) in zip(COLOURS, run.curves.ttft.items(), strict=False):
        axes.step(*_axes(points), where="post", color=colour, label=_label(tenant))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(title="Time to first token", xlabel="seconds", ylabel="part of requests", ylim=(0.0, 1.02))
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def occupancy(axes: Axes, run: Findings) -> None:
    curves: Curves = run.curves
    axes.plot(*_axes(curves.running), color=COLOURS[0], label="running in the engines")
    axes.plot(*_axes(curves.queued), color=COLOURS[1], label="waiting in the gateway")
    axes.set(title="Occupancy (peaks)", xlabel="time, s", ylabel="requests")
    axes.set_ylim(bottom=0)
    ratio = axes.twinx()
    ratio.plot(*_axes(curves.kv_ratio), color=COLOURS[2], linestyle=":", label="KV cache in use")
    ratio.set(ylabel="part of the KV cache", ylim=(0.0, 1.02))
    ratio.grid(visible=False)
    handles, labels = axes.get_legend_handles_labels()
    more_handles, more_labels = ratio.get_legend_handles_labels()
    axes.legend([*handles, *more_handles], [*labels, *more_labels], fontsize=7, loc="best", frameon=False)


PLOTS: Mapping[str, Callable[[Axes, Findings], None]] = {
    "service": service_over_time,
    "difference": difference_over_time,
    "ttft": ttft_distribution,
    "occupancy": occupancy,
}


def draw(run: Findings) -> dict[str, str]:
    """The SVG document of each plot, by the name of the plot."""
    return {name: _svg(plot, run) for name, plot in PLOTS.items()}


def _svg(plot: Callable[[Axes, Findings], None], run: Findings) -> str:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        plot(figure.subplots(), run)
        written = StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    return text[text.index("<svg") :]


def _axes(points: Points) -> tuple[list[float], list[float]]:
    return [at for at, _ in points], [value for _, value in points]


def _smoothed(points: Points) -> Points:
    """At most `SMOOTHED_POINTS` means of neighbouring points, because service comes in lumps."""
    size = -(-len(points) // SMOOTHED_POINTS)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return tuple((group[0][0], fmean(value for _, value in group)) for group in groups)


def _label(tenant: str) -> str:
    # matplotlib leaves labels that begin with "_" out of a legend; a zero-width space before it is not seen.
    return f"\u200b{tenant}" if tenant.startswith("_") else tenant
