"""The plots of docs/slo.md: what an envelope promises, and what the limit lets in. Drawn by the gateway's own code.

    python tests/benchmarks/slo_page/plots.py [--out docs/results/slo]

Takes a second; equal code draws equal pictures.
"""

import argparse
from collections.abc import Callable, Sequence
from io import StringIO
from itertools import count
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gateway.simulate.report.plots import COLOURS, STYLE
from policies.capacity.backend import BackendCapacity
from policies.limit.knee import RATE_SHARE, knee_s
from policies.reservation import Reservation
from policies.slo.attainment import met_targets
from policies.slo.timeliness import Timeliness
from policies.step_time import StepTime, StepTimeModel
from policies.types import BackendLoad, Request, SloEnvelope

OUT = Path(__file__).parents[3] / "docs/results/slo"
SIZE_INCHES = (9.6, 3.6)

ENVELOPE = SloEnvelope(ttft_s=0.5, tpot_s=0.05)
TOKENS = 30
MODEL = StepTimeModel(base_s=0.0099, token_s=86e-6, context_token_s=84e-9)  # of the page's example
ANSWER_TOKENS = 200
CONTEXTS = (250, 500, 1000, 2000, 4000, 8000, 16_000)
TARGETS_S = (0.05, 0.08, None)


class Answer(NamedTuple):
    """One answer, and when each of its tokens came, in seconds since its request."""

    says: str
    times_s: Sequence[float]


ANSWERS = (
    Answer("first token early, the second in its time", [0.1, *(0.55 + 0.04 * j for j in range(TOKENS - 1))]),
    Answer("stalls once", [0.3 + 0.02 * j + (0.7 if j >= 12 else 0.0) for j in range(TOKENS)]),
    Answer("crawls", [0.4 + 0.06 * j for j in range(TOKENS)]),
)


def timeliness() -> Timeliness:
    return Timeliness(Request("r", "t", "m", 0.0, 10, TOKENS, envelope=ENVELOPE))


def says(answer: Answer) -> str:
    """Which targets it kept, as the gateway judges it."""
    times = timeliness()
    for tokens, now in enumerate(answer.times_s, start=1):
        times.passed(tokens, now)
    timing = times.timing()
    result = met_targets(ENVELOPE, timing)
    words = [name for name, is_kept in zip(("ttft", "tpot", "tpot_envelope"), result, strict=True) if is_kept]
    return f"{answer.says}: {', '.join(words)}; {timing.tokens_in_time} of {timing.tokens} tokens in time"


def tokens_over_time(axes: Axes) -> None:
    due_s = [ENVELOPE.ttft_s + j * ENVELOPE.tpot_s for j in range(TOKENS)]
    axes.plot(due_s, range(1, TOKENS + 1), color="black", linestyle="--", label="due: TTFT + j TPOT")
    for colour, answer in zip(COLOURS, ANSWERS, strict=False):
        axes.step(answer.times_s, range(1, TOKENS + 1), where="post", color=colour, label=says(answer))
    axes.set(title="Tokens of three answers", xlabel="seconds since the request came", ylabel="tokens")
    axes.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)


def slack_over_time(axes: Axes) -> None:
    for colour, answer in zip(COLOURS, ANSWERS, strict=False):
        times, points, came = timeliness(), [], list(answer.times_s)
        for step in range(round(max(came) * 100)):
            now = step / 100
            passed = sum(at <= now for at in came)
            times.passed(passed, now)
            points.append((now, times.slack_s(now)))
        axes.plot(*zip(*points, strict=True), color=colour)
    axes.axhline(0.0, color="black", linestyle="--")
    axes.set(title="Their slack", xlabel="seconds since the request came", ylabel="seconds until the next is due")


def throughput_over_step(axes: Axes) -> None:
    """Decodes alone, of three context lengths: k is what one costs with its context."""
    for colour, context in zip(COLOURS, (500, 4000, 16_000), strict=False):
        points = []
        for sequences in range(1, 3000):
            step_s = MODEL.step_s(new_tokens=sequences, context_tokens=sequences * context, requests=sequences)
            if step_s > 2 * knee_s(MODEL):
                break
            points.append((step_s * 1e3, sequences / step_s))
        axes.plot(*zip(*points, strict=True), color=colour, label=f"{context:,} tokens of context each")
    axes.axvline(knee_s(MODEL) * 1e3, color="black", linestyle="--", label=f"the knee: {RATE_SHARE:.0%} of the most")
    axes.set(title="What a longer step buys", xlabel="step, ms", ylabel="tokens per second")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)


def admitted(context: int, tpot_s: float | None) -> int:
    """How many decodes the limit lets in."""
    step_time = StepTime(MODEL, error_ratio=0.05, is_sure=True)
    backend = BackendCapacity(BackendLoad("gpu", requests_running_max=100_000, step_time=step_time))
    envelope = None if tpot_s is None else SloEnvelope(None, tpot_s)
    for taken in count():
        prompt = context - ANSWER_TOKENS // 2
        request = Reservation("t", 1, context, output_tokens=ANSWER_TOKENS, prompt_tokens=prompt, envelope=envelope)
        request.cached_tokens = prompt  # what is asked is how many may decode, not how fast prompts come in
        if not backend.fits(request, reserve_only=False):
            return taken
        backend.take(request)
        request.produced_tokens = 1
        backend.started(request)
    raise AssertionError("there is an end to it")


def decodes_admitted(axes: Axes) -> None:
    for colour, tpot_s in zip(COLOURS, TARGETS_S, strict=False):
        label = "nobody has a target: the knee" if tpot_s is None else f"TPOT {tpot_s * 1e3:.0f} ms"
        points = [admitted(context, tpot_s) for context in CONTEXTS]
        axes.plot(CONTEXTS, points, marker="o", markersize=3, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(CONTEXTS)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
    axes.tick_params(which="both", labelsize=7)
    axes.set(title="Decodes that are let in", xlabel="tokens of context of each", ylabel="at once")
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)


PLOTS: dict[str, tuple[Callable[[Axes], None], Callable[[Axes], None]]] = {
    "envelope": (tokens_over_time, slack_over_time),
    "limit": (throughput_over_step, decodes_admitted),
}


def draw(name: str) -> str:
    """An SVG document."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        for plot, axes in zip(PLOTS[name], figure.subplots(1, 2), strict=True):
            plot(axes)
        written = StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return written.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER")
    out = parser.parse_args().out
    for name in PLOTS:
        (out / f"{name}.svg").write_text(draw(name), encoding="utf-8")


if __name__ == "__main__":
    main()
