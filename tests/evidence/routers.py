"""Gateways that send every request at once, as most do: the Scheduler with limits that never bind, first come, first
served, and one of its placements.

least-reserved  the backend with the fewest requests in flight: where no memory is known, no other need is
round-robin     the next backend, in order of id
pab             FairBatching's router (policies/placement/pab.py): the largest prefill admission budget, which every
                backend reports after every step
kubernetes      the Gateway API inference extension by its documented defaults: a pool is saturated when the mean
                over its backends of max(waiting / 5, KV used / 0.8) is 1 or more, and requests of sheddable tiers
                (priority below 0) are rejected then; all others go to the backend of the best score, an equal sum
                of how short its queue is among the others' and how empty its KV cache, by metrics of up to 50 ms
                ago; ties are broken at random
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

from policies.admission import Admission
from policies.admission.base import AdmissionReject
from policies.capacity.backend import BackendCapacity
from policies.fairness import FAIRNESS
from policies.limit import RoomOnly
from policies.placement import PLACEMENT, Placement
from policies.placement.base import Fits, always
from policies.queues import PoolQueues
from policies.scheduler import Scheduler
from policies.types import DEFAULT_TIER, BackendLoad, Reason, Request, Tenant

QUEUE_DEPTH_MAX = 5
KV_USED_RATIO_MAX = 0.8
METRICS_EVERY_S = 0.05
RETRY_AFTER_S = 1.0  # no client retries here
REQUESTS_MAX = 1_000_000  # at one backend: never reached
PATIENCE_S = 1e6  # no request is rejected for waiting


def send_at_once(placement: str, tenant_ids: Iterable[str], *, refuses: bool = False) -> Scheduler:
    """Return a Scheduler that sends every request when it arrives, to backends that are said to have REQUESTS_MAX
    slots; all tenants are alike. With `refuses` it rejects those whose first token would be late by its forecast.
    """
    tiers = [replace(DEFAULT_TIER, rejects_misses=refuses)]
    return Scheduler(tiers=tiers, placement=PLACEMENT[placement](), admission=(), **_unlimited(tenant_ids))


def _unlimited(tenant_ids: Iterable[str]) -> dict[str, Any]:
    return {
        "tenants": [Tenant(name) for name in tenant_ids],
        "fairness": FAIRNESS["fifo"],
        "share_ratio_max": 1.0,
        "headroom_ratio_max": inf,
        "limit": RoomOnly,
        "wait_s_max": PATIENCE_S,
    }


class Kubernetes(Placement, Admission):
    """The Kubernetes rule. A request with `priority_of` below 0 may be rejected. `loads` are the backends as last
    measured.
    """

    def __init__(self, rng: Random, priority_of: Callable[[Request], int] = lambda _: 0) -> None:
        self.loads: Sequence[BackendLoad] = ()
        self._rng = rng
        self._priority_of = priority_of

    def check(self, request: Request, tenant: Tenant, queues: PoolQueues, now: float) -> AdmissionReject | None:
        if self._priority_of(request) < 0 and _saturation(self.loads) >= 1.0:
            return AdmissionReject(Reason.SHED, RETRY_AFTER_S)
        return None

    def place(
        self, request: Request, candidates: Sequence[BackendCapacity], fits: Fits = always
    ) -> BackendCapacity | None:
        shortest, longest = (which(_waiting(each.load) for each in candidates) for which in (min, max))
        span = longest - shortest or 1

        def score(backend: BackendCapacity) -> tuple[float, float]:
            queue = (longest - _waiting(backend.load)) / span
            return queue + 1.0 - (backend.load.kv_used_ratio or 0.0), self._rng.random()

        return max(candidates, key=score)


class KubernetesGateway(Scheduler):
    """Sends at once what the Kubernetes rule does not reject."""

    def __init__(self, rule: Kubernetes, tenant_ids: Iterable[str]) -> None:
        super().__init__(placement=rule, admission=(rule,), **_unlimited(tenant_ids))
        self._rule = rule

    def load_changed(self, loads: Sequence[BackendLoad], now: float) -> None:
        self._rule.loads = loads
        super().load_changed(loads, now)


def _waiting(load: BackendLoad) -> int:
    return load.requests_waiting or 0


def _saturation(loads: Sequence[BackendLoad]) -> float:
    each = [max(_waiting(one) / QUEUE_DEPTH_MAX, (one.kv_used_ratio or 0.0) / KV_USED_RATIO_MAX) for one in loads]
    return sum(each) / len(each)
