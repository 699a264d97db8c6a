"""Settings of a Scheduler, and its parts, each made with the others that it needs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from policies.accounts.cost import LinearPrice, Price
from policies.accounts.ledger import Ledger
from policies.admission import Admission, AdmissionRules, BoundedQueues, Feasibility, RateLimiter
from policies.capacity.headroom import KV_HEADROOM_RATIO
from policies.capacity.prefix_index import PrefixIndex
from policies.fairness import Fairness, VirtualTokenCounter
from policies.fleet.fleet import Fleet
from policies.fleet.ttft import TtftByBackend
from policies.group_state import GroupState
from policies.limit import Limit, ModelLimit
from policies.placement import ArrivalPlacement, LeastReserved, Placement
from policies.pool.accounting import Accounting
from policies.pool.admission import PoolAdmission
from policies.pool.arrangement import Arrangement
from policies.pool.draining import Draining
from policies.pool.outage import BACKEND_WAIT_S_MAX, Outage
from policies.pool.passing_on import PassingOn
from policies.pool.preemption import NO_INTERRUPTIONS, InterruptRules, Preemption
from policies.pool.push_out import PushOut
from policies.pool.queue_timeout import QueueTimeout
from policies.pool.session_gate import SessionGate, SessionRules
from policies.pool.slot_fitting import SlotFitting
from policies.pool.tenants import Tenants
from policies.pool.waiting import WaitingRequests
from policies.prediction import Prediction, TenantQuantile
from policies.queueing.fair_queue import QueuedTenant
from policies.queueing.fair_queues import QueueFactory
from policies.queueing.share_cap import SHARE_RATIO_MAX
from policies.queues import PoolQueues
from policies.slo.attainment import AttainmentCounts
from policies.slo.shedding import Shedding
from policies.slo.ttft_forecast import Forecaster
from policies.types import DEFAULT_TIER, Group, Tenant, Tier

WAIT_S_MAX = 300.0
# Of one poll: about a millisecond, in which the driver does nothing else. While 500 streams begin on a slow core, half
# of the loop's time is in turns of over 18 ms. With 16 that is 11 ms, but a whole answer beside 31 others takes 6 %
# more CPU; with 8 it is 7 ms, and beside 400 others 5 to 15 % more.
DECISIONS_MAX = 32
ASKED_MAX = 8 * DECISIONS_MAX  # questions to backends in one poll: about half as much again by function calls


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """The settings of one Scheduler, and the policy objects that only it uses.

    `prediction` predicts output lengths for the order of tenants, `sizing` for the room to reserve; None: `prediction`
    does both. `admission` has the rules by which a request may enter the queue; None: those for bounded queues and
    limits per minute. A tenant's request may be preempted for a tenant whose rank is lower by more than
    `preempt_service` (preemption.py); None: no request is preempted because of ranks. While no backend is available, a
    request waits for one up to `backend_wait_s_max` seconds (outage.py). `interrupt_rules` say when a request is
    preempted after its first token. `sessions` are the rules by which calls of agents' sessions are held, that is, have
    to wait for room (session_gate.py); None: no call is held.

    One poll (a call of Scheduler.poll) dispatches or rejects at most `decisions_max` waiting requests. It stops earlier
    if it has asked backends `asked_max` times whether, or when, they have room, but not before its first decision.
    """

    tenants: Iterable[Tenant] = ()
    tiers: Iterable[Tier] = (DEFAULT_TIER,)
    groups: Iterable[Group] = ()
    fairness: Callable[[], Fairness] = VirtualTokenCounter
    price: Price = field(default_factory=LinearPrice)
    prediction: Prediction = field(default_factory=TenantQuantile)
    sizing: Prediction | None = None
    placement: Placement | ArrivalPlacement = field(default_factory=LeastReserved)
    admission: Sequence[Admission] | None = None
    share_ratio_max: float = SHARE_RATIO_MAX
    headroom_ratio_max: float = KV_HEADROOM_RATIO
    kv_rule: str = "sum"
    wait_s_max: float = WAIT_S_MAX
    backend_wait_s_max: float = BACKEND_WAIT_S_MAX
    preempt_service: float | None = None
    interrupt_rules: InterruptRules = NO_INTERRUPTIONS
    limit: Callable[[], Limit] = ModelLimit
    decisions_max: int = DECISIONS_MAX
    asked_max: int = ASKED_MAX
    sessions: SessionRules | None = None


class SchedulerParts:
    """The parts of one Scheduler, made from its settings and connected with each other."""

    def __init__(self, settings: SchedulerSettings) -> None:
        price, sizing = settings.price, settings.sizing or settings.prediction
        tiers = self.tiers = {tier.id: tier for tier in settings.tiers}
        groups, noted = {group.id: GroupState(group) for group in settings.groups}, set[str]()
        states, grouped = _tenant_states(settings.tenants, groups)
        queues = self.queues = PoolQueues()
        prefixes = self.prefixes = PrefixIndex()
        ledger = self.ledger = Ledger(price)
        fleet = self.fleet = Fleet(settings.headroom_ratio_max, settings.kv_rule, settings.limit)
        attainment = self.attainment = AttainmentCounts()
        fitting = self.slot_fitting = SlotFitting(fleet, prefixes, prediction=settings.prediction, sizing=sizing)
        fitting.set_tiers(tiers.values())
        factory = self._queue_factory(settings, states, noted)
        factory.groups, factory.grouped = groups, grouped
        order = self.arrangement = Arrangement(
            settings.placement, factory, queues=queues, slot_fitting=fitting, fleet=fleet
        )
        self.forecaster = Forecaster(queues, TtftByBackend(fleet), price, sizing.predict, order)
        rules = self.admission_rules = self._admission_rules(settings, groups)
        accounting = self.accounting = Accounting(ledger, order)
        self.tenants = Tenants(states, tiers, queues, order, accounting, fitting, rules, attainment, noted)
        self.tenants.groups, self.tenants.grouped = groups, grouped
        self.preemption = Preemption(
            settings.preempt_service, tiers, fleet, self.tenants.tier, self.forecaster, settings.interrupt_rules, ledger
        )
        self.shedding = Shedding(queues, tiers, self.tenants.tier, self.tenants.ranks, noted)
        self.outage = Outage(settings.backend_wait_s_max)
        self.admission = self._pool_admission(settings.wait_s_max)
        self.sessions = self._session_gate(settings)
        self.waiting = WaitingRequests(queues, ledger, fleet, self.tenants, accounting, self.admission, self.sessions)
        self.draining = Draining(settings.interrupt_rules.drain_s, ledger, fleet)

    def _queue_factory(
        self, settings: SchedulerSettings, tenants: Mapping[str, QueuedTenant], noted: set[str]
    ) -> QueueFactory:
        return QueueFactory(
            make_order=settings.fairness,
            tiers=self.tiers,
            tenants=tenants,
            fleet=self.fleet,
            prefixes=self.prefixes,
            price=settings.price,
            share_ratio_max=settings.share_ratio_max,
            output_tokens=self.slot_fitting.sizing.predict,
            noted=noted,
        )

    def _admission_rules(self, settings: SchedulerSettings, groups: Mapping[str, GroupState]) -> AdmissionRules:
        rules, forecaster = settings.admission, self.forecaster
        if rules is None:
            rules = BoundedQueues(), RateLimiter(self.slot_fitting.sizing.predict)
        feasible = Feasibility(tiers=self.tiers, ttft_s=forecaster.ttft_s, is_hopeless=forecaster.is_hopeless)
        return AdmissionRules((*rules, feasible), self.queues, groups)

    def _pool_admission(self, wait_s_max: float) -> PoolAdmission:
        return PoolAdmission(
            self.tenants,
            self.fleet,
            self.shedding,
            PushOut(self.tenants),
            PassingOn(self.tenants, self.forecaster),
            QueueTimeout(wait_s_max, self.tenants.tier),
            self.outage,
        )

    def _session_gate(self, settings: SchedulerSettings) -> SessionGate | None:
        if settings.sessions is None:
            return None
        gate = SessionGate(settings.sessions, self.tenants, settings.price, settings.wait_s_max)
        self.slot_fitting.home_of = gate.home_of
        return gate


def _tenant_states(
    tenants: Iterable[Tenant], groups: Mapping[str, GroupState]
) -> tuple[dict[str, QueuedTenant], Counter[str]]:
    """The tenants by id, and the number of tenants with a group, by tier."""
    states = {}
    for tenant in tenants:
        group = None if tenant.group_id is None else groups[tenant.group_id]
        if group is not None:
            group.tenants += 1
        states[tenant.id] = QueuedTenant(tenant, group=group)
    return states, Counter(state.tenant.tier_id for state in states.values() if state.group is not None)
