"""Placements that decide on arrival: worked examples and what each of them promises."""

import pytest

from policies.capacity.backend import BackendCapacity
from policies.capacity.prefix_index import PrefixIndex
from policies.placement import D2lpm, LeastReserved, LongestPrefix, Preble, RoundRobin, TenantRoundRobin, Worker
from policies.placement.preble import OUTPUT_TOKEN_S, OUTPUT_TOKENS_AT_FIRST, PREFILL_TOKEN_S, WINDOW_S
from policies.types import BackendLoad, Request, Usage


def make_request(
    request_id: str, prompt: int, *prefix: int, tenant: str = "A", at: float = 0.0, block_tokens: float = 1.0
) -> Request:
    return Request(
        request_id, tenant, "m", at, prompt, 100, prefix=prefix, prefix_block_tokens=block_tokens if prefix else 0.0
    )


def workers(**queued: int) -> list[Worker]:
    return [Worker(BackendCapacity(BackendLoad(name)), requests) for name, requests in queued.items()]


def output(tokens: int) -> Usage:
    return Usage(0, 0, tokens)


XYZ = workers(x=1, y=0, z=0)


@pytest.fixture
def prefixes():
    return PrefixIndex()


def test_the_least_full_is_the_one_that_ends_first_what_it_has():
    slow, fast = (BackendCapacity(BackendLoad(name, requests_running_max=10)) for name in ("a", "b"))
    slow.speed, fast.speed = 0.5, 1.5
    request = make_request("r", 1)
    for expected in (fast, slow, fast, fast, fast, slow):
        chosen = LeastReserved().place(request, [slow, fast])
        assert chosen is expected
        chosen.take(chosen.reservation(request, "default", prompt_tokens=1, output_tokens=1.0))


def test_round_robin_goes_around_in_order_of_id():
    placement = RoundRobin()
    assert [placement.assign(make_request("r", 1), workers(b=0, c=0, a=0)) for _ in range(5)] == list("abcab")


def test_round_robin_goes_on_after_a_backend_that_has_gone():
    placement = RoundRobin()
    placement.assign(make_request("r", 1), workers(a=0, b=0, c=0))
    placement.assign(make_request("r", 1), workers(a=0, b=0, c=0))
    assert placement.assign(make_request("r", 1), workers(a=0, c=0)) == "c"
    assert placement.assign(make_request("r", 1), workers(a=0, c=0, d=0)) == "d"


def test_each_tenant_has_a_circle_of_its_own():
    placement = TenantRoundRobin()
    chosen = [placement.assign(make_request("r", 1, tenant=tenant), workers(a=0, b=0)) for tenant in "AABAB"]
    assert chosen == list("abaab")
    placement.forget("A")
    assert placement.assign(make_request("r", 1, tenant="A"), workers(a=0, b=0)) == "a"


def test_d2lpm_follows_the_prefix_while_there_is_credit_then_the_shortest_queue(prefixes):
    placement = D2lpm(quantum_service=8)
    placement.look_up_in(prefixes)
    prefixes.inserted(make_request("before", 2, 1, 2), "y")

    def deficits():
        return [placement.deficit("A", name) for name in "xyz"]

    assert placement.assign(make_request("r1", 8, 1, 2), XYZ) == "y"  # extend 6; all were spent, so all are refilled
    assert deficits() == [8, 2, 8]
    assert placement.assign(make_request("r2", 8, 1, 2), XYZ) == "y"
    assert deficits() == [8, -4, 8]
    assert placement.assign(make_request("r3", 9, 1), XYZ) == "z"  # extend 9: nothing of it is on z
    assert deficits() == [8, -4, -1]
    assert placement.assign(make_request("r4", 9, 1), XYZ) == "x"
    assert deficits() == [-1, -4, -1]
    assert placement.assign(make_request("r5", 2, 1, 2), XYZ) == "y"  # refilled to 7, 4, 7
    assert deficits() == [7, 4, 7]
    placement.dispatched(make_request("r5", 2, 1, 2), "y")
    placement.ended(make_request("r5", 2, 1, 2), "y", output(3))
    assert deficits() == [7, 4 - 6, 7]


