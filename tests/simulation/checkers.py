"""Checks of a run: the rules that hold for every workload.

Each check receives a Recorder's entries and raises ViolationError at the entry that breaks its rule. None shares code
with the Scheduler: `InFlightLimits` uses only the run's accounts, `WorkConservation` also the Scheduler's view of its
backends. The bounds of fairness policies are checked in bound_checkers.py.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from math import ceil
from types import MappingProxyType

from policies.scheduler_protocol import SchedulerProtocol
from policies.types import BackendView, Dispatch, Request, ReserveView
from tests.simulation.recording import Entry, Listener, Polled
from tests.simulation.run_accounts import RunAccounts, TenantAccounts, require

ANYWHERE: Mapping[str, str] = MappingProxyType({})
NOTHING_HELD = ReserveView(0, 0)


class RunWatch:
    """The accounts and checks of one Scheduler's run: give it to a Recorder as its listener."""

    def __init__(self, accounts: RunAccounts, judges: Iterable[Listener] = ()) -> None:
        self.accounts = accounts
        self._listeners: list[Listener] = [accounts, *judges]

    def __call__(self, entry: Entry) -> None:
        for listener in self._listeners:
            listener(entry)


class InFlightLimits:
    """Check that no tenant or group exceeds its in-flight limit and no backend its limit of sequences.

    An idle backend always takes one request, however many sequences that is. A lowered limit binds only later
    dispatches, so limits are checked at each dispatch.
    """

    def __init__(self, accounts: RunAccounts) -> None:
        self._accounts = accounts

    def __call__(self, entry: Entry) -> None:
        if not isinstance(entry, Polled):
            return
        for action in entry.actions:
            if isinstance(action, Dispatch):
                self._judge_backend(action.backend_id)
                request = self._accounts.requests[action.request_id].request
                self._judge_tenant(request.tenant_id)
                self._judge_key(request)

    def _judge_backend(self, backend_id: str) -> None:
        limit = self._accounts.loads[backend_id].requests_running_max
        within = limit is None or self._accounts.sequences_at[backend_id] <= limit
        alone = self._accounts.requests_at[backend_id] == 1
        require(within or alone, "{} runs {} sequences at most", backend_id, limit)

    def _judge_tenant(self, tenant_id: str) -> None:
        accounts = self._accounts.tenants[tenant_id]
        limit = accounts.tenant.in_flight_max
        require(limit is None or len(accounts.in_flight) <= limit, "{} has {} in flight at most", tenant_id, limit)
        if accounts.tenant.group_id is not None:
            group = self._accounts.groups[accounts.tenant.group_id]
            within = group.in_flight_max is None or self._accounts.in_flight_of(group) <= group.in_flight_max
            require(within, "group {} has {} in flight at most", group.id, group.in_flight_max)

    def _judge_key(self, request: Request) -> None:
        limit = self._accounts.key_in_flight_max(request)
        if limit is not None:
            in_flight = self._accounts.tenants[request.tenant_id].in_flight.values()
            within = sum(each.key_id == request.key_id for each in in_flight) <= limit
            require(within, "key {} has {} in flight at most", request.key_id, limit)


class WorkConservation:
    """Check that after the last poll of an instant, the chosen request could not be placed anywhere.

    The check does not know which request the policy chose. For every backend it therefore requires that some request
    that might have been chosen for it does not surely fit. A request surely fits with its whole output allowance beside
    what the other tiers' reserves keep free, or if the backend is idle. Heads of queues may be chosen, or any queued
    request with `any_request`; `waits_for` maps a request to the one backend that it waits for, if any. The check runs
    at most every `every_s` seconds of the run, because a snapshot takes time in proportion to the number of tenants.
    Where a key may hold a request back, nothing is checked.
    """

    def __init__(
        self,
        accounts: RunAccounts,
        scheduler: SchedulerProtocol,
        *,
        any_request: bool = False,
        waits_for: Mapping[str, str] = ANYWHERE,
        every_s: float = 0.0,
    ) -> None:
        self._accounts = accounts
        self._scheduler = scheduler
        self._any_request = any_request
        self._waits_for = waits_for
        self._every_s = every_s
        self._judged_at = float("-inf")

    def __call__(self, entry: Entry) -> None:
        if not isinstance(entry, Polled) or entry.now - self._judged_at < self._every_s:
            return
        wakeup_at = self._scheduler.next_wakeup()
        if wakeup_at is not None and wakeup_at <= entry.now:
            return  # the next poll continues at this instant
        self._judged_at = entry.now
        eligible = [
            accounts
            for accounts in self._accounts.tenants.values()
            if accounts.queued and not self._accounts.is_at_limit(accounts)
        ]
        if not eligible or any(map(self._accounts.may_hold, eligible)):
            return
        for backend_id, view in self._scheduler.snapshot(entry.now).backends.items():
            if self._open(backend_id, entry.now):
                choices = chain.from_iterable(self._choices(accounts, backend_id) for accounts in eligible)
                first = next(choices, None)  # in a pool that is full it does not fit, and the others are not listed
                is_stuck = first is None or any(
                    not self._surely_fits(request, backend_id, view) for request in chain([first], choices)
                )
                require(is_stuck, "{} waits although it fits {}, at {}", first, backend_id, entry.now)

    def _choices(self, accounts: TenantAccounts, backend_id: str) -> list[Request]:
        """The tenant's requests that may have been chosen for this backend: none if it may have been passed over for a
        request that must go elsewhere.
        """
        waits_for = self._waits_for
        queue = [each for each in accounts.queued.values() if waits_for.get(each.id, backend_id) == backend_id]
        came_back = [each for each in queue if self._accounts.requests[each.id].service]
        choices = queue if self._any_request else queue[:1]
        if any(each.backend_ids is not None and backend_id not in each.backend_ids for each in choices):
            return []
        return came_back + choices

    def _open(self, backend_id: str, now: float) -> bool:
        load = self._accounts.loads.get(backend_id)
        return load is not None and load.available and now >= self._accounts.held_until.get(backend_id, 0.0)

    def _surely_fits(self, request: Request, backend_id: str, backend: BackendView) -> bool:
        if not self._accounts.requests_at[backend_id]:
            return True
        tier_id = self._accounts.tenants[request.tenant_id].tenant.tier_id
        # At most so much is kept free for the other tiers: their configured ratio, or what was learnt.
        others = [tier for tier in self._accounts.tiers.values() if tier.id != tier_id]
        held_for = [backend.reserves.get(tier.id, NOTHING_HELD) for tier in others]
        kept = sum(
            max(ceil(tier.reserve_ratio * backend.requests_limit), reserve.sequences)
            for tier, reserve in zip(others, held_for, strict=True)
        )
        sequences = self._accounts.sequences_at[backend_id] + backend.external_requests + kept + request.choices
        if sequences > backend.requests_limit:
            return False
        if backend.sequences_max is not None and sequences > backend.sequences_max:
            return False  # as many as it was learnt to take
        if backend.tokens_limit is None:
            return True
        rounding = self._accounts.loads[backend_id].kv_block_tokens * request.choices + 1
        needed = request.prompt_tokens + request.output_tokens_max + rounding
        held = (
            backend.reserved_tokens
            + backend.external_tokens
            + sum(
                max(tier.reserve_ratio * backend.tokens_limit, reserve.tokens)
                for tier, reserve in zip(others, held_for, strict=True)
            )
        )
        return held + needed <= backend.tokens_limit
