"""What a gateway keeps of what it has learnt: what is taken up again, what is left out, and what says so."""

import logging
from dataclasses import replace

import orjson
import pytest

from backends.engine.coefficients import COEFFICIENTS
from backends.metrics import EngineMetrics
from backends.poll import PollTimes
from backends.poll_loop import PollLoop
from backends.pool import BackendPool
from backends.spec import BackendSpec
from backends.step_times import ReportedStep, StepTimes
from gateway.api.token_counts import LearntPromptTokens
from gateway.scheduling.checkpoint.checkpoint import COUNTERS, MODELS, Checkpoint, Learning
from gateway.scheduling.checkpoint.documents import (
    COUNTERS_AGE_S_MAX,
    MODELS_AGE_S_MAX,
    BackendModel,
    Counters,
    LearntModels,
    PoolCounters,
    UnreadableError,
    read_document,
    trim_accounts,
    write_document,
)
from gateway.scheduling.dispatcher import Dispatcher
from gateway.scheduling.pools import Pools
from gateway.store.base import Learnt, StoreUnavailable
from gateway.store.redis_store import RedisStore
from gateway.store.sqlite import SqliteStore
from policies.accounts.checkpoint import SHARED_QUEUE, QueueCheckpoint, TierCheckpoint
from policies.scheduler import Scheduler
from policies.step_time import StepTime, StepTimeModel
from policies.types import Tenant, Usage

NOW_S = 1_800_000_000.0
URL = "http://gpu:8000"
CONFIGURED = StepTime(StepTimeModel(1e-3, 2e-6, 3e-9, 4e-6), error_ratio=0.1, is_sure=True)
LEARNT = StepTime(StepTimeModel(1 / 3, 2e-7, 1e-300, 0.0), error_ratio=0.07, is_sure=True)


def pool_counters(at_s=NOW_S, **tenants):
    return PoolCounters(at_s, {SHARED_QUEUE: QueueCheckpoint(1.5, {"default": TierCheckpoint(20.0, 10.0, tenants)})})


def model(at_s=NOW_S, **other):
    return BackendModel(**{"at_s": at_s, "url": URL, "step_time": LEARNT, "configured": None, **other})


@pytest.fixture
async def store(tmp_path):
    made = SqliteStore(tmp_path / "state.db")
    await made.open()
    yield made
    await made.close()


async def reopened(store, now_s=NOW_S):
    memory = Checkpoint(store, clock=lambda: now_s)
    await memory.open()
    return memory


async def keep(store, name, kept, at_s=NOW_S):
    await store.put_learnt(Learnt(name, at_s, kept if isinstance(kept, bytes) else write_document(kept)))


# -- the form ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kept",
    [
        Counters({"m": pool_counters(alice=1 / 3, bob=1e300), "n": PoolCounters(NOW_S, {})}),
        LearntModels({"b": model(), "c": model(configured=CONFIGURED.model)}, (("alice", "m", 0.3, 7),)),
        Counters(),
        LearntModels(),
    ],
    ids=["counters", "models", "no counters", "no models"],
)
def test_what_is_written_is_read_to_the_last_bit(kept):
    assert read_document(type(kept), write_document(kept)) == kept


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\x00\xff", "not JSON"),
        (b"", "not JSON"),
        (b'{"version": 2, "pools": {}}', "newer fairlead .version 2, this one knows 1"),
        (b'{"pools": {}}', "not what fairlead keeps"),
        (b'{"version": true}', "not what fairlead keeps"),
        (b"[1]", "not what fairlead keeps"),
        (b'{"version": 1, "pools": {"m": {"at_s": "noon", "lanes": {}}}}', "pools.m.at_s"),
        (b'{"version": 1, "pools": {"m": {"at_s": 1, "lanes": {"": {"level": 1e999}}}}}', "not JSON"),
    ],
)
async def test_what_cannot_be_read_is_named_and_left_out(store, caplog, body, words):
    with pytest.raises(UnreadableError, match=words):
        read_document(Counters, body)
    await keep(store, COUNTERS, body)
    memory = await reopened(store)
    assert memory.checkpoint_of("m") is None
    assert "what was kept of counters is left out" in caplog.text


async def test_coefficients_that_no_engine_has_are_left_out(store, caplog):
    said = orjson.loads(write_document(LearntModels({"b": model()})))
    said["backends"]["b"]["step_time"]["model"]["token_s"] = -1.0
    await keep(store, MODELS, orjson.dumps(said))
    assert (await reopened(store)).step_time_of(BackendSpec("b", URL)) is None
    assert "not negative" in caplog.text


async def test_a_store_that_cannot_be_read_now_is_no_reason_not_to_start(caplog):
    absent = RedisStore("redis://127.0.0.1:1")
    await Checkpoint(absent).open()
    assert caplog.text.count("left out: Redis") == 2
    await absent.close()