def test_d2lpm_refills_as_often_as_it_takes():
    placement = D2lpm(quantum_service=10)
    one = workers(x=0)
    placement.assign(make_request("r1", 75), one)
    assert placement.deficit("A", "x") == 10 - 75
    placement.assign(make_request("r2", 1), one)
    assert placement.deficit("A", "x") == -65 + 70 - 1


def test_d2lpm_gives_back_what_a_request_that_was_never_sent_was_charged():
    placement = D2lpm(quantum_service=10)
    request = make_request("r1", 7, 1, 2)
    assert placement.assign(request, XYZ) == "y"
    placement.unassigned(request, "y")
    assert [placement.deficit("A", name) for name in "xyz"] == [10, 10, 10]
    # Nor does anything wait there that its like could follow: both queues are as short, y comes first by id.
    assert placement.assign(make_request("r2", 7, 1, 2), workers(y=1, z=0)) == "z"


def test_d2lpm_keeps_the_deficits_of_tenants_apart():
    placement = D2lpm(quantum_service=10)
    placement.assign(make_request("r1", 30, tenant="A"), workers(x=0, y=1))
    assert placement.assign(make_request("r2", 30, tenant="B"), workers(x=0, y=1)) == "x"
    assert placement.assign(make_request("r3", 30, tenant="A"), workers(x=0, y=1)) == "y"


def test_d2lpm_forgets_deficits_of_backends_that_are_gone(monkeypatch):
    monkeypatch.setattr("policies.placement.d2lpm.WORKERS_MAX", 2)
    placement = D2lpm(quantum_service=10)
    for number, name in enumerate("abc"):
        placement.assign(make_request(f"r{number}", 3), workers(**{name: 0}))
    assert [placement.deficit("A", name) for name in "abc"] == [0, 7, 7]


def test_a_prefix_held_only_where_the_request_may_not_go_is_looked_for_elsewhere(prefixes):
    placement = D2lpm(quantum_service=100)
    placement.look_up_in(prefixes)
    prefixes.inserted(make_request("r", 3, 1, 2, 3), "elsewhere")
    prefixes.inserted(make_request("r", 3, 1), "z")
    assert placement.assign(make_request("r1", 3, 1, 2, 3), XYZ) == "z"


@pytest.mark.parametrize("make", [D2lpm, Preble])
def test_a_prompt_counts_where_it_waits_until_it_is_sent_and_again_once_it_is_back(make, prefixes):
    """What was sent, the index knows: here it has forgotten it."""
    placement = make()
    placement.look_up_in(prefixes)
    first, both = make_request("r", 3, 1, 2, 3), workers(x=0, y=0)
    assert placement.assign(first, both) == "x"
    placement.dispatched(first, "x")
    assert placement._locality.longest(first, both) == (0, [])
    placement.returned(first, "x")
    matched, holders = placement._locality.longest(first, both)
    assert (matched, [worker.id for worker in holders]) == (3, ["x"])


def capacity(name: str, held: int = 0) -> BackendCapacity:
    one = BackendCapacity(BackendLoad(name, kv_tokens_max=10_000))
    if held:
        one.take(one.reservation(make_request("held", held), "default", prompt_tokens=held, output_tokens=0.0))
    return one


def test_longest_prefix_goes_where_most_of_the_prompt_is_however_full_it_is(prefixes):
    placement = LongestPrefix()
    placement.look_up_in(prefixes)
    prefixes.inserted(make_request("before", 30, 1, 2, 3, block_tokens=10), "y")
    prefixes.inserted(make_request("before", 20, 1, 2, block_tokens=10), "z")
    candidates = [capacity("x"), capacity("y", 500), capacity("z", 100)]
    assert placement.place(make_request("r", 39, 1, 2, 3, block_tokens=10), candidates).id == "y"
    # y may be full; z holds more than half as well, x nothing.
    assert placement.place(make_request("r", 39, 1, 2, 3, block_tokens=10), [candidates[0], candidates[2]]).id == "z"


def test_longest_prefix_follows_no_beginning_that_is_less_than_the_rest(prefixes):
    placement = LongestPrefix()
    placement.look_up_in(prefixes)
    prefixes.inserted(make_request("before", 10, 1, block_tokens=10), "y")
    assert placement.place(make_request("r", 20, 1, 9, block_tokens=10), [capacity("x"), capacity("y")]).id == "x"
    assert placement.place(make_request("r", 19, 1, 9, block_tokens=10), [capacity("x"), capacity("y")]).id == "y"


