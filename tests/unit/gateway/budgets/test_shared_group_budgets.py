"""Budgets of groups over processes that hear at different times which tenants a group has."""

from itertools import permutations

import pytest
from test_money_budgets import Gateway, joined, told

from gateway.budgets.accounts import BudgetLimits, group_holder
from gateway.budgets.budgets import BudgetClaim
from gateway.observability.telemetry import CallTrace
from policies.types import Usage

RESEARCH = group_holder("research")


class Grouped(Gateway):
    """A process whose tenants alice and bob are in one group."""

    def __init__(self, store, clock):
        super().__init__(store, clock, is_shared=True)
        self.budgets.put(RESEARCH, BudgetLimits(day=1_000, month=1_000))
        for tenant in ("alice", "bob"):
            self.budgets.put_group(tenant, "research")

    def begin(self, tenant, tokens):
        """A call that has begun."""
        trace = CallTrace("chat", tenant_id=tenant, key_id="", model="m")
        trace.reserved, trace.usage = self.budgets.reserve(BudgetClaim(tenant, "", "m", tokens)), Usage(tokens, 0, 0)
        return trace

    def end(self, trace):
        self.book.ended(trace)
        self.budgets.ended(trace)

    def of_group(self):
        return {use.used for use in self.budgets.ledger.uses(RESEARCH)}


@pytest.mark.parametrize("order", [*permutations(range(3))])
async def test_a_tenant_that_leaves_takes_along_what_it_used_in_whatever_order_processes_hear_of_it(
    store, clock, order
):
    gateways = [Grouped(store, clock) for _ in range(3)]
    leader, *followers = gateways
    exchanges = joined(leader, *followers)
    used = zip(gateways, ("alice", "alice", "bob"), (30, 100, 50), strict=True)
    calls = [(gateway, gateway.begin(tenant, tokens)) for gateway, tenant, tokens in used]
    await told(*exchanges)
    for gateway, call in calls:
        gateway.end(call)
    await told(*exchanges)
    assert [each.of_group() for each in gateways] == [{180}] * 3
    for number in order:
        gateways[number].budgets.put_group("alice", None)
        await told(*exchanges)
    assert [each.of_group() for each in gateways] == [{50}] * 3
    for number in order:
        gateways[number].budgets.put_group("alice", "research")
        await told(*exchanges)
    assert [each.of_group() for each in gateways] == [{180}] * 3


async def test_a_tenant_that_was_deleted_counts_until_the_month_ends_also_where_it_is_not_known_any_more(store, clock):
    """A process that started in the next month has never heard of it, and counts over the same tenants as others."""
    one, two = Grouped(store, clock), Grouped(store, clock)
    exchanges = joined(one, two)
    two.end(two.begin("alice", 100))
    await told(*exchanges)
    for each in (one, two):
        each.budgets.tenant_deleted("alice")
        await each.budgets.read()
    await told(*exchanges)
    assert [each.of_group() for each in (one, two)] == [{100}] * 2
    clock.now_s += 20 * 86_400.0
    new = Grouped(store, clock)
    new.budgets.put_group("alice", None)
    for each in (one, two):
        await each.budgets.read()
    (exchange,) = joined(new, two)
    two.end(two.begin("bob", 7))
    await told(exchange)
    assert new.of_group() == two.of_group() == {7}
