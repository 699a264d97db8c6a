"""The plot of a calibration as SVG: the predictions for the held-out windows, and their errors."""

from io import StringIO

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gateway.calibrate.run import Calibration, equation
from gateway.simulate.report.plots import COLOURS, STYLE

SIZE_INCHES = (8.4, 3.4)


def draw(found: Calibration) -> str:
    """The plot as an SVG document; equal calibrations give equal documents."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        left, right = figure.subplots(1, 2)
        _predictions(left, found)
        _errors(right, found)
        figure.suptitle(f"{found.model}: {equation(found.step_time.model)}", fontsize=9)
        written = StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return written.getvalue()


def _predictions(axes: Axes, found: Calibration) -> None:
    points = [(seen.seconds / seen.steps * 1e3, predicted / seen.steps * 1e3) for seen, predicted in found.held_out]
    measured, predicted = [x for x, _ in points], [y for _, y in points]
    ends = [min(measured), max(measured)]
    axes.plot(ends, ends, color=COLOURS[2], linestyle="--", label="as measured")
    axes.scatter(measured, predicted, s=8, color=COLOURS[0], label="a window that was held out")
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
    axes.tick_params(which="both", labelsize=6)
    axes.set(title="Mean time of a step", xlabel="measured, ms", ylabel="predicted, ms")
    axes.legend(fontsize=7, loc="upper left", frameon=False)


def _errors(axes: Axes, found: Calibration) -> None:
    errors = sorted(abs(predicted / seen.seconds - 1.0) for seen, predicted in found.held_out)
    parts = [(number + 1) / len(errors) for number in range(len(errors))]
    axes.step([100 * error for error in errors], parts, where="post", color=COLOURS[0])
    axes.axvline(100 * found.step_time.error_ratio, color=COLOURS[2], linestyle="--", label="median")
    axes.set(title="Error of predictions", xlabel="relative error, %", ylabel="part of windows", ylim=(0.0, 1.02))
    axes.set_xlim(left=0)
    axes.legend(fontsize=7, loc="lower right", frameon=False)
