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
    """A rule's rejection. `retry_after_s` is None where it follows from how fast the tenant's queue drains; `limit`
    names the rate limit that was hit.
    """

    reason: Reason
    retry_after_s: float | None = None
    limit: LimitKind | None = None


class Admission(Protocol):
    """An admission rule: whether a request of a tenant may enter the queue now. Inherit from it."""

    def check(self, request: Request, tenant: Tenant, queues: PoolQueues, now: float) -> AdmissionReject | None:
        """The rejection, or None to admit. Changes no state: another rule may still reject the request."""
        ...

    def is_full_of_bytes(self, request: Request, queues: PoolQueues) -> bool:
        """Whether bytes are what a full pool lacks for the request, which `check` has rejected for that."""
        return False

    def admitted(self, request: Request, tenant: Tenant, now: float) -> None:
        """Called when all rules have admitted the request."""
        return

    def settled(self, request_id: str, tokens: int, now: float) -> None:
        """Called when an admitted request has ended, with the tokens that it used; 0 if it was never served."""
        return

    def spent(self, tenant: Tenant, key_id: str, tokens: int, now: float) -> None:
        """Called when the tenant used tokens, with this key, by a call that no rule was asked about."""
        return

    def limits(self, tenant: Tenant, key_id: str, now: float) -> RateLimits:
        """The current state of the limits per minute that this rule enforces for calls with this key of the tenant."""
        return UNLIMITED

    def windows(self, now: float, scopes: Iterable[str] | None = None) -> WindowCheckpoint:
        """What this rule has booked within the minute, for another scheduler; of all scopes, or these."""
        return NOTHING_BOOKED

    def restore_windows(self, windows: WindowCheckpoint, now: float) -> None:
        """Count what another scheduler has booked."""
        return

    def forget(self, scope: str) -> None:
        """Drop the state of a tenant, group or key that is gone, by the name of its scope (scopes.py)."""
        return

    def limit_groups(self, groups: Mapping[str, GroupState]) -> None:
        """The groups of the pool by id, whose limits hold for all of their tenants together; called once."""
        return