def test_preble_follows_a_prefix_that_is_more_than_half_of_the_prompt(prefixes):
    placement = Preble()
    placement.look_up_in(prefixes)
    prefixes.inserted(make_request("before", 40, 1, 2, 3, 4, block_tokens=10), "z")
    assert placement.assign(make_request("r1", 79, 1, 2, 3, 4, block_tokens=10), XYZ) == "z"
    assert placement.assign(make_request("r2", 80, 1, 2, 3, 4, block_tokens=10), XYZ) == "x"


def test_preble_explores_where_least_is_to_be_done():
    placement = Preble()
    sizes = {"r1": 3000, "r2": 1000, "r3": 1000, "r4": 1000}
    chosen = [placement.assign(make_request(name, size), workers(x=0, y=0)) for name, size in sizes.items()]
    # Each carries the decode of its requests too: 128 tokens of 30 ms weigh more than 3000 tokens of prefill.
    assert chosen == ["x", "y", "y", "x"]


def test_the_load_is_missed_prefill_of_the_window_over_replicas_plus_decodes_of_what_is_assigned():
    placement = Preble()
    one, both = workers(x=0), workers(x=0, y=0)
    decode_s = OUTPUT_TOKENS_AT_FIRST * OUTPUT_TOKEN_S
    first = make_request("r1", 100, 1, 2, block_tokens=40)
    placement.assign(first, one)
    assert placement.load_s("x") == pytest.approx(100 * PREFILL_TOKEN_S + decode_s)
    placement.assign(make_request("r2", 100, 1, 2, block_tokens=40), one)
    # 2 uses of 100 tokens, of which 120 in 200 are missed.
    assert placement.load_s("x") == pytest.approx(0.6 * 2 * 100 * PREFILL_TOKEN_S + 2 * decode_s)
    third = make_request("r3", 100, 1, 2, block_tokens=40)
    placement.assign(third, workers(y=0))
    assert placement.assign(make_request("r4", 100, 1, 2, block_tokens=40), both) == "y"
    placement.dispatched(first, "x")
    placement.ended(first, "x", output(10))
    assert placement.load_s("x") < placement.load_s("y")


def test_what_preble_counted_leaves_with_the_window():
    placement = Preble()
    request = make_request("r1", 100, 1, 2, block_tokens=40)
    placement.assign(request, workers(x=0))
    placement.dispatched(request, "x")
    placement.ended(request, "x", output(10))
    assert placement.load_s("x") == pytest.approx(100 * PREFILL_TOKEN_S)
    placement.assign(make_request("r2", 1, at=WINDOW_S), workers(y=0))
    assert placement.load_s("x") == 0.0


def test_preble_forgets_a_request_that_was_never_sent():
    placement = Preble()
    request = make_request("r1", 100, 1, 2, block_tokens=40)
    placement.assign(request, workers(x=0))
    placement.unassigned(request, "x")
    assert placement.load_s("x") == 0.0
    late = make_request("r2", 100, 1, 2, block_tokens=40)
    placement.assign(late, workers(x=0))
    placement.assign(make_request("r3", 1, at=WINDOW_S), workers(y=0))
    placement.unassigned(late, "x")  # after it has left the window
    assert placement.load_s("x") == 0.0


def test_preble_expects_outputs_as_long_as_the_median_of_those_it_saw():
    placement = Preble()
    for number, tokens in enumerate((10, 20, 900)):
        request = make_request(f"r{number}", 10)
        placement.assign(request, workers(x=0))
        placement.dispatched(request, "x")
        placement.ended(request, "x", output(tokens))
    placement.assign(make_request("next", 10), workers(y=0))
    assert placement.load_s("y") == pytest.approx(10 * PREFILL_TOKEN_S + 20 * OUTPUT_TOKEN_S)


@pytest.mark.parametrize("limit", ["USES_MAX", "BLOCKS_MAX"])
def test_prebles_window_is_bounded(monkeypatch, limit):
    monkeypatch.setattr(f"policies.placement.preble.{limit}", 5)
    placement = Preble()
    for number in range(50):
        placement.assign(make_request(f"r{number}", 100, 10 * number, 10 * number + 1), workers(x=0))
    assert len(placement._window._window) <= 6
    assert len(placement._window.prefix_of) <= 12
