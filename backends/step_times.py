"""The step time of one backend, learnt from outside: from what its /metrics counts, or from reports of every step.

Between two scrapes vLLM has counted steps and the tokens that they computed, of whoever's requests; so the time
between them is an equation for the model. The tokens that were decoded are the requests in all these steps (one
token for each in each), and the KV cache in use, at both ends, is what they read. Scrapes are put together until an
equation has STEPS_MIN steps, for the first and the last are only seen in part. That is much to wait for where steps
are long; whether the engine has become another one is told by every scrape, roughly.

Only busy time counts: a scrape with nothing running ends an equation, and what came after the last is nobody's. So is
the time between two scrapes in which all of the few that ran have finished: nobody may have run in between. A counter
that falls is a server that was started again. A scrape in which steps pass without tokens, or tokens without
steps, and whatever else no engine does, is ignored.

Reports (backends/vllm_plugin) say it exactly. While they come, nothing is learnt from counters.
"""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from backends.chunk_size import ChunkSize
from backends.metrics import EngineMetrics, EngineSteps
from policies.step_time import Observation, StepGroups, StepTime, StepTimeLearner
from policies.step_time.observation import Sum

STEPS_MIN = 24  # of an equation: of a scrape's first and last step half is not seen, 1 in 24
WINDOW_S_MAX = 5.0  # or as many as there are after so long
STEPS_MIN_LATE = 6
EDGE_STEPS = 0.5  # of a scrape's first and last step together half a one too much or too little is seen, in the mean
REQUESTS_MANY = 4  # at both ends: then some will have run in between, whoever finished
REPORTS_FRESH_S = 10.0

log = logging.getLogger(__name__)


class ReportedStep(NamedTuple):
    """One step: tokens computed, KV tokens read, requests in it, and seconds from its start to that of the next."""

    new_tokens: int
    context_tokens: int
    requests: int
    seconds: float


class StepWindows:
    """Makes observations of the scrapes of one backend. Its engines are watched one by one."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, EngineSteps]] = {}  # the last scrape of each engine, and when it was
        self._sums: dict[str, Sum] = {}  # by engine
        self.glimpses: list[tuple[str, Observation | None]] = []
        """By engine, what the latest scrape has shown since the one before it, steps or none; None: cannot be said."""

    def scraped(self, metrics: EngineMetrics, *, now: float) -> list[Observation]:
        """Take in one scrape; scrapes come in order. What is returned may be impossible, where the server lies."""
        found = []
        self.glimpses = []
        for engine in metrics.engine_steps:
            before = self._seen.get(engine.engine)
            self._seen[engine.engine] = now, engine
            seen = None if before is None else self._between(before[1], engine, now - before[0])
            if seen is not None:
                found.append(seen)
        return found

    def silent(self) -> None:
        """It did not answer: what it does until the next scrape is not known."""
        self._seen.clear()
        self.forget_sums()

    def forget_sums(self) -> None:
        """What was seen so far and is not an observation yet is not worth one."""
        self._sums.clear()

    def _between(self, before: EngineSteps, after: EngineSteps, seconds: float) -> Observation | None:
        steps = after.steps_total - before.steps_total
        if steps < 0 or _may_have_paused(before, after):
            self.glimpses.append((after.engine, None))
            return self._close(after.engine)
        seen = Observation(
            seconds=seconds,
            steps=steps,
            new_tokens=after.step_tokens_total - before.step_tokens_total,
            context_token_steps=steps * (_context_tokens(before) + _context_tokens(after)) / 2,
            request_steps=after.generation_tokens_total - before.generation_tokens_total,
        )
        if steps and not seen.is_possible:
            del self._seen[after.engine]  # nor is a difference to it worth anything
            self._sums.pop(after.engine, None)
            self.glimpses.append((after.engine, None))
            return seen
        self.glimpses.append((after.engine, seen))
        part = self._sums.setdefault(after.engine, Sum())
        part.add(seen)
        enough = part.steps >= STEPS_MIN or (part.seconds >= WINDOW_S_MAX and part.steps >= STEPS_MIN_LATE)
        return self._close(after.engine) if enough else None

    def _close(self, engine: str) -> Observation | None:
        """What is summed up, if it is enough."""
        part = self._sums.pop(engine, None)
        return None if part is None or part.steps < STEPS_MIN_LATE else part.observation()


class StepTimes:
    """Learns from one backend. It starts from `start`: configured, or stored."""

    def __init__(self, backend_id: str, start: StepTime | None = None) -> None:
        self._backend_id = backend_id
        self._start = start
        self._learner = StepTimeLearner(start)
        self._windows = StepWindows()
        self._chunk_size = ChunkSize()
        self._groups = StepGroups()
        self._reported_at = float("-inf")
        self._complained = False

    @property
    def step_time(self) -> StepTime | None:
        """What is believed of its steps now; None while nothing is."""
        return self._learner.step_time

    @property
    def tokens_max(self) -> int | None:
        """The most tokens that one of its steps computes, as far as its counters showed it; None while they did not."""
        return self._chunk_size.tokens_max

    @property
    def has_learnt(self) -> bool:
        """Whether that is another than it started from."""
        return self._learner.step_time is not self._start

    def scraped(self, metrics: EngineMetrics, *, now: float) -> None:
        """Learn from one scrape; scrapes come in order."""
        self._chunk_size.scraped(metrics)
        observations = self._windows.scraped(metrics, now=now)
        if now - self._reported_at > REPORTS_FRESH_S:
            if self._has_changed():
                self._windows.forget_sums()
            else:
                for seen in observations:
                    self._learner.observe(seen, is_glimpsed=True)
        self._complain()

    def silent(self) -> None:
        """It did not answer: what it does until the next scrape is not known."""
        self._windows.silent()
        self._learner.unseen()
        self._chunk_size.silent()

    def reported(self, reports: Iterable[ReportedStep], *, now: float) -> None:
        """Learn from reports of single steps, in order."""
        for report in reports:
            self._reported_at = now
            step = Observation(report.seconds, 1, report.new_tokens, report.context_tokens, report.requests)
            if step.is_possible and self._learner.glimpse(step, edge_steps=0.0):
                self._groups = StepGroups()
            seen = self._groups.add(step)
            if seen is not None:
                self._learner.observe(seen, is_glimpsed=True)
        self._complain()

    def _has_changed(self) -> bool:
        """Whether the engine is found to be another one than before, by what the latest scrape has shown."""
        changed = False
        for engine, seen in self._windows.glimpses:
            if seen is None:
                self._learner.unseen(engine)
            else:
                changed = self._learner.glimpse(seen, engine=engine, edge_steps=EDGE_STEPS) or changed
        return changed

    def _complain(self) -> None:
        if self._learner.ignored_total and not self._complained:
            self._complained = True
            log.warning("backend %s: what it says of its steps cannot be, and is ignored", self._backend_id)


def _may_have_paused(before: EngineSteps, after: EngineSteps) -> bool:
    """Whether there may have been time with nothing running between two scrapes."""
    fewest = min(before.requests_running, after.requests_running)
    finished = after.requests_finished_total - before.requests_finished_total
    return not fewest or (fewest < REQUESTS_MANY and finished >= before.requests_running)


def _context_tokens(engine: EngineSteps) -> float:
    """KV tokens in use, without the part of its last block that a sequence has not filled: half of it, in the mean."""
    unfilled = engine.requests_running * (engine.kv_block_tokens - 1) / 2
    return max(engine.kv_used_tokens - unfilled, 0.0)
