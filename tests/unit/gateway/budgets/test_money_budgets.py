"""Budgets in money: spent is the cost of what the book has counted, by whomever, at the prices of now."""

import asyncio

from gateway.budgets.accounts import BudgetLimits, Unit
from gateway.budgets.budgets import BudgetClaim, Budgets
from gateway.budgets.claims import BudgetClaims
from gateway.budgets.money.pricing import PriceBook
from gateway.budgets.usage import UsageBook
from gateway.config.amounts import PICOS
from gateway.config.prices import PriceSection
from gateway.observability.telemetry import CallTrace
from gateway.others import Others
from gateway.store.base import StoreUnavailable, Totals, UsageKey, UsageRow
from policies.types import LimitKind, Usage

DAY_S = 86_400.0
ALICE = ("alice", "")
MILLION = 10**6


def lists(**models):
    """Price lists of so much per token: a prompt's, a cached one's, an answer's."""
    return {
        name: PriceSection.model_validate(
            {
                "currency": "EUR",
                "periods": [{"prompt": MILLION * p, "cached_prompt": MILLION * c, "output": MILLION * o}],
            }
        )
        for name, (p, c, o) in models.items()
    }


class Gateway:
    """One process with a usage book and budgets."""

    def __init__(self, store, clock, *, is_shared=False, **prices):
        self.prices = PriceBook()
        self.prices.replace(lists(**prices))
        self.book = UsageBook(store, clock=clock)
        self.budgets = Budgets(self.book, store, is_shared=is_shared, prices=self.prices, clock=clock)
        self.claims = BudgetClaims(self.budgets, self.book.writer, Others("g"))

    def set_prices(self, **prices):
        self.prices.replace(lists(**prices))
        self.budgets.past.repriced()

    async def call(self, *, model="m", prompt=10, cached=0, output=20):
        """A whole call of alice; None, or the budget that it does not fit into."""
        claim = BudgetClaim("alice", "k1", model, prompt, 1_000)
        trace = CallTrace("chat", tenant_id="alice", key_id="k1", model=model)
        claimed = await self.claims.claim(claim)
        if hasattr(claimed, "period"):
            return claimed.period
        trace.reserved, trace.usage = claimed, Usage(prompt, cached, output)
        self.book.ended(trace)
        self.budgets.ended(trace)
        return None

    def used(self):
        return {
            (each.unit.value, each.period): each.used / PICOS if each.unit is Unit.COST else each.used
            for each in self.budgets.ledger.overview()
            if each.holder == ALICE
        }


def money(day=None, month=None):
    day, month = (None if each is None else each * PICOS for each in (day, month))
    return BudgetLimits(cost_day=day, cost_month=month)


async def test_calls_spend_what_they_cost_and_are_refused_once_it_is_spent(store, clock):
    one = Gateway(store, clock, m=(2, 1, 3))
    one.budgets.put(ALICE, money(day=100))
    assert await one.call(prompt=10, cached=4, output=20) is None
    assert one.used() == {("cost", "day"): 6 * 2 + 4 + 60}
    assert await one.call(prompt=13) is LimitKind.COST_DAY, "24 are left, and 26 are needed"
    assert await one.call(prompt=12) is None
    assert await one.call(prompt=0) is LimitKind.COST_DAY, "an answer is not free"
    assert all(each.reserved == 0 for each in one.budgets.ledger.overview())


async def test_a_call_without_a_price_or_that_is_free_needs_no_money(store, clock):
    one = Gateway(store, clock, m=(1, 1, 1), free=(0, 0, 0))
    one.budgets.put(ALICE, money(day=1))
    await one.call(prompt=1, output=9)
    assert await one.call() is LimitKind.COST_DAY
    assert await one.call(model="free") is None
    assert await one.call(model="unknown") is None
    assert one.used() == {("cost", "day"): 10}


