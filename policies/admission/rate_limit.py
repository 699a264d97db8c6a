"""Rate limits: requests and tokens per minute, as in today's gateways, and a baseline of the VTC paper.

Admitted requests are counted, whatever becomes of them. Tokens, the prompt and the predicted output, are reserved at
admission, so that many requests at once cannot exceed a limit that each of them would keep. They are settled when the
request ends: unused tokens are returned, and tokens beyond the reservation are booked then. A request that is never
served returns all its tokens; one that is queued again after its backend rejected it keeps them.

A prediction alone never makes a request inadmissible: if its prompt fits under the limit, it is admitted when the
minute is empty, however long its answer is expected to be. If its prompt does not fit, it is rejected at once.
"""

from collections.abc import Callable, Mapping
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
from policies.group_state import GroupState
from policies.queues import PoolQueues
from policies.types import Group, LimitKind, RateLimit, RateLimits, Reason, Request, Tenant


class _Minute(NamedTuple):
    """The rate windows of one tenant."""

    requests: RateWindow
    tokens: RateWindow


Reserved = tuple[RateWindow, Booking]


class RateLimiter(Admission):
    """At most `tenant.requests_per_minute_max` admitted requests and `tenant.tokens_per_minute_max` tokens a minute. A
    group's limits hold for all of its tenants together.
    """

    def __init__(
        self, expected_output: Callable[[Request], float], window: Callable[[], RateWindow] = SlidingWindow
    ) -> None:
        """`expected_output` predicts a request's output tokens; `window` makes a rate window."""
        self._expected_output = expected_output
        self._make_window = window
        self._minutes: dict[str, _Minute] = {}  # by tenant, and by the key of a group
        self._reserved: dict[str, list[Reserved]] = {}  # by request, of tenants and groups with a token limit
        self._groups: Mapping[str, GroupState] = {}

    def limit_groups(self, groups: Mapping[str, GroupState]) -> None:
        self._groups = groups

    def check(self, request: Request, tenant: Tenant, queues: PoolQueues, now: float) -> AdmissionReject | None:
        """Reject until all limits of the tenant and its group have room, and name the one that has room last."""
        rejection = self._check(request, tenant.id, tenant, now)
        group = self._group(tenant)
        if group is None or (rejection is not None and rejection.reason is Reason.REQUEST_TOO_LARGE):
            return rejection
        of_group = self._check(request, _group_key(group.id), group, now)
        if rejection is None or of_group is None or of_group.reason is Reason.REQUEST_TOO_LARGE:
            return of_group or rejection
        return max(rejection, of_group, key=lambda each: each.retry_after_s or 0.0)

    def _check(self, request: Request, key: str, limits: Tenant | Group, now: float) -> AdmissionReject | None:
        requests_max, tokens_max = limits.requests_per_minute_max, limits.tokens_per_minute_max
        if requests_max is None and tokens_max is None:
            return None
        if tokens_max is not None and request.prompt_tokens > tokens_max:
            return AdmissionReject(Reason.REQUEST_TOO_LARGE, WINDOW_S, LimitKind.TOKENS)
        minute, rejection = self._minute(key), None
        if requests_max is not None:
            wait_s = minute.requests.wait_s(1, requests_max, now)
            if wait_s is not None:
                rejection = AdmissionReject(Reason.RATE_LIMITED, wait_s, LimitKind.REQUESTS)
        if tokens_max is not None:
            wait_s = minute.tokens.wait_s(self._reservation(request, tokens_max), tokens_max, now)
            if wait_s is not None and (rejection is None or wait_s > (rejection.retry_after_s or 0.0)):
                rejection = AdmissionReject(Reason.RATE_LIMITED, wait_s, LimitKind.TOKENS)
        return rejection

    def admitted(self, request: Request, tenant: Tenant, now: float) -> None:
        reserved = self._admitted(request, tenant.id, tenant, now)
        group = self._group(tenant)
        if group is not None:
            reserved += self._admitted(request, _group_key(group.id), group, now)
        if reserved:
            self._reserved[request.id] = reserved

    def _admitted(self, request: Request, key: str, limits: Tenant | Group, now: float) -> list[Reserved]:
        if limits.requests_per_minute_max is not None:
            self._minute(key).requests.book(1, now)
        if limits.tokens_per_minute_max is None:
            return []
        window = self._minute(key).tokens
        return [(window, window.book(self._reservation(request, limits.tokens_per_minute_max), now))]

    def settled(self, request_id: str, tokens: int, now: float) -> None:
        for window, booking in self._reserved.pop(request_id, ()):
            beyond = tokens - booking.amount
            window.amend(booking, min(tokens, booking.amount), now)
            if beyond > 0:
                window.book(beyond, now)

    def spent(self, tenant: Tenant, tokens: int, now: float) -> None:
        self._spent(tenant.id, tenant, tokens, now)
        group = self._group(tenant)
        if group is not None:
            self._spent(_group_key(group.id), group, tokens, now)

    def _spent(self, key: str, limits: Tenant | Group, tokens: int, now: float) -> None:
        if limits.requests_per_minute_max is not None:
            self._minute(key).requests.book(1, now)
        if limits.tokens_per_minute_max is not None:
            self._minute(key).tokens.book(tokens, now)

    def limits(self, tenant: Tenant, now: float) -> RateLimits:
        minute = self._minutes.get(tenant.id) or _Minute(self._make_window(), self._make_window())
        return RateLimits(
            requests=_limit(minute.requests, tenant.requests_per_minute_max, now),
            tokens=_limit(minute.tokens, tenant.tokens_per_minute_max, now),
        )

    def windows(self, now: float) -> WindowCheckpoint:
        minutes = {
            tenant_id: MinuteCheckpoint(minute.requests.booked(now), minute.tokens.booked(now))
            for tenant_id, minute in self._minutes.items()
        }
        return {tenant_id: minute for tenant_id, minute in minutes.items() if minute.requests or minute.tokens}

    def restore_windows(self, windows: WindowCheckpoint, now: float) -> None:
        for tenant_id, minute in windows.items():
            here = self._minute(tenant_id)
            for window, booked in zip(here, minute, strict=True):
                for age_s, amount in booked:
                    window.book(amount, now - age_s)

    def forget(self, tenant_id: str) -> None:
        self._minutes.pop(tenant_id, None)

    def forget_group(self, group_id: str) -> None:
        self._minutes.pop(_group_key(group_id), None)

    def _group(self, tenant: Tenant) -> Group | None:
        state = None if tenant.group_id is None else self._groups.get(tenant.group_id)
        return None if state is None else state.group

    def _minute(self, tenant_id: str) -> _Minute:
        minute = self._minutes.get(tenant_id)
        if minute is None:
            minute = self._minutes[tenant_id] = _Minute(self._make_window(), self._make_window())
        return minute

    def _reservation(self, request: Request, tokens_max: int) -> int:
        """Tokens that the request reserves: at most the limit of a minute."""
        output_tokens = min(self._expected_output(request), request.output_tokens_max)
        return min(request.prompt_tokens + ceil(output_tokens), tokens_max)


def _group_key(group_id: str) -> str:
    """What a group's minute is kept by; no tenant has such an id."""
    return f"group={group_id}"


def _limit(window: RateWindow, limit: int | None, now: float) -> RateLimit | None:
    return None if limit is None else RateLimit(limit, max(limit - window.used(now), 0), window.reset_s(now))
