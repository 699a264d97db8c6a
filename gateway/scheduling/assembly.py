"""make_scheduler: makes a Scheduler from configuration; the only place that composes policies by their names.

The gateway makes the Scheduler of every pool here, and `fairlead simulate` makes the compared Schedulers here, so that
it simulates the Scheduler that would run.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import TypeVar

from gateway.config.scheduling import PolicySettings, Scheduling
from gateway.config.sections import ContinuationSection, QueueSection
from policies.accounts.cost import PRICES
from policies.admission import WINDOWS, BoundedQueues, RateLimiter
from policies.fairness import FAIRNESS
from policies.limit import LIMITS
from policies.placement import PLACEMENT
from policies.pool.preemption import NO_INTERRUPTIONS, TIMES_MAX, TOKENS_BETWEEN_MIN, InterruptRules
from policies.pool.scheduler_parts import SchedulerSettings
from policies.pool.session_gate import SessionRules
from policies.prediction import PREDICTION, MixtureOfExperts, Prediction, TenantQuantile
from policies.prediction.known import NoisyOracle
from policies.prediction.quantile import QUANTILE
from policies.scheduler import Scheduler
from policies.types import DEFAULT_TIER, Group, PolicyChoice, Tenant, Tier

T = TypeVar("T")

# The prediction that reserves KV cache, where the one that orders tenants is too small for that. A reservation of zero
# would move the queue into the engine, which is first come, first served; one that half of the answers exceed causes
# preemptions.
SIZING: Mapping[str, Callable[[], Prediction]] = {
    "none": TenantQuantile,
    "mixture": partial(MixtureOfExperts, quantile=QUANTILE),
}
SIZING_CHOICES: Mapping[str, PolicyChoice] = {
    "none": PolicyChoice("quantile"),
    "mixture": PolicyChoice("mixture", {"quantile": QUANTILE}),
}


def make_scheduler(
    scheduling: Scheduling,
    *,
    tiers: Iterable[Tier] = (DEFAULT_TIER,),
    tenants: Iterable[Tenant] = (),
    groups: Iterable[Group] = (),
    queue: QueueSection | None = None,
    continuation: ContinuationSection | None = None,
    rng: Random | None = None,
    session_room: float | None = None,
) -> Scheduler:
    """Return a Scheduler for one pool, with policies of its own. Without `continuation` it interrupts no request. `rng`
    is for randomized policies; by default the system seeds it. `session_room` is the part of a KV pool that contexts of
    sessions may have; None: it is learnt.
    """
    queue = queue or QueueSection()
    rng = rng or Random()  # noqa: S311 - no secrets
    prediction = _made(PREDICTION, scheduling.prediction, rng)
    sizing = SIZING.get(scheduling.prediction.policy, lambda: prediction)()
    settings = SchedulerSettings(
        tenants=tenants,
        tiers=tiers,
        groups=groups,
        fairness=lambda: _made(FAIRNESS, scheduling.fairness, rng),  # one for every tier
        price=_made(PRICES, scheduling.price, rng),
        prediction=prediction,
        sizing=sizing,
        placement=_made(PLACEMENT, scheduling.placement, rng),
        limit=lambda: _made(LIMITS, scheduling.limit, rng),  # one for every backend
        admission=(
            BoundedQueues(requests_max=queue.requests_max, tenant_requests_max=queue.tenant_requests_max),
            RateLimiter(sizing.predict, WINDOWS[scheduling.rate_window]),
        ),
        share_ratio_max=scheduling.share_ratio_max,
        kv_rule=scheduling.kv_rule,
        wait_s_max=queue.wait_s_max,
        backend_wait_s_max=queue.backend_wait_s_max,
        preempt_service=scheduling.preempt_service,
        interrupt_rules=_interrupt_rules(continuation),
        sessions=SessionRules(eta=session_room) if scheduling.hold_sessions else None,
    )
    return Scheduler(settings)


def _interrupt_rules(continuation: ContinuationSection | None) -> InterruptRules:
    if continuation is None or not continuation.enabled:
        return NO_INTERRUPTIONS
    times_max = TIMES_MAX if continuation.preempt.enabled else 0
    return InterruptRules(times_max, TOKENS_BETWEEN_MIN, continuation.drain_s)


def policy_choices(scheduling: Scheduling) -> dict[str, PolicyChoice]:
    """The policies of this configuration, by kind, as arguments of a PolicyChanged."""
    choices = {
        kind: PolicyChoice(policy.policy, policy.parameters())
        for kind, policy in (
            ("fairness", scheduling.fairness),
            ("prediction", scheduling.prediction),
            ("placement", scheduling.placement),
        )
    }
    return choices | {"sizing": SIZING_CHOICES.get(scheduling.prediction.policy, choices["prediction"])}


def _made(table: Mapping[str, Callable[..., T]], policy: PolicySettings, rng: Random) -> T:
    """Make the policy that the table has under this name, with its parameters."""
    make, parameters = table[policy.policy], policy.parameters()
    if make is NoisyOracle:  # the only policy that draws random numbers
        parameters["rng"] = rng
    return make(**parameters)
