"""Load a backend, watch its /metrics, fit: what `fairlead calibrate` does before it prints.

It is learnt from every second window and judged by the others, and at last learnt from all. Whatever else runs on the
backend is seen and learnt from too; the load only makes sure that there is something to see.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from statistics import median, quantiles

from backends.catalog import ModelCard, read_models
from backends.metrics import SCRAPE_BYTES_MAX, EngineMetrics, parse_metrics
from backends.poll import Poller, UnansweredError
from backends.pool import MODELS_BYTES_MAX
from backends.spec import BackendSpec
from backends.step_times import StepWindows
from gateway.calibrate.load import CalibrationError, Load
from gateway.calibrate.mix import PHASES, Mix
from policies.step_time import Observation, StepTime, StepTimeModel, fit_all

SCRAPE_EVERY_S = 0.25
POLL_TIMEOUT_S = 10.0
WINDOWS_MIN = 16


@dataclass(frozen=True, slots=True)
class Calibration:
    """`step_time` is learnt from all windows; its error is that of `held_out`, by what was learnt from the others."""

    model: str
    step_time: StepTime
    seconds: float
    calls: int
    windows: int
    steps: int
    error_ratio_p90: float
    held_out: tuple[tuple[Observation, float], ...]  # and how long it was predicted to take, in seconds


async def calibrate(
    spec: BackendSpec, *, model: str | None, seconds: float, say: Callable[[str], None], every_s: float = SCRAPE_EVERY_S
) -> Calibration:
    """Load the backend for so long, and learn. Raises CalibrationError."""
    poller = Poller(POLL_TIMEOUT_S)
    poller.start()
    try:
        card = await _model(poller, spec, model)
        if not (await _scrape(poller, spec)).engine_steps:
            raise CalibrationError(f"{spec.url} does not count its steps at /metrics (vLLM does)")
        windows: list[Observation] = []
        watching = asyncio.create_task(_watch(poller, spec, windows, every_s=every_s))
        try:
            mix = Mix(Random(0), context_tokens_max=card.max_model_len)  # noqa: S311 - every time the same
            async with Load(spec, mix, model=card.id) as load:
                for concurrent in PHASES:
                    say(f"{concurrent} calls at once ...")
                    await load.run(concurrent, seconds / len(PHASES))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    finally:
        await poller.stop()
    return judge(windows, model=card.id, seconds=seconds, calls=load.answered)


def judge(windows: list[Observation], *, model: str, seconds: float, calls: int) -> Calibration:
    """Fit and judge. Raises CalibrationError where there is too little to learn from."""
    possible = [window for window in windows if window.is_possible]
    learnt, fitted = fit_all(possible[0::2]), fit_all(possible)
    if len(possible) < WINDOWS_MIN or learnt is None or fitted is None:
        raise CalibrationError(
            f"only {len(possible)} windows of steps were seen, {WINDOWS_MIN} are needed: give it more --seconds"
        )
    held_out = tuple((window, window.predicted_s(learnt)) for window in possible[1::2])
    errors = [abs(predicted_s / window.seconds - 1.0) for window, predicted_s in held_out]
    return Calibration(
        model=model,
        step_time=StepTime(fitted, error_ratio=median(errors), is_sure=True),
        seconds=seconds,
        calls=calls,
        windows=len(possible),
        steps=round(sum(window.steps for window in possible)),
        error_ratio_p90=quantiles(errors, n=10)[-1],
        held_out=held_out,
    )


async def _watch(poller: Poller, spec: BackendSpec, windows: list[Observation], *, every_s: float) -> None:
    loop, watched = asyncio.get_running_loop(), StepWindows()
    while True:
        try:
            metrics = await _scrape(poller, spec)
        except CalibrationError:
            watched.silent()
        else:
            windows += watched.scraped(metrics, now=loop.time())
        await asyncio.sleep(every_s)


async def _scrape(poller: Poller, spec: BackendSpec) -> EngineMetrics:
    body = await _get(poller, spec, "/metrics", SCRAPE_BYTES_MAX)
    return parse_metrics(body.decode("utf-8", "replace"))


async def _model(poller: Poller, spec: BackendSpec, wanted: str | None) -> ModelCard:
    body = await _get(poller, spec, "/v1/models", MODELS_BYTES_MAX)
    try:
        cards = read_models(json.loads(body))
    except (ValueError, RecursionError) as error:
        raise CalibrationError(f"{spec.url} does not say what it serves: {error}") from error
    found = [card for card in cards if wanted in (None, card.id)]
    if not found:
        raise CalibrationError(f"{spec.url} serves {', '.join(card.id for card in cards) or 'nothing'}, not {wanted}")
    return found[0]


async def _get(poller: Poller, spec: BackendSpec, path: str, bytes_max: int) -> bytes:
    try:
        return await poller.get(spec, path, bytes_max=bytes_max)
    except UnansweredError as error:
        raise CalibrationError(f"{spec.url}{error}") from error


def equation(model: StepTimeModel) -> str:
    """The model for people: what a step takes, and what for each thing in it."""
    return (
        f"{model.base_s * 1e3:.3g} ms + {model.token_s * 1e6:.3g} µs a token"
        f" + {model.context_token_s * 1e9:.3g} ns a token read + {model.request_s * 1e6:.3g} µs a request"
    )