async def test_a_budget_of_nothing_lets_no_call_pass_that_costs(store, clock):
    one = Gateway(store, clock, m=(0, 0, 1))
    one.budgets.put(ALICE, money(month=0))
    assert await one.call(prompt=5) is LimitKind.COST_MONTH


async def test_tokens_and_money_are_limited_beside_each_other(store, clock):
    one = Gateway(store, clock, m=(1, 1, 1))
    one.budgets.put(ALICE, BudgetLimits(day=100, cost_month=40 * PICOS))
    await one.call()
    assert one.used() == {("tokens", "day"): 30, ("cost", "month"): 30}
    assert await one.call(prompt=11) is LimitKind.COST_MONTH
    one.budgets.put(ALICE, BudgetLimits(day=100))
    assert await one.call(prompt=70) is None
    assert await one.call(prompt=1) is LimitKind.DAY


async def test_what_runs_reserves_what_it_is_expected_to_cost(store, clock):
    one = Gateway(store, clock, m=(1, 1, 2))
    one.budgets.put(ALICE, money(day=1_000))
    await one.call(prompt=0, output=100)
    assert await one.claims.claim(BudgetClaim("alice", "k1", "m", 500, 1_000)) == (600, 700 * PICOS)
    (use,) = one.budgets.ledger.overview()
    assert (use.used, use.reserved, use.remaining) == (200 * PICOS, 700 * PICOS, 100 * PICOS)


async def test_other_prices_correct_what_was_spent_this_month_and_count_nothing_twice(store, clock):
    before = Gateway(store, clock, m=(1, 1, 1))
    await before.call()
    await before.book.flush()
    clock.now_s += DAY_S
    one = Gateway(store, clock, m=(1, 1, 1))
    one.budgets.put(ALICE, money(day=500, month=500))
    await one.budgets.read()
    await one.call()
    await one.book.flush()
    await one.call()  # not written yet
    assert one.used() == {("cost", "day"): 60, ("cost", "month"): 90}
    for prices, a_token in (((3, 3, 3), 3), ((0.5, 0.5, 0.5), 0.5), ((1, 1, 1), 1)):
        one.set_prices(m=prices)
        assert one.budgets.ledger.priced_by != one.prices.version
        await one.budgets.read()
        assert one.budgets.ledger.priced_by == one.prices.version
        assert one.used() == {("cost", "day"): 60 * a_token, ("cost", "month"): 90 * a_token}
        await one.budgets.read()
        assert one.used() == {("cost", "day"): 60 * a_token, ("cost", "month"): 90 * a_token}


async def test_a_price_that_comes_later_counts_for_what_was_used_before(store, clock):
    one = Gateway(store, clock)
    one.budgets.put(ALICE, money(day=500))
    await one.call()
    assert one.used() == {("cost", "day"): 0}
    one.set_prices(m=(1, 1, 1))
    await one.budgets.read()
    assert one.used() == {("cost", "day"): 30}


async def test_a_store_that_is_away_leaves_costs_as_they_were_until_it_is_there(store, clock):
    one = Gateway(store, clock, m=(1, 1, 1))
    one.budgets.put(ALICE, money(day=500))
    await one.budgets.read()
    await one.call()
    usage, store.usage = store.usage, _away
    one.set_prices(m=(2, 2, 2))
    await one.budgets.read()
    assert one.used() == {("cost", "day"): 30}
    store.usage = usage
    await one.budgets.read()
    assert one.used() == {("cost", "day"): 60}


async def _away(_query):
    raise StoreUnavailable("away")


