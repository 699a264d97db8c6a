"""What is kept to continue streams stays within one limit, of which each tenant keeps its part."""

from random import Random

import pytest

from gateway.continuation.exclusions import Exclusion
from gateway.continuation.held_bytes import HeldBytes
from gateway.continuation.stream import ResumableStream


def stream():
    made = ResumableStream(None, 1 << 20)
    made.ids.prompt = b"1,2,3"
    return made


def kept(streams):
    return [number for number, each in enumerate(streams) if each.exclusion is None]


@pytest.mark.parametrize("last", ["few", "many"])
def test_beyond_the_limit_the_tenant_with_most_gives_up_its_oldest_stream(last):
    held, many, few = HeldBytes(100), [stream() for _ in range(9)], [stream() for _ in range(3)]
    for tenant, streams in sorted({"few": few, "many": many}.items(), key=lambda item: item[0] == last):
        for each in streams:
            held.hold(tenant, each, 10)
    assert kept(few) == [0, 1, 2]
    assert kept(many) == [2, 3, 4, 5, 6, 7, 8]
    assert (many[0].exclusion, many[0].ids.prompt, many[0].may_continue()) == (Exclusion.MEMORY, b"", False)
    assert held.bytes == 100


def test_a_stream_that_alone_needs_more_than_the_limit_gives_up_itself():
    held, large = HeldBytes(100), stream()
    held.hold("a", large, 101)
    assert large.exclusion is Exclusion.MEMORY
    assert held.bytes == 0


def test_the_attempt_of_a_stream_that_gives_up_is_told_and_none_that_is_over():
    held, told = HeldBytes(10), []
    for number in range(3):
        each = stream()
        each.on_given_up = lambda number=number: told.append(number)
        held.hold("a", each, 10)
        if not number:
            each.left()
    assert told == [1]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_held_is_what_the_streams_that_are_not_over_hold(seed):
    rng, held, running = Random(seed), HeldBytes(200), {}
    for _ in range(400):
        if running and rng.random() < 0.4:
            each = rng.choice(list(running))
            held.release(running.pop(each)[0], each)
        else:
            each, tenant, size = stream(), rng.choice("abc"), rng.randrange(60)
            running[each] = tenant, size
            held.hold(tenant, each, size)
        assert held.bytes == sum(size for each, (_, size) in running.items() if each.exclusion is None) <= 200
