"""Parts of a Scheduler: a factory that makes each part with the others that it needs. scheduler.py explains the
settings.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from policies.accounts.cost import Price
from policies.accounts.ledger import Ledger
from policies.admission import Admission, AdmissionRules, BoundedQueues, Feasibility, RateLimiter
from policies.capacity.prefix_index import PrefixIndex
from policies.fairness import Fairness
from policies.fleet.fleet import Fleet
from policies.fleet.ttft import TtftByBackend
from policies.group_state import GroupState
from policies.placement import ArrivalPlacement, Placement
from policies.pool.accounting import Accounting
from policies.pool.admission import PoolAdmission
from policies.pool.arrangement import Arrangement
from policies.pool.draining import Draining
from policies.pool.handover import Handover
from policies.pool.outage import Outage
from policies.pool.passing_on import PassingOn
from policies.pool.preemption import InterruptRules, Preemption
from policies.pool.push_out import PushOut
from policies.pool.queue_timeout import QueueTimeout
from policies.pool.session_gate import SessionGate, SessionRules
from policies.pool.slot_fitting import SlotFitting
from policies.pool.tenants import Tenants
from policies.prediction import Prediction
from policies.queueing.fair_queue import QueuedTenant
from policies.queueing.fair_queues import QueueFactory
from policies.queues import PoolQueues
from policies.slo.attainment import AttainmentCounts
from policies.slo.shedding import Shedding
from policies.slo.ttft_forecast import Forecaster
from policies.types import Group, Tenant, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerParts:
    """The parts of one Scheduler, in the order in which they depend on each other."""

    tiers: dict[str, Tier]
    queues: PoolQueues
    fleet: Fleet
    prefixes: PrefixIndex
    slot_fitting: SlotFitting
    ledger: Ledger
    arrangement: Arrangement
    forecaster: Forecaster
    admission_rules: AdmissionRules
    accounting: Accounting
    attainment: AttainmentCounts
    tenants: Tenants
    preemption: Preemption
    shedding: Shedding
    outage: Outage
    admission: PoolAdmission
    handover: Handover
    draining: Draining


def make_parts(
    *,
    tenants: Iterable[Tenant],
    tiers: Iterable[Tier],
    groups: Iterable[Group],
    fleet: Fleet,
    fairness: Callable[[], Fairness],
    price: Price,
    prediction: Prediction,
    sizing: Prediction,
    placement: Placement | ArrivalPlacement,
    admission: Sequence[Admission] | None,
    share_ratio_max: float,
    wait_s_max: float,
    backend_wait_s_max: float,
    preempt_service: float | None,
    interrupt_rules: InterruptRules,
    sessions: SessionRules | None,
) -> SchedulerParts:
    """The parts of a Scheduler with these settings; `admission` None: bounded queues and limits per minute."""
    tier_by_id, group_states = {tier.id: tier for tier in tiers}, {group.id: GroupState(group) for group in groups}
    (states, grouped), noted = _tenant_states(tenants, group_states), set[str]()
    queues, prefixes, ledger, attainment = PoolQueues(), PrefixIndex(), Ledger(price), AttainmentCounts()
    slot_fitting = SlotFitting(fleet, prefixes, prediction=prediction, sizing=sizing)
    slot_fitting.set_tiers(tier_by_id.values())
    factory = QueueFactory(
        make_order=fairness,
        tiers=tier_by_id,
        tenants=states,
        fleet=fleet,
        prefixes=prefixes,
        price=price,
        share_ratio_max=share_ratio_max,
        output_tokens=sizing.predict,
        noted=noted,
    )
    factory.groups, factory.grouped = group_states, grouped
    arrangement = Arrangement(placement, factory, queues=queues, slot_fitting=slot_fitting, fleet=fleet)
    forecaster = Forecaster(queues, TtftByBackend(fleet), price, sizing.predict, arrangement)
    feasible = Feasibility(tiers=tier_by_id, ttft_s=forecaster.ttft_s, is_hopeless=forecaster.is_hopeless)
    rules = (BoundedQueues(), RateLimiter(sizing.predict)) if admission is None else admission
    admission_rules = AdmissionRules((*rules, feasible), queues, group_states)
    accounting = Accounting(ledger, arrangement)
    pool_tenants = Tenants(
        states, tier_by_id, queues, arrangement, accounting, slot_fitting, admission_rules, attainment, noted
    )
    pool_tenants.groups, pool_tenants.grouped = group_states, grouped
    preemption = Preemption(preempt_service, tier_by_id, fleet, pool_tenants.tier, forecaster, interrupt_rules, ledger)
    shedding = Shedding(queues, tier_by_id, pool_tenants.tier, pool_tenants.ranks, noted)
    outage, gate = Outage(backend_wait_s_max), _session_gate(sessions, pool_tenants, price, wait_s_max)
    return SchedulerParts(
        tiers=tier_by_id,
        queues=queues,
        fleet=fleet,
        prefixes=prefixes,
        slot_fitting=slot_fitting,
        ledger=ledger,
        arrangement=arrangement,
        forecaster=forecaster,
        admission_rules=admission_rules,
        accounting=accounting,
        attainment=attainment,
        tenants=pool_tenants,
        preemption=preemption,
        shedding=shedding,
        outage=outage,
        admission=(pool_admission := _pool_admission(pool_tenants, forecaster, shedding, outage, wait_s_max)),
        handover=Handover(queues, ledger, fleet, slot_fitting, pool_tenants, accounting, pool_admission, gate),
        draining=Draining(interrupt_rules.drain_s, ledger, fleet),
    )


def _session_gate(rules: SessionRules | None, tenants: Tenants, price: Price, wait_s_max: float) -> SessionGate | None:
    if rules is None:
        return None
    gate = SessionGate(rules, tenants, price, wait_s_max)
    tenants.slot_fitting.home_of = gate.home_of
    return gate


def _pool_admission(
    tenants: Tenants, forecaster: Forecaster, shedding: Shedding, outage: Outage, wait_s_max: float
) -> PoolAdmission:
    return PoolAdmission(
        tenants,
        tenants.slot_fitting.fleet,
        shedding,
        PushOut(tenants),
        PassingOn(tenants, forecaster),
        QueueTimeout(wait_s_max, tenants.tier),
        outage,
    )


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
