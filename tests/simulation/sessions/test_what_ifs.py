"""What-ifs of agents: what a larger KV pool, holding turns, and the room of contexts would do to recorded sessions."""

from functools import cache
from pathlib import Path

import msgspec
import orjson
import pytest

from backends.simulation.requests import SessionPrompt
from gateway.steering.what_if import process
from gateway.steering.what_if.messages import EngineSpec, SessionsChanged, WhatIfSpec
from tests.simulation.sessions.scenes import OFF, Scene, cpu, play
from tests.simulation.sessions.world import SessionWorld, TurnRecord

pytestmark = pytest.mark.interpreted  # the scene notes when the ledger releases a turn
CONFIG = {"auth": {"mode": "keys", "secret": "no key is checked"}, "tenants": {"A": {}, "B": {}}}
RECORDED = cpu(until_s=60.0)


@cache
def recorded() -> bytes:
    """The calls of agents that no gateway held, as it records them."""
    worlds: list[SessionWorld] = []
    play(RECORDED, OFF, worlds.append)
    lines = [line(each, RECORDED) for each in worlds[0].turns]
    return b"".join(orjson.dumps(each) + b"\n" for each in sorted(lines, key=lambda each: each["arrival_s"]))


def line(turn: TurnRecord, scene: Scene) -> dict:
    session = turn.session
    return {
        "arrival_s": turn.arrived_at, "tenant": session.agents.tenant_id, "model": "m", "endpoint": "",
        "prompt_tokens": turn.prompt, "output_tokens": turn.output, "output_tokens_max": turn.output, "choices": 1,
        "prefix": SessionPrompt(session.number).blocks(turn.prompt, scene.block_tokens),
        "prefix_block_tokens": float(scene.block_tokens), "program": f"s{session.number}", "parent": None,
        "final": False, "tools": False, "outcome": "completed", "key": session.agents.tenant_id, "ttft_s": turn.ttft_s,
        "took_s": turn.latency_s, "is_running": False, "came_before": False,
    }  # fmt: skip


@pytest.fixture
def found(tmp_path: Path, monkeypatch):
    """Simulates what was recorded, and what differs."""
    monkeypatch.setattr(process, "_write", lambda _line: None)

    def simulated(changed: SessionsChanged, *, hold_sessions: bool) -> dict:
        trace, config = tmp_path / "calls.jsonl", tmp_path / "fairlead.yaml"
        trace.write_bytes(recorded())
        config.write_bytes(orjson.dumps({**CONFIG, "scheduling": {"hold_sessions": hold_sessions}}))
        of = RECORDED.coefficients
        engine = EngineSpec(
            engines=1, requests_running_max=RECORDED.running_max, kv_tokens_max=of.kv_tokens_max, base_s=of.base_s,
            token_s=of.token_s, context_token_s=of.context_token_s, request_s=of.request_s,
        )  # fmt: skip
        spec = WhatIfSpec(
            trace=str(trace), config=str(config), pool="", engine=engine, policy=None, weights={}, sessions=changed
        )
        return process._simulated(msgspec.json.decode(msgspec.json.encode(spec), type=WhatIfSpec))

    return simulated


def test_a_pool_twice_as_large_finds_more_of_the_contexts_and_holds_fewer_turns(found):
    """Takes seconds: the scene is simulated twice, and recorded once."""
    answer = found(SessionsChanged(kv_scale=2.0), hold_sessions=True)
    before, after = answer["replayed"], answer["instead"]
    assert before["sessions"]["held_turns"] > after["sessions"]["held_turns"]
    assert before["sessions"]["pauses"] > after["sessions"]["pauses"]
    assert after["output_tokens_per_s"] > before["output_tokens_per_s"]
    assert before["sessions"]["sessions"] == after["sessions"]["sessions"] > 24
    assert answer["closed_loop_calls"] > 0.9 * (before["requests"] - 24), "a turn waits for the one before"


def test_holding_the_turns_of_agents_is_worth_what_it_was_in_the_scene_that_was_recorded(found):
    """Takes seconds: the scene is simulated twice."""
    answer = found(SessionsChanged(held=True), hold_sessions=False)
    free, held = answer["replayed"], answer["instead"]
    assert answer["trust"]["is_trusted"]
    assert (free["sessions"]["held_turns"], free["sessions"]["etas"]) == (0, {})
    assert held["sessions"]["held_turns"] > 0
    assert held["sessions"]["held_max"] > 0 < held["sessions"]["paused_max"]
    assert held["output_tokens_per_s"] > 1.4 * free["output_tokens_per_s"]
    assert free["hit_ratio"] < 0.2
    assert held["hit_ratio"] > 0.4
    assert held["sessions"]["session_p50_s"] < free["sessions"]["session_p50_s"]


def test_the_room_of_contexts_is_as_asked_or_learnt(found):
    """Takes seconds: the scene is simulated twice."""
    answer = found(SessionsChanged(room_ratio=0.5), hold_sessions=True)
    assert answer["instead"]["sessions"]["etas"] == {"engine-1": 0.5}
    assert answer["replayed"]["sessions"]["etas"] != {"engine-1": 0.5}
