"""Budgets at thresholds are told once per threshold and period, over processes that share a store and die."""

import base64
from itertools import pairwise
from random import Random

import pytest
from webhook_receiver import SECRET, is_signed, receiver

from gateway.budgets.accounts import BudgetLimits, group_holder
from gateway.budgets.budgets import Budgets
from gateway.budgets.money.pricing import PriceBook
from gateway.budgets.notices.claims import LEASE_S, NoticeClaims
from gateway.budgets.notices.sender import BACKOFF_S_MAX, GIVE_UP_S, NoticeSender
from gateway.budgets.notices.thresholds import BudgetWatch
from gateway.budgets.notices.webhook import Webhook, WebhookFailed, signature_headers
from gateway.budgets.usage import UsageBook
from gateway.config.amounts import PICOS
from gateway.config.budgets import BudgetsSection
from gateway.observability.metrics.instruments import GROUP_BUDGET, TENANT_BUDGET
from gateway.store.base import StoreUnavailable

DAY_S = 86_400.0
ALICE = ("alice", "")


@pytest.fixture
async def hook():
    async with receiver() as made:
        yield made


class Process:
    """A gateway's watch on budgets, and its sender."""

    def __init__(self, store, clock, hook, *, replica="a", place="", thresholds=(50, 80, 100)):
        self.store, self.clock = store, clock
        self.book = UsageBook(store, clock=clock)
        self.budgets = Budgets(self.book, store, is_shared=True, prices=PriceBook(), clock=clock)
        self.watch = BudgetWatch(self.budgets.ledger, thresholds, self.book.today)
        self.claims = NoticeClaims(store, replica=replica, place=place, clock=clock)
        webhook = Webhook(hook.url, [SECRET])
        self.sender = NoticeSender(webhook, self.claims, currency=lambda: "EUR", clock=clock, rng=Random(1))

    def use(self, tokens, tenant="alice", key=""):
        self.book.used(tenant, key=key, model="m", prompt_tokens=tokens, cached_tokens=0, output_tokens=0)

    async def look(self):
        self.sender.offer(self.watch.look())
        await self.sender.send_due()


@pytest.fixture
async def processes(store, clock, hook):
    made = []

    def make(**options):
        made.append(Process(store, clock, hook, **options))
        made[-1].budgets.put(ALICE, BudgetLimits(day=100))
        return made[-1]

    yield make
    for each in made:
        await each.sender.stop()


async def test_each_threshold_is_told_once_and_the_next_day_anew(processes, hook, clock):
    one = processes()
    for tokens, told in ((49, []), (1, [50]), (29, [50]), (1, [50, 80]), (300, [50, 80, 100]), (1, [50, 80, 100])):
        one.use(tokens)
        await one.look()
        assert hook.thresholds() == [("alice", percent) for percent in told]
    clock.now_s += DAY_S
    one.use(50)
    await one.look()
    assert hook.thresholds()[3:] == [("alice", 50)]
    assert len({id_ for id_, _ in hook.events}) == 4


async def test_what_is_told_names_the_budget_and_its_use(processes, hook):
    one = processes()
    one.budgets.put(("alice", "k1"), BudgetLimits(month=100))
    one.use(50, key="k1")
    await one.look()
    key, tenant = (document for _, document in sorted(hook.events, key=lambda each: each[1]["data"]["key"] is None))
    assert tenant == {
        "type": "budget.threshold_reached",
        "timestamp": "2026-11-20T12:00:00Z",
        "data": {
            "group": None, "tenant": "alice", "key": None, "unit": "tokens", "currency": None, "period": "day",
            "period_start": "2026-11-20", "threshold_percent": 50, "limit": 100, "used": 50,
        },
    }  # fmt: skip
    assert (key["data"]["key"], key["data"]["period_start"]) == ("k1", "2026-11-01")


async def test_of_several_processes_one_tells(processes, hook):
    several = [processes(replica=name) for name in "abc"]
    for each in several:
        each.use(100)
    for _ in range(2):
        for each in several:
            each.sender.offer(each.watch.look())
        for each in several:
            await each.sender.send_due()
    assert sorted(hook.thresholds()) == [("alice", 50), ("alice", 80), ("alice", 100)]
    assert hook.attempts == 3


