"""Sending: one call while it is sent to a backend, and to further backends if that one fails."""

from collections.abc import Callable

from backends.live_backend import LiveBackend
from backends.model_identity import ModelIdentity
from gateway.continuation.loss_evidence import Suspect
from gateway.continuation.stream import EXCLUDED, ResumableStream
from gateway.http.request import HttpRequest
from gateway.intake.admission import Call
from gateway.observability.telemetry import CallTrace
from gateway.scheduling.dispatcher import Lease
from policies.types import Tier

UNKNOWN = "unknown"  # of a backend that has not told all of its model's identity


class Sending(Suspect):
    """The state of one call while it is sent to one backend after another. Mutable. `backend` is the backend that the
    call was last sent to, at `dispatched_at`; times are seconds of the loop's clock. `tier` is the tier of its tenant.
    `is_retrying`: the call takes up RetryBudget, because it is sent again after a failure and has no connection yet.
    `refused_since`: the time since which all backends have answered it with errors. `lost_at`: by backend id, when the
    backend last failed while the call ran there; None: no backend failed. `began` returns the identity of the model
    that has begun to answer. `differed` says how the model at a later backend differs from that model.
    """

    __slots__ = (
        "backend", "began", "call", "differed", "dispatched_at", "is_retrying", "lease", "lost_at", "refused_since",
        "request", "stream", "tier", "trace",
    )  # fmt: skip

    def __init__(self, request: HttpRequest, call: Call, lease: Lease, trace: CallTrace, *, tier: Tier) -> None:
        super().__init__()
        self.request = request
        self.call = call
        self.lease = lease
        self.trace = trace
        # Those with an exclusion have no state, so all with the same one share an object.
        self.stream = ResumableStream(None) if call.exclusion is None else EXCLUDED[call.exclusion]
        self.backend: LiveBackend
        self.tier = tier
        self.dispatched_at = 0.0
        self.is_retrying = False
        self.refused_since: float | None = None
        self.lost_at: dict[str, float] | None = None
        self.began: Callable[[], ModelIdentity | None] = _unknown
        self.differed = ""

    def difference(self, backend: LiveBackend) -> str | None:
        """The first difference between this backend's model and the model that began the stream; None without any."""
        own, its = self.began(), backend.identified(self.call.request.model)()
        return UNKNOWN if own is None or its is None else own.difference(its)


def _unknown() -> None:
    return None
