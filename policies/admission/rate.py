"""Requests and tokens per minute: the limits that today's gateways have, and a baseline of the VTC paper.

Accepted requests are counted, whatever becomes of them. Tokens are reserved when a request is accepted, its prompt and
the output that is expected of it, so that many at once cannot pass a limit that each of them would keep, and settled
when it is over: what was reserved and not used is given back, what was used beyond it is booked then. What is never
served gives all of it back; what waits again after its backend would not take it keeps it.

A guess may not condemn a request: one whose prompt fits under the limit is let in when the minute is empty, however
long its answer is expected to be. One whose prompt does not fit never would be, and is told so at once.
"""

from collections.abc import Callable
from math import ceil
from typing import NamedTuple

from policies.admission.base import Admission, Refusal
from policies.admission.window import WINDOW_S, Booking, SlidingWindow, Window
from policies.queues import Queues
from policies.types import RateLimit, RateLimits, Reason, Request, Tenant


class _Minute(NamedTuple):
    """What a tenant has of its limits."""

    requests: Window
    tokens: Window


class RateLimiter(Admission):
    """At most `tenant.requests_per_minute_max` accepted requests and `tenant.tokens_per_minute_max` tokens a minute."""

    def __init__(
        self, expected_output: Callable[[Request], float], window: Callable[[], Window] = SlidingWindow
    ) -> None:
        """`expected_output` is a request's likely number of output tokens; `window` what a minute is."""
        self._expected_output = expected_output
        self._make_window = window
        self._minutes: dict[str, _Minute] = {}
        self._reserved: dict[str, tuple[Window, Booking]] = {}  # by request, of tenants with a limit of tokens

    def refuse(self, request: Request, tenant: Tenant, queues: Queues, now: float) -> Refusal | None:
        """Refuse until the later of both limits has room."""
        requests_max, tokens_max = tenant.requests_per_minute_max, tenant.tokens_per_minute_max
        if requests_max is None and tokens_max is None:
            return None
        if tokens_max is not None and request.prompt_tokens > tokens_max:
            return Refusal(Reason.REQUEST_TOO_LARGE, WINDOW_S)
        minute, waits = self._minute(tenant.id), []
        if requests_max is not None:
            waits.append(minute.requests.wait_s(1, requests_max, now))
        if tokens_max is not None:
            waits.append(minute.tokens.wait_s(self._reservation(request, tokens_max), tokens_max, now))
        wait_s = max((wait_s for wait_s in waits if wait_s is not None), default=None)
        return None if wait_s is None else Refusal(Reason.RATE_LIMITED, wait_s)

    def admitted(self, request: Request, tenant: Tenant, now: float) -> None:
        if tenant.requests_per_minute_max is not None:
            self._minute(tenant.id).requests.book(1, now)
        if tenant.tokens_per_minute_max is not None:
            tokens = self._minute(tenant.id).tokens
            self._reserved[request.id] = (
                tokens,
                tokens.book(self._reservation(request, tenant.tokens_per_minute_max), now),
            )

    def settled(self, request_id: str, tokens: int, now: float) -> None:
        if request_id in self._reserved:
            window, booking = self._reserved.pop(request_id)
            beyond = tokens - booking.amount
            window.amend(booking, min(tokens, booking.amount), now)
            if beyond > 0:
                window.book(beyond, now)

    def spent(self, tenant: Tenant, tokens: int, now: float) -> None:
        if tenant.requests_per_minute_max is not None:
            self._minute(tenant.id).requests.book(1, now)
        if tenant.tokens_per_minute_max is not None:
            self._minute(tenant.id).tokens.book(tokens, now)

    def limits(self, tenant: Tenant, now: float) -> RateLimits:
        minute = self._minutes.get(tenant.id) or _Minute(self._make_window(), self._make_window())
        return RateLimits(
            requests=_limit(minute.requests, tenant.requests_per_minute_max, now),
            tokens=_limit(minute.tokens, tenant.tokens_per_minute_max, now),
        )

    def forget(self, tenant_id: str) -> None:
        self._minutes.pop(tenant_id, None)

    def _minute(self, tenant_id: str) -> _Minute:
        minute = self._minutes.get(tenant_id)
        if minute is None:
            minute = self._minutes[tenant_id] = _Minute(self._make_window(), self._make_window())
        return minute

    def _reservation(self, request: Request, tokens_max: int) -> int:
        """Tokens that the request reserves: no more than there are in a minute."""
        output_tokens = min(self._expected_output(request), request.output_tokens_max)
        return min(request.prompt_tokens + ceil(output_tokens), tokens_max)


def _limit(window: Window, limit: int | None, now: float) -> RateLimit | None:
    if limit is None:
        return None
    return RateLimit(limit=limit, remaining=max(limit - window.used(now), 0), reset_s=window.reset_s(now))
