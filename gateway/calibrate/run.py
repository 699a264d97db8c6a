"""The calibration: loads a backend, watches its /metrics, and fits the step-time model.

The model is fitted to every second window and judged by the others; the final model is fitted to all. External load on
the backend is observed and fitted, too; the calibration's own load only ensures that there is work. The number of
windows per second depends on the backend, so the load goes on beyond its time until there are enough windows, or
SECONDS_MAX is over.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, cycle
from random import Random
from statistics import median, quantiles

from backends.metrics import SCRAPE_BYTES_MAX, EngineMetrics, parse_metrics
from backends.poll import Poller
from backends.spec import BackendSpec
from backends.step_times import StepWindows
from gateway.calibrate.asking import POLL_TIMEOUT_S, get, model_card
from gateway.calibrate.calls import CalibrationError, CallSender, Target, run_for, until_cancelled
from gateway.calibrate.mix import PHASES, Mix
from gateway.tasks import cancel
from policies.step_time import Observation, StepTime, StepTimeModel, fit_all

SCRAPE_EVERY_S = 0.25
WINDOWS_MIN = 16
SECONDS_MAX = 600.0  # the longest load while there are not enough windows


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a calibration: the calls in flight, and the seconds and windows (measurements) so far."""

    concurrent: int
    seconds: float
    windows: int

    def part(self, seconds: float) -> float:
        """The completed part, 0 to 1; `seconds` is the planned time."""
        return min(self.seconds / seconds, self.windows / WINDOWS_MIN, 1.0)

    def status(self) -> tuple[str, str]:
        """The stage and its progress, as text."""
        after = f"{self.windows} windows of at least {WINDOWS_MIN} after {self.seconds:.0f} s"
        return f"{self.concurrent} calls at once", after


class TooFewWindowsError(CalibrationError):
    """An error: there are too few windows (measurements of engine steps) to fit a model. A later run can continue from
    `windows`.
    """

    def __init__(self, model: str, windows: list[Observation]) -> None:
        super().__init__(f"only {len(windows)} windows of steps were seen, {WINDOWS_MIN} are needed")
        self.model = model
        self.windows = windows


@dataclass(frozen=True, slots=True)
class Calibration:
    """The result of a calibration. `step_time` is the step time model that was learnt from all windows (measurements of
    engine steps). Its error `error_ratio_p90` is measured on the windows `held_out`, for a model learnt from the other
    windows.
    """

    model: str
    step_time: StepTime
    seconds: float
    calls: int
    windows: int
    steps: int
    error_ratio_p90: float
    held_out: tuple[tuple[Observation, float], ...]  # and how long it was predicted to take, in seconds


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """The plan of a calibration. A backend is loaded for `seconds`, then until there are enough measurements or
    `seconds_max` is over. `model` None: the first model that the backend serves. The backend's counters are read every
    `every_s` seconds.
    """

    spec: BackendSpec
    model: str | None
    seconds: float
    seconds_max: float = SECONDS_MAX
    every_s: float = SCRAPE_EVERY_S


async def calibrate(
    plan: CalibrationPlan,
    on_progress: Callable[[Progress], None],
    seen_before: Callable[[str], list[Observation]] | None = None,
) -> Calibration:
    """Load the backend, and fit the model. When cancelled, it fits the windows so far. `seen_before` gives the windows
    of the same model from an earlier run that had too few. Raises CalibrationError.
    """
    spec = plan.spec
    watching: asyncio.Task[None] | None = None
    poller = Poller(POLL_TIMEOUT_S)
    poller.start()
    loop = asyncio.get_running_loop()
    try:
        card = await model_card(poller, spec, plan.model)
        if not (await _scrape(poller, spec)).engine_steps:
            raise CalibrationError(f"{spec.url} does not count its steps at /metrics (vLLM does)")
        windows = [] if seen_before is None else seen_before(card.id)
        began_at, concurrent = loop.time(), 0

        def show() -> None:
            on_progress(Progress(concurrent, loop.time() - began_at, len(possible(windows))))

        mix = Mix(Random(0), context_tokens_max=card.max_model_len)  # noqa: S311 - every time the same
        target = Target.at(spec, card.id)
        with until_cancelled():
            watching = asyncio.create_task(_watch(poller, spec, windows, every_s=plan.every_s, show=show))
            async with CallSender() as caller:
                for number, concurrent in enumerate(chain(PHASES, cycle(PHASES))):
                    spent_s = loop.time() - began_at
                    if number >= len(PHASES) and (is_enough(windows) or spent_s >= plan.seconds_max):
                        break
                    show()
                    calls = (keep_calling(caller, target, mix) for _ in range(concurrent))
                    await run_for(plan.seconds / len(PHASES), calls)
        return judge(windows, model=card.id, seconds=round(loop.time() - began_at, 1), calls=caller.answered)
    finally:
        await cancel(watching)
        await poller.stop()


async def keep_calling(caller: CallSender, target: Target, mix: Mix) -> None:
    """Make one call after another, until cancelled. Raises CalibrationError where the backend answers none."""
    while True:
        call = mix.call()
        await caller.call(target, target.completion(call.prompt, call.output_tokens, stream=False))


def possible(windows: list[Observation]) -> list[Observation]:
    """The windows whose numbers an engine can have produced."""
    return [window for window in windows if window.is_possible]


def is_enough(windows: list[Observation]) -> bool:
    """Whether a step-time model can be fitted to these windows and judged."""
    found = possible(windows)
    return len(found) >= WINDOWS_MIN and fit_all(found[0::2]) is not None and fit_all(found) is not None


def judge(windows: list[Observation], *, model: str, seconds: float, calls: int) -> Calibration:
    """Fit the model and judge it. Raises CalibrationError where there are too few windows."""
    found = possible(windows)
    learnt, fitted = fit_all(found[0::2]), fit_all(found)
    if len(found) < WINDOWS_MIN or learnt is None or fitted is None:
        raise TooFewWindowsError(model, found)
    held_out = tuple((window, window.predicted_s(learnt)) for window in found[1::2])
    errors = [abs(predicted_s / window.seconds - 1.0) for window, predicted_s in held_out]
    return Calibration(
        model=model,
        step_time=StepTime(fitted, error_ratio=median(errors), is_sure=True),
        seconds=seconds,
        calls=calls,
        windows=len(found),
        steps=round(sum(window.steps for window in found)),
        error_ratio_p90=quantiles(errors, n=10)[-1],
        held_out=held_out,
    )


async def _watch(
    poller: Poller, spec: BackendSpec, windows: list[Observation], *, every_s: float, show: Callable[[], None]
) -> None:
    loop, watched = asyncio.get_running_loop(), StepWindows()
    while True:
        try:
            metrics = await _scrape(poller, spec)
        except CalibrationError:
            watched.silent()
        else:
            windows += watched.scraped(metrics, now=loop.time())
            show()
        await asyncio.sleep(every_s)


async def _scrape(poller: Poller, spec: BackendSpec) -> EngineMetrics:
    body = await get(poller, spec, "/metrics", SCRAPE_BYTES_MAX)
    return parse_metrics(body.decode("utf-8", "replace"))


def equation(model: StepTimeModel) -> str:
    """The model as text for people: the time of a step, and its parts."""
    return (
        f"{model.base_s * 1e3:.3g} ms + {model.token_s * 1e6:.3g} µs a token"
        f" + {model.context_token_s * 1e9:.3g} ns a token read + {model.request_s * 1e6:.3g} µs a request"
    )