async def test_a_month_begins_with_nothing_spent_and_yesterday_has_yesterdays_price(store, clock):
    await store.put_usage([UsageRow("w", UsageKey("2026-11-19", "alice", "", "m"), Totals(1, 10, 0, 0))])
    await store.put_usage([UsageRow("w", UsageKey("2026-11-20", "alice", "", "m"), Totals(1, 10, 0, 0))])
    one = Gateway(store, clock)
    periods = [{"prompt": MILLION, "output": 0}, {"valid_from": "2026-11-20", "prompt": 5 * MILLION, "output": 0}]
    one.prices.replace({"m": PriceSection.model_validate({"currency": "EUR", "periods": periods})})
    one.budgets.put(ALICE, money(day=500, month=500))
    await one.budgets.read()
    assert one.used() == {("cost", "day"): 50, ("cost", "month"): 60}
    clock.now_s += 11 * DAY_S
    assert one.used() == {("cost", "day"): 0, ("cost", "month"): 0}


# -- several processes --------------------------------------------------------------------------------------


def joined(leader, *followers):
    """The followers' parts, which ask this leader."""
    return [
        BudgetClaims(each.budgets, each.book.writer, Following(f"f{number}", leader.claims))
        for number, each in enumerate(followers)
    ]


class Following(Others):
    """The others of a process that follows the one of these claims."""

    is_leading = False

    def __init__(self, name, leader):
        super().__init__(name)
        self._leader = leader

    async def ask_leader(self, service, body=b""):
        assert service == "budgets"
        return await self._leader._told(body)


async def granted(follower):
    """The leader's answer to a claim of alice."""
    answer = asyncio.get_running_loop().create_future()
    await follower._exchange([(BudgetClaim("alice", "", "m", 1), answer)])
    return answer.result() is None


async def told(*followers):
    """All have told the leader, and heard from it what the others told."""
    for each in (*followers, *followers):
        each._told_all_at = -1e9
        await each._exchange([])


async def test_processes_tell_each_other_costs_beyond_64_bits(store, clock):
    leader, one, two = (Gateway(store, clock, is_shared=True, m=(9, 9, 9)) for _ in range(3))
    for each in (leader, one, two):
        each.budgets.put(ALICE, money(day=10**9))
    first, second = joined(leader, one, two)
    assert await granted(first)
    await one.call(prompt=10**7, output=0)  # 9e7 units are 9e19 picos
    await told(first, second)
    assert leader.used() == two.used() == {("cost", "day"): 9 * 10**7}
    one.budgets.reserve(BudgetClaim("alice", "", "m", 10**7))
    await told(first, second)
    (use,) = two.budgets.ledger.overview()
    assert use.reserved == 9 * 10**7 * PICOS
    one.budgets.reserve(BudgetClaim("alice", "", "m", 11 * 10**7))
    await told(first)
    assert not await granted(second)


async def test_processes_with_other_prices_believe_each_others_tokens_and_not_their_costs(store, clock):
    leader = Gateway(store, clock, is_shared=True, m=(2, 2, 2))
    one, two = (Gateway(store, clock, is_shared=True, m=(7, 7, 7)) for _ in range(2))
    for each in (leader, one, two):
        each.budgets.put(ALICE, BudgetLimits(day=1_000, cost_day=1_000 * PICOS))
    followers = joined(leader, one, two)
    assert await granted(followers[0])
    await one.call(prompt=10, output=0)
    await told(*followers)
    assert leader.used() == {("tokens", "day"): 10, ("cost", "day"): 0}
    assert two.used() == {("tokens", "day"): 10, ("cost", "day"): 0}
    leader.set_prices(m=(7, 7, 7))
    await leader.budgets.read()
    await told(*followers)
    assert leader.used() == two.used() == {("tokens", "day"): 10, ("cost", "day"): 70}


async def test_a_budget_that_is_removed_before_its_costs_are_read_anew_does_not_keep_the_old_prices(store, clock):
    one = Gateway(store, clock, m=(2, 2, 3))
    one.budgets.put(ALICE, money(day=500))
    await one.budgets.read()
    one.set_prices(m=(4, 4, 6))
    one.budgets.put(ALICE, BudgetLimits())
    await one.budgets.read()
    assert one.budgets.ledger.priced_by == one.prices.version