def test_of_too_many_accounts_those_that_are_furthest_ahead_are_kept():
    pools = {"m": pool_counters(a=11.0, b=30.0, c=12.0), "n": pool_counters(a=12.5)}
    assert trim_accounts(pools, 4) is pools
    few = trim_accounts(pools, 2)
    assert [few[name].fair_queues[SHARED_QUEUE].tiers["default"].tenants for name in "mn"] == [{"b": 30.0}, {"a": 12.5}]
    assert few["m"].fair_queues[SHARED_QUEUE].level == 1.5


def test_counters_of_groups_are_written_read_and_trimmed_like_those_of_tiers():
    groups = {"red": TierCheckpoint(7.5, 2.0, {"a": 9.0, "b": 3.0}), "blue": TierCheckpoint(1.0)}
    tier = TierCheckpoint(30.0, 1.5, {"alone": 4.5}, groups)
    pools = {"m": PoolCounters(5.0, {SHARED_QUEUE: QueueCheckpoint(1.0, {"default": tier})})}
    assert read_document(Counters, write_document(Counters(pools))).pools == pools
    few = trim_accounts(pools, 2)["m"].fair_queues[SHARED_QUEUE].tiers["default"]
    assert few == replace(tier, groups={"red": replace(groups["red"], tenants={"a": 9.0}), "blue": groups["blue"]})


def test_counters_that_an_earlier_version_wrote_are_read():
    body = orjson.loads(write_document(Counters({"m": pool_counters(a=11.0)})))
    for tier in body["pools"]["m"]["fair_queues"][SHARED_QUEUE]["tiers"].values():
        del tier["groups"]
    assert read_document(Counters, orjson.dumps(body)).pools == {"m": pool_counters(a=11.0)}


# -- what is taken up ----------------------------------------------------------------------------------------


async def test_what_is_too_old_is_left_out(store):
    await keep(
        store, COUNTERS, Counters({"old": pool_counters(NOW_S - COUNTERS_AGE_S_MAX - 1), "new": pool_counters()})
    )
    await keep(store, MODELS, LearntModels({"old": model(NOW_S - MODELS_AGE_S_MAX - 1), "new": model()}))
    memory = await reopened(store)
    assert memory.checkpoint_of("old") is None
    assert memory.checkpoint_of("new") == pool_counters().fair_queues
    assert memory.step_time_of(BackendSpec("old", URL)) is None
    assert memory.step_time_of(BackendSpec("new", URL)) == LEARNT


async def test_a_model_is_of_one_backend_at_one_address_and_what_is_configured_since_goes_before_it(store):
    await keep(store, MODELS, LearntModels({"b": model(), "c": model(configured=CONFIGURED.model)}))
    memory = await reopened(store)
    other = replace(CONFIGURED, model=replace(CONFIGURED.model, base_s=9e-3))
    for spec, believed in [
        (BackendSpec("b", URL), LEARNT),
        (BackendSpec("b", "http://other:8000"), None),
        (BackendSpec("new", URL), None),
        (BackendSpec("b", URL, step_time=CONFIGURED), CONFIGURED),  # configured since
        (BackendSpec("c", URL, step_time=CONFIGURED), LEARNT),  # learnt from there on
        (BackendSpec("c", URL, step_time=other), other),  # calibrated again
        (BackendSpec("c", URL), None),  # taken out, because it was wrong
    ]:
        assert memory.step_time_of(spec) == believed, spec


def test_a_model_that_was_kept_of_another_engine_is_found_out():
    """Within a few dozen groups of steps, and until then nothing is promised by it."""
    slow = COEFFICIENTS["a800-llama3.1-8b"]
    learnt = StepTimes("b", LEARNT)
    seen = []
    for number in range(1_200):
        requests, new = 1 + number % 16, 1 + number % 16 + (number % 7 == 0) * 200
        seconds = slow.base_s + slow.overhead_s + slow.token_s * new + slow.context_token_s * 400 * requests
        learnt.reported([ReportedStep(new, 400 * requests, requests, seconds)], now=0.01 * number)
        seen.append(learnt.step_time)
    assert seen[0] == LEARNT
    said = seen[-1].model.step_s(new_tokens=8, context_tokens=3_200, requests=8)
    truth = slow.base_s + slow.overhead_s + slow.token_s * 8 + slow.context_token_s * 3_200
    assert said == pytest.approx(truth, rel=0.1)
    assert seen[-1].is_sure
    assert any(not each.is_sure for each in seen), "it doubts before it knows better"


