"""Live state routes: queues, in-flight requests and limits, and every tenant's counters and rate of service.

A rate covers the time since its last computation, at least RATE_S: a client that polls more often gets the same value
again. The first request for a tenant that is being served waits for FIRST_LOOK_S, in which its rate is measured.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

import msgspec

from gateway.admin.models.backends import StepsResource
from gateway.admin.models.resources import Fields, ModelName, Page, ResourceList, first_of
from gateway.admin.routes import AdminAnswer, AdminRequest, Role, Route
from gateway.budgets.accounts import BudgetUse, Holder, Unit, group_of
from gateway.budgets.ledger import BudgetLedger
from gateway.config.amounts import to_text
from gateway.config.value_types import Name
from gateway.live.schema import ClusterView
from gateway.registry.registry import Registry
from gateway.scheduling.pools import Pools
from gateway.scheduling.urgency import Urgency, urgency_of
from policies.types import Attainment, BackendView, RequestView

RATE_S = 1.0
FIRST_LOOK_S = 0.5  # some tens of engine steps, and no longer than a person notices
RATES_MAX = 100_000  # tenants; beyond that all rates are dropped and measured again


class Reserve(Fields):
    """The capacity of a backend that is reserved for a tier, in sequences and KV tokens. It is set by the tier's
    `reserve_ratio`, or by the free capacity that the tier needs, as the gateway has learned, if that is more.
    """

    sequences: int
    tokens: int


class BackendState(Fields):
    """The state of one backend. `steps` is the state of its limit by step time; null: it has no step time model.
    `foreign_*` is the load by clients that do not use this gateway. `reserves` are by tier.
    """

    available: bool
    in_flight_requests: int
    requests_limit: int
    reserved_tokens: int
    tokens_limit: int | None
    foreign_requests: int
    foreign_tokens: int
    steps: StepsResource | None
    reserves: dict[str, Reserve]


class TierState(Fields):
    """The state of one tier in a pool. `slack_s_min`: the seconds until the next token of its most urgent request is
    due; null: no request has an SLO envelope (latency targets).
    """

    queued_requests: int
    in_flight_requests: int
    slack_s_min: float | None
    attainment: Attainment


class RequestState(Fields):
    """A request with an SLO envelope (latency targets). `backend` null: it is queued. `slack_s`: the seconds until its
    next token is due; below 0: it is late.
    """

    request: str
    tenant: str
    backend: str | None
    output_tokens: int
    slack_s: float


class PoolState(Fields):
    """The state of one pool. `urgent`: the requests whose next token is due soonest, at most 100."""

    pool: str
    queued_requests: int
    queued_bytes: int
    in_flight_requests: int
    tenants: int
    tiers: dict[str, TierState]
    urgent: list[RequestState]
    backends: dict[str, BackendState]


class LiveState(Fields):
    """The state of all pools, and whether the store accepts changes at present."""

    store_available: bool
    pools: list[PoolState]


class TenantStateResource(Fields):
    """The state of one tenant in one pool.

    `service` is the service charged since start: tokens times their prices, in service units; `service_per_s` is its
    recent rate. `rank` orders the tenants of a tier, least first; `key` is the old name of `rank`. `slack_s_min` is the
    least slack of the tenant's requests: the seconds until the next token is due.
    """

    pool: str
    tenant: str
    queued_requests: int
    queued_bytes: int
    in_flight_requests: int
    in_flight_tokens: int
    service: float
    service_per_s: float
    counter: float
    rank: float
    key: float
    slack_s_min: float | None
    attainment: Attainment


class BudgetState(Fields):
    """The state of one budget of a key, a tenant or a group: its limit, and the used, reserved and remaining amounts.
    `key` is "" for the budget of a whole tenant; a group's budget has `group`, and its `tenant` is "". Amounts of cost
    are text, in the currency of the price lists. `used` is by ended calls at all gateways that share the state;
    `reserved` is for queued and running calls. `renewed_at`: when the budget is renewed, in seconds since 1970.
    """

    tenant: str
    key: str
    group: str
    unit: Literal["tokens", "cost"]
    period: Literal["day", "month"]
    limit: int | str
    used: int | str
    reserved: int | str
    remaining: int | str
    renewed_at: int


class TenantStatePage(Page):
    """A query of one page of the states of tenants. `pool`: only the states in this pool; null: in all pools."""

    pool: ModelName | None = None


class BudgetPage(Page):
    """A query of budgets. `group`: only the group's own budgets, and those of its tenants and their keys; null: all."""

    group: Name | None = None


