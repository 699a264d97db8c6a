"""What of a trace arrives, when, and with which blocks."""

import pytest

from backends.simulation.requests import Arrival, SessionPrompt
from gateway.simulate.trace import arrivals
from gateway.simulate.trace.arrivals import Blocks, Demand, Replay
from gateway.simulate.trace.formats import TraceCall


def replay(**options):
    return Replay(**{"request_tokens_max": 100, "block_tokens": 16, "output_tokens_max": 50, **options})


def test_time_begins_with_the_first_call_and_runs_as_fast_as_said():
    calls = [("a", TraceCall(1000.0, 1, 1)), ("b", TraceCall(1003.0, 1, 1))]
    assert [arrival.at_s for arrival in replay(speed=2.0).arrivals(calls)] == [0.0, 1.5]


def test_a_call_allows_what_it_says_or_what_is_assumed_and_at_least_what_it_produced():
    calls = [
        ("a", TraceCall(0.0, 1, 10, output_tokens_max=20)),
        ("a", TraceCall(0.0, 1, 10)),
        ("a", TraceCall(0.0, 1, 60)),
    ]
    assert [arrival.output_tokens_max for arrival in replay().arrivals(calls)] == [20, 50, 60]


def test_what_a_call_says_of_itself_arrives():
    call = TraceCall(0.0, 20, 1, model="m", endpoint="/v1/completions", program_id="p", uses_tools=True, patience_s=3.0)
    assert list(replay().arrivals([("a", call)])) == [
        Arrival(
            tenant_id="a",
            at_s=0.0,
            prompt_tokens=20,
            output_tokens=1,
            output_tokens_max=50,
            model="m",
            endpoint="/v1/completions",
            program_id="p",
            uses_tools=True,
            patience_s=3.0,
        )
    ]


def test_what_cannot_be_simulated_is_left_out_and_counted():
    played = replay(model="m")
    calls = [
        ("a", TraceCall(0.0, 1, 0, model="m")),
        ("a", TraceCall(1.0, 60, 41, model="m")),
        ("a", TraceCall(2.0, 1, 1, model="other")),
        ("a", TraceCall(3.0, 60, 40, model="m")),
    ]
    assert [arrival.at_s for arrival in played.arrivals(calls)] == [3.0]
    assert played.left_out.described() == "1 without output, 1 larger than an engine's KV cache, 1 for other models"


def test_an_engine_without_a_prefix_cache_is_shown_no_prefixes():
    calls = [("a", TraceCall(0.0, 64, 1, prefix=(1, 2), prefix_block_tokens=16.0))]
    assert next(replay(block_tokens=None).arrivals(calls)).prefix == ()


def test_blocks_of_the_engine_s_size_are_its_blocks():
    assert Blocks(16).of(TraceCall(0.0, 40, 1, prefix=(1, 2), prefix_block_tokens=16.0)) == (1, 2)


def test_a_larger_block_becomes_several_that_are_shared_together():
    blocks = Blocks(16)
    one = blocks.of(TraceCall(0.0, 600, 1, prefix=(5, 6), prefix_block_tokens=256.0))
    other = blocks.of(TraceCall(0.0, 600, 1, prefix=(5, 7), prefix_block_tokens=256.0))
    assert len(one) == len(set(one)) == 32
    assert one[:16] == other[:16]
    assert not set(one[16:]) & set(other[16:])


def test_a_block_whose_size_is_estimated_is_shared_whole_whatever_the_estimate():
    blocks = Blocks(16)
    one = blocks.of(TraceCall(0.0, 600, 1, prefix=(5, 6), prefix_block_tokens=247.0))
    other = blocks.of(TraceCall(0.0, 600, 1, prefix=(5, 6), prefix_block_tokens=249.0))
    assert one == other


def test_a_prefix_is_never_longer_than_its_prompt():
    assert len(Blocks(16).of(TraceCall(0.0, 100, 1, prefix=(5, 6), prefix_block_tokens=256.0))) == 6


def test_sizes_of_only_so_many_blocks_are_remembered(monkeypatch):
    monkeypatch.setattr(arrivals, "REBLOCKED_MAX", 2)
    blocks = Blocks(16)
    for block, tokens in ((1, 32.0), (2, 32.0), (3, 32.0), (1, 64.0), (3, 64.0)):
        blocks.of(TraceCall(0.0, 999, 1, prefix=(block,), prefix_block_tokens=tokens))
    assert len(blocks.of(TraceCall(0.0, 999, 1, prefix=(1,), prefix_block_tokens=17.0))) == 4
    assert len(blocks.of(TraceCall(0.0, 999, 1, prefix=(3,), prefix_block_tokens=17.0))) == 2


@pytest.mark.parametrize(("often", "quietest"), [(20, "b"), (19, "c")])
def test_the_quietest_tenant_asked_for_least_of_those_that_asked_often_enough(often, quietest):
    demand = Demand()
    calls = [("a", 50, 20), ("b", 10, often), ("c", 5, 1)]
    stream = [Arrival(tenant, 0.0, 1, output, output) for tenant, output, count in calls for _ in range(count)]
    if often < 20:
        stream = [arrival for arrival in stream if arrival.tenant_id != "a"]
    assert list(demand.counted(stream, lambda prompt, output: prompt + output)) == stream
    assert demand.quietest() == quietest
    assert list(demand.loudest_first())[-1] == "c"


def test_a_turns_prompt_begins_with_all_before_it_and_with_what_its_tenants_sessions_share():
    calls = [
        (tenant, TraceCall(0.0, 48, 16, program_id=session, turn=1, shared_tokens=32))
        for tenant, session in (("a", "s"), ("a", "t"), ("b", "s"))
    ]
    one, other, of_b = [each.of_session for each in replay().arrivals(calls)]
    before, later = one.blocks(48 + 16, 16), one.blocks(80, 16)
    assert len(later) == 5
    assert later[:4] == before
    assert one.blocks(48, 16)[:2] == other.blocks(48, 16)[:2], "they share 32 tokens"
    assert set(one.blocks(48, 16)[2:]).isdisjoint(other.blocks(48, 16))
    assert set(one.blocks(48, 16)).isdisjoint(of_b.blocks(48, 16))
    assert one.blocks(20, 16) == other.blocks(20, 16)


def test_a_recorded_turn_has_the_prefix_that_was_recorded():
    calls = [("a", TraceCall(0.0, 48, 16, program_id="s", turn=1, prefix=(1, 2), prefix_block_tokens=16.0))]
    (arrival,) = replay().arrivals(calls)
    assert (arrival.of_session, arrival.prefix) == (None, (1, 2))


def test_a_session_shares_no_more_than_its_prompt():
    assert SessionPrompt(1, 0, 64).blocks(40, 16) == SessionPrompt(2, 0, 64).blocks(40, 16)
