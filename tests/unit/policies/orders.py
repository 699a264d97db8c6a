"""An order of requests driven by hand: queues beside it, charges said where they matter."""

from policies.accounts.ledger import InFlight
from policies.fairness import Fairness
from policies.queues import ArrivalOrder
from policies.reservation import Reservation
from policies.types import Request, SloEnvelope, Usage


def anyone(_: Request) -> bool:
    return True


class Orderly:
    """Joins a tenant with its first request and lets it leave with its last, as a lane does."""

    def __init__(self, order: Fairness) -> None:
        self.order = order
        self.queues: dict[str, ArrivalOrder] = {}
        self.entries: dict[str, InFlight] = {}
        self.cached: dict[str, int] = {}  # blocks, by request
        self.now = 0.0
        if order.reads_prefixes:
            order.look_up_in(lambda request: self.cached.get(request.id, 0))

    def send(
        self, request_id: str, *, prompt: int = 1, output_max: int = 100, cached: int = 0, ttft_s=None, program=None
    ):
        """A request of the tenant that its id begins with."""
        self.cached[request_id] = cached
        request = Request(
            request_id,
            request_id[0],
            "m",
            self.now,
            prompt,
            output_max,
            prefix_block_tokens=1.0,
            envelope=None if ttft_s is None else SloEnvelope(ttft_s=ttft_s),
            program_id=program,
        )
        queue = self.queues.setdefault(request.tenant_id, ArrivalOrder())
        queue.append(request)
        self.order.queued(request, queue, self.now)
        if len(queue) == 1:
            self.order.joined(request.tenant_id, queue)

    def next(self, eligible=anyone) -> str | None:
        request = self.order.pick(eligible)
        return request and request.id

    def dispatch(self, service: float = 0.0, eligible=anyone, expected: float = 0.0, weight: float = 1.0) -> str | None:
        """Send the next request, for this charge, to an engine that is half full."""
        request = self.order.pick(eligible)
        if request is None:
            return None
        entry = InFlight(
            request, "gpu", Reservation("default", 1, 1), expected, expected, Usage(request.prompt_tokens, 0, 0),
            dispatched_at=self.now, utilisation=0.5,weight=weight, service=service,
        )  # fmt: skip
        self.entries[request.id] = entry
        self.order.dispatched(entry)
        self.order.charged(request.tenant_id, service, 0.0)
        self.drop(request.id)
        return request.id

    def drop(self, request_id: str) -> None:
        """The request leaves the queue."""
        tenant_id = request_id[0]
        self.queues[tenant_id].remove(request_id)
        if not self.queues[tenant_id]:
            del self.queues[tenant_id]
            self.order.left(tenant_id)

    def end(self, request_id: str, output: int) -> InFlight:
        entry = self.entries.pop(request_id)
        entry.usage = Usage(entry.usage.prompt_tokens, 0, output)
        self.order.ended(entry, self.now)
        return entry

    def everything(self, service: float = 0.0) -> list[str]:
        """All that waits, in the order in which it is sent."""
        sent = []
        while (request_id := self.dispatch(service)) is not None:
            sent.append(request_id)
        return sent