def test_the_estimate_of_prompts_goes_on():
    before, after = LearntPromptTokens(), LearntPromptTokens()
    for tenant_id, tokens in [("alice", 90), ("bob", 30), ("alice", 91)]:
        before.observed(tenant_id, "m", prompt_bytes=100, prompt_tokens=tokens)
    after.remember(before.latest())
    assert [each[:2] for each in before.latest()] == [("bob", "m"), ("alice", "m")]
    for tenant_id in ("alice", "bob", "eve"):
        assert after.estimate(tenant_id, "m", 1_000) == before.estimate(tenant_id, "m", 1_000)
    for each in (before, after):
        each.observed("bob", "m", prompt_bytes=100, prompt_tokens=80)
    assert after.latest() == before.latest(), "as fast as one that has seen as much"
    after.remember([("alice", "m", 1e9, 1)])
    assert after.tokens_per_byte("alice", "m") <= 4.0, "what cannot have been seen is not believed"


# -- what is kept --------------------------------------------------------------------------------------------


class Running:
    """The parts of a gateway that learn: a pool `m` on no backend at all, whose tenants are charged directly."""

    def __init__(self):
        self.pools = Pools(lambda _pool: Dispatcher(Scheduler()))
        told = {"on_change": self.pools.changed, "on_load": self.pools.load_changed}
        self.backends = BackendPool([], polls=PollLoop(PollTimes(), clock=lambda: 0.0, rng=None), **told)
        self.pools.watch(self.backends)
        self.serving = True
        self.learning = Learning(self.pools, self.backends, LearntPromptTokens(), lambda: self.serving)

    def open(self, pool="m"):
        self.dispatcher = self.pools._dispatcher(pool)

    def spend(self, tenant_id, tokens):
        self.dispatcher.spent(Tenant(tenant_id), Usage(tokens, 0, 0))

    def counter(self, tenant_id):
        return self.dispatcher.snapshot([tenant_id]).tenants[tenant_id].counter


async def test_what_all_tenants_received_is_taken_up_by_the_next_process_also_of_pools_that_it_has_not_seen(store):
    await keep(store, COUNTERS, Counters({"unseen": pool_counters(zoe=50.0)}))
    first = await reopened(store)
    running = Running()
    first.start(running.learning)
    running.open()
    running.spend("alice", 700)
    running.spend("bob", 30)
    await first.stop()
    second, again = await reopened(store), Running()
    second.start(again.learning)
    again.open()
    again.spend("alice", 1)
    again.spend("bob", 1)
    assert [again.counter("alice"), again.counter("bob")] == [701.0, 31.0]
    again.open("unseen")
    again.spend("zoe", 1)
    assert again.counter("zoe") == 51.0
    await second.stop()


async def test_what_is_the_same_is_not_written_again_and_what_is_new_is_newer_whatever_the_clock_says(store):
    memory = await reopened(store)
    running = Running()
    memory.start(running.learning)
    running.open()
    running.spend("alice", 700)
    await memory.write()
    first = await store.learnt(COUNTERS)
    await memory.write()
    assert await store.learnt(COUNTERS) == first
    running.spend("alice", 1)
    await memory.write()
    assert (await store.learnt(COUNTERS)).at_s > first.at_s
    await memory.stop()
    behind, running = await reopened(store, now_s=NOW_S - 3_600), Running()
    behind.start(running.learning)
    running.open()
    running.spend("alice", 1)
    await behind.stop()
    (fair_queue,) = (await reopened(store)).checkpoint_of("m").values()
    assert fair_queue.tiers["default"].tenants == {"alice": 702.0}


async def test_a_store_that_is_away_is_said_once_and_what_was_learnt_is_kept_when_it_is_back(
    store, caplog, monkeypatch
):
    memory = await reopened(store)
    running = Running()
    memory.start(running.learning)
    running.open()
    running.spend("alice", 700)

    async def away(_):
        raise StoreUnavailable("the disk is full")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(store, "put_learnt", away)
        for _ in range(3):
            await memory.try_write()
    assert caplog.text.count("the disk is full") == 1
    await memory.stop()
    assert (await reopened(store)).checkpoint_of("m") is not None


async def test_a_model_that_is_not_sure_any_more_is_not_kept(store):
    spec = BackendSpec("b", URL, pool="m")
    await keep(store, MODELS, LearntModels({"b": model()}))
    memory, running = await reopened(store), Running()
    memory.start(running.learning)
    running.backends.add(spec)
    await memory.write()
    assert (await reopened(store)).step_time_of(spec) == LEARNT
    step_times = running.backends._backends["b"].step_times
    for number in range(400):
        step_times.reported([ReportedStep(10, 100, 10, (0.1, 0.18, 0.28)[number // 16 % 3])], now=number)
    assert not step_times.step_time.is_sure
    running.backends._backends["b"].metrics = EngineMetrics()
    await memory.write()
    assert (await reopened(store)).step_time_of(spec) is None
    await memory.stop()
