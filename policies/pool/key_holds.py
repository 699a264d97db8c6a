"""Key holds: the requests of an API key at its in-flight limit wait outside of the order.

A key has no share of its own: its requests are those of its tenant. So its limit is kept before the order. A request
enters the order where fewer than `in_flight_max` requests of its key have entered it and not ended; otherwise it is
held. A held request is queued: it counts against the limits of the queue, and its queue timeout runs. But it neither
blocks its tenant's other requests nor earns its tenant credit, as at the tenant's own in-flight limit. Held requests
enter in the order of their arrival, each at the place that its arrival gives it among its tenant's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from policies.queueing.fair_queue import QueuedTenant
from policies.types import Request, Tenant


@dataclass(slots=True)
class _Key:
    """A key with an in-flight limit: the ids of its requests in the order or in flight, and its held requests."""

    tenant_id: str
    entered: set[str] = field(default_factory=set)
    held: dict[str, Request] = field(default_factory=dict)  # oldest first


class KeyHolds:
    """The part of a Scheduler that enforces the in-flight limits of API keys. While a key is at its limit, its further
    requests are held: they wait outside of the fair order of the queue, and are not dispatched. Mutable.
    """

    def __init__(self, tenants: Mapping[str, QueuedTenant]) -> None:
        """`tenants` are the tenants of the pool, with their present settings."""
        self._tenants = tenants
        self.keys: dict[str, _Key] = {}
        """Keys with an in-flight limit, of which anything is held, in the order or in flight. To read."""
        self.freed: dict[str, None] = {}
        """Keys that may have room for what is held. To read."""

    def enters(self, request: Request) -> bool:
        """Whether the request enters the order now; if so, it counts until `left`. A request that entered before enters
        again, unless too many have entered since.
        """
        limit = self._limit(request.tenant_id, request.key_id) if request.key_id else None
        if limit is None:
            return True
        key = self._key(request)
        if request.id not in key.entered:
            if key.held or len(key.entered) >= limit:
                return False
            key.entered.add(request.id)
        elif len(key.entered) > limit:
            key.entered.remove(request.id)
            return False
        return True

    def runs(self, request: Request) -> None:
        """Count a request that is in flight whatever the limit, because another scheduler has sent it."""
        if request.key_id and self._limit(request.tenant_id, request.key_id) is not None:
            self._key(request).entered.add(request.id)

    def is_over(self, request: Request) -> bool:
        """Whether more requests of this request's key have entered than may be in flight."""
        key = self.keys.get(request.key_id) if self.keys else None
        limit = None if key is None else self._limit(request.tenant_id, request.key_id)
        return key is not None and limit is not None and len(key.entered) > limit

    def hold(self, request: Request) -> None:
        """Hold the request until its key has room."""
        self._key(request).held[request.id] = request
        self.freed[request.key_id] = None  # another of its key may have left since it was asked

    def is_held(self, request: Request) -> bool:
        """Whether the request is held until its key has room."""
        key = self.keys.get(request.key_id) if self.keys else None
        return key is not None and request.id in key.held

    def left(self, request: Request) -> None:
        """The request is gone: it is neither held nor in the order nor in flight."""
        key = self.keys.get(request.key_id) if self.keys else None
        if key is None:
            return
        key.held.pop(request.id, None)
        key.entered.discard(request.id)
        if key.held:
            self.freed[request.key_id] = None
        elif not key.entered:
            del self.keys[request.key_id]
            self.freed.pop(request.key_id, None)

    def release(self) -> Request | None:
        """The oldest held request of a key that has room, which enters now; None where there is none."""
        while self.freed:
            key_id = next(iter(self.freed))
            key = self.keys.get(key_id)
            if key is not None and key.held:
                limit = self._limit(key.tenant_id, key_id)
                if limit is None or len(key.entered) < limit:
                    request = key.held.pop(next(iter(key.held)))
                    key.entered.add(request.id)
                    return request
            del self.freed[key_id]
        return None

    def changed(self, before: Tenant | None, tenant: Tenant | None) -> list[str]:
        """The ids of the tenant's keys whose in-flight limits have changed: each has to `begin` again."""
        if before is None or tenant is None or before.keys == tenant.keys:
            return []
        limits, now = _limits(before), _limits(tenant)
        return [each for each in sorted(limits.keys() | now.keys()) if limits.get(each) != now.get(each)]

    def begin(self, tenant_id: str, key_id: str, *, entered: Iterable[str], waiting: Iterable[Request]) -> None:
        """Count a key from the start: requests with ids in `entered` have entered, those in `waiting` are held."""
        ordered = sorted(waiting, key=lambda each: (not each.produced_tokens, each.arrived_at, each.id))
        self.keys[key_id] = _Key(tenant_id, set(entered), {each.id: each for each in ordered})
        self.freed[key_id] = None

    def _limit(self, tenant_id: str, key_id: str) -> int | None:
        state = self._tenants.get(tenant_id)
        limits = None if state is None else state.tenant.keys.get(key_id)
        return None if limits is None else limits.in_flight_max

    def _key(self, request: Request) -> _Key:
        key = self.keys.get(request.key_id)
        if key is None:
            key = self.keys[request.key_id] = _Key(request.tenant_id)
        return key


def _limits(tenant: Tenant) -> dict[str, int | None]:
    return {key_id: limits.in_flight_max for key_id, limits in tenant.keys.items() if limits.in_flight_max is not None}
