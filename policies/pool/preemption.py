"""Preemption: which dispatched request goes back to its queue to make room for another. It is off unless the operator
sets it.

A slot is otherwise taken until its request ends. The preempted request, the victim, has not produced a token, or is
resumable and the rules allow its preemption. The youngest is taken first. At most one per queue is preempted at a time,
so that its effect is seen before the next. There are two grounds:

- service: the least served waiting tenant is behind a running one by more than a threshold. The victim belongs to the
  most served tenant of the same tier (VTC, Sheng et al., OSDI '24, App. C.3).
- an envelope: the next request, except those of `preemptible` tiers, would miss its TTFT if it waited for a slot, and
  would meet it if it had one. The victim belongs to a preemptible tier. The other tier's rank may be ahead of this tier
  by no more than the price of the victim: so no tier gets more than that price beyond its share, and none starves. A
  tier's rank includes the predicted service of its running requests, and stays high while long answers run. So where
  running answers may be preempted, the other tier may be ahead by the price of all of them: by U, as VTC allows any two
  tiers. The slot is kept for the request that it was freed for. Where requests may be preempted after their first
  token, they also give way to a request that is late in any case: their work is not lost.

A preempted request waits again at the head of its tenant's queue, with its charge, and pays nothing for the work that
its backend repeats. Before its first token a request is preempted at most once. Otherwise tenants could preempt each
other in turns without end, where the threshold is below the price of a request, or where an order that reads more than
counters dispatches the same request again. After its first token, a request is preempted a few times at most, each time
only after it has produced some tokens since its dispatch (InterruptRules).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from policies.accounts.ledger import InFlight, Ledger
from policies.call_life import LIFE, Event, Life
from policies.due_times import first_token_due_at
from policies.fleet.fleet import Fleet
from policies.queueing.fair_queue import FairQueue
from policies.queueing.fair_queues import FairQueues
from policies.slo.ttft_forecast import Forecaster
from policies.types import Preempt, Request, Tier

WAITED_RATIO_MAX = 0.5  # of its TTFT target: how long a request may wait where step times are unknown
RECHECK_S = 0.001
# Measured (docs/results/continue.md): the least that keeps the p99 within a few steps.
TIMES_MAX = 8
TOKENS_BETWEEN_MIN = 64


@dataclass(frozen=True, slots=True)
class InterruptRules:
    """The rules by which a request may be preempted after its first token, if another backend can continue its answer.

    To make room for a request of another tenant or with an SLO envelope, a request is preempted at most `times_max`
    times (0: never), and only after `tokens_between_min` output tokens since its last dispatch. At a draining backend,
    it is preempted `drain_s` seconds after the draining began (None: never).
    """

    times_max: int = 0
    tokens_between_min: int = 0
    drain_s: float | None = None


NO_INTERRUPTIONS = InterruptRules()


@dataclass(slots=True)
class Preemption:
    """The part of a Scheduler that chooses running requests to preempt for waiting ones. A request may be preempted for
    one of a tenant whose rank is lower by more than `service_min`, in service over weight; None: no request is
    preempted because of ranks. A request of a `preemptible` tier may be preempted for one with an SLO envelope. `tiers`
    has all tiers by id, `tier` gives a tenant's tier.
    """

    service_min: float | None
    tiers: Mapping[str, Tier]
    fleet: Fleet
    tier: Callable[[str], Tier]
    forecaster: Forecaster
    rules: InterruptRules
    ledger: Ledger
    wakeup_at: float | None = field(default=None, init=False)
    """The time at which a waiting request may preempt another; None: no such time is known."""
    is_on: bool = field(default=False, init=False)
    """Whether any request may be preempted."""
    untouched: dict[str, InFlight] = field(default_factory=dict, init=False)
    """By request, in order of dispatch: what may be preempted and has produced nothing. To read."""

    def __post_init__(self) -> None:
        self.tiers_changed()

    def tiers_changed(self) -> None:
        """Tiers were added, changed or removed."""
        self.is_on = self.service_min is not None or any(tier.preemptible for tier in self.tiers.values())

    def may_preempt(self, request: Request) -> bool:
        """Whether this request, if it is dispatched now, may be preempted."""
        return self.service_min is not None or self.tier(request.tenant_id).preemptible

    def sent(self, entry: InFlight) -> None:
        """Record the dispatch of an entry that may be preempted."""
        if not entry.is_prepaid and not entry.request.preemptions:
            self.untouched[entry.request.id] = entry

    def kept(self, request_id: str, now: float) -> None:
        """A preemption came too late: the request's client was sent something, and it runs on."""
        entry = self.ledger.in_flight.get(request_id)
        if entry is not None:
            entry.life = LIFE[entry.life, Event.KEPT]
            self.settled(request_id)

    def settled(self, request_id: str) -> None:
        """The request is no longer a candidate without tokens: it has produced one, left its backend, or was kept."""
        self.untouched.pop(request_id, None)

    def preempted(self, fair_queues: FairQueues, now: float) -> Iterator[Preempt]:
        """The requests to preempt now, at most one per queue, where backends are open."""
        self.wakeup_at = None
        running: dict[FairQueue, list[InFlight]] = {}
        for entry in (*self.untouched.values(), *self._begun()):
            if self.fleet.is_open(entry.backend_id, now):
                running.setdefault(fair_queues.at(entry.backend_id), []).append(entry)
        for fair_queue, entries in running.items():
            if any(entry.is_leaving for entry in entries):
                continue  # the last preemption from this queue is not answered yet
            victim = self._for_envelope(fair_queue, entries, now) or self._for_service(fair_queue, entries)
            if victim is not None:
                victim.life = LIFE[victim.life, Event.PREEMPTED]
                yield Preempt(victim.request.id)

    def _begun(self) -> Iterator[InFlight]:
        """The requests that have produced tokens and may be preempted, or are being preempted."""
        times_max, tokens_min = self.rules.times_max, self.rules.tokens_between_min
        if not times_max:
            return
        for entry in self.ledger.in_flight.values():
            if entry.request.is_resumable and entry.first_token_at is not None and entry.life is not Life.FIXED:
                is_due = entry.request.preemptions < times_max and entry.reservation.produced_tokens >= tokens_min
                if entry.is_leaving or (is_due and self.may_preempt(entry.request)):
                    yield entry

    def _for_service(self, fair_queue: FairQueue, entries: list[InFlight]) -> InFlight | None:
        if self.service_min is None or not fair_queue.order.is_fair:
            return None
        for tier_id, request in fair_queue.next_of_tiers():
            ahead = [
                (lead, *_youth(entry), entry)
                for entry in _of_use(entries, request)
                if self.tier(entry.request.tenant_id).id == tier_id
                and (lead := fair_queue.ahead(entry.request.tenant_id, request.tenant_id)) > self.service_min
            ]
            if ahead:  # the youngest request of the tenant that is furthest ahead
                return max(ahead, key=lambda each: each[:3])[3]
        return None

    def _for_envelope(self, fair_queue: FairQueue, entries: list[InFlight], now: float) -> InFlight | None:
        waiting = (choice for choice in fair_queue.next_of_tiers() if not self.tiers[choice[0]].preemptible)
        tier_id, request = next(waiting, ("", None))
        if request is None or request.id in fair_queue.first or request.produced_tokens:
            return None
        worth = self._worth(entries)
        victims = [each for each in _of_use(entries, request) if self._gives(fair_queue, each, tier_id, worth)]
        if not victims:
            return None
        late_at = self._late_at(request, now)
        if late_at is None and self.rules.times_max and first_token_due_at(request) is not None:
            # It is late in any case, but what gives way for it now loses nothing.
            victims, late_at = [each for each in victims if each.first_token_at is not None], now
        if late_at is None or not victims:
            return None
        if now < late_at - RECHECK_S:
            self.wakeup_at = late_at if self.wakeup_at is None else min(self.wakeup_at, late_at)
            return None
        fair_queue.first[request.id] = None
        return max(victims, key=_youth)

    def _worth(self, entries: list[InFlight]) -> Mapping[str, float]:
        """The price, by tier, of the begun answers that may give way: the part of the tier's U that can be taken from
        it.
        """
        worth: defaultdict[str, float] = defaultdict(float)
        for entry in entries:
            if entry.first_token_at is not None:
                worth[self.tier(entry.request.tenant_id).id] += entry.service + entry.outstanding
        return worth

    def _gives(self, fair_queue: FairQueue, entry: InFlight, tier_id: str, worth: Mapping[str, float]) -> bool:
        """Whether the entry's tier is preemptible, and `tier_id` is not too far ahead of it."""
        tier = self.tier(entry.request.tenant_id)
        if not tier.preemptible:
            return False
        lead = fair_queue.order.root.order.lag(tier.id, tier_id)
        price = entry.service + entry.outstanding if entry.first_token_at is None else worth[tier.id]
        return lead <= price / tier.weight

    def _late_at(self, request: Request, now: float) -> float | None:
        """The time from which the request will miss its TTFT target if it still waits for a slot. None where it has no
        TTFT target, or would miss it even with a slot.
        """
        due_at = first_token_due_at(request)
        if due_at is None or self.forecaster.is_hopeless(request, due_at, now):
            return None
        forecast_s = self.forecaster.next_ttft_s(request, now)
        if forecast_s is None:
            return request.arrived_at + (due_at - request.arrived_at) * WAITED_RATIO_MAX
        return due_at - forecast_s


def _of_use(entries: list[InFlight], request: Request) -> list[InFlight]:
    """The entries whose slots the request may use."""
    return [each for each in entries if request.backend_ids is None or each.backend_id in request.backend_ids]


def _youth(entry: InFlight) -> tuple[float, str]:
    return entry.dispatched_at, entry.request.id
