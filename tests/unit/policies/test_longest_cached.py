"""What is kept of one decision for the next changes none: against looking at every request, over random histories."""

from itertools import count, islice
from math import inf, nextafter
from random import Random

import pytest

from policies.accounts.ledger import InFlight
from policies.capacity.prefix_index import PrefixIndex, leading_blocks
from policies.fairness import DeficitLongestPrefix, SlackCounter, cached
from policies.queues import ArrivalOrder
from policies.reservation import Reservation
from policies.types import Request, Usage
from tests.examples import examples

LOOKUPS_MAX = 6  # fewer than tenants and than requests of one, and not a multiple of most numbers of tenants
TENANTS = [f"t{number}" for number in range(10)]
BACKENDS = "xyz"
BLOCK_TOKENS = 16.0


@pytest.fixture(autouse=True)
def few_lookups(monkeypatch):
    monkeypatch.setattr(cached, "LOOKUPS_MAX", LOOKUPS_MAX)


class Course:
    """An order and an index as a lane drives them, and what is to be picked by the definition."""

    def __init__(self, order, rng: Random, backend_id: str | None) -> None:
        """`backend_id` is the one that requests go to, None any."""
        self.order, self.rng, self.backend_id = order, rng, backend_id
        self.index = PrefixIndex()
        self.queues: dict[str, ArrivalOrder] = {}
        self.sent: list[InFlight] = []
        self.numbers = count()
        self.now = 0.0
        self.lookups = 0
        order.look_up_in(self.asked, lambda number: self.index.changes(number, backend_id=backend_id))

    def asked(self, request: Request) -> int:
        self.lookups += 1
        if self.backend_id is None:
            return self.index.longest(request)[0]
        return self.index.matched_blocks(request, self.backend_id)

    def blocks(self, request: Request) -> int:
        """The same, of which the index remembers nothing."""
        holder = self.index._holders.get(self.backend_id)
        held = self.index._bits if self.backend_id is None else holder.blocks() if holder else ()
        return leading_blocks(request.prefix, held.__contains__)

    def submit(self, tenant_id: str) -> None:
        turns = [self.rng.randrange(3) for _ in range(self.rng.randrange(6))]
        prefix = tuple(int("1" + "".join(map(str, turns[: depth + 1])), 3) for depth in range(len(turns)))
        arrived_at = self.now - self.rng.randrange(3)
        tokens = self.rng.choice((0.0, BLOCK_TOKENS)) if prefix else 0.0
        request = Request(
            f"r{next(self.numbers)}", tenant_id, "m", arrived_at, 9, 9, prefix=prefix, prefix_block_tokens=tokens
        )
        self.enter(request, is_first=False)

    def enter(self, request: Request, *, is_first: bool) -> None:
        queue = self.queues.setdefault(request.tenant_id, ArrivalOrder())
        (queue.prepend if is_first else queue.append)(request)
        self.order.queued(request, queue, self.now)
        if len(queue) == 1:
            self.order.joined(request.tenant_id, queue)

    def leave(self, request: Request) -> None:
        queue = self.queues[request.tenant_id]
        queue.remove(request.id)
        if not queue:
            self.order.left(request.tenant_id)
            del self.queues[request.tenant_id]

    def give_up(self, request: Request) -> None:
        """A waiting request waits no more; it may have been sent before."""
        self.leave(request)
        prepaid = [entry for entry in self.sent if entry.request is request]
        if prepaid:
            self.sent.remove(prepaid[0])
            self.order.ended(prepaid[0], self.now)
        else:
            self.order.dropped(request, self.now)

    def send(self, request: Request) -> None:
        backend_id = self.backend_id or self.rng.choice(BACKENDS)
        usage = Usage(request.prompt_tokens, 0, 0)
        entry = InFlight(request, backend_id, Reservation("default", 1, 1), 9.0, 9.0, usage)
        entry.is_prepaid = any(each.request is request for each in self.sent)
        self.sent = [each for each in self.sent if each.request is not request] + [entry]
        self.index.inserted(request, backend_id)
        self.order.dispatched(entry)
        self.order.charged(request.tenant_id, self.rng.choice((10.0, 25.5, 50.0)), self.rng.choice((0.0, 40.0)))
        self.leave(request)

    def step(self) -> None:
        rng, dice = self.rng, self.rng.random()
        self.now += rng.random()
        waiting = [request for queue in self.queues.values() for request in queue.values()]
        if dice < 0.42:
            self.submit(rng.choice(TENANTS))
        elif dice < 0.5:
            self.order.charged(rng.choice(TENANTS), rng.uniform(-40.0, 60.0), rng.uniform(-20.0, 30.0))
        elif dice < 0.55 and waiting:
            self.give_up(rng.choice(waiting))
        elif dice < 0.6 and self.sent:
            back = rng.choice(self.sent)
            if all(back.request is not request for request in waiting):
                self.enter(back.request, is_first=True)
        elif dice < 0.63:
            self.happen_at_a_backend()
        elif dice < 0.65 and len(self.queues) < len(TENANTS):
            tenant_id = rng.choice([each for each in TENANTS if each not in self.queues])
            self.sent = [entry for entry in self.sent if entry.request.tenant_id != tenant_id]
            self.order.forget(tenant_id)

    def happen_at_a_backend(self) -> None:
        backend_id = self.rng.choice(BACKENDS)
        kind = self.rng.choice(("resized", "resized", "gone"))
        if kind == "resized":
            self.index.resized(backend_id, self.rng.choice((0, 100, 200, 400)))
        else:
            self.index.retain([each for each in BACKENDS if each != backend_id])

    def expected(self, keys: dict[str, float], rank_max: float, eligible) -> Request | None:
        ranked = sorted((key, tenant_id) for tenant_id, key in keys.items() if key <= rank_max)
        compared = [tenant_id for _, tenant_id in ranked[:LOOKUPS_MAX]]
        each = max(1, LOOKUPS_MAX // max(1, len(compared)))
        seen = [r for tenant_id in compared for r in islice(self.queues[tenant_id].values(), each) if eligible(r)]
        return min(
            seen,
            key=lambda r: (-self.blocks(r) * r.prefix_block_tokens, r.arrived_at, r.tenant_id),
            default=None,
        )


def by_slack(course: Course, eligible) -> Request | None:
    order, queues = course.order, course.queues
    keys = {tenant_id: order.service_record(tenant_id).rank for tenant_id in queues}
    may_go = [each for each in sorted(queues, key=lambda each: (keys[each], each)) if eligible(head(queues[each]))]
    if not may_go:
        return None
    best = course.expected(keys, keys[may_go[0]] + order._slack, eligible)
    return best or head(queues[may_go[0]])


def by_deficit(course: Course, eligible) -> Request | None:
    order, queues = course.order, course.queues
    if not queues:
        return None
    keys = {tenant_id: order._spent[tenant_id] for tenant_id in queues}
    level = order._level
    while level <= min(keys.values()):
        level += order._quantum
    best = course.expected(keys, nextafter(level, -inf), eligible)
    may_go = [each for each in sorted(queues, key=lambda each: (keys[each], each)) if eligible(head(queues[each]))]
    return best or (head(queues[may_go[0]]) if may_go else None)


def head(queue: ArrivalOrder) -> Request:
    return next(iter(queue.values()))


ORDERS = {
    "slack": (lambda: SlackCounter(120.0), by_slack),
    "narrow slack": (lambda: SlackCounter(5.0), by_slack),
    "longest prefix": (lambda: SlackCounter(inf), by_slack),
    "dlpm": (lambda: DeficitLongestPrefix(100.0), by_deficit),
}


@pytest.mark.drawn
@pytest.mark.parametrize("backend_id", [None, "x"])
@pytest.mark.parametrize("name", ORDERS)
def test_what_is_kept_agrees_with_looking_at_every_request(name, backend_id):
    make, definition = ORDERS[name]
    seeds, served = examples(12), 0
    for seed in range(seeds):
        course = Course(make(), Random(seed), backend_id)
        for number in range(500):
            course.step()
            refused = set(course.rng.sample(TENANTS, course.rng.choice((0, 0, 2, 6))))
            few = course.rng.random() < 0.3

            def eligible(request, refused=refused, few=few):
                return request.tenant_id not in refused and not (few and len(request.prefix) % 2)

            expected = definition(course, eligible)
            assert course.order.pick(eligible) is expected, (seed, number)
            if expected is not None and course.rng.random() < 0.4:
                course.send(expected)
                served += 1
    assert served > 40 * seeds


@pytest.mark.parametrize("name", ["slack", "dlpm"])
def test_from_one_decision_to_the_next_little_is_looked_up_again(name, monkeypatch):
    monkeypatch.setattr(cached, "LOOKUPS_MAX", 128)
    order = {"slack": lambda: SlackCounter(2_000.0), "dlpm": lambda: DeficitLongestPrefix(2_000.0)}[name]()
    course = Course(order, Random(1), None)
    tenants = [f"tenant-{number:04}" for number in range(1_000)]
    for tenant_id in tenants:
        course.submit(tenant_id)
        course.submit(tenant_id)
    decisions, course.lookups = 500, 0
    for _ in range(decisions):
        request = order.pick(bool)
        course.send(request)
        course.submit(request.tenant_id)
    assert course.lookups < 20 * decisions, "of 128 that are compared"
