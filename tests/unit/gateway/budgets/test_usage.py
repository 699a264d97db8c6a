"""The book of usage: totals that only grow, written again until they are written, and counted once."""

import asyncio

import pytest

from gateway.budgets import usage
from gateway.budgets.usage import UsageBook
from gateway.observability.telemetry import CallTrace
from gateway.store.base import StoreUnavailable, Totals, UsageKey, UsageQuery, UsageRow
from gateway.store.sqlite import SqliteStore
from policies.types import Usage

DAY_S = 86_400.0


class Flaky(SqliteStore):
    """Fails when told to, before or after it has done what it was asked."""

    def __init__(self):
        super().__init__(None)
        self.fails: str | None = None
        self.tried = 0

    async def put_usage(self, rows):
        self.tried += 1
        if self.fails != "before":
            await super().put_usage(rows)
        if self.fails:
            raise StoreUnavailable(self.fails)


@pytest.fixture
async def store():
    made = Flaky()
    await made.open()
    yield made
    await made.close()


def use(book, tenant="alice", *, key="k1", model="m", tokens=10):
    book.used(tenant, key=key, model=model, prompt_tokens=tokens, cached_tokens=1, output_tokens=2)


async def kept(store):
    return {row.of: row.totals for row in await store.usage(UsageQuery("2026-01-01", "2027-12-31"))}


async def test_calls_are_summed_by_tenant_key_model_and_day(store, clock):
    book = UsageBook(store, clock=clock)
    use(book)
    use(book, tokens=20)
    use(book, "bob")
    use(book, key="")
    clock.now_s += DAY_S
    use(book)
    await book.flush()
    assert await kept(store) == {
        UsageKey("2026-11-20", "alice", "k1", "m"): Totals(2, 30, 2, 4),
        UsageKey("2026-11-20", "bob", "k1", "m"): Totals(1, 10, 1, 2),
        UsageKey("2026-11-20", "alice", "", "m"): Totals(1, 10, 1, 2),
        UsageKey("2026-11-21", "alice", "k1", "m"): Totals(1, 10, 1, 2),
    }


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_a_flush_that_failed_or_seemed_to_is_made_again_and_counts_once(store, fails, clock):
    book = UsageBook(store, clock=clock)
    use(book)
    store.fails = fails
    with pytest.raises(StoreUnavailable):
        await book.flush()
    use(book)
    store.fails = None
    await book.flush()
    await book.flush()
    assert list((await kept(store)).values()) == [Totals(2, 20, 2, 4)]


async def test_two_books_of_one_store_count_beside_each_other(store, clock):
    accounts = [UsageBook(store, clock=clock) for _ in range(2)]
    for book in accounts:
        use(book)
        await book.flush()
    rows = await store.usage(UsageQuery("2026-11-20", "2026-11-20"))
    assert {row.writer for row in rows} == {book.writer for book in accounts}
    assert sum(row.totals.requests for row in rows) == 2


async def test_what_a_failed_flush_left_of_a_day_that_is_over_is_written_the_next_day(store, clock):
    book = UsageBook(store, clock=clock)
    use(book)
    store.fails = "before"
    with pytest.raises(StoreUnavailable):
        await book.flush()
    clock.now_s += DAY_S
    use(book)
    store.fails = None
    await book.flush()
    assert sorted(of.day for of in await kept(store)) == ["2026-11-20", "2026-11-21"]


async def test_a_day_that_is_over_and_written_is_not_kept_in_memory(store, clock):
    book = UsageBook(store, clock=clock)
    for _ in range(5):
        use(book)
        await book.flush()
        clock.now_s += DAY_S
    use(book)
    assert len(book._rows) == 1


@pytest.mark.parametrize("jump_s", [3_600.0, 40 * DAY_S])
async def test_a_clock_that_jumps_over_midnight_and_back_loses_no_usage(store, clock, jump_s):
    clock.now_s += 11.5 * 3_600
    book = UsageBook(store, clock=clock)
    use(book, "bob")
    use(book, tokens=1_000)
    await book.flush()
    use(book, "carol")  # not yet written
    clock.now_s += jump_s
    use(book)
    await book.flush()
    clock.now_s -= jump_s
    use(book)
    use(book, "carol")
    for _ in range(2):
        await book.flush()
    use(book, "bob")
    await book.flush()
    today = {of.tenant: totals for of, totals in (await kept(store)).items() if of.day == "2026-11-20"}
    assert today == {"alice": Totals(2, 1_010, 2, 4), "bob": Totals(2, 20, 2, 4), "carol": Totals(2, 20, 2, 4)}


