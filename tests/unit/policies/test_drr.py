"""Deficit round robin decides as the plain rule does, visit by visit, and looks at few tenants for it."""

from collections import deque
from math import floor
from random import Random

import pytest

from policies.accounts.ledger import InFlight
from policies.fairness.circle import Circle, Spot
from policies.fairness.drr import DeficitRoundRobin
from policies.queues import ArrivalOrder
from policies.reservation import Reservation
from policies.types import Request, Usage
from tests.examples import examples


class EverybodyVisited:
    """The rule written out: a circle that is walked, and deficits that are refilled one by one."""

    def __init__(self, quantum):
        self.quantum, self.deficits, self.circle, self.refilled = quantum, {}, deque(), False

    def joined(self, tenant_id):
        self.deficits.setdefault(tenant_id, 0)
        self.circle.append(tenant_id)

    def left(self, tenant_id):
        if self.circle[0] == tenant_id:
            self.refilled = False
        self.circle.remove(tenant_id)

    def charged(self, tenant_id, service):
        self.deficits[tenant_id] = self.deficits.get(tenant_id, 0) - service

    def pick(self, eligible):
        visits = [(self.visits_needed(place), place, each) for place, each in enumerate(self.circle) if eligible(each)]
        return min(visits)[2] if visits else None

    def dispatched(self, tenant_id):
        place = self.circle.index(tenant_id)
        rounds = self.visits_needed(place)
        if (rounds, place) > min((self.visits_needed(each), each) for each in range(len(self.circle))):
            return
        for other, each in enumerate(self.circle):
            visits = rounds + (other <= place) - (other == 0 and self.refilled)
            self.deficits[each] += min(visits, self.refills_needed(each)) * self.quantum
        self.circle.rotate(-place)
        self.refilled = True

    def refills_needed(self, tenant_id):
        deficit = self.deficits[tenant_id]
        return 0 if deficit > 0 else floor(-deficit / self.quantum) + 1

    def visits_needed(self, place):
        refills = self.refills_needed(self.circle[place])
        return max(0, refills - 1) + (place == 0 and self.refilled and refills > 0)


def entry(tenant_id, *, is_prepaid=False):
    request = Request("r", tenant_id, "m", 0.0, 1, 1)
    return InFlight(request, "gpu", Reservation("default", 1, 1), 1, 1, Usage(1, 0, 0), is_prepaid=is_prepaid)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(examples(60)))
def test_the_order_is_that_of_the_rule_written_out(seed):
    """Joining, leaving, debts of many rounds, refunds, tenants that may not go, and such that go before their turn."""
    rng = Random(seed)
    quantum = rng.choice([1, 7, 500])
    names = [f"t{number}" for number in range(rng.choice([2, 5, 30]))]
    order, rule = DeficitRoundRobin(quantum), EverybodyVisited(quantum)
    waiting, sent = set(), 0
    for _ in range(1_500):
        name = rng.choice(names)
        match rng.randrange(6):
            case 0 | 1 if name not in waiting:
                order.joined(name, ArrivalOrder([Request(name, name, "m", 0.0, 1, 1)]))
                rule.joined(name)
                waiting.add(name)
            case 0 if rng.random() < 0.5:
                order.left(name)
                rule.left(name)
                waiting.remove(name)
            case 2:
                service = rng.randrange(-3, 20) * rng.choice([1, quantum, 10 * quantum])
                order.charged(name, service, 0)
                rule.charged(name, service)
            case 3 if waiting and rng.random() < 0.3:
                early = rng.choice(sorted(waiting))
                is_prepaid = rng.random() < 0.5
                order.dispatched(entry(early, is_prepaid=is_prepaid))
                if not is_prepaid:
                    rule.dispatched(early)
            case 4 | 5:
                barred = set(rng.sample(names, rng.randrange(len(names)))) if rng.random() < 0.5 else set()
                chosen = rule.pick(lambda each, barred=barred: each not in barred)
                picked = order.pick(lambda request, barred=barred: request.tenant_id not in barred)
                assert (picked.tenant_id if picked else None) == chosen
                if chosen is not None:
                    sent += 1
                    order.dispatched(entry(chosen))
                    rule.dispatched(chosen)
                    cost = rng.randrange(1, 30 * quantum)
                    order.charged(chosen, cost, 0)
                    rule.charged(chosen, cost)
        assert all(order.deficit(each) == rule.deficits.get(each, 0) for each in names)
    assert sent > 300


@pytest.mark.interpreted
def test_a_decision_looks_at_few_tenants(monkeypatch):
    """Of 10,000 in debt for many rounds no more than a handful is looked at to find the next, whichever that is."""
    order, rng, looked_at = DeficitRoundRobin(), Random(1), []
    for number in range(10_000):
        order.charged(f"t{number:05}", rng.randrange(100_000), 0)
        order.joined(f"t{number:05}", ArrivalOrder([Request(str(number), f"t{number:05}", "m", 0.0, 1, 1)]))
    due = DeficitRoundRobin._due
    monkeypatch.setattr(order._heap, "_key", lambda turn: looked_at.append(turn) or due(order, turn))
    monkeypatch.setattr(order, "_due", lambda turn: looked_at.append(turn) or due(order, turn))
    for _ in range(1_000):
        request = order.pick(bool)
        order.dispatched(entry(request.tenant_id))
        order.charged(request.tenant_id, rng.randrange(1, 2_000), 0)
    assert len(looked_at) < 10 * 1_000


class Marked:
    """A circle and the plain list that it stands for."""

    def __init__(self):
        self.moved, self.plain, self.circle = 0, [], Circle(self.count)

    def count(self, _spot):
        self.moved += 1

    def enter(self, before):
        spot = Spot("")
        self.circle.enter(spot, before)
        self.plain.insert(self.plain.index(before) if before in self.plain[1:] else len(self.plain), spot)
        return spot

    def check(self):
        assert [each.mark for each in self.plain] == sorted({each.mark for each in self.plain})
        assert self.circle.first is (self.plain[0] if self.plain else None)


def test_marks_grow_along_the_circle_however_places_come_and_go():
    rng, marked = Random(1), Marked()
    for _ in range(3_000):
        if len(marked.plain) > 20 and rng.random() < 0.4:
            spot = marked.plain.pop(rng.randrange(len(marked.plain)))
            marked.circle.leave(spot)
        else:
            marked.enter(rng.choice(marked.plain) if marked.plain else None)
        if rng.random() < 0.05:
            marked.check()
    marked.check()


@pytest.mark.parametrize("is_nested", [False, True])
def test_places_that_are_all_put_in_one_gap_are_spaced_out_seldom(is_nested):
    """Before one place, as where no tenant is served, or each before the last, as no circle of tenants does it."""
    marked = Marked()
    first, before = marked.enter(None), None
    before = marked.enter(first)
    for _ in range(4_000):
        spot = marked.enter(before)
        before = spot if is_nested else before
    marked.check()
    assert marked.moved < (100 if is_nested else 0.1) * 4_000
