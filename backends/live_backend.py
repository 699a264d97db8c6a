"""Live backend: the configuration of one backend, the observations of it, and the load that a scheduler gets."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from backends.catalog import ModelCard
from backends.health import BackendHealth
from backends.kinds import GENERIC, GENERIC_WITHOUT_OPTIONS, BackendKind, Sizes
from backends.metrics import EngineMetrics
from backends.model_identity import ModelIdentity, identity
from backends.plugin_reports import EngineNews, PluginReports, name_at_plugin
from backends.spec import BackendSpec
from backends.step_counts import StepCounts
from backends.step_times import StepTimes
from policies.types import BackendLoad


@dataclass(slots=True)
class LiveBackend:
    """The state of one backend, as its polls last found it: health, models, sizes, load. The tasks that poll the
    backend write it. Mutable.
    """

    spec: BackendSpec
    health: BackendHealth
    step_times: StepTimes
    member: str = ""
    """The name of this process, where the gateway has several: they share the gateway's name at a plugin."""
    step_counts: StepCounts = field(default_factory=StepCounts)
    metrics: EngineMetrics = field(default_factory=EngineMetrics)
    plugin: PluginReports = field(default_factory=PluginReports)
    measured_at: float | None = None
    models_at: float = float("-inf")
    models_error: str = ""
    last_error: str = ""
    kind: BackendKind | None = None
    cards: tuple[ModelCard, ...] = ()
    tokenizer: str | None = None  # its fingerprint; None: not asked yet
    sizes: Sizes = field(default_factory=Sizes)
    probe: asyncio.Task[None] | None = None
    load: BackendLoad | None = None  # as last reported
    ask_now: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)  # set when the present round ends, then replaced
    task: asyncio.Task[None] | None = None
    draining: bool = False  # nothing more is dispatched to it
    leaving: bool = False  # retired: no longer in the catalog
    lost_at: float = float("-inf")  # when a call here last lost its engine
    unavailable_at: float | None = None  # since when it is not available; None: it is

    @property
    def known_kind(self) -> BackendKind:
        """The kind of the server, which defines the features that it supports; a plain OpenAI server while it is
        unknown.
        """
        return self.kind or GENERIC

    @property
    def plugin_name(self) -> str | None:
        """The name under which the plugin inside this backend knows this process; None if no plugin answers there."""
        if self.plugin.engines is None:
            return None
        return name_at_plugin(self.plugin.gateway, self.member) if self.member else self.plugin.gateway

    @property
    def reads_priority(self) -> bool:
        """Whether this backend is known to order its own queue by the priority of each call."""
        if self.spec.reads_priority is not None:
            return self.spec.reads_priority
        return bool(self.plugin.engines and self.plugin.engines.reads_priority)

    def identified(self, model: str) -> Callable[[], ModelIdentity | None]:
        """A function that returns the identity of the model served under this name, or None if the identity is unknown.
        A function, because few calls need the identity.
        """
        return partial(identity, model, self.cards, revision=self.spec.revision, tokenizer=self.tokenizer)

    def rejects_options(self) -> None:
        """Record that this backend rejects `stream_options`."""
        self.kind = GENERIC_WITHOUT_OPTIONS

    def note_availability(self, now: float) -> None:
        """Record `now` as the time since which the backend is not available, if it has just become so."""
        if self.health.available:
            self.unavailable_at = None
        elif self.unavailable_at is None:
            self.unavailable_at = now

    def measured(self) -> BackendLoad:
        """Return the backend's load for a scheduler. Configuration overrides the values that the backend reports, which
        override the learnt ones.
        """
        engines = self.plugin.engines or EngineNews()
        reported = self.metrics.load(self.spec.id, available=self.health.available and not self.draining)
        load = replace(
            reported,
            kv_tokens_max=self.spec.kv_tokens_max or self.sizes.kv_tokens_max or reported.kv_tokens_max,
            requests_running_max=(
                self.spec.requests_running_max or self.sizes.requests_running_max or engines.requests_running_max
            ),
            measured_at=None if self.metrics.requests_running is None else self.measured_at,
            step_tokens_max=self.spec.step_tokens_max or engines.step_tokens_max or self.step_times.tokens_max,
            prompt_step_tokens_max=self.spec.prompt_step_tokens_max,
            step_time=self.step_times.step_time,
            drains=self.draining,
        )
        if self.plugin.engines is None:
            return load
        return replace(load, batching="fair", pab_tokens=engines.pab_tokens, pab_dispatches=engines.pab_dispatches)
