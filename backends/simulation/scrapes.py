"""Scrapes: the step time of a simulated engine, learnt from its counters, as vLLM's /metrics shows them, by the same
learner that the gateway uses for a server without configured values.
"""

from backends.engine.engine import Engine, Leap, StepResult
from backends.engine.http.exposition import EngineMeters
from backends.metrics import EngineMetrics, EngineSteps
from backends.step_times import StepTimes


class ScrapedSteps:
    """A learner of one simulated engine's step time. It counts the engine's steps as vLLM's metrics do, and learns from
    these counts at each scrape, as the gateway does. Mutable.
    """

    def __init__(self, backend_id: str, engine: Engine) -> None:
        self._engine = engine
        self._meters = EngineMeters()
        self._finished = 0
        self.learnt = StepTimes(backend_id)

    def ended(self, report: StepResult) -> None:
        """Count a step that has ended."""
        self._meters.step(report)
        self._finished += len(report.finished)

    def leapt(self, leap: Leap) -> None:
        """Count the steps of a leap; each gave every running sequence one token."""
        self._meters.decoded(steps=leap.steps, tokens=len(leap.emitted))

    def scraped(self, now: float) -> None:
        """Read the counters. Calls are in order of time."""
        gauges, kv_tokens_max = self._engine.snapshot(), self._engine.kv_tokens_max
        steps = EngineSteps(
            engine="0",
            steps_total=sum(self._meters.iteration_counts),
            step_tokens_total=self._meters.iteration_tokens,
            generation_tokens_total=gauges.emitted_tokens_total,
            requests_running=gauges.requests_running,
            kv_used_tokens=gauges.kv_used_ratio * kv_tokens_max,
            kv_block_tokens=self._engine.block_tokens,
            requests_waiting=gauges.requests_waiting,
            requests_finished_total=self._finished,
        )
        self.learnt.scraped(EngineMetrics(kv_used_ratio=gauges.kv_used_ratio, engine_steps=(steps,)), now=now)
