"""Faults of a simulated pool: engines that die and return, or slow down; tenants that change; metrics that lag.

An engine that dies loses what it runs: a request without a token is queued again (the gateway retries it), one with
tokens loses its answer unless it is resumable. Until the death is noticed the pool keeps counting on the engine, and a
dispatch to it returns at once. The engine comes back empty.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from backends.engine.coefficients import StepCoefficients
from backends.engine.engine import Engine
from backends.simulation.world import SimulatedCall, Slot, World
from policies.scheduler_protocol import SchedulerProtocol
from policies.types import BackendLoad, Cause, Outcome, Tenant

NOTICED_AFTER_S = 2.0
REFUSED_HOLD_S = 0.5  # how long the gateway holds a backend that failed to take a request


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDies:
    """The engine is down from `at_s` until `returns_at_s`; the pool notices either `noticed_after_s` later."""

    backend_id: str
    at_s: float
    returns_at_s: float = inf
    noticed_after_s: float = NOTICED_AFTER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDrains:
    """An operator drains the backend from `at_s` to `until_s`."""

    backend_id: str
    at_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSlows:
    """The engine's steps take `factor` times as long."""

    backend_id: str
    at_s: float
    until_s: float
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantsChange:
    """An operator adds or changes tenants, and removes others."""

    at_s: float
    changed: tuple[Tenant, ...] = ()
    removed: tuple[str, ...] = ()


Fault = EngineDies | EngineDrains | EngineSlows | TenantsChange


class FaultyWorld(World):
    """A World with these faults, whose pool gets measurements `metrics_lag_s` late."""

    def __init__(
        self,
        scheduler: SchedulerProtocol,
        engines: Mapping[str, Engine],
        *,
        make_engine: Callable[[], Engine],
        faults: Iterable[Fault] = (),
        metrics_lag_s: float = 0.0,
        requests_running_max: int | None = None,
    ) -> None:
        """`make_engine` makes the engine that replaces one that died."""
        super().__init__(scheduler, engines, requests_running_max=requests_running_max)
        self._make_engine = make_engine
        self._metrics_lag_s = metrics_lag_s
        self._dead: set[str] = set()
        self._draining: set[str] = set()
        for fault in faults:
            self._schedule(fault)

    def _schedule(self, fault: Fault) -> None:
        match fault:
            case EngineDies():
                self._at(fault.at_s, partial(self._die, fault.backend_id))
                self._at(fault.at_s + fault.noticed_after_s, partial(self._is_missed, fault.backend_id))
                if fault.returns_at_s < inf:
                    self._at(fault.returns_at_s + fault.noticed_after_s, partial(self._return, fault.backend_id))
            case EngineDrains():
                self._at(fault.at_s, partial(self._drain, fault.backend_id, drains=True))
                self._at(fault.until_s, partial(self._drain, fault.backend_id, drains=False))
            case EngineSlows():
                self._at(fault.at_s, partial(self._slow, fault))
            case TenantsChange():
                self._at(fault.at_s, partial(self._change, fault))

    # -- engines ---------------------------------------------------------------------------------------------

    def _die(self, backend_id: str, now: float) -> None:
        self._dead.add(backend_id)
        for call in [call for call in self._in_flight.values() if _is_at(call, backend_id)]:
            assert call.slot is not None
            call.slot.engine.abort(call.request.id)
            if call.emitted and not call.request.is_resumable:
                self._finish(call, Outcome.BACKEND_FAILED, now)
                self._end(call, total_latency_s=None)
            else:
                self._come_back(call, now)

    def _is_missed(self, backend_id: str, now: float) -> None:
        """Remove the engine from the pool: its death is noticed."""
        if backend_id in self._dead:
            self._slots.pop(backend_id)
            self._tell_who_is_there(now)

    def _return(self, backend_id: str, now: float) -> None:
        self._dead.discard(backend_id)
        self._slots[backend_id] = Slot(backend_id, self._make_engine())
        self._tell_who_is_there(now)

    def _drain(self, backend_id: str, now: float, *, drains: bool) -> None:
        (self._draining.add if drains else self._draining.discard)(backend_id)
        self._tell_who_is_there(now)

    def _load(self, slot: Slot) -> BackendLoad:
        load = super()._load(slot)
        return replace(load, available=False, drains=True) if slot.backend_id in self._draining else load

    def _slow(self, fault: EngineSlows, now: float) -> None:
        slot = self._slots.get(fault.backend_id)
        if slot is not None:
            self._at(fault.until_s, partial(self._recover, slot.engine, slot.engine.coefficients))
            slot.engine.coefficients = _slowed(slot.engine.coefficients, fault.factor)

    def _recover(self, engine: Engine, coefficients: StepCoefficients, now: float) -> None:
        engine.coefficients = coefficients

    def _dispatch(self, call: SimulatedCall, slot: Slot, now: float) -> None:
        if slot.backend_id not in self._dead:
            super()._dispatch(call, slot, now)
            return
        call.slot = slot
        self._in_flight[call.request.id] = call
        self._at(now, partial(self._refuse, call, slot))

    def _refuse(self, call: SimulatedCall, slot: Slot, now: float) -> None:
        if call.request.id in self._in_flight and call.slot is slot:  # and was not sent elsewhere at this instant
            self._come_back(call, now)

    def _come_back(self, call: SimulatedCall, now: float) -> None:
        """Queue the call again, and hold its engine for a while."""
        self._wait_again(call, now, hold_s=REFUSED_HOLD_S, cause=Cause.FAILED)
        self._is_poll_due = True

    # -- the pool --------------------------------------------------------------------------------------------

    def _change(self, fault: TenantsChange, now: float) -> None:
        self._scheduler.tenants_changed(changed=fault.changed, removed=fault.removed, now=now)
        self._is_poll_due = True

    def _tell_who_is_there(self, now: float) -> None:
        super()._report([self._load(slot) for slot in self._slots.values()], now)

    def _report(self, loads: Sequence[BackendLoad], now: float) -> None:
        """Report measurements late; which engines exist is known without delay."""
        if not self._metrics_lag_s or not self.now:
            super()._report(loads, now)
        else:
            self._at(now + self._metrics_lag_s, partial(self._report_late, loads))

    def _report_late(self, loads: Sequence[BackendLoad], now: float) -> None:
        arrived = {load.backend_id: load for load in loads}
        super()._report([arrived.get(slot.backend_id) or self._load(slot) for slot in self._slots.values()], now)


def _is_at(call: SimulatedCall, backend_id: str) -> bool:
    return call.slot is not None and call.slot.backend_id == backend_id


def _slowed(coefficients: StepCoefficients, factor: float) -> StepCoefficients:
    lines = ("base_s", "token_s", "context_token_s", "request_s", "overhead_s")
    return replace(coefficients, **{name: factor * getattr(coefficients, name) for name in lines})
