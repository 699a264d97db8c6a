"""What gateways make of each other's words, by a clock of the test's own; how they meet in Redis is tested with one."""

import orjson
import pytest

from gateway.state.peer_exchange import GONE_S, MINUTE_S, Replicas
from gateway.store.base import StoreUnavailable
from gateway.store.redis_exchange import ExchangeResult, PeerMessage
from policies.types import PeerUse, RateWindowReport, ReplicaShare

SPENT = {"2026-11-20": {"alice": 70}}


class Place:
    """A place to meet at, where the test speaks for the others."""

    def __init__(self):
        self.words: dict[str, tuple[float, bytes]] = {}  # when, what
        self.said = 0
        self.now = 1_000.0
        self.is_away = False

    def speaks(self, name, **word):
        nothing = {"writer": name, "leaves": False, "minutes": {}, "spent": {}, "reserved": {}, "backends": {}}
        self.words[name] = self.now, orjson.dumps({**nothing, **word})
        self.said += 1

    async def receive_from(self, name, said):
        return await self.publish(name, b"", said)

    async def publish(self, name, word, said):
        if self.is_away:
            raise StoreUnavailable("away")
        if said != self.said:
            others = {
                other: PeerMessage(self.now - at, each) for other, (at, each) in self.words.items() if other != name
            }
            return ExchangeResult(False, self.said, others)
        if word:
            self.words[name] = self.now, word
            self.said += 1
        return ExchangeResult(True, self.said, {})

    async def close(self):
        pass


class Limits:
    """Writes down what it is told."""

    def __init__(self):
        self.heard = None
        self.agreements = 0
        self.shared = None

    def propose(self, name, heard):
        self.heard = heard
        return {"pool": {"alice": RateWindowReport((3.0, 40.0), (1.0, 0.0), asks=True)}}

    def agreed(self):
        self.agreements += 1

    def shared_by(self, replicas, *, is_cut_off):
        self.shared = replicas, is_cut_off

    def at_backends(self):
        return {"gpu": (2, 300)}


class Book:
    """The same, of budgets."""

    def __init__(self):
        self.spent = []
        self.reserved_elsewhere = {}
        self.cut_offs = []

    def spent_here(self):
        return SPENT, {"alice": 5}

    def spent_elsewhere(self, writer, spent):
        self.spent.append((writer, spent))

    def cut_off(self, replicas):
        self.cut_offs.append(replicas)


@pytest.fixture
def place():
    return Place()


@pytest.fixture
def limits():
    return Limits()


@pytest.fixture
def book():
    return Book()


@pytest.fixture
def told():
    return []


@pytest.fixture
def one(place, limits, book, told):
    return Replicas(
        place,
        limits=limits,
        budgets=book,
        writer="w1",
        on_share=lambda *each: told.append(each),
        clock=lambda: place.now,
    )


MINUTES = {"pool": {"alice": [[10, 200], [5, 0], True]}}


async def test_what_is_said_is_what_the_others_understand(one, place, limits, book):
    await one._exchange()
    _, word = place.words[one.name]
    place.words.clear()
    place.speaks("two", **orjson.loads(word))
    await one._exchange()
    assert limits.heard == {"two": {"pool": {"alice": RateWindowReport((3.0, 40.0), (1.0, 0.0), asks=True)}}}
    assert book.spent == [("w1", SPENT)]
    assert book.reserved_elsewhere == {"alice": 5}
    assert limits.shared == (2, False)
    assert limits.agreements == 2


async def test_parts_go_by_who_is_there_and_are_told_when_they_change(one, place, told):
    place.speaks("!first", backends={"gpu": [2, 300]})
    place.speaks("~last", backends={"gpu": [1, 50], "other": [4, 0]})
    await one._exchange()
    await one._exchange()
    assert told == [(ReplicaShare(3, 1), {"gpu": PeerUse(3, 350), "other": PeerUse(4, 0)})]
    place.speaks("!first", leaves=True)
    await one._exchange()
    assert told[-1] == (ReplicaShare(2, 0), {"gpu": PeerUse(1, 50), "other": PeerUse(4, 0)})


async def test_who_is_not_heard_of_is_gone_and_what_it_let_in_leaves_the_minute(one, place, limits, told):
    place.speaks("two", minutes=MINUTES)
    await one._exchange()
    place.now += GONE_S + 1
    await one._exchange()
    await one._exchange()
    assert one.count == 1
    assert told[-1] == (ReplicaShare(1, 0), {})
    left = 1 - (GONE_S + 1) / MINUTE_S
    assert limits.heard["two"]["pool"]["alice"] == RateWindowReport((10 * left, 200 * left), (0.0, 0.0), asks=False)
    place.now += MINUTE_S
    place.words.clear()
    await one._exchange()
    await one._exchange()
    assert limits.heard == {}


async def test_who_was_lost_by_redis_alone_is_not_gone_yet(one, place, limits):
    place.speaks("two", minutes=MINUTES)
    await one._exchange()
    place.words.clear()
    place.said = 0
    place.now += 1
    await one._exchange()
    assert one.count == 2
    assert limits.heard["two"]["pool"]["alice"].claims == (5.0, 0.0)


async def test_cut_off_is_after_a_second_and_until_they_have_met(one, place, limits, book, caplog):
    place.speaks("two")
    await one._exchange()
    place.is_away = True
    place.now += 0.5
    await one._exchange()
    assert limits.shared == (2, False)
    place.now += 0.6
    await one._exchange()
    assert limits.shared == (2, True)
    assert book.cut_offs[-1] == 2
    assert "kept to a share of 1/2" in caplog.text
    place.is_away = False
    place.now += 5
    await one._exchange()
    assert limits.shared == (2, False), "the others could not say anything either"
    assert book.cut_offs[-1] == 1
    place.now += GONE_S
    await one._exchange()
    assert limits.shared == (1, False)


async def test_where_somebody_always_was_quicker_nobody_was_met(one, place, limits):
    publish = place.publish

    async def quicker(name, word, said):
        if word:
            place.speaks("two")
        return await publish(name, word, said)

    place.publish = quicker
    for _ in range(3):
        await one._exchange()
        place.now += 0.6
    assert limits.agreements == 0
    assert limits.shared == (1, False), "alone, as far as is known"
    assert one.is_cut_off


@pytest.mark.parametrize("is_away", [False, True])
async def test_who_ends_takes_leave_unless_nobody_can_be_met(one, place, is_away):
    await one._exchange()
    if is_away:
        place.is_away = True
        place.now += 2.0
        await one._exchange()
    place.is_away = False
    await one.stop()
    assert orjson.loads(place.words[one.name][1])["leaves"] is not is_away