async def test_a_process_that_starts_again_tells_nothing_twice(processes, hook):
    one = processes()
    one.use(80)
    await one.look()
    again = processes()
    again.use(80)
    await again.look()
    assert hook.attempts == 2, "at 50 and at 80"


@pytest.mark.parametrize("status", [500, 404, 307])
async def test_what_is_not_taken_is_sent_again_later_and_later_under_one_id(processes, hook, clock, status):
    one = processes(thresholds=(50,))
    hook.statuses = [status] * 12
    one.use(50)
    waits, before, until_s = [], clock.now_s, clock.now_s + DAY_S / 4
    while not hook.events:
        attempts = hook.attempts
        await one.look()
        if hook.attempts > attempts:
            waits.append(clock.now_s - before)
            before = clock.now_s
        clock.now_s += 0.5
        assert clock.now_s < until_s
    assert (hook.attempts, hook.redirected) == (13, 0)
    assert waits[1] >= 1
    assert all(later >= earlier for earlier, later in pairwise(waits[:9]))
    assert max(waits) <= 1.5 * BACKOFF_S_MAX + 1
    assert one.sender.outcomes == {"delivered": 1, "failed": 12, "given_up": 0}


async def test_what_no_receiver_takes_is_given_up_after_a_day(processes, hook, clock):
    one = processes(thresholds=(50,))
    hook.statuses = [500] * 10_000
    one.use(50)
    until_s = clock.now_s + 2 * GIVE_UP_S
    while not one.sender.outcomes["given_up"]:
        await one.look()
        clock.now_s += BACKOFF_S_MAX
        assert clock.now_s < until_s
    attempts = hook.attempts
    await one.look()
    assert hook.attempts == attempts


async def test_what_is_taken_at_last_when_it_would_be_given_up_is_not_given_up_too(processes, hook, clock):
    one = processes(thresholds=(50,))
    hook.statuses = [500]
    one.use(50)
    await one.look()
    clock.now_s += GIVE_UP_S
    await one.look()
    assert dict(one.sender.outcomes) == {"delivered": 1, "failed": 1, "given_up": 0}


@pytest.mark.parametrize("of_two", [{"replica": "b"}, {"place": "/elsewhere"}], ids=["machines", "folders"])
async def test_while_one_tries_others_wait_and_after_its_death_another_goes_on(processes, hook, clock, of_two):
    """Two replicas of one machine have one name."""
    one, two = processes(thresholds=(50,)), processes(**of_two, thresholds=(50,))
    hook.statuses = [500]
    for each in (one, two):
        each.use(50)
        await each.look()
    assert hook.attempts == 1
    end = clock.now_s + LEASE_S
    while clock.now_s < end - BACKOFF_S_MAX:  # one is dead
        clock.now_s += 1.0
        await two.look()
    assert hook.attempts == 1
    clock.now_s = end + BACKOFF_S_MAX
    await two.look()
    assert hook.thresholds() == [("alice", 50)]


async def test_a_replica_goes_on_at_once_with_what_its_predecessor_had_claimed(processes, hook):
    one = processes(thresholds=(50,))
    hook.statuses = [500]
    one.use(50)
    await one.look()
    again = processes(thresholds=(50,))
    again.use(50)
    await again.look()
    assert hook.thresholds() == [("alice", 50)]


async def test_a_process_that_ends_leaves_what_it_has_not_told_to_others(processes, hook):
    one, two = processes(replica="a", thresholds=(50,)), processes(replica="b", thresholds=(50,))
    hook.statuses = [500]
    one.use(50)
    await one.look()
    await one.sender.stop()
    two.use(50)
    await two.look()
    assert hook.thresholds() == [("alice", 50)]


async def test_what_was_taken_but_not_written_down_is_written_down_and_not_sent_again(processes, hook, store, clock):
    one = processes(thresholds=(50,))
    one.use(50)
    told, one.claims.told = one.claims.told, _away
    await one.look()
    one.claims.told = told
    clock.now_s += 10
    await one.look()
    assert hook.attempts == 1
    assert one.sender.outcomes["delivered"] == 1


async def _away(_notice):
    raise StoreUnavailable("away")


async def test_without_the_store_nothing_is_sent_until_it_is_there(processes, hook, store, clock):
    one = processes(thresholds=(50,))
    commit = store.commit

    async def refused(*_args, **_kwargs):
        raise StoreUnavailable("away")

    store.commit = refused
    one.use(50)
    await one.look()
    assert hook.attempts == 0
    store.commit = commit
    clock.now_s += 10
    await one.look()
    assert hook.thresholds() == [("alice", 50)]


