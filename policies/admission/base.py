"""The question every admission rule answers, and what it is told of those it let in.

A rule that limits what is used hears of every request twice: when all rules have let it pass, and when it is
over and what it used is known. A rule that needs none of that takes the empty answers from here.
"""

from typing import NamedTuple, Protocol

from policies.queues import PoolQueues
from policies.types import LimitKind, RateLimits, Reason, Request, Tenant

UNLIMITED = RateLimits()


class AdmissionReject(NamedTuple):
    """Why not; `retry_after_s` is None where it follows from how fast the tenant's queue drains. `limit`: which one."""

    reason: Reason
    retry_after_s: float | None = None
    limit: LimitKind | None = None


class Admission(Protocol):
    """May this request of this tenant enter the queue now?"""

    def refuse(self, request: Request, tenant: Tenant, queues: PoolQueues, now: float) -> AdmissionReject | None:
        """The refusal, or None to let it pass. Changes nothing: another rule may still refuse."""
        ...

    def admitted(self, request: Request, tenant: Tenant, now: float) -> None:
        """Every rule let the request pass."""
        return

    def settled(self, request_id: str, tokens: int, now: float) -> None:
        """A request that was let in is over, having used so many tokens; 0 where it was never served."""
        return

    def spent(self, tenant: Tenant, tokens: int, now: float) -> None:
        """The tenant used so many tokens by a call that no rule was asked about."""
        return

    def limits(self, tenant: Tenant, now: float) -> RateLimits:
        """The tenant's limits per minute that this rule keeps, as they stand."""
        return UNLIMITED

    def forget(self, tenant_id: str) -> None:
        """The tenant is gone."""
        return
