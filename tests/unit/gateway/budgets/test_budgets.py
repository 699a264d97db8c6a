"""Token budgets: spent is what the book has counted, by whomever, once; reserved is what is under way."""

import pytest

from gateway.budgets import past
from gateway.budgets.accounts import BudgetLimits
from gateway.budgets.budgets import BudgetClaim, Budgets
from gateway.budgets.usage import UsageBook
from gateway.observability.telemetry import CallTrace
from gateway.store.base import StoreUnavailable, Totals, UsageKey, UsageRow
from policies.types import Usage

HOUR_S, DAY_S = 3_600.0, 86_400.0
ALICE = ("alice", "")


@pytest.fixture
def book(store, clock):
    return UsageBook(store, clock=clock)


@pytest.fixture
def budgets(book, store, clock):
    return Budgets(book, store, is_shared=False, clock=clock)


def reserve(budgets, key, prompt, output_max):
    """What a call of alice with this prompt and at most so long an answer has reserved."""
    claim = BudgetClaim("alice", key, "m", prompt, output_max)
    return budgets.reserve(budgets.with_output(claim) if budgets.ledger.holders("alice", key) else claim)


def call(budgets, book, *, key="k1", prompt=10, output=20):
    """A whole call of alice; what it reserved."""
    trace = CallTrace("chat", tenant_id="alice", key_id=key, model="m")
    trace.reserved = reserve(budgets, key, prompt, 1_000)
    trace.usage = Usage(prompt, 0, output)
    book.ended(trace)
    budgets.ended(trace)


def used(budgets):
    return {(each.holder[1], each.period): each.used for each in budgets.ledger.overview()}


async def kept(store, day, tokens, *, writer="before", tenant="alice", key="k1", model="m"):
    await store.put_usage([UsageRow(writer, UsageKey(day, tenant, key, model), Totals(1, tokens, 0, 0))])


def test_a_call_that_does_not_fit_waits_for_the_next_day_in_utc(budgets, book):
    budgets.put(ALICE, BudgetLimits(day=100))
    call(budgets, book, prompt=10, output=50)
    assert budgets.spent_by(BudgetClaim("alice", "k1", "m", 40)) is None
    assert budgets.spent_by(BudgetClaim("alice", "k1", "m", 41)).wait_s == 12 * HOUR_S
    assert budgets.spent_by(BudgetClaim("bob", "", "m", 10**9)) is None


def test_a_month_ends_with_its_last_day_and_goes_before_the_day(budgets, book):
    budgets.put(ALICE, BudgetLimits(day=50, month=100))
    call(budgets, book, prompt=100, output=0)
    assert budgets.spent_by(BudgetClaim("alice", "", "m", 1)).wait_s == 10.5 * DAY_S


def test_a_new_day_and_a_new_month_begin_with_nothing_spent(budgets, book, clock):
    budgets.put(ALICE, BudgetLimits(day=100, month=100))
    call(budgets, book)
    clock.now_s += DAY_S
    assert used(budgets) == {("", "day"): 0, ("", "month"): 30}
    clock.now_s += 10 * DAY_S
    assert used(budgets) == {("", "day"): 0, ("", "month"): 0}
    call(budgets, book)
    assert used(budgets) == {("", "day"): 30, ("", "month"): 30}


async def test_a_clock_that_jumps_into_another_month_and_back_gives_no_budget_back(budgets, book, clock):
    budgets.put(ALICE, BudgetLimits(day=100, month=100))
    call(budgets, book)
    await book.flush()
    await budgets.read()
    for jump_s, tokens in ((40 * DAY_S, 30), (-40 * DAY_S, 60)):
        clock.now_s += jump_s
        call(budgets, book)
        await book.flush()
        await budgets.read()
        assert used(budgets) == {("", "day"): tokens, ("", "month"): tokens}


