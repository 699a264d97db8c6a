"""One backend of the live set: what is configured of it, what it was seen to be, and what that is to a scheduler."""

import asyncio
from dataclasses import dataclass, field, replace

from backends.catalog import ModelCard
from backends.health import BackendHealth
from backends.kinds import BackendKind, Sizes
from backends.metrics import EngineMetrics
from backends.plugin_reports import EngineNews, PluginReports
from backends.running_limit import RunningLimit
from backends.spec import BackendSpec
from backends.step_counts import StepCounts
from backends.step_times import StepTimes
from policies.types import BackendLoad


@dataclass(slots=True)
class LiveBackend:
    """Mutable; whoever asks the backend writes down here what it says."""

    spec: BackendSpec
    health: BackendHealth
    step_times: StepTimes
    step_counts: StepCounts = field(default_factory=StepCounts)
    metrics: EngineMetrics = field(default_factory=EngineMetrics)
    running_limit: RunningLimit = field(default_factory=RunningLimit)
    plugin: PluginReports = field(default_factory=PluginReports)
    measured_at: float | None = None
    models_at: float = float("-inf")
    models_error: str = ""
    trouble: str = ""
    kind: BackendKind | None = None
    cards: tuple[ModelCard, ...] = ()
    sizes: Sizes = field(default_factory=Sizes)
    probe: asyncio.Task[None] | None = None
    load: BackendLoad | None = None  # as last told
    ask_now: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)  # of the round that goes on; another one for the next
    task: asyncio.Task[None] | None = None
    draining: bool = False  # it is sent nothing more
    leaving: bool = False  # nobody is told of it any more

    def measured(self, now: float) -> BackendLoad:
        """What a scheduler is told. What is configured goes before what the backend says, and that before what is
        learnt.
        """
        engines = self.plugin.engines or EngineNews()
        load = self.metrics.load(
            self.spec.id,
            available=self.health.available and not self.draining,
            kv_tokens_max=self.spec.kv_tokens_max or self.sizes.kv_tokens_max,
            requests_running_max=(
                self.spec.requests_running_max
                or self.sizes.requests_running_max
                or engines.requests_running_max
                or self.running_limit.limit(now)
            ),
            measured_at=None if self.metrics.requests_running is None else self.measured_at,
            step_tokens_max=self.spec.step_tokens_max or engines.step_tokens_max or self.step_times.tokens_max,
            prompt_step_tokens_max=self.spec.prompt_step_tokens_max,
            step_time=self.step_times.step_time,
        )
        if self.plugin.engines is None:
            return load
        return replace(load, batching="fair", pab_tokens=engines.pab_tokens, pab_dispatches=engines.pab_dispatches)
