"""What the processes of a cluster tell each other, as bytes."""

import pytest

from gateway.cluster.leader.inbox import TAKEN_MAX, Inbox
from gateway.cluster.wire import (
    FRAME_BYTES_MAX,
    Dispatched,
    Ended,
    Finish,
    Frame,
    FrameError,
    Has,
    Ping,
    Refused,
    Submit,
    Told,
    Used,
    decode,
    encode,
    frames_of,
)
from policies.facts import Cancelled, Interrupted, Kept, Returned, Undelivered
from policies.types import (
    LimitKind,
    Outcome,
    RateLimit,
    RateLimits,
    Reason,
    Request,
    SloEnvelope,
    Timing,
    Usage,
    Wait,
)

REQUEST = Request(
    "r", "A", "m", 12.5, 10, 20,
    prefix=(2**62, -5), prefix_block_tokens=16.0, envelope=SloEnvelope(1.0, None), backend_ids=frozenset({"x", "y"}),
)  # fmt: skip


def test_every_message_comes_out_as_it_went_in():
    messages = (
        Submit(1, REQUEST, 0.5, is_traced=True),
        Used(1, Usage(10, 0, 3)),
        Finish(1, Outcome.COMPLETED, Usage(10, 0, 3), Timing(0.1, None, None, 3, 3)),
        Has(2, REQUEST, 1.0, "gpu", 0.5, 20.0, Usage(10, 0, 3)),
        Ended(3, 7, REQUEST, "gpu", Outcome.CLIENT_DISCONNECTED, Usage(10, 0, 3), None),
        Dispatched(1, "gpu", 8.0, 5, True, 3, 20.0, RateLimits(RateLimit(5, 2, 1.0)), 4.0, Wait.NO_ROOM),
        Refused(1, Reason.RATE_LIMITED, 2.0, LimitKind.REQUESTS),
        Told(1, Returned(5.0, "r", 0.5, frozenset({"x"}))),
        Told(1, Interrupted(5.0, "r", Usage(10, 0, 3))),
        Told(1, Undelivered(5.0, "r")),
        Told(1, Kept(5.0, "r")),
    )
    (body,) = encode(Frame(7, "pool", messages))
    assert decode(body) == Frame(7, "pool", messages)


def test_a_frame_that_would_be_too_large_becomes_several_in_order():
    messages = tuple(Used(number, Usage(1, 2, 3)) for number in range(100_000))
    bodies = list(encode(Frame(1, "p", messages)))
    assert len(bodies) > 1
    assert max(map(len, bodies)) <= FRAME_BYTES_MAX
    assert [each for body in bodies for each in decode(body).messages] == list(messages)


@pytest.mark.parametrize("body", [b"", b"\xff", b"x" * (FRAME_BYTES_MAX + 1), b"\x93\x01\xa0\x91\x92\xa1z\x01"])
def test_bytes_that_are_no_frame_are_refused(body):
    with pytest.raises(FrameError):
        decode(body)


@pytest.mark.parametrize("fact", [Cancelled(5.0, "r"), {"call": "returned"}, {"call": []}, "kept", None])
def test_what_is_no_fact_of_a_dispatched_request_is_refused(fact):
    (body,) = encode(Frame(7, "pool", (Told(1, fact),)))
    with pytest.raises(FrameError):
        decode(body)


def test_messages_of_a_tick_keep_their_order_over_pools():
    said = [("a", Used(1, Usage(1, 0, 1))), ("a", Used(2, Usage(1, 0, 1))), ("", Ping(1.0)), ("a", Ping(2.0))]
    assert [(frame.pool, len(frame.messages)) for frame in frames_of(3, said)] == [("a", 2), ("", 1), ("a", 1)]


def test_one_source_that_floods_leaves_room_for_others_and_nothing_passes_a_barrier():
    inbox = Inbox()
    for number in range(TAKEN_MAX + 50):
        inbox.add("flood", number)
    inbox.add("other", "a")
    inbox.add("", "load", is_barrier=True)
    inbox.add("other", "b")
    turns = [list(inbox.turn()) for _ in range(2)]
    assert turns[0] == [*(("flood", number) for number in range(TAKEN_MAX // 3)), ("other", "a")]
    assert turns[-1][-2:] == [("", "load"), ("other", "b")]
    flood = [number for turn in turns for source, number in turn if source == "flood"]
    assert flood == list(range(TAKEN_MAX + 50))
    assert not len(inbox)


def test_a_turn_takes_no_more_from_many_sources_than_from_one():
    inbox = Inbox()
    for number in range(1000):
        for source in range(16):
            inbox.add(f"m{source}", number)
    before = len(inbox)
    turn = list(inbox.turn())
    assert len(turn) == before - len(inbox) == TAKEN_MAX
    assert {source for source, _ in turn} == {f"m{source}" for source in range(16)}