async def test_a_month_is_read_anew_only_where_it_changed(budgets, book, store, clock, monkeypatch):
    read, usage = [], store.usage

    async def recorded(query):
        if query.writer is None:
            read.append((query.first_day, query.last_day))
        return await usage(query)

    budgets.put(ALICE, BudgetLimits(day=100, month=100))
    await budgets.read()
    monkeypatch.setattr(store, "usage", recorded)
    for jump_s in (DAY_S, -DAY_S, 20 * DAY_S, -20 * DAY_S):
        clock.now_s += jump_s
        book.today()
        await book.flush()
        await budgets.read()
    assert read == [
        ("2026-11-21", "2026-11-21"),
        ("2026-11-20", "2026-11-20"),
        ("2026-12-01", "2026-12-10"),
        ("2026-11-01", "2026-11-20"),
    ]


async def test_a_budget_made_while_the_clock_is_behind_has_what_was_spent_today(budgets, book, store, clock):
    call(budgets, book)
    await book.flush()
    clock.now_s -= DAY_S
    book.today()
    budgets.put(ALICE, BudgetLimits(day=100))
    await budgets.read()
    clock.now_s += DAY_S
    call(budgets, book)
    await book.flush()
    usage, store.usage = store.usage, _away
    await budgets.read()
    store.usage = usage
    await budgets.read()
    assert used(budgets) == {("", "day"): 60}


def test_what_is_under_way_holds_back_what_would_not_fit_beside_it(budgets, book):
    budgets.put(ALICE, BudgetLimits(day=1_000))
    call(budgets, book, prompt=0, output=100)  # its answers have 100 tokens
    first = CallTrace("chat", tenant_id="alice", key_id="k1")
    first.reserved = reserve(budgets, "k1", 600, 1_000)
    assert first.reserved == (700, 0)
    assert budgets.spent_by(BudgetClaim("alice", "k1", "m", 201)) is not None
    assert budgets.spent_by(BudgetClaim("alice", "k1", "m", 200)) is None
    budgets.ended(first)  # it was refused: nothing was used
    budgets.ended(first)
    assert budgets.spent_by(BudgetClaim("alice", "k1", "m", 900)) is None
    assert budgets.spent_by(BudgetClaim("alice", "k1", "m", 901)) is not None


def test_a_key_has_a_budget_of_its_own_within_its_tenants(budgets, book):
    budgets.put(ALICE, BudgetLimits(day=100))
    budgets.put(("alice", "k1"), BudgetLimits(day=40))
    call(budgets, book)
    assert used(budgets) == {("", "day"): 30, ("k1", "day"): 30}
    assert budgets.spent_by(BudgetClaim("alice", "k1", "m", 11)) is not None
    assert budgets.spent_by(BudgetClaim("alice", "k2", "m", 11)) is None
    call(budgets, book, key="k2", prompt=70)
    assert budgets.spent_by(BudgetClaim("alice", "k1", "m", 1)) is not None
    budgets.forget_key("k1")
    assert list(used(budgets)) == [("", "day")]


async def test_what_was_spent_before_the_start_counts_and_that_of_last_month_does_not(budgets, store):
    await kept(store, "2026-11-20", 10)
    await kept(store, "2026-11-20", 10, key="k2")
    await kept(store, "2026-11-01", 100)
    await kept(store, "2026-10-31", 1_000)
    await kept(store, "2026-11-20", 5_000, tenant="bob")
    budgets.put(ALICE, BudgetLimits(day=500, month=500))
    budgets.put(("alice", "k2"), BudgetLimits(month=500))
    await budgets.start()
    await budgets.stop()
    assert used(budgets) == {("", "day"): 20, ("", "month"): 120, ("k2", "month"): 10}


async def test_a_budget_that_comes_later_knows_what_was_spent_and_counts_nothing_twice(budgets, book, store, clock):
    call(budgets, book)
    await book.flush()
    clock.now_s += DAY_S
    call(budgets, book)
    await book.flush()
    call(budgets, book)  # not written yet
    budgets.put(ALICE, BudgetLimits(day=500, month=500))
    assert used(budgets) == {("", "day"): 60, ("", "month"): 60}
    await budgets.read()
    assert used(budgets) == {("", "day"): 60, ("", "month"): 90}
    await book.flush()
    await budgets.read()
    assert used(budgets) == {("", "day"): 60, ("", "month"): 90}