async def test_a_day_that_a_jump_reached_before_has_the_usage_of_both_times(store, clock):
    book = UsageBook(store, clock=clock)
    for tokens, jump_s in ((1_000, DAY_S), (500, -DAY_S), (10, DAY_S), (400, 0.0)):
        use(book, tokens=tokens)
        await book.flush()
        clock.now_s += jump_s
    assert {of.day: totals.prompt_tokens for of, totals in (await kept(store)).items()} == {
        "2026-11-20": 1_010,
        "2026-11-21": 900,
    }


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_day_that_is_left_again_before_it_is_complete_loses_no_usage(store, clock, monkeypatch, is_away):
    book = UsageBook(store, clock=clock)
    for jump_s in (DAY_S, -DAY_S):
        use(book, tokens=1_000)
        await book.flush()
        clock.now_s += jump_s
    for jump_s in (DAY_S, -DAY_S, DAY_S):
        use(book)
        if is_away:
            with monkeypatch.context() as patched:
                patched.setattr(store, "usage", _away)
                with pytest.raises(StoreUnavailable):
                    await book.flush()
        clock.now_s += jump_s
    await book.flush()
    assert {of.day: totals.prompt_tokens for of, totals in (await kept(store)).items()} == {
        "2026-11-20": 1_020,
        "2026-11-21": 1_010,
    }


async def test_a_row_that_is_being_written_when_its_day_begins_again_is_kept_until_the_day_is_complete(
    store, clock, monkeypatch
):
    book, put = UsageBook(store, clock=clock), store.put_usage

    async def jumps(rows):
        move(-DAY_S)
        await put(rows)

    def move(jump_s):
        clock.now_s += jump_s
        book.today()

    use(book, tokens=1_000)
    move(DAY_S)
    with monkeypatch.context() as patched:
        patched.setattr(store, "put_usage", jumps)
        await book.flush()
    move(DAY_S)
    move(-DAY_S)
    use(book)
    await book.flush()
    assert [totals.prompt_tokens for totals in (await kept(store)).values()] == [1_010]


async def _away(_query):
    raise StoreUnavailable("away")


async def test_rows_beyond_the_limit_are_counted_together(store, monkeypatch, clock):
    monkeypatch.setattr(usage, "ROWS_MAX", 2)
    book = UsageBook(store, clock=clock)
    for tenant in ("a", "b", "c", "d", "a"):
        use(book, tenant)
    await book.flush()
    assert {of.tenant: totals.requests for of, totals in (await kept(store)).items()} == {"a": 2, "b": 1, "other": 2}


async def test_calls_are_counted_as_they_end_unless_they_were_not_served(store, clock):
    book = UsageBook(store, clock=clock)
    book.ended(CallTrace("chat", tenant_id="alice", key_id="k1", model="m", usage=Usage(5, 1, 7)))
    book.ended(CallTrace("chat", tenant_id="alice", key_id="k1", model="m"))
    book.ended(CallTrace("chat", usage=Usage(5, 1, 7)))
    await book.flush()
    assert await kept(store) == {UsageKey("2026-11-20", "alice", "k1", "m"): Totals(1, 5, 1, 7)}


async def test_usage_is_written_by_itself_and_at_the_end(store, monkeypatch, clock):
    monkeypatch.setattr(usage, "FLUSH_S", 0.02)
    book = UsageBook(store, clock=clock)
    book.start()
    use(book)
    for _ in range(100):
        if await kept(store):
            break
        await asyncio.sleep(0.01)
    assert [totals.requests for totals in (await kept(store)).values()] == [1]
    use(book)
    await book.stop()
    assert [totals.requests for totals in (await kept(store)).values()] == [2]


async def test_a_store_that_stays_away_is_logged_once_each_time(store, monkeypatch, clock, caplog):
    monkeypatch.setattr(usage, "FLUSH_S", 0.005)
    book = UsageBook(store, clock=clock)
    book.start()
    for outage in (1, 2):
        use(book)
        store.fails, tried = "before", store.tried
        async with asyncio.timeout(10):
            while store.tried < tried + 5:  # noqa: ASYNC110 - what is tested has no event
                await asyncio.sleep(0.005)
        store.fails = None
        async with asyncio.timeout(10):
            while [totals.requests for totals in (await kept(store)).values()] != [outage]:  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.005)
    assert len(caplog.records) == 2
    use(book)
    store.fails, tried = "before", store.tried
    async with asyncio.timeout(10):
        while store.tried < tried + 5:  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.005)
    await book.stop()
    assert [record.message for record in caplog.records][2:] == [
        "usage is not written, and is kept in memory: before",
        "usage is not written, and is lost: before",
    ]


async def test_a_total_beyond_what_stores_hold_is_written_as_the_most_that_they_do(store):
    book = UsageBook(store)
    use(book, tokens=10**19)
    use(book, "bob")
    await book.flush()
    assert {of.tenant: totals.prompt_tokens for of, totals in (await kept(store)).items()} == {
        "alice": usage.TOTAL_MAX,
        "bob": 10,
    }


async def test_a_row_that_cannot_be_written_holds_no_other(store, caplog):
    today = "2026-11-20"
    rows = [UsageRow("w", UsageKey(today, f"t{number}", "", "m"), Totals(1, number)) for number in range(9)]
    rows[3] = UsageRow("w", UsageKey(today, "huge", "", "m"), Totals(1, 2**63))
    rows[7] = UsageRow("w", UsageKey(today, "\ud800", "", "m"), Totals(1, 1))
    await store.put_usage(rows)
    assert {of.tenant for of in await kept(store)} == {"t0", "t1", "t2", "t4", "t5", "t6", "t8"}
    assert len(caplog.records) == 2
