"""The election in a real Redis: one key that lives as long as its lease, epochs that only grow, the list of members."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count

import pytest
from redis_server import RedisServer

from gateway.cluster.election_store import NO_WITNESSES, Ask, StoreCall, StoreView, Witnesses
from gateway.store import redis_election
from gateway.store.base import StoreUnavailable
from gateway.store.redis_election import RedisElection

# Half as long as in a gateway: all that is kept here lives so long.
LEASE_S, MEMBER_S, ABANDONED_S = (getattr(redis_election, name) / 2 for name in ("LEASE_S", "MEMBER_S", "ABANDONED_S"))


@pytest.fixture(autouse=True)
def halved(monkeypatch):
    for name, value in (("LEASE_S", LEASE_S), ("MEMBER_S", MEMBER_S), ("ABANDONED_S", ABANDONED_S)):
        monkeypatch.setattr(redis_election, name, value)


@pytest.fixture
def server(tmp_path):
    with RedisServer(tmp_path) as made:
        yield made


@pytest.fixture
async def elections(server):
    async with AsyncExitStack() as stack:

        def make(**options):
            made = RedisElection(server.url, **options)
            stack.push_async_callback(made.close)
            return made

        yield make


NUMBERS = count(1)


def call(ask, member, epoch=0, *, number=None, **more):
    return StoreCall(ask, member, f"{member}:1", epoch, next(NUMBERS) if number is None else number, 0.0, **more)


async def seen(elections, ask, member, epoch=0, **more):
    """What the store says, but for when each member called."""
    return replace(await elections.call(call(ask, member, epoch, **more)), silent_s={})


async def test_one_acquires_the_others_see_it_and_none_renews_or_releases_for_another(elections):
    one, two = elections(), elections()
    assert await seen(one, Ask.LOOK, "one") == StoreView(None, 0, {"one": "one:1"}, 0)
    assert await seen(one, Ask.ACQUIRE, "one") == StoreView("one", 1, {"one": "one:1"}, 0)
    both = {"one": "one:1", "two": "two:1"}
    assert await seen(two, Ask.ACQUIRE, "two") == StoreView("one", 1, both, 1)
    assert await seen(two, Ask.RENEW, "two", 1) == StoreView("one", 1, both, 1)
    assert (await one.call(call(Ask.RELEASE, "one", 7))).leader == "one", "of another epoch"
    assert await seen(one, Ask.RELEASE, "one", 1) == StoreView(None, 0, {"two": "two:1"}, 1)
    assert await seen(two, Ask.ACQUIRE, "two") == StoreView("two", 2, {"two": "two:1"}, 1)


async def test_an_epoch_is_above_all_that_are_known_also_where_the_server_has_forgotten(elections, server):
    one = elections()
    assert (await one.call(call(Ask.ACQUIRE, "one", 41))).epoch == 42
    server.restart_empty()
    with pytest.raises(StoreUnavailable):  # the connection is gone; the next is another
        await one.call(call(Ask.RENEW, "one", 42))
    assert await seen(one, Ask.LOOK, "two", 42) == StoreView(None, 0, {"two": "two:1"}, 0)
    found = await one.call(call(Ask.ACQUIRE, "two", 42))
    assert (found.leader, found.epoch, found.counter) == ("two", 43, 0)


async def test_a_lease_ends_unless_it_is_renewed_and_a_member_is_listed_for_a_while(elections):
    one, two = elections(), elections()
    await two.call(call(Ask.LOOK, "gone"))
    await one.call(call(Ask.ACQUIRE, "one"))
    await asyncio.sleep(LEASE_S * 0.6)
    assert (await one.call(call(Ask.RENEW, "one", 1))).leader == "one"
    await asyncio.sleep(LEASE_S * 0.6)
    found = await two.call(call(Ask.LOOK, "two"))
    assert (found.leader, found.members.keys()) == ("one", {"one", "two", "gone"})
    await asyncio.sleep(MEMBER_S - LEASE_S * 1.2 + 0.2)
    assert (await two.call(call(Ask.LOOK, "two"))).members.keys() == {"one", "two"}
    await asyncio.sleep(LEASE_S * 0.6)
    assert (await two.call(call(Ask.ACQUIRE, "two"))).leader == "two"


async def test_a_member_that_did_not_hear_that_it_acquired_has_a_whole_lease_by_its_next_call(elections):
    one = elections()
    await one.call(call(Ask.ACQUIRE, "one"))
    await asyncio.sleep(LEASE_S * 0.6)
    assert (await one.call(call(Ask.ACQUIRE, "one"))).epoch == 1
    await asyncio.sleep(LEASE_S * 0.6)
    assert (await one.call(call(Ask.LOOK, "two"))).leader == "one"


async def test_a_leader_that_left_gets_a_new_epoch_where_its_last_renewal_was_read_late(elections):
    one = elections()
    await one.call(call(Ask.ACQUIRE, "one"))
    await one.call(call(Ask.RENEW, "one", 1))
    assert (await one.call(call(Ask.ACQUIRE, "one", 1))).epoch == 2


async def test_the_key_of_a_leader_that_all_others_saw_end_is_free_at_once(elections):
    one = elections()
    await one.call(call(Ask.ACQUIRE, "one"))
    for name in ("two", "three"):
        await one.call(call(Ask.LOOK, name))
    assert (await seen(one, Ask.ACQUIRE, "two", free_epoch=1, has_ended=True)).leader == "one", "three has not said so"
    assert (await seen(one, Ask.ACQUIRE, "three", free_epoch=0, has_ended=True)).leader == "one", "of another epoch"
    found = await seen(one, Ask.ACQUIRE, "three", free_epoch=1, has_ended=True)
    assert (found.leader, found.epoch) == ("three", 2)
    assert (await seen(one, Ask.RENEW, "one", 1)).leader == "three", "it was alive after all"


ALL = Witnesses(1, frozenset({"one", "two", "three"}))


async def led_with_witnesses(election):
    """`one` leads in epoch 1, and a majority of all three may renew its lease besides; its key has ended."""
    await election.call(call(Ask.ACQUIRE, "one"))
    for name in ("two", "three"):
        await election.call(call(Ask.LOOK, name))
    found = await election.call(call(Ask.RENEW, "one", 1, witnesses=ALL))
    assert found.witnesses == ALL
    await election._server._redis.delete(election._server.name("cluster-leader"))


async def test_the_key_of_a_leader_is_free_when_enough_of_its_witnesses_help_it_no_more(elections):
    one = elections()
    await led_with_witnesses(one)
    assert (await seen(one, Ask.ACQUIRE, "two", 1, free_epoch=1)).leader is None
    assert (await seen(one, Ask.ACQUIRE, "four", 1)).leader is None, "it is no witness"
    await one.call(call(Ask.LOOK, "two", 1, free_epoch=0))  # it takes its word back
    assert (await seen(one, Ask.ACQUIRE, "three", 1, free_epoch=1)).leader is None
    await one.call(call(Ask.LOOK, "two", 1, free_epoch=1))
    found = await seen(one, Ask.ACQUIRE, "three", 1, free_epoch=1)
    assert (found.leader, found.epoch, found.witnesses) == ("three", 2, NO_WITNESSES)


async def test_witnesses_that_have_left_count_as_free_once_what_they_granted_has_ended(elections):
    """It takes as long as a grant lasts: LEASE_S."""
    one = elections()
    await led_with_witnesses(one)
    for name in ("two", "three"):
        await one.call(call(Ask.RELEASE, name, 0))
    assert (await seen(one, Ask.ACQUIRE, "four", 1)).leader is None, "their grants may last"
    await asyncio.sleep(LEASE_S)
    assert (await seen(one, Ask.ACQUIRE, "four", 1)).leader == "four"


async def test_a_call_that_comes_after_a_later_one_takes_no_word_back_and_no_key(elections):
    one = elections()
    await led_with_witnesses(one)
    late = call(Ask.ACQUIRE, "two", 1, free_epoch=1)
    await one.call(call(Ask.LOOK, "two", 1, free_epoch=0))
    assert (await one.call(late)).leader is None
    assert (await seen(one, Ask.ACQUIRE, "three", 1, free_epoch=1)).leader is None


async def test_a_leader_has_its_key_again_if_no_other_had_it_also_where_the_server_has_forgotten(elections, server):
    one = elections()
    await led_with_witnesses(one)
    assert (await one.call(call(Ask.RENEW, "one", 1, witnesses=ALL))).leader == "one"
    server.restart_empty()
    with pytest.raises(StoreUnavailable):
        await one.call(call(Ask.LOOK, "two", 1))
    found = await one.call(call(Ask.RENEW, "one", 1, witnesses=ALL))
    assert (found.leader, found.epoch, found.witnesses) == ("one", 1, ALL)
    await one.call(call(Ask.RELEASE, "one", 1))
    assert (await one.call(call(Ask.ACQUIRE, "two", 1))).epoch == 2, "one that resigned needs no witness"
    assert (await one.call(call(Ask.RENEW, "one", 1, witnesses=ALL))).leader == "two"


async def test_a_server_that_has_forgotten_takes_a_candidate_s_word_for_the_witnesses(elections):
    one = elections()
    assert (await one.call(call(Ask.ACQUIRE, "two", 1, free_epoch=1, witnesses=ALL))).leader is None
    assert (await one.call(call(Ask.ACQUIRE, "three", 1, free_epoch=1, witnesses=ALL))).leader == "three"


async def test_a_key_is_free_when_no_members_can_have_renewed_it_any_more(elections):
    one = elections()
    await led_with_witnesses(one)
    name = one._server.name("cluster-witnesses")
    epoch, renewed_ms, names = (await one._server._redis.get(name)).decode().split("\n", 2)
    almost_ms = int(renewed_ms) - int(ABANDONED_S * 1000) + 5_000
    await one._server._redis.set(name, f"{epoch}\n{almost_ms}\n{names}")
    assert (await one.call(call(Ask.ACQUIRE, "four", 1))).leader is None
    await one._server._redis.set(name, f"{epoch}\n{almost_ms - 5_000}\n{names}")
    assert (await one.call(call(Ask.ACQUIRE, "four", 1))).leader == "four"


async def test_a_view_says_for_how_long_each_member_has_not_called(elections):
    one = elections()
    await one.call(call(Ask.LOOK, "one"))
    await asyncio.sleep(0.3)
    found = await one.call(call(Ask.LOOK, "two"))
    assert found.silent_s == {"one": pytest.approx(0.3, abs=0.25), "two": pytest.approx(0.0, abs=0.05)}


async def test_each_new_connection_is_told_and_two_prefixes_are_two_clusters(elections, server):
    one, other = elections(), elections(prefix="other")
    connected = []
    one.join(one.version, lambda: connected.append(1))
    await one.call(call(Ask.ACQUIRE, "one"))
    await one.call(call(Ask.RENEW, "one", 1))
    assert connected == [1]
    assert (await other.call(call(Ask.ACQUIRE, "two"))).leader == "two"
    server.restart_empty()
    with pytest.raises(StoreUnavailable):
        await one.call(call(Ask.LOOK, "one"))
    await one.call(call(Ask.LOOK, "one"))
    assert connected == [1, 1]


async def test_a_frozen_server_is_no_answer_within_the_timeout(elections, server):
    one = elections(timeout_s=0.2)
    await one.call(call(Ask.LOOK, "one"))
    server.freeze()
    try:
        with pytest.raises(StoreUnavailable):
            async with asyncio.timeout(5):
                await one.call(call(Ask.LOOK, "one"))
    finally:
        server.thaw()


async def test_a_connection_whose_end_takes_too_long_keeps_none_from_being_closed(server, monkeypatch):
    election = RedisElection(server.url, timeout_s=0.5)
    await election.call(call(Ask.LOOK, "one"))
    await election.checkpoint()
    closed, close = [], asyncio.StreamWriter.close
    monkeypatch.setattr(asyncio.StreamWriter, "close", lambda self: closed.append(self) or close(self))
    monkeypatch.setattr(asyncio.StreamWriter, "wait_closed", lambda _self: asyncio.sleep(60.0))
    await election.close()
    assert len(closed) == 2


async def test_a_server_that_was_emptied_is_told_the_secret_of_the_members_again(elections, server):
    leader = elections()
    secret = await leader.shared_secret()
    server.restart_empty()
    with pytest.raises(StoreUnavailable):
        await leader.put_checkpoint(b"newest")
    await leader.put_checkpoint(b"newest")
    newcomer = elections()
    assert await newcomer.shared_secret() == secret, "another secret would keep it out"
    assert await newcomer.checkpoint() == b"newest"
