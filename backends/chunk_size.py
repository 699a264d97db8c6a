"""Chunk size: the most tokens that one step of a server computes. (vLLM does not publish max_num_batched_tokens.)

A request that waits although a slot and memory are free waits because the step is full. So over a run of scrapes that
all find a request waiting like this, computed tokens over counted steps is the size of a full step. The buckets of
vLLM's histogram do not give it: a prompt counts whole in the step that ends it, however many steps it took, and a step
that decodes nothing and ends no prompt does not count at all. Hence these conditions:

- A run is long enough that the unfinished prompts at its ends are a small part of it. They are at most the tokens
  counted between two scrapes.
- Several sequences decode in the mean, or steps may be missing from the count.
- Fewer sequences run, at every scrape, than have run at once before, and fewer decode than that in the mean. Otherwise
  the requests may wait only for a slot.

A run that was not full all the time gives too small a value. The largest of the last few values is therefore used, and
none before there are two.
"""

from collections import deque
from dataclasses import dataclass, field

from backends.metrics import EngineMetrics, EngineSteps

KV_USED_RATIO_MAX = 0.9  # above it requests wait for memory
SCRAPES_MIN = 15  # tokens of a run, as a multiple of the most between two scrapes: an error of 1 in 15 at most
STEPS_MIN = 32
DECODES_MIN = 4  # per step, in the mean
DECODES_PERCENT_MAX = 90  # of the most sequences that were seen to run at once
STRETCHES_MIN, STRETCHES_KEPT = 2, 4
TOKENS_MAX = 1 << 20  # no server computes more at once


@dataclass(slots=True)
class _Stretch:
    steps: int = 0
    tokens: int = 0
    decoded: int = 0
    tokens_max: int = 0  # between two scrapes


@dataclass(slots=True)
class _Engine:
    last: EngineSteps
    was_full: bool = False
    running_max: int = 0
    stretch: _Stretch = field(default_factory=_Stretch)
    found: deque[int] = field(default_factory=lambda: deque(maxlen=STRETCHES_KEPT))


class ChunkSize:
    """A learner of the chunk size of one server from its scrapes. The chunk size is the most tokens that one engine
    step computes.
    """

    def __init__(self) -> None:
        self._engines: dict[str, _Engine] = {}

    @property
    def tokens_max(self) -> int | None:
        """The largest value learnt for any engine; None while it is unknown for all."""
        return max((max(e.found) for e in self._engines.values() if len(e.found) >= STRETCHES_MIN), default=None)

    def scraped(self, metrics: EngineMetrics) -> None:
        """Learn from one scrape; scrapes come in order."""
        has_room = (metrics.kv_used_ratio or 0.0) < KV_USED_RATIO_MAX
        before, self._engines = self._engines, {}  # an engine that is missing from a scrape is gone
        for report in metrics.engine_steps:
            engine = before.get(report.engine)
            if engine is None or _is_less(report, engine.last):  # it restarted
                engine = _Engine(report)
            self._engines[report.engine] = engine
            engine.running_max = max(engine.running_max, report.requests_running)
            is_full = has_room and report.requests_waiting > 0 and report.requests_running < engine.running_max
            if not is_full or not engine.was_full:
                engine.stretch = _Stretch()
            else:
                self._add(engine, report)
            engine.last, engine.was_full = report, is_full

    def silent(self) -> None:
        """Record that a poll failed: the activity until the next scrape is unknown."""
        for engine in self._engines.values():
            engine.was_full = False

    @staticmethod
    def _add(engine: _Engine, report: EngineSteps) -> None:
        stretch, tokens = engine.stretch, report.step_tokens_total - engine.last.step_tokens_total
        stretch.steps += report.steps_total - engine.last.steps_total
        stretch.tokens += tokens
        stretch.decoded += report.generation_tokens_total - engine.last.generation_tokens_total
        stretch.tokens_max = max(stretch.tokens_max, tokens)
        if stretch.steps < STEPS_MIN or stretch.tokens < SCRAPES_MIN * stretch.tokens_max:
            return
        are_several = DECODES_MIN * stretch.steps <= stretch.decoded
        have_slots = 100 * stretch.decoded <= DECODES_PERCENT_MAX * engine.running_max * stretch.steps
        if are_several and have_slots and stretch.decoded <= stretch.tokens <= TOKENS_MAX * stretch.steps:
            engine.found.append(stretch.tokens // stretch.steps)
        engine.stretch = _Stretch()


def _is_less(report: EngineSteps, last: EngineSteps) -> bool:
    return (
        report.steps_total < last.steps_total
        or report.step_tokens_total < last.step_tokens_total
        or report.generation_tokens_total < last.generation_tokens_total
    )