async def test_what_others_have_counted_comes_from_the_store_or_from_them_and_counts_once(book, store, clock):
    budgets = Budgets(book, store, is_shared=True, clock=clock)
    budgets.put(ALICE, BudgetLimits(day=500))
    await budgets.read()
    budgets.ledger.spent_elsewhere("other", {"2026-11-20": {"alice": 70, "nobody": 5}}, "")
    assert used(budgets) == {("", "day"): 70}
    await kept(store, "2026-11-20", 60, writer="other")
    await kept(store, "2026-11-20", 20, writer="other", key="k2")
    clock.now_s += past.READ_S
    await budgets.read()
    assert used(budgets) == {("", "day"): 80}
    budgets.ledger.reserved_elsewhere = {"alice": 400}
    assert budgets.spent_by(BudgetClaim("alice", "", "m", 21)) is not None
    assert budgets.spent_by(BudgetClaim("alice", "", "m", 20)) is None


async def test_a_clock_that_is_set_back_keeps_nobody_from_reading_what_others_have_counted(book, store, clock):
    budgets = Budgets(book, store, is_shared=True, clock=clock)
    budgets.put(ALICE, BudgetLimits(day=500))
    await budgets.read()
    await kept(store, "2026-11-20", 60, writer="other")
    clock.now_s -= HOUR_S
    await budgets.read()
    assert used(budgets) == {("", "day"): 60}


async def test_what_is_told_to_others_is_what_they_count(book, store, clock):
    one = Budgets(book, store, is_shared=True, clock=clock)
    two = Budgets(UsageBook(store, clock=clock), store, is_shared=True, clock=clock)
    for each in (one, two):
        each.put(ALICE, BudgetLimits(month=500))
        each.put(("alice", "k1"), BudgetLimits(day=500))
    call(one, book)
    reserve(one, "k1", 10, 5)
    spent, reserved = one.ledger.spent_here()
    for _ in range(2):
        two.ledger.spent_elsewhere("one", spent, one.ledger.priced_by)
    assert used(two) == {("", "month"): 30, ("k1", "day"): 30}
    assert reserved == {"alice": 15, "alice\nk1": 15}


async def test_a_store_that_cannot_be_read_is_read_later(budgets, store, caplog):
    await kept(store, "2026-11-20", 10)
    budgets.put(ALICE, BudgetLimits(day=500))
    usage, store.usage = store.usage, _away
    await budgets.read()
    assert "cannot be read" in caplog.text
    store.usage = usage
    await budgets.read()
    assert used(budgets) == {("", "day"): 10}


async def _away(_query):
    raise StoreUnavailable("away")


def test_a_budget_that_is_taken_away_binds_no_call_and_comes_back_with_what_was_spent(budgets, book):
    budgets.put(ALICE, BudgetLimits(day=10))
    call(budgets, book)
    assert budgets.spent_by(BudgetClaim("alice", "", "m", 1)) is not None
    budgets.put(ALICE, BudgetLimits())
    assert budgets.spent_by(BudgetClaim("alice", "", "m", 1)) is None
    budgets.put(ALICE, BudgetLimits(day=20))
    assert used(budgets) == {("", "day"): 30}


def test_cut_off_from_others_a_gateway_keeps_to_its_part_of_what_is_left(budgets, book, clock):
    budgets.put(ALICE, BudgetLimits(day=400, month=1_000))
    call(budgets, book, prompt=100, output=0)
    budgets.ledger.reserved_elsewhere = {"alice": 250}
    for _ in range(2):
        budgets.ledger.cut_off(3)
        assert [each.remaining for each in budgets.ledger.overview()] == [100, 300]
    call(budgets, book, prompt=90, output=0)
    budgets.ledger.cut_off(3)
    assert budgets.spent_by(BudgetClaim("alice", "", "m", 11)) is not None
    assert budgets.spent_by(BudgetClaim("alice", "", "m", 10)) is None
    clock.now_s += DAY_S
    assert [each.remaining for each in budgets.ledger.overview()] == [134, 210]
    budgets.ledger.cut_off(1)
    assert [each.remaining for each in budgets.ledger.overview()] == [400, 810]
