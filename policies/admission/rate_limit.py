"""Rate limits: requests and tokens per minute, as in today's gateways, and a baseline of the VTC paper.

Admitted requests are counted, whatever becomes of them. Tokens, the prompt and the predicted output, are reserved at
admission, so that many requests at once cannot exceed a limit that each of them would keep. They are settled when the
request ends: unused tokens are returned, and tokens beyond the reservation are booked then. A request that is never
served returns all its tokens; one that is queued again after its backend rejected it keeps them.

A prediction alone never makes a request inadmissible: if its prompt fits under the limit, it is admitted when the
minute is empty, however long its answer is expected to be. If its prompt does not fit, it is rejected at once.
"""

from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import NamedTuple

from policies.admission.base import Admission, AdmissionReject
from policies.admission.rate_window import (
    WINDOW_S,
    Booking,
    MinuteCheckpoint,
    RateWindow,
    SlidingWindow,
    WindowCheckpoint,
)
from policies.admission.scopes import Scope, limited_scopes
from policies.group_state import GroupState
from policies.queues import PoolQueues
from policies.types import LimitKind, RateLimit, RateLimits, Reason, Request, Tenant


class _Minute(NamedTuple):
    """The two rate windows of one scope: of requests, and of tokens."""

    requests: RateWindow
    tokens: RateWindow


Reserved = tuple[RateWindow, Booking]


class RateLimiter(Admission):
    """An admission rule that limits rates: at most `requests_per_minute_max` admitted requests and
    `tokens_per_minute_max` tokens per minute, for a tenant, for all tenants of a group together, or for an API key.
    """

    reads_limits = True

    def __init__(
        self, expected_output: Callable[[Request], float], window: Callable[[], RateWindow] = SlidingWindow
    ) -> None:
        """`expected_output` predicts a request's output tokens; `window` makes a new rate window."""
        self._expected_output = expected_output
        self._make_window = window
        self._minutes: dict[str, _Minute] = {}  # by scope
        self._reserved: dict[str, list[Reserved]] = {}  # by request, of scopes with a token limit
        self.reserved: Mapping[str, object] | None = self._reserved
        self._groups: Mapping[str, GroupState] = {}

    def limit_groups(self, groups: Mapping[str, GroupState]) -> None:
        self._groups = groups

    def check(self, request: Request, tenant: Tenant, queues: PoolQueues, now: float) -> AdmissionReject | None:
        """Reject the request until all scopes have room, naming the limit that has room last."""
        rejection: AdmissionReject | None = None
        for scope in limited_scopes(tenant, request.key_id, self._groups):
            found = self._check(request, scope, now)
            if found is not None and found.reason is Reason.REQUEST_TOO_LARGE:
                return found
            if rejection is None or (found is not None and _wait_s(found) > _wait_s(rejection)):
                rejection = found
        return rejection

    def _check(self, request: Request, scope: Scope, now: float) -> AdmissionReject | None:
        requests_max, tokens_max = scope.limits.requests_per_minute_max, scope.limits.tokens_per_minute_max
        if tokens_max is not None and request.prompt_tokens > tokens_max:
            return AdmissionReject(Reason.REQUEST_TOO_LARGE, WINDOW_S, LimitKind.TOKENS)
        minute, rejection = self._minute(scope.name), None
        if requests_max is not None:
            wait_s = minute.requests.wait_s(1, requests_max, now)
            if wait_s is not None:
                rejection = AdmissionReject(Reason.RATE_LIMITED, wait_s, LimitKind.REQUESTS)
        if tokens_max is not None:
            wait_s = minute.tokens.wait_s(self._reservation(request, tokens_max), tokens_max, now)
            if wait_s is not None and (rejection is None or wait_s > _wait_s(rejection)):
                rejection = AdmissionReject(Reason.RATE_LIMITED, wait_s, LimitKind.TOKENS)
        return rejection

    def admitted(self, request: Request, tenant: Tenant, now: float) -> None:
        reserved: list[Reserved] = []
        for scope in limited_scopes(tenant, request.key_id, self._groups):
            if scope.limits.requests_per_minute_max is not None:
                self._minute(scope.name).requests.book(1, now)
            if scope.limits.tokens_per_minute_max is not None:
                window = self._minute(scope.name).tokens
                tokens = self._reservation(request, scope.limits.tokens_per_minute_max)
                reserved.append((window, window.book(tokens, now)))
        if reserved:
            self._reserved[request.id] = reserved

    def settled(self, request_id: str, tokens: int, now: float) -> None:
        for window, booking in self._reserved.pop(request_id, ()):
            beyond = tokens - booking.amount
            window.amend(booking, min(tokens, booking.amount), now)
            if beyond > 0:
                window.book(beyond, now)

    def spent(self, tenant: Tenant, key_id: str, tokens: int, now: float) -> None:
        for scope in limited_scopes(tenant, key_id, self._groups):
            if scope.limits.requests_per_minute_max is not None:
                self._minute(scope.name).requests.book(1, now)
            if scope.limits.tokens_per_minute_max is not None:
                self._minute(scope.name).tokens.book(tokens, now)

    def limits(self, tenant: Tenant, key_id: str, now: float) -> RateLimits:
        """The tightest limit of each kind: the one with the least remaining; if equal, the last to be restored."""
        requests, tokens = list[RateLimit](), list[RateLimit]()
        for scope in limited_scopes(tenant, key_id, self._groups):
            minute = self._minutes.get(scope.name) or self._new_minute()
            if scope.limits.requests_per_minute_max is not None:
                requests.append(_limit(minute.requests, scope.limits.requests_per_minute_max, now))
            if scope.limits.tokens_per_minute_max is not None:
                tokens.append(_limit(minute.tokens, scope.limits.tokens_per_minute_max, now))
        return RateLimits(requests=min(requests, key=_room, default=None), tokens=min(tokens, key=_room, default=None))

    def windows(self, now: float, scopes: Iterable[str] | None = None) -> WindowCheckpoint:
        minutes = {
            scope: MinuteCheckpoint(*[window.booked(now) for window in minute])
            for scope in (self._minutes if scopes is None else scopes)
            if (minute := self._minutes.get(scope)) is not None
        }
        return {scope: minute for scope, minute in minutes.items() if any(minute)}

    def restore_windows(self, windows: WindowCheckpoint, now: float) -> None:
        for scope, minute in windows.items():
            here = self._minute(scope)
            for window, booked in zip(here, minute, strict=True):
                for age_s, amount in booked:
                    window.book(amount, now - age_s)

    def forget(self, scope: str) -> None:
        self._minutes.pop(scope, None)

    def _minute(self, scope: str) -> _Minute:
        minute = self._minutes.get(scope)
        if minute is None:
            minute = self._minutes[scope] = self._new_minute()
        return minute

    def _new_minute(self) -> _Minute:
        return _Minute(*[self._make_window() for _ in _Minute._fields])

    def _reservation(self, request: Request, tokens_max: int) -> int:
        """The tokens that the request reserves: at most the limit of a minute."""
        output_tokens = min(self._expected_output(request), request.output_tokens_max)
        return min(request.prompt_tokens + ceil(output_tokens), tokens_max)


def _wait_s(rejection: AdmissionReject) -> float:
    return rejection.retry_after_s or 0.0


def _limit(window: RateWindow, limit: int, now: float) -> RateLimit:
    return RateLimit(limit, max(limit - window.used(now), 0), window.reset_s(now))


def _room(limit: RateLimit) -> tuple[int, float]:
    return limit.remaining, -limit.reset_s
