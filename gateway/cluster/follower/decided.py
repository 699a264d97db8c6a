"""Decided: the leader's decisions on a member's requests, until the drivers of its pools carry them out."""

from collections import defaultdict

from gateway.cluster.follower.member_requests import OwnRequest
from gateway.cluster.wire import LimitsOf
from policies.types import Action, RateLimits

NO_LIMITS = RateLimits()


class Decided:
    """The queue of the leader's actions (dispatch, reject, preempt) that one member (a process of the cluster) has
    still to carry out, by pool. It also keeps the limits per minute that the leader sent last, by tenant and key.
    Mutable.
    """

    def __init__(self) -> None:
        self._actions: defaultdict[str, list[Action]] = defaultdict(list)
        self._limits: dict[tuple[str, LimitsOf], RateLimits] = {}

    def __bool__(self) -> bool:
        return any(self._actions.values())

    def add(self, pool: str, action: Action) -> None:
        self._actions[pool].append(action)

    def take(self, pool: str) -> list[Action]:
        """The actions of this pool to carry out now; each action is returned once."""
        return self._actions.pop(pool, [])

    def drop(self, own: OwnRequest) -> None:
        """The request has ended: drop its actions, such as a Withdraw."""
        actions = self._actions.get(own.pool)
        if actions:
            actions[:] = [action for action in actions if action.request_id != own.request.id]

    def limited(self, own: OwnRequest, limits: RateLimits) -> None:
        """Record the limits per minute for the tenant and key of this request, in its pool."""
        self._limits[own.pool, LimitsOf(own.request.tenant_id, own.request.key_id)] = limits

    def limits(self, pool: str, of: LimitsOf) -> RateLimits:
        """The limits per minute of a tenant and key, as the leader sent them last."""
        return self._limits.get((pool, of), NO_LIMITS)
