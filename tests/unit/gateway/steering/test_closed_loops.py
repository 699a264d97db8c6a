"""Which recorded calls waited for an answer is found in streams of calls that are known to, and in none that do not."""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random

import pytest

from gateway.steering.what_if.closed_loops import Waited, closed_loops, loops_of_alike

SECONDS = 300.0


def served(came, again, took_s, slots=8):
    """The calls of one server: `came` are (key, time); after each end `again` gives the time of the next."""
    numbers = count()
    events = [(at, next(numbers), key, None) for key, at in came]
    events.sort()
    queue, busy, calls = deque(), 0, []
    while events:
        now, _, key, arrived_at = heappop(events)
        if arrived_at is None:
            queue.append((key, now))
        else:
            busy -= 1
            calls.append(line(key, arrived_at, now))
            if (at := again(key, now)) is not None and at < SECONDS:
                heappush(events, (at, next(numbers), key, None))
        while queue and busy < slots:
            waiting, since = queue.popleft()
            busy += 1
            heappush(events, (now + took_s(), next(numbers), waiting, since))
    return calls


def line(key, arrived_at, ended_at, program=None):
    return {
        "tenant": "a", "key": key, "program": program, "arrival_s": arrived_at, "took_s": ended_at - arrived_at,
        "output_tokens": 9, "is_running": False,
    }  # fmt: skip


def times(step_s: Callable[[], float]) -> list[float]:
    at, found = 0.0, []
    while (at := at + step_s()) < SECONDS:
        found.append(at)
    return found


@pytest.mark.parametrize(
    ("callers", "thinks_s"), [(1, (1.0, 1.0)), (1, (0.5, 6.0)), (16, (0.0, 0.005)), (16, (0.3, 1.0)), (8, (0.0, 4.0))]
)
def test_clients_that_wait_are_found_whatever_they_think(callers, thinks_s):
    rng = Random(1)
    came = [("k", rng.uniform(0.0, 1.0)) for _ in range(callers)]
    calls = served(came, lambda _key, now: now + rng.uniform(*thinks_s), lambda: rng.uniform(1.0, 3.0))
    found = closed_loops(calls)
    assert len(found) >= len(calls) - 2 * callers
    for index, (waited_for, think_s) in found.items():
        ended_at = calls[waited_for]["arrival_s"] + calls[waited_for]["took_s"]
        assert calls[index]["arrival_s"] == pytest.approx(ended_at + think_s)
    thought_s = sorted(think_s for _, think_s in found.values())
    assert thinks_s[0] / 2 <= thought_s[len(thought_s) // 2] <= 1.5 * thinks_s[1] + 0.01
    assert len({waited_for for waited_for, _ in found.values()}) == len(found), "one call after each end"


def bursts(rng, lasting_s=20.0, every_s=60.0):
    def step_s(at=[0.0]):  # noqa: B006 - its own
        before = at[0]
        at[0] += rng.expovariate(5.0)
        if at[0] % every_s > lasting_s:
            at[0] += every_s - at[0] % every_s
        return at[0] - before

    return step_s


STREAMS = {
    "calm": lambda rng: lambda: rng.expovariate(0.5),
    "busy": lambda rng: lambda: rng.expovariate(3.5),
    "more than is served": lambda rng: lambda: rng.expovariate(6.0),
    "in bursts": bursts,
    "in short bursts": lambda rng: bursts(rng, 2.0, 8.0),
    "every second": lambda _rng: lambda: 1.0,
    "about every second": lambda rng: lambda: rng.uniform(0.9, 1.1),
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("took_s", [(0.2, 0.4), (1.0, 3.0)])
def test_calls_that_wait_for_nothing_are_not_taken_for_such_that_do(name, took_s):
    for seed in range(5):
        rng = Random(seed)
        came = [("k", at) for at in times(STREAMS[name](rng))]
        assert closed_loops(served(came, lambda *_: None, lambda: rng.uniform(*took_s))) == {}, seed  # noqa: B023


def test_keys_are_told_apart():
    rng = Random(1)
    came = [("waits", 0.1 * number) for number in range(12)] + [
        ("open", at) for at in times(lambda: rng.expovariate(1.5))
    ]
    calls = served(came, lambda key, now: now + 0.01 if key == "waits" else None, lambda: rng.uniform(1.0, 3.0))
    assert {calls[index]["key"] for index in closed_loops(calls)} == {"waits"}


def test_a_turn_of_a_session_waits_for_the_one_before():
    calls = [line("k", 10.0 * turn, 10.0 * turn + 4.0, "s") for turn in range(4)]
    assert closed_loops(calls) == {turn: (turn - 1, 6.0) for turn in range(1, 4)}


def test_an_id_of_calls_that_overlap_is_no_session():
    assert closed_loops([line("k", 1.0 * number, 1.5 + number, "user") for number in range(9)]) == {}


def test_what_was_refused_is_waited_for_by_no_call():
    calls = [line("k", 10.0 * turn, 10.0 * turn + 4.0, "s") for turn in range(3)]
    calls[1]["output_tokens"] = 0
    assert closed_loops(calls) == {2: (0, 16.0)}


def test_clients_of_a_key_without_sessions_are_alike_where_they_wait():
    calls = [line("k", 0.0, 4.0), line("k", 5.0, 9.0), line("k", 5.0, 9.0, "s"), line("other", 0.0, 4.0)]
    assert loops_of_alike(calls, {1: Waited(0, 1.0)}) == {0: 0, 1: 0}
    assert loops_of_alike(calls, {2: Waited(0, 1.0)}) == loops_of_alike(calls, {}) == {}