async def test_the_metric_has_shown_tenants_and_of_others_the_most_that_is_at_a_threshold(processes):
    one = processes()
    for tenant, tokens in (("bob", 30), ("carol", 60), ("dave", 70)):
        one.budgets.put((tenant, ""), BudgetLimits(day=100, cost_month=PICOS))
        one.use(tokens, tenant)
    one.use(40)
    one.watch.look()
    values = one.watch.values({"alice", "bob"})[TENANT_BUDGET]
    assert values == {
        ("alice", "tokens", "day"): 0.4, ("bob", "tokens", "day"): 0.3, ("bob", "cost", "month"): 0.0,
        ("other", "tokens", "day"): 0.7, ("other", "cost", "month"): 0.0,
    }  # fmt: skip


async def test_a_group_is_told_as_one_and_has_a_metric_of_its_own(processes, hook):
    one = processes(thresholds=(50,))
    one.budgets.put(group_holder("sales"), BudgetLimits(month=100))
    for tenant in ("bob", "carol"):
        one.budgets.put_group(tenant, "sales")
        one.use(25, tenant)
    await one.look()
    ((_, document),) = hook.events
    data = document["data"]
    assert (data["group"], data["tenant"], data["key"], data["used"]) == ("sales", None, None, 50)
    values = one.watch.values({"alice"})
    assert values[GROUP_BUDGET] == {("sales", "tokens", "month"): 0.5}
    assert values[TENANT_BUDGET] == {("alice", "tokens", "day"): 0.0}


# -- the webhook ----------------------------------------------------------------------------------------------


def test_each_secret_signs_id_time_and_body():
    headers = signature_headers("id-1", b"{}", [b"old secret of 16", SECRET], 1_795_176_000.7)
    at, signatures = headers["webhook-timestamp"], headers["webhook-signature"]
    assert at == "1795176000"
    assert is_signed("id-1", at, b"{}", signatures)
    assert is_signed("id-1", at, b"{}", signatures, b"old secret of 16")
    for id_, time, body in (("id-2", at, b"{}"), ("id-1", "1795176001", b"{}"), ("id-1", at, b"{} ")):
        assert not is_signed(id_, time, body, signatures)


async def test_a_webhook_that_is_away_fails(clock):
    made = Webhook("http://127.0.0.1:9/hook", [SECRET])
    with pytest.raises(WebhookFailed):
        await made.send("id", {}, clock())
    await made.close()


async def test_a_webhook_whose_name_leads_to_a_refused_address_is_not_connected_to(monkeypatch, clock):
    made = Webhook("http://metadata.test/", [SECRET])

    async def resolved(_host, port, _family):
        return [{"hostname": "x", "host": "169.254.169.254", "port": port, "family": 2, "proto": 6, "flags": 0}]

    monkeypatch.setattr(made._session.connector._resolver._resolver, "resolve", resolved)
    with pytest.raises(WebhookFailed, match="not in the networks"):
        await made.send("id", {}, clock())
    await made.close()


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest", "http://[fe80::1]/", "http://0xa9fea9fe/", "ftp://a", "http://a:b@c/"]
)
def test_a_url_that_nothing_may_be_told_is_refused(url):
    with pytest.raises(ValueError, match="webhook"):
        BudgetsSection.model_validate({"webhook": {"url": url, "secret_file": "x"}})


@pytest.mark.parametrize("thresholds", [[80, 50], [50, 50], [0], [1.5]])
def test_thresholds_rise(thresholds):
    with pytest.raises(ValueError, match="thresholds"):
        BudgetsSection.model_validate({"thresholds": thresholds})


def test_a_secret_is_text_or_what_the_specification_writes(tmp_path):
    file = tmp_path / "secret"
    section = BudgetsSection.model_validate({"webhook": {"url": "https://a/b", "secret_file": file}}).webhook
    file.write_text(f"sixteen letters!!\nwhsec_{base64.b64encode(SECRET).decode()}\n")
    assert section.secrets() == [b"sixteen letters!!", SECRET]
    for bad in ("short", "whsec_not base64", "\n"):
        file.write_text(bad)
        with pytest.raises(ValueError, match=r"secret|base64|empty"):
            section.secrets()
