"""Policy switch: replaces fairness or placement of a running pool. Counters stay, everything else starts again.

The new queues take over the charges of every tenant and tier: the sum over the old queues, in equal parts. Requests in
flight stay outstanding and are charged where they run; waiting requests wait in the new queues, and those that a
backend rejected before stay prepaid. Deficits and virtual times start as if all had just been refilled: no tenant has
credit or debt. A placement on arrival assigns all waiting requests again, and is not told of earlier dispatches.

No tenant may gain by the switch, so tenants join the new orders from the least served up: VTC lifts a joining tenant to
the least counter of the waiting tenants, and the first to join has that counter.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from policies.accounts.checkpoint import SHARED_QUEUE, ServiceCheckpoint, divide_queue, fit_to_queues, sum_queues
from policies.accounts.ledger import InFlight, Ledger
from policies.pool.slot_fitting import SlotFitting
from policies.prediction import PREDICTION, Prediction
from policies.queueing.fair_queue import FairQueue, QueuedTenant
from policies.queueing.fair_queues import FairQueues, QueueFactory
from policies.queues import PoolQueues
from policies.types import PolicyChoice

T = TypeVar("T")


def choose_policy(table: Mapping[str, Callable[..., T]], choice: PolicyChoice) -> Callable[[], T]:
    """A constructor of the chosen policy. Raises ValueError for an unknown name or an unknown parameter."""
    if choice.name not in table:
        raise ValueError(f"no policy {choice.name!r}: there are {', '.join(table)}")
    make: Callable[..., Any] = partial(table[choice.name], **choice.parameters)
    try:
        make()
    except TypeError as error:
        raise ValueError(f"{choice.name}: {error}") from error
    return make


def predictors(
    slot_fitting: SlotFitting, prediction: PolicyChoice | None, sizing: PolicyChoice | None
) -> tuple[Prediction, Prediction]:
    """The predictor that orders tenants, and the predictor that sizes reservations. Where one predictor does both, it
    continues to, unless `sizing` chooses another. Raises ValueError as `choose_policy` does.
    """
    predictor = choose_policy(PREDICTION, prediction)() if prediction else slot_fitting.prediction
    sizer = predictor if slot_fitting.sizing is slot_fitting.prediction else slot_fitting.sizing
    return predictor, choose_policy(PREDICTION, sizing)() if sizing else sizer


def rearrange(
    before: FairQueues,
    after: FairQueues,
    *,
    ledger: Ledger,
    queues: PoolQueues,
    states: Mapping[str, QueuedTenant],
    now: float,
) -> None:
    """Move all waiting and running requests to the new, empty queues, which must have a place for each."""
    _carry_counters(list(before.all()), list(after.all()))
    for entry in ledger.in_flight.values():
        fair_queue = after.at(entry.backend_id)
        fair_queue.use.count(entry, 1, entry.reservation.sequences, entry.reservation.tokens)
        _expect(fair_queue, entry)
    not_taken = [request_id for fair_queue in before.all() for request_id in fair_queue.first]
    homes: dict[str, FairQueue] = {}
    for request in queues.oldest_first():
        before.leave(request, sent=False)
        fair_queue = homes[request.id] = after.enter(request, now)
        fair_queue.queued(request, now)
        prepaid = ledger.prepaid.get(request.id)
        if prepaid is not None:
            prepaid.backend_id = fair_queue.backend_id or prepaid.backend_id
            _expect(fair_queue, prepaid)
    for request_id in not_taken:
        homes[request_id].first[request_id] = None
    for fair_queue in after.all():
        _join(fair_queue, states.values())


def restore(fair_queues: FairQueues, maker: QueueFactory, checkpoint: ServiceCheckpoint) -> None:
    """Start the new queues from the checkpoint, and give `maker` the part for queues that do not exist yet."""
    here = {fair_queue.backend_id or SHARED_QUEUE: fair_queue for fair_queue in fair_queues.all()}
    fitting = fit_to_queues(checkpoint, here)
    for key, fair_queue in here.items():
        if key in fitting:
            fair_queue.restore(fitting[key], returning=True)
    maker.restored = {key: each for key, each in fitting.items() if key not in here}


def _carry_counters(before: Sequence[FairQueue], after: Sequence[FairQueue]) -> None:
    part = divide_queue(sum_queues([fair_queue.order.checkpoint() for fair_queue in before]), max(1, len(after)))
    for fair_queue in after:
        fair_queue.restore(part)


def _expect(fair_queue: FairQueue, entry: InFlight) -> None:
    """Count the entry's outstanding service in this queue."""
    fair_queue.charged(entry.request.tenant_id, (0.0, entry.outstanding))


def _join(fair_queue: FairQueue, states: Iterable[QueuedTenant]) -> None:
    def key(state: QueuedTenant) -> tuple[float, tuple[float, ...], str]:
        tenant = state.tenant
        return (
            fair_queue.order.root.order.service_record(tenant.tier_id).rank,
            fair_queue.order.ranks(tenant),
            tenant.id,
        )

    for state in sorted(states, key=key):
        fair_queue.refresh(state)
