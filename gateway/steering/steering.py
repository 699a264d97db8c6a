"""Steering: the parts of one process by which an operator sees and cancels single requests, and tries out changes.

The meters observe calls from the start. Call `connect` when all other parts exist, and `stop` at the end.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from backends.catalog import Catalog
from gateway.config.sections import Section
from gateway.forwarding.active_calls import ActiveCalls
from gateway.observability.telemetry import CallObserver
from gateway.others import Others
from gateway.registry.registry import Registry
from gateway.scheduling.pools import Pools
from gateway.steering.demo import Demo
from gateway.steering.requests import AllRequests, EndedRequests
from gateway.steering.trials import Trials
from gateway.steering.what_if.changes import ENGINES_MAX
from gateway.steering.what_if.messages import EngineSpec
from gateway.steering.what_if.recorded_calls import RecordedCalls
from gateway.steering.what_if.what_ifs import WhatIfs
from policies.step_time.model import StepTimeModel

RECORDED: Final = "recorded"  # a service
ALIKE: Final = 0.02  # step times that differ by less are those of like backends: learnt models do


class Steering:
    """The parts of one process by which an operator sees and cancels single requests, makes trial calls, and runs the
    demo and what-ifs (simulations of recent calls with other settings). Made on the loop.
    """

    def __init__(self, others: Others, catalog: Catalog) -> None:
        self._others = others
        self._catalog = catalog
        self.ended = EndedRequests(others.name, catalog.pool_of_model)
        self._recorded = RecordedCalls()
        others.services[RECORDED] = self._recorded.lines
        self.requests: AllRequests
        self.what_ifs: WhatIfs
        self.demo: Demo
        self.trials: Trials
        self._pools: Pools

    @property
    def meters(self) -> Sequence[CallObserver]:
        return (self.ended, self._recorded)

    def connect(
        self,
        pools: Pools,
        active: ActiveCalls,
        *,
        registry: Registry,
        sections_of: Callable[[str], Mapping[str, Section]],
        demo: Demo,
        trials: Trials,
    ) -> None:
        """Connect these parts with the rest of the gateway, which exists now. `sections_of` gives the settings of a
        pool's Scheduler, as sections of the configuration.
        """
        self._pools = pools
        self._recorded.active = active
        self.demo = demo
        self.trials = trials
        self.requests = AllRequests(self._others, pools, active, self.ended)

        def config_of(pool: str) -> Callable[[], Mapping[str, Any]]:
            sections = sections_of(pool)
            entries = {kind: registry.entries(kind) for kind in ("tenants", "groups", "tiers")}
            return lambda: _config(sections, entries)

        self.what_ifs = WhatIfs(
            self._others,
            calls=self._calls,
            pools=lambda: {card.id: self._catalog.pool_of_model(card.id) or "" for card in self._catalog.models()},
            engine_of=self._engine_of,
            config_of=config_of,
        )

    async def stop(self) -> None:
        await self.demo.stop()
        await self.what_ifs.stop()

    async def _calls(self, seconds: float) -> bytes:
        """The recorded calls of all processes in the last `seconds`."""
        body = str(seconds).encode()
        answers, _ = await self._others.ask_all(self._others.names(), RECORDED, body)
        return b"".join((await self._recorded.lines(body), *answers))

    def _engine_of(self, pool: str) -> EngineSpec:
        """The specification of engines like the backends of this pool, as their Scheduler knows them now."""
        overview = self._pools.overviews().get(pool)
        backends = {} if overview is None else dict(sorted(overview.backends.items()))
        backends = {name: each for name, each in backends.items() if each.available} or backends
        views, names = list(backends.values()), list(backends)
        if not views:
            return EngineSpec(engines=1, requests_running_max=256, kv_tokens_max=None)
        tokens = [each.tokens_limit for each in views if each.tokens_limit is not None]
        models = [None if each.step_time is None else each.step_time.model for each in views]
        model = next((each for each in models if each is not None), None)
        spec = EngineSpec(
            engines=min(len(views), ENGINES_MAX),
            requests_running_max=max(1, sum(each.requests_limit for each in views) // len(views)),
            kv_tokens_max=sum(tokens) // len(tokens) if tokens else None,
            names=names[:ENGINES_MAX],
        )
        if model is not None:
            spec.base_s, spec.token_s = model.base_s, model.token_s
            spec.context_token_s, spec.request_s = model.context_token_s, model.request_s
            spec.paces = _paces(model, models[: spec.engines], spec.requests_running_max)
        return spec


def _paces(usual: StepTimeModel, models: Sequence[StepTimeModel | None], running: int) -> list[float]:
    """The pace of each backend: its step time with half of its slots decoding, over that of `usual`. It is 1 for an
    unknown model. Empty where all are equal.
    """
    half = max(1, running // 2)

    def step_s(model: StepTimeModel) -> float:
        return model.step_s(new_tokens=half, context_tokens=0, requests=half)

    paces = [round(step_s(each or usual) / step_s(usual), 3) if step_s(usual) > 0.0 else 1.0 for each in models]
    return [] if all(abs(each - 1.0) < ALIKE for each in paces) else paces


def _config(sections: Mapping[str, Any], entries: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """A configuration of these sections and entries, in the form of a file."""
    found: dict[str, Any] = {name: section.model_dump(mode="json") for name, section in sections.items()}
    for kind, of in entries.items():
        found[kind] = {entry.name: _section(entry.section) for entry in of}
    return found


def _section(section: Section) -> dict[str, Any]:
    """A section in the form of a file, where a tenant with a group names no tier."""
    fields: dict[str, Any] = section.model_dump(mode="json")
    if fields.get("group") is not None:
        del fields["tier"]
    return fields
