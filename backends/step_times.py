"""Step time of one backend, learnt from its /metrics counters or from reports of every step.

Between two scrapes vLLM counts the steps and the tokens that they computed, over all clients' requests. The time
between them therefore gives one equation for the model. The decoded tokens are the requests summed over these steps,
one token each per step; the steps are taken to read the mean of the KV cache in use at both ends. Scrapes are summed
until an equation has STEPS_MIN steps, because its first and last step are seen only in part. That takes long where
steps are long; each single scrape still tells, roughly, whether the engine has changed.

Only busy time counts: a scrape with nothing running ends an equation, and the time after the last scrape is dropped. So
is the time between two scrapes in which all of a few running requests finished: the engine may have been idle in
between. A counter that falls means a restarted server. Impossible scrapes, such as steps without tokens or tokens
without steps, are ignored.

Reports of the plugin (backends/vllm_plugin) are exact. While they come, nothing is learnt from counters.
"""

import logging
from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from backends.chunk_size import ChunkSize
from backends.metrics import EngineMetrics, EngineSteps
from policies.step_time import Observation, StepGroups, StepTime, StepTimeLearner
from policies.step_time.observation import Sum

STEPS_MIN = 24  # of an equation: half of its first and of its last step is unseen, 1 in 24
WINDOW_S_MAX = 5.0  # after so long STEPS_MIN_LATE steps are enough
STEPS_MIN_LATE = 6
EDGE_STEPS = 0.5  # the mean error of a scrape's count of steps, from its first and last one
REQUESTS_MANY = 4  # running at both ends: then the engine was not idle in between
REPORTS_FRESH_S = 10.0

log = logging.getLogger(__name__)


class ReportedStep(NamedTuple):
    """The plugin's report of one step: tokens computed, KV tokens read, requests, and seconds until the next step."""

    new_tokens: int
    context_tokens: int
    requests: int
    seconds: float


def observed(report: ReportedStep) -> Observation:
    """Convert the report to an observation. A number beyond the range of a float becomes infinite, which no engine can
    do.
    """
    amounts = (report.new_tokens, report.context_tokens, report.requests)
    try:
        return Observation(report.seconds, 1.0, *(float(amount) for amount in amounts))
    except OverflowError:
        return Observation(report.seconds, 1.0, inf, inf, inf)


class StepWindows:
    """A maker of observations (sums over engine steps) from the scrapes of one backend, for each of its engines.
    Mutable.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, EngineSteps]] = {}  # the last scrape of each engine, and its time
        self.sums: dict[str, Sum] = {}
        """By engine, those that do not make an observation yet."""
        self.glimpses: list[tuple[str, Observation | None]] = []
        """The steps, or none, that the latest scrape has shown since the previous one, by engine; None: not known."""

    def scraped(self, metrics: EngineMetrics, *, now: float) -> list[Observation]:
        """Apply one scrape and return the observations that it completes. Scrapes come in order. An observation may be
        impossible if the server's counters are wrong.
        """
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
        """Record that a poll failed: the activity until the next scrape is unknown."""
        self._seen.clear()
        self.sums.clear()

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
            del self._seen[after.engine]  # the next difference would be wrong too
            self.sums.pop(after.engine, None)
            self.glimpses.append((after.engine, None))
            return seen
        self.glimpses.append((after.engine, seen))
        part = self.sums.setdefault(after.engine, Sum())
        part.add(seen)
        enough = part.steps >= STEPS_MIN or (part.seconds >= WINDOW_S_MAX and part.steps >= STEPS_MIN_LATE)
        return self._close(after.engine) if enough else None

    def _close(self, engine: str) -> Observation | None:
        """End a sum and return it as an observation if it has enough steps."""
        part = self.sums.pop(engine, None)
        return None if part is None or part.steps < STEPS_MIN_LATE else part.observation()


class StepTimes:
    """A learner of the step-time model and the chunk size of one backend, from its scrapes or the reports of its
    plugin. `start` is the first model, configured or stored. Mutable.
    """

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
        """The present estimate of the step time; None while there is none."""
        return self._learner.step_time

    @property
    def tokens_max(self) -> int | None:
        """The most tokens that one step computes, learnt from the counters; None while that is unknown."""
        return self._chunk_size.tokens_max

    @property
    def has_learnt(self) -> bool:
        """Whether the estimate differs from the first one."""
        return self._learner.step_time is not self._start

    def scraped(self, metrics: EngineMetrics, *, now: float) -> None:
        """Learn from one scrape; scrapes come in order."""
        self._chunk_size.scraped(metrics)
        observations = self._windows.scraped(metrics, now=now)
        if now - self._reported_at > REPORTS_FRESH_S:
            if self._has_changed():
                self._windows.sums.clear()
            else:
                for seen in observations:
                    self._learner.observe(seen, is_glimpsed=True)
        self._complain()

    def silent(self) -> None:
        """Record that a poll failed: the activity until the next scrape is unknown."""
        self._windows.silent()
        self._learner.unseen()
        self._chunk_size.silent()

    def reported(self, reports: Iterable[ReportedStep], *, now: float) -> None:
        """Learn from reports of single steps, in order."""
        for report in reports:
            self._reported_at = now
            step = observed(report)
            if step.is_possible and self._learner.glimpse(step, edge_steps=0.0):
                self._groups = StepGroups()
            seen = self._groups.add(step)
            if seen is not None:
                self._learner.observe(seen, is_glimpsed=True)
        self._complain()

    def _has_changed(self) -> bool:
        """Whether the latest scrape shows that the engine has changed."""
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
    """Whether the engine may have been idle between two scrapes."""
    fewest = min(before.requests_running, after.requests_running)
    finished = after.requests_finished_total - before.requests_finished_total
    return not fewest or (fewest < REQUESTS_MANY and finished >= before.requests_running)


def _context_tokens(engine: EngineSteps) -> float:
    """The KV tokens in use, less the unfilled part of each sequence's last block: half a block in the mean."""
    unfilled = engine.requests_running * (engine.kv_block_tokens - 1) / 2
    return max(engine.kv_used_tokens - unfilled, 0.0)