class TenantStates(ResourceList):
    """One page of tenants' states, by pool and tenant."""

    items: list[TenantStateResource]


class BudgetStates(ResourceList):
    """One page of budgets, by holder (key, tenant or group)."""

    items: list[BudgetState]


class Rates:
    """A meter of the recent growth per second of counters, such as the service charged to a tenant. Mutable."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[float, float, float]] = {}  # time, amount, rate

    def knows(self, name: tuple[str, str]) -> bool:
        return name in self._seen

    def per_s(self, name: tuple[str, str], amount: float, now: float, *, over_s: float = RATE_S) -> float:
        """The growth rate of the counter `name`, whose value is `amount` now; 0 at the first call. It is computed again
        at most every `over_s` seconds.
        """
        if name not in self._seen and len(self._seen) >= RATES_MAX:
            self._seen.clear()
        at, before, rate = self._seen.get(name, (now, amount, 0.0))
        if now - at >= over_s:
            at, before, rate = now, amount, max(amount - before, 0.0) / (now - at)
        self._seen[name] = at, before, rate
        return rate


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRoutes:
    """The admin routes of the live state of pools, tenants and budgets."""

    registry: Registry
    pools: Pools
    ledger: BudgetLedger
    clock: Callable[[], float]
    cluster_view: Callable[[], ClusterView]
    rates: Rates = field(default_factory=Rates)

    def routes(self) -> Iterator[Route]:
        yield Route(
            method="GET", path="/state", role=Role.VIEWER, summary="Pools and backends as they are now.",
            run=self.state, answer=LiveState, live=True,
        )  # fmt: skip
        yield Route(
            method="GET", path="/state/tenants", role=Role.VIEWER,
            summary="Every tenant's queue, counters and rate of service in every pool, by pool and tenant.",
            run=self.tenants, query=TenantStatePage, answer=TenantStates, live=True,
        )  # fmt: skip

        yield Route(
            method="GET", path="/state/budgets", role=Role.VIEWER,
            summary="Budgets of tokens or money: what is used and what is left, by group, tenant and key.",
            run=self.budgets_left, query=BudgetPage, answer=BudgetStates, live=True,
            for_groups=True,
        )  # fmt: skip
        yield Route(
            method="GET", path="/cluster", role=Role.VIEWER,
            summary="The processes that share one order, and the one that leads, as this one sees them.",
            run=self.cluster, answer=ClusterView,
        )  # fmt: skip

    async def state(self, _asked: AdminRequest) -> AdminAnswer:
        tenant_ids = self.pools.tenant_ids()
        pools = []
        for pool, snapshot in sorted(self.pools.overviews().items()):
            urgency = await urgency_of(self.pools.dispatchers[pool], list(snapshot.attainment))
            pools.append(
                PoolState(
                    pool=pool,
                    queued_requests=snapshot.queued_requests,
                    queued_bytes=snapshot.queued_bytes,
                    in_flight_requests=snapshot.in_flight_requests,
                    tenants=len(tenant_ids[pool]),
                    tiers=_tiers(urgency, snapshot.attainment),
                    urgent=[_urgent(*each) for each in urgency.requests.items()],
                    backends={name: _backend(view) for name, view in snapshot.backends.items()},
                )
            )
        return AdminAnswer(LiveState(store_available=self.registry.is_store_available, pools=pools))

    async def tenants(self, asked: AdminRequest) -> AdminAnswer:
        query: TenantStatePage = asked.query
        after = tuple((query.cursor or "").partition("\n")[::2])
        rows = [
            (pool, tenant)
            for pool, tenants in self.pools.tenant_ids().items()
            if query.pool in (None, pool)
            for tenant in tenants
            if (pool, tenant) > after
        ]
        shown, cursor = first_of(rows, query.limit, "\n".join)
        items: list[TenantStateResource] = []
        for pool in dict.fromkeys(pool for pool, _ in shown):
            dispatcher = self.pools.dispatchers.get(pool)
            slacks_s = {} if dispatcher is None else (await urgency_of(dispatcher, [])).tenants
            unknown = await self._measure(pool, [tenant for of, tenant in shown if of == pool])
            items += self._of(pool, shown, slacks_s, unknown)
        return AdminAnswer(TenantStates.model_construct(items=items, next_cursor=cursor))

    async def budgets_left(self, asked: AdminRequest) -> AdminAnswer:
        query: BudgetPage = asked.query
        tenant, _, key = (query.cursor or "").partition("\n")
        rows = self.ledger.overview((tenant, key), query.limit + 1, lambda holder: self._is_of(holder, query.group))
        # Both budgets of a holder are on the same page.
        shown, cursor = first_of(list(dict.fromkeys(row.holder for row in rows)), query.limit, "\n".join)
        on_page = set(shown)
        items = [
            BudgetState(
                tenant="" if group_of(row.holder) else row.holder[0], key=row.holder[1], group=group_of(row.holder),
                unit=row.unit.value, period=row.period,
                limit=_amount(row, row.limit), used=_amount(row, row.used), reserved=_amount(row, row.reserved),
                remaining=_amount(row, row.remaining), renewed_at=int(row.renewed_at_s),
            )
            for row in rows
            if row.holder in on_page
        ]  # fmt: skip
        return AdminAnswer(BudgetStates.model_construct(items=items, next_cursor=cursor))

    def _is_of(self, holder: Holder, group: str | None) -> bool:
        """Whether the holder of a budget is this group, or one of its tenants or their keys. None: any holder is."""
        if group is None or group_of(holder):
            return group in (None, group_of(holder))
        entry = self.registry.get("tenants", holder[0])
        return entry is not None and entry.body.get("group") == group

    async def cluster(self, _asked: AdminRequest) -> AdminAnswer:
        return AdminAnswer(encoded=msgspec.json.encode(self.cluster_view()))

    async def _measure(self, pool: str, names: list[str]) -> set[str]:
        """Start to measure tenants that have no rate yet, and return them. If any of them has requests in flight, this
        first waits for FIRST_LOOK_S.
        """
        unknown = [name for name in names if not self.rates.knows((pool, name))]
        if not unknown:
            return set()
        views, now = self.pools.views(pool, unknown), self.clock()
        for name, view in views.items():
            self.rates.per_s((pool, name), view.service, now)
        if any(view.in_flight_requests for view in views.values()):
            await asyncio.sleep(FIRST_LOOK_S)
        return set(unknown)

    def _of(
        self, pool: str, rows: Sequence[tuple[str, str]], slacks_s: Mapping[str, float], unknown: Collection[str]
    ) -> Iterator[TenantStateResource]:
        names, now = [tenant for of, tenant in rows if of == pool], self.clock()
        views = self.pools.views(pool, names)
        for name in names:
            view = views.get(name)
            if view is not None:
                # A tenant measured since just now was measured for FIRST_LOOK_S, less a tick of the clock.
                over_s = FIRST_LOOK_S / 2 if name in unknown else RATE_S
                rate = self.rates.per_s((pool, name), view.service, now, over_s=over_s)
                yield TenantStateResource.made_of(
                    view, pool=pool, tenant=name, service_per_s=rate, key=view.rank,
                    slack_s_min=slacks_s.get(name), attainment=view.attainment,
                )  # fmt: skip


def _amount(use: BudgetUse, amount: int) -> int | str:
    """An amount of a budget: a number of tokens, or money as text."""
    return amount if use.unit is Unit.TOKENS else to_text(amount)


def steps_of(view: BackendView) -> StepsResource | None:
    """The predicted steps of a backend; None where no step-time model limits it."""
    return None if view.steps is None else StepsResource.made_of(view.steps)


def _backend(view: BackendView) -> BackendState:
    reserves = {tier_id: Reserve.made_of(reserve) for tier_id, reserve in view.reserves.items()}
    return BackendState.made_of(
        view, foreign_requests=view.external_requests, foreign_tokens=view.external_tokens,
        steps=steps_of(view), reserves=reserves,
    )  # fmt: skip


def _tiers(urgency: Urgency, attainment: Mapping[str, Attainment]) -> dict[str, TierState]:
    return {
        tier_id: TierState.made_of(
            tier, slack_s_min=None if tier.slack_s_min == inf else tier.slack_s_min, attainment=attainment[tier_id]
        )
        for tier_id, tier in urgency.tiers.items()
    }


def _urgent(request_id: str, view: RequestView) -> RequestState:
    return RequestState.made_of(view, request=request_id, tenant=view.tenant_id, backend=view.backend_id)
