"""Admission protocol: the interface of every admission rule.

A rule that limits usage is notified of every request twice: when all rules have admitted it, and when it has ended
and its usage is known. A rule that needs no notification inherits the empty methods.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from policies.admission.rate_window import NOTHING_BOOKED, WindowCheckpoint
from policies.group_state import GroupState
from policies.queues import PoolQueues
from policies.types import LimitKind, RateLimits, Reason, Request, Tenant

UNLIMITED = RateLimits()


class AdmissionReject(NamedTuple):
    """The rejection of a request by an admission rule. `limit` is the kind of the rate limit that the request exceeds.
    `retry_after_s` None: the caller computes this time from the rate at which the tenant's queue drains.
    """

    reason: Reason
    retry_after_s: float | None = None
    limit: LimitKind | None = None


class Admission(Protocol):
    """The base class of admission rules: may a request of a tenant enter the queue now?"""

    reads_limits: bool = False
    """Whether it is asked, and told, only of tenants that may have a limit per minute: their own, that of their group
    or of a key.
    """
    reserved: Mapping[str, object] | None = None
    """The requests whose end it is told of (`settled`), by id; None: all that were admitted."""

    def check(self, request: Request, tenant: Tenant, queues: PoolQueues, now: float) -> AdmissionReject | None:
        """The rejection, or None to admit. Changes no state: another rule may still reject the request."""
        ...

    def is_full_of_bytes(self, request: Request, queues: PoolQueues) -> bool:
        """Whether `check` rejected the request because the pool's full queue has too few bytes left for it."""
        return False

    def admitted(self, request: Request, tenant: Tenant, now: float) -> None:
        """All rules have admitted the request."""
        return

    def settled(self, request_id: str, tokens: int, now: float) -> None:
        """An admitted request has ended and used these tokens; 0 if it was never served."""
        return

    def spent(self, tenant: Tenant, key_id: str, tokens: int, now: float) -> None:
        """The tenant used these tokens, with this key, by a call for which no rule was asked."""
        return

    def limits(self, tenant: Tenant, key_id: str, now: float) -> RateLimits:
        """The current state of the limits per minute that this rule enforces for calls with this key of the tenant."""
        return UNLIMITED

    def windows(self, now: float, scopes: Iterable[str] | None = None) -> WindowCheckpoint:
        """The amounts that this rule has booked within the minute, for another scheduler; of all scopes, or of
        `scopes`.
        """
        return NOTHING_BOOKED

    def restore_windows(self, windows: WindowCheckpoint, now: float) -> None:
        """Take over the amounts that another scheduler has booked."""
        return

    def forget(self, scope: str) -> None:
        """Drop the state of a removed tenant, group or key, by the name of its scope (scopes.py)."""
        return

    def limit_groups(self, groups: Mapping[str, GroupState]) -> None:
        """Set the groups of the pool by id, each with limits for all its tenants together. Called once."""
        return
