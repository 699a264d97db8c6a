"""The question every admission rule answers."""

from typing import NamedTuple, Protocol

from policies.queues import Queues
from policies.types import Reason, Request, Tenant


class Refusal(NamedTuple):
    """Why not; `retry_after_s` is None where it follows from how fast the tenant's queue drains."""

    reason: Reason
    retry_after_s: float | None = None


class Admission(Protocol):
    """May this request of this tenant enter the queue now?"""

    def refuse(self, request: Request, tenant: Tenant, queues: Queues, now: float) -> Refusal | None:
        """The refusal, or None to let it pass. Changes nothing: another rule may still refuse."""
        ...

    def admitted(self, tenant: Tenant, now: float) -> None:
        """Every rule let a request of the tenant pass."""
        ...

    def forget(self, tenant_id: str) -> None:
        """The tenant is gone."""
        ...
