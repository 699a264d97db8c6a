"""Routers of other gateways, which send every request at once. They stand in for a Scheduler and have no queue.

round-robin     the next backend, in order of id
least-request   the backend with the fewest requests in flight from here
kubernetes      the Gateway API inference extension by its documented defaults: a pool is saturated when the mean
                over its backends of max(waiting / 5, KV used / 0.8) is 1 or more, and requests of sheddable tiers
                (priority below 0) are rejected then; all others go to the backend of the best score, an equal sum
                of how short its queue is among the others' and how empty its KV cache, by metrics of up to 50 ms
                ago; ties are broken at random
pab             FairBatching's router (arXiv 2510.14392, appendix A): the backend with the largest prefill admission
                budget, which every backend reports after every step; what is sent is subtracted at once. With
                admission a request that fits no backend is rejected.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from policies.types import (
    Action,
    BackendLoad,
    Dispatch,
    Outcome,
    PolicyChoice,
    RateLimits,
    Reason,
    Reject,
    Request,
    Snapshot,
    Tenant,
    Tier,
    Timing,
    Usage,
)

QUEUE_DEPTH_MAX = 5
KV_USED_RATIO_MAX = 0.8
METRICS_EVERY_S = 0.05
RETRY_AFTER_S = 1.0  # no client retries here


@dataclass(slots=True)
class RoutedBackend:
    """What a router knows of a backend: its last metrics, and the number of its own requests in flight."""

    load: BackendLoad
    requests: int = 0

    @property
    def waiting(self) -> int:
        return self.load.requests_waiting or 0

    @property
    def kv_used_ratio(self) -> float:
        return self.load.kv_used_ratio or 0.0


class Rule(Protocol):
    """A routing rule: returns the backend for a request, or None to reject it."""

    def __call__(self, request: Request, backends: Mapping[str, RoutedBackend], /) -> str | None: ...


class RoundRobinRule:
    def __init__(self) -> None:
        self._sent = 0

    def __call__(self, request: Request, backends: Mapping[str, RoutedBackend]) -> str:
        self._sent += 1
        return sorted(backends)[(self._sent - 1) % len(backends)]


def least_request(request: Request, backends: Mapping[str, RoutedBackend]) -> str:
    return min(backends, key=lambda name: (backends[name].requests, name))


class Kubernetes:
    """The Kubernetes rule. A request with `priority_of` below 0 may be rejected."""

    def __init__(self, rng: Random, priority_of: Callable[[Request], int] = lambda _: 0) -> None:
        self._rng = rng
        self._priority_of = priority_of

    def __call__(self, request: Request, backends: Mapping[str, RoutedBackend]) -> str | None:
        if self._priority_of(request) < 0 and _saturation(backends.values()) >= 1.0:
            return None
        shortest, longest = (which(each.waiting for each in backends.values()) for which in (min, max))
        span = longest - shortest or 1

        def score(name: str) -> tuple[float, float]:
            backend = backends[name]
            return (longest - backend.waiting) / span + 1.0 - backend.kv_used_ratio, self._rng.random()

        return max(backends, key=score)


class PrefillBudget:
    """The PAB rule. `budget_of` a backend is its present report, in prompt tokens, which does not include what was sent
    at this instant.
    """

    def __init__(self, budget_of: Callable[[str, float], float], *, refuses: bool) -> None:
        self._budget_of = budget_of
        self._refuses = refuses
        self._at = -1.0
        self._sent: dict[str, int] = {}

    def __call__(self, request: Request, backends: Mapping[str, RoutedBackend]) -> str | None:
        if request.arrived_at != self._at:
            self._at, self._sent = request.arrived_at, dict.fromkeys(backends, 0)
        budgets = {name: self._budget_of(name, request.arrived_at) - self._sent[name] for name in backends}
        best = max(budgets, key=lambda name: (budgets[name], name))
        if self._refuses and budgets[best] < request.prompt_tokens:
            return None
        self._sent[best] += request.prompt_tokens
        return best


def _saturation(backends: Iterable[RoutedBackend]) -> float:
    each = [max(one.waiting / QUEUE_DEPTH_MAX, one.kv_used_ratio / KV_USED_RATIO_MAX) for one in backends]
    return sum(each) / len(each)


class Router:
    """Dispatches every arrived request to the backend of the rule."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._arrived: list[Request] = []
        self._backends: dict[str, RoutedBackend] = {}
        self._sent: dict[str, str] = {}  # request -> backend

    def submit(self, request: Request, now: float) -> None:
        self._arrived.append(request)

    def poll(self, now: float) -> list[Action]:
        actions = [self._act(request) for request in self._arrived]
        self._arrived.clear()
        return actions

    def finished(self, request_id: str, outcome: Outcome, now: float, timing: Timing | None = None) -> None:
        self._backends[self._sent.pop(request_id)].requests -= 1

    def load_changed(self, loads: Sequence[BackendLoad], now: float) -> None:
        for load in loads:
            self._backends.setdefault(load.backend_id, RoutedBackend(load)).load = load

    def _act(self, request: Request) -> Action:
        backend_id = self._rule(request, self._backends)
        if backend_id is None:
            return Reject(request.id, Reason.SHED, RETRY_AFTER_S)
        self._backends[backend_id].requests += 1
        self._sent[request.id] = backend_id
        return Dispatch(request.id, backend_id, quiet_tokens=request.output_tokens_max)

    # -- unused calls ------------------------------------------------------------------------------------------

    def next_wakeup(self) -> float | None:
        return None

    def tokens(self, request_id: str, usage: Usage, now: float) -> None: ...
    def returned(self, request_id: str, now: float, hold_s: float = 0.0) -> None: ...
    def cancel(self, request_id: str, now: float) -> None: ...
    def spent(self, tenant_id: str, usage: Usage, now: float) -> None: ...
    def tenants_changed(
        self,
        *,
        changed: Iterable[Tenant] = (),
        removed: Iterable[str] = (),
        tiers: Iterable[Tier] = (),
        now: float,
    ) -> None: ...
    def policy_changed(
        self,
        *,
        fairness: PolicyChoice | None = None,
        prediction: PolicyChoice | None = None,
        sizing: PolicyChoice | None = None,
        placement: PolicyChoice | None = None,
        now: float,
    ) -> None: ...

    def snapshot(self, now: float) -> Snapshot:
        return Snapshot(now, len(self._arrived), 0, len(self._sent))

    def rate_limits(self, tenant_id: str, now: float) -> RateLimits:
        return RateLimits()
