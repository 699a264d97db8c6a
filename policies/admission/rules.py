"""Admission rules of one pool: every rule is asked in turn, and a rejection says when the client may retry."""

from collections.abc import Iterable, Mapping, Sequence

from policies.admission.base import Admission, AdmissionReject
from policies.admission.rate_window import WindowCheckpoint
from policies.admission.retry_after import DrainEstimate
from policies.group_state import NO_GROUPS, GroupState
from policies.queues import PoolQueues
from policies.types import LimitKind, RateLimit, RateLimits, Reason, Reject, Request, Tenant

BACKEND_RETRY_S = 5.0  # Retry-After while no backend is available: about one health poll


class AdmissionRules:
    """The admission rules of one pool together: may a request enter the queue and, if not, when may it be retried?
    Mutable.
    """

    def __init__(
        self, rules: Sequence[Admission], queues: PoolQueues, groups: Mapping[str, GroupState] = NO_GROUPS
    ) -> None:
        self._rules = tuple(rules)
        for rule in rules:
            rule.limit_groups(groups)
        # Only rules that override these methods are called: it happens with every request, and most do not.
        self._told_admitted = tuple(each for each in rules if type(each).admitted is not Admission.admitted)
        # Of a tenant without limits per minute, which is the rule.
        self._without_limits = tuple(each for each in rules if not each.reads_limits)
        self._told_without_limits = tuple(each for each in self._told_admitted if not each.reads_limits)
        self.told_settled = tuple(each for each in rules if type(each).settled is not Admission.settled)
        """Those to tell that an admitted request has ended (Admission.settled)."""
        self._queues = queues
        self.drain = DrainEstimate()
        """How long queues take to drain. To be told of each dispatch."""

    def check(self, request: Request, tenant: Tenant, now: float) -> Reject | None:
        """The rejection of the first rule that rejects the request; None: the request counts as admitted. A full pool
        queue counts only if no other rule rejects.
        """
        full: AdmissionReject | None = None
        rules, told_admitted = self._rules, self._told_admitted
        if not tenant.has_rate_limit and tenant.group_id is None and not tenant.keys:
            rules, told_admitted = self._without_limits, self._told_without_limits
        for rule in rules:
            rejection = rule.check(request, tenant, self._queues, now)
            if rejection is None:
                continue
            if rejection.reason is not Reason.QUEUE_FULL:
                return self.reject(request, rejection.reason, now, rejection.retry_after_s, rejection.limit)
            full = full or rejection
        if full is not None:
            return self.reject(request, full.reason, now, full.retry_after_s)
        for rule in told_admitted:
            rule.admitted(request, tenant, now)
        return None

    def is_full_of_bytes(self, request: Request) -> bool:
        """Whether the pool's full queue has too few bytes left for the request."""
        return any(rule.is_full_of_bytes(request, self._queues) for rule in self._rules)

    def settled(self, request_id: str, tokens: int, now: float) -> None:
        """An admitted request has ended and used this many tokens; 0 if it was never served."""
        for rule in self.told_settled:
            if rule.reserved is None or request_id in rule.reserved:
                rule.settled(request_id, tokens, now)

    def spent(self, tenant: Tenant, key_id: str, tokens: int, now: float) -> None:
        """The tenant used this many tokens, with this key, by a call that was never queued."""
        for rule in self._rules:
            rule.spent(tenant, key_id, tokens, now)

    def limits(self, tenant: Tenant, key_id: str, now: float) -> RateLimits:
        """The current state of the limits per minute of calls with this key of the tenant. Each kind of limit is taken
        from the first rule that has one.
        """
        limits: dict[LimitKind, RateLimit] = {}
        for rule in self._rules:
            limits = rule.limits(tenant, key_id, now).by_kind() | limits
        return RateLimits(**limits)

    def windows(self, now: float, scopes: Iterable[str] | None = None) -> WindowCheckpoint:
        """The amounts that count against limits per minute now, of all scopes or of `scopes`."""
        scopes = None if scopes is None else list(scopes)
        return {scope: minute for rule in self._rules for scope, minute in rule.windows(now, scopes).items()}

    def windows_restored(self, windows: WindowCheckpoint, now: float) -> None:
        """Take over the amounts that another scheduler admitted within the minute."""
        for rule in self._rules:
            rule.restore_windows(windows, now)

    def reject(
        self,
        request: Request,
        reason: Reason,
        now: float,
        retry_after_s: float | None = None,
        limit: LimitKind | None = None,
    ) -> Reject:
        """The rejection of a request that is not, or no longer, queued. Retry-After is by default the time until the
        tenant's queue has drained.
        """
        if retry_after_s is None:
            retry_after_s = BACKEND_RETRY_S if reason is Reason.NO_BACKEND else self._drained_s(request.tenant_id, now)
        return Reject(request.id, reason, retry_after_s, limit)

    def start_s(self, tenant_id: str, before: int, now: float) -> float | None:
        """Seconds until the tenant's queued request with `before` other requests of the tenant ahead of it is sent. The
        estimate uses the tenant's last dispatches; None where these are too few.
        """
        head_arrived_at = self._queues.head(tenant_id).arrived_at
        return self.drain.start_s(tenant_id, before, head_arrived_at=head_arrived_at, now=now)

    def forget(self, scope: str) -> None:
        """Drop the state of a removed tenant, group or key, by the name of its scope (scopes.py)."""
        self.drain.forget(scope)
        for rule in self._rules:
            rule.forget(scope)

    def _drained_s(self, tenant_id: str, now: float) -> float:
        queue = self._queues.of(tenant_id)
        return self.drain.wait_s(
            tenant_id,
            tenant_queued=len(queue),
            queued=len(self._queues),
            head_arrived_at=self._queues.head(tenant_id).arrived_at if queue.requests else now,
            now=now,
        )
