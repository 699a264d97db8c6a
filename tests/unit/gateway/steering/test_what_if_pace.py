"""A what-if simulates backends that are as fast as the real ones were: a token takes as long as was measured."""

import json

import msgspec
import pytest

from gateway.steering.what_if import process as what_if_process
from gateway.steering.what_if.messages import EngineSpec, WhatIfSpec

CALLS, EVERY_S, OUTPUT = 60, 0.5, 101
TTFT_S = 0.1


@pytest.fixture
def spec(tmp_path):
    """Writes the recorded calls of a tenant, of which each token took so long."""

    def written(tpot_s, **learnt):
        call = {
            "tenant": "a", "model": "m", "endpoint": "/v1/chat/completions", "prompt_tokens": 50,
            "output_tokens": OUTPUT,
            "output_tokens_max": OUTPUT, "choices": 1, "prefix": [], "prefix_block_tokens": 0.0, "program": None,
            "key": "k", "is_running": False, "came_before": False,
            "tools": False, "outcome": "completed", "ttft_s": TTFT_S, "took_s": TTFT_S + tpot_s * (OUTPUT - 1),
        }  # fmt: skip
        calls = [{"arrival_s": 1e9 + EVERY_S * number, **call} for number in range(CALLS)]
        (tmp_path / "calls.jsonl").write_text("".join(json.dumps(each) + "\n" for each in calls))
        (tmp_path / "fairlead.yaml").write_text("{}")
        engine = EngineSpec(engines=1, requests_running_max=8, kv_tokens_max=None, **learnt)
        made = WhatIfSpec(
            trace=str(tmp_path / "calls.jsonl"), config=str(tmp_path / "fairlead.yaml"), pool="m", engine=engine,
            policy=None, weights={},
        )  # fmt: skip
        file = tmp_path / "spec.json"
        file.write_bytes(msgspec.json.encode(made))
        return file

    return written


def found(file, capfdbinary, monkeypatch):
    """What the process says at its end."""
    monkeypatch.setattr(what_if_process.os, "nice", lambda _by: 0)
    what_if_process.main(file)
    *progress, last = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    parts = [each["progress"] for each in progress]
    assert parts == sorted(parts)
    assert parts[-1] <= 1
    return last["done"]


@pytest.mark.parametrize("tpot_s", [0.02, 0.04])
@pytest.mark.parametrize("learnt", [{}, {"base_s": 0.03, "token_s": 1e-4}])
def test_a_token_takes_as_long_as_was_measured_whatever_was_learnt(spec, capfdbinary, monkeypatch, tpot_s, learnt):
    done = found(spec(tpot_s, **learnt), capfdbinary, monkeypatch)
    assert done["happened"]["tpot_s"] == pytest.approx(tpot_s)
    assert done["replayed"]["tpot_s"] == done["instead"]["tpot_s"] == pytest.approx(tpot_s, rel=0.05)
    assert "so that a token takes as long as was measured" in done["setting"]["step times"]


def test_step_times_that_are_right_stay(spec, capfdbinary, monkeypatch):
    done = found(spec(0.02, base_s=0.02), capfdbinary, monkeypatch)
    assert done["setting"]["step times"] == "those that the gateway has learnt"


def test_what_was_served_is_counted_from_the_first_arrival_to_the_last_end(spec, capfdbinary, monkeypatch):
    happened = found(spec(0.02, base_s=0.02), capfdbinary, monkeypatch)["happened"]
    assert happened["duration_s"] == pytest.approx(EVERY_S * (CALLS - 1) + TTFT_S + 0.02 * (OUTPUT - 1))


def test_a_backend_with_a_pace_of_its_own_is_simulated_by_it(spec, capfdbinary, monkeypatch):
    learnt = {"base_s": 0.03, "token_s": 1e-4}
    done = found(spec(0.02, **learnt, paces=[3.0]), capfdbinary, monkeypatch)
    assert done["setting"]["paces"] == "step times of each times 3.00"
    assert done["replayed"]["tpot_s"] == pytest.approx(0.02, rel=0.05)
    scales = [
        done["setting"]["step times"],
        found(spec(0.02, **learnt), capfdbinary, monkeypatch)["setting"]["step times"],
    ]
    slow, usual = (float(each.partition("times ")[2].partition(",")[0]) for each in scales)
    assert slow == pytest.approx(usual / 3, rel=0.1)


def test_each_backend_is_as_fast_as_it_was_whichever_has_more_calls(tmp_path, spec, capfdbinary, monkeypatch):
    """Two of nine calls were at the slow one; in the simulation it may have half of them."""
    file = spec(0.02, base_s=0.02)
    made = msgspec.json.decode(file.read_bytes(), type=WhatIfSpec)
    made.engine.engines, made.engine.names = 2, ["fast", "slow"]
    calls = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()] * 3
    for number, call in enumerate(calls):
        call["backend"] = "slow" if number % 9 < 2 else "fast"
        call["arrival_s"] = 1e9 + EVERY_S * number
        call["took_s"] = TTFT_S + (0.1 if call["backend"] == "slow" else 0.02) * (OUTPUT - 1)
    (tmp_path / "calls.jsonl").write_text("".join(json.dumps(each) + "\n" for each in calls))
    file.write_bytes(msgspec.json.encode(made))
    done = found(file, capfdbinary, monkeypatch)
    scale = float(done["setting"]["step times"].partition("times ")[2].partition(",")[0])
    fast, slow = (scale * float(each) for each in done["setting"]["paces"].rpartition("times ")[2].split(", "))
    assert fast == pytest.approx(1.0, rel=0.1)
    assert slow == pytest.approx(5.0, rel=0.1)
    assert done["replayed"] == done["instead"]
