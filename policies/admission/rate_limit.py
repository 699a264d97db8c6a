"""Rate limits: requests and tokens per minute, as in today's gateways, and a baseline of the VTC paper.

Admitted requests are counted, whatever becomes of them. Tokens, the prompt and the predicted output, are reserved at
admission, so that many requests at once cannot exceed a limit that each of them would keep. They are settled when the
request ends: unused tokens are returned, and tokens beyond the reservation are booked then. A request that is never
served returns all its tokens; one that is queued again after its backend rejected it keeps them.

A prediction alone never makes a request inadmissible: if its prompt fits under the limit, it is admitted when the
minute is empty, however long its answer is expected to be. If its prompt does not fit, it is rejected at once.

What other replicas admit under the same limits counts, too (shared_limits.py).
"""

from collections.abc import Callable
from math import ceil
from typing import NamedTuple

from policies.admission.base import Admission, AdmissionReject
from policies.admission.rate_window import WINDOW_S, Booking, RateWindow, SlidingWindow
from policies.admission.shared_limits import REQUESTS, TOKENS, SharedRateLimits
from policies.queues import PoolQueues
from policies.types import LimitKind, RateLimit, RateLimits, Reason, Request, Tenant


class _Minute(NamedTuple):
    """The rate windows of one tenant."""

    requests: RateWindow
    tokens: RateWindow


class RateLimiter(Admission):
    """At most `tenant.requests_per_minute_max` admitted requests and `tenant.tokens_per_minute_max` tokens a minute."""

    def __init__(
        self,
        expected_output: Callable[[Request], float],
        window: Callable[[], RateWindow] = SlidingWindow,
        sharing: SharedRateLimits | None = None,
    ) -> None:
        """`expected_output` predicts a request's output tokens; `window` makes a rate window; `sharing` shares the
        limits with other replicas, None: they are not shared.
        """
        self._expected_output = expected_output
        self._make_window = window
        self._sharing = sharing or SharedRateLimits()
        self._sharing.used = lambda tenant_id, kind, now: self._minute(tenant_id)[kind].used(now)
        self._minutes: dict[str, _Minute] = {}
        self._reserved: dict[str, tuple[RateWindow, Booking]] = {}  # by request, of tenants with a token limit

    def refuse(self, request: Request, tenant: Tenant, queues: PoolQueues, now: float) -> AdmissionReject | None:
        """Reject until both limits have room, and name the one that has room later."""
        requests_max, tokens_max = tenant.requests_per_minute_max, tenant.tokens_per_minute_max
        if requests_max is None and tokens_max is None:
            return None
        if tokens_max is not None and request.prompt_tokens > tokens_max:
            return AdmissionReject(Reason.REQUEST_TOO_LARGE, WINDOW_S, LimitKind.TOKENS)
        minute, refusal = self._minute(tenant.id), None
        if requests_max is not None:
            wait_s = self._sharing.wait_s(tenant.id, REQUESTS, 1, window=minute.requests, limit=requests_max, now=now)
            if wait_s is not None:
                refusal = AdmissionReject(Reason.RATE_LIMITED, wait_s, LimitKind.REQUESTS)
        if tokens_max is not None:
            tokens = self._reservation(request, tokens_max)
            wait_s = self._sharing.wait_s(tenant.id, TOKENS, tokens, window=minute.tokens, limit=tokens_max, now=now)
            if wait_s is not None and (refusal is None or wait_s > (refusal.retry_after_s or 0.0)):
                refusal = AdmissionReject(Reason.RATE_LIMITED, wait_s, LimitKind.TOKENS)
        return refusal

    def admitted(self, request: Request, tenant: Tenant, now: float) -> None:
        if tenant.requests_per_minute_max is not None:
            self._book(tenant.id, REQUESTS, 1, now)
        if tenant.tokens_per_minute_max is not None:
            tokens = self._reservation(request, tenant.tokens_per_minute_max)
            booking = self._book(tenant.id, TOKENS, tokens, now)
            self._reserved[request.id] = self._minute(tenant.id).tokens, booking

    def settled(self, request_id: str, tokens: int, now: float) -> None:
        if request_id in self._reserved:
            window, booking = self._reserved.pop(request_id)
            beyond = tokens - booking.amount
            window.amend(booking, min(tokens, booking.amount), now)
            if beyond > 0:
                window.book(beyond, now)

    def spent(self, tenant: Tenant, tokens: int, now: float) -> None:
        if tenant.requests_per_minute_max is not None:
            self._book(tenant.id, REQUESTS, 1, now)
        if tenant.tokens_per_minute_max is not None:
            self._book(tenant.id, TOKENS, tokens, now)

    def limits(self, tenant: Tenant, now: float) -> RateLimits:
        minute = self._minutes.get(tenant.id) or _Minute(self._make_window(), self._make_window())
        return RateLimits(
            requests=self._limit(tenant.id, REQUESTS, minute.requests, tenant.requests_per_minute_max, now),
            tokens=self._limit(tenant.id, TOKENS, minute.tokens, tenant.tokens_per_minute_max, now),
        )

    def forget(self, tenant_id: str) -> None:
        self._minutes.pop(tenant_id, None)
        self._sharing.forget(tenant_id)

    def _book(self, tenant_id: str, kind: int, amount: int, now: float) -> Booking:
        self._sharing.booked(tenant_id, kind, amount)
        return self._minute(tenant_id)[kind].book(amount, now)

    def _minute(self, tenant_id: str) -> _Minute:
        minute = self._minutes.get(tenant_id)
        if minute is None:
            minute = self._minutes[tenant_id] = _Minute(self._make_window(), self._make_window())
        return minute

    def _reservation(self, request: Request, tokens_max: int) -> int:
        """Tokens that the request reserves: at most the limit of a minute."""
        output_tokens = min(self._expected_output(request), request.output_tokens_max)
        return min(request.prompt_tokens + ceil(output_tokens), tokens_max)

    def _limit(self, tenant_id: str, kind: int, window: RateWindow, limit: int | None, now: float) -> RateLimit | None:
        if limit is None:
            return None
        others = self._sharing.others(tenant_id, kind)
        reset_s = WINDOW_S if others else window.reset_s(now)
        remaining = max(self._sharing.limit(limit) - window.used(now) - others, 0)
        here = self._sharing.left(tenant_id, kind, remaining)
        return RateLimit(limit, remaining, reset_s, remaining_here=None if here == remaining else here)
