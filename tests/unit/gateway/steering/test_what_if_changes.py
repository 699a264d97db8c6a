"""What a what-if changes beside the order and weights: engines, tiers, groups, limits, and the split of an alias."""

import json

import pytest

from gateway.config.aliases import AliasSection
from gateway.steering.what_if import process
from gateway.steering.what_if.changes import PlayedChanges, SplitChange
from gateway.steering.what_if.messages import EngineSpec, WhatIf
from gateway.steering.what_if.what_ifs import _by_pool, _Played, _written

ENGINE = EngineSpec(engines=1, requests_running_max=4, kv_tokens_max=None, base_s=0.03, token_s=1e-4)
CALLS = 40


def a_call(number, tenant, **given):
    return {
        "arrival_s": 1e9 + 0.05 * number, "tenant": tenant, "model": "m", "endpoint": "/v1/chat/completions",
        "prompt_tokens": 50, "output_tokens": 41, "output_tokens_max": 41, "choices": 1, "prefix": [],
        "prefix_block_tokens": 0.0, "program": None, "key": tenant, "is_running": False, "came_before": False,
        "tools": False, "outcome": "completed", "ttft_s": 0.1, "took_s": 0.1 + 0.03 * 40, "alias": None, **given,
    }  # fmt: skip


FLOOD = [a_call(number, tenant) for number in range(CALLS) for tenant in ("chat", "batch")]
TENANTS = {"chat": {"tier": "first"}, "batch": {"tier": "second"}}
CONFIG = {
    "tiers": {"first": {}, "second": {}},
    "groups": {"loud": {"tier": "second"}},
    "tenants": TENANTS,
}


@pytest.fixture
def simulated(tmp_path, monkeypatch):
    """The answer of a what-if of twice as many calls as one engine serves in time, with these changes."""
    monkeypatch.setattr(process, "_write", lambda _line: None)

    def run(changes, calls=FLOOD, moved=None):
        lines = [json.dumps(each).encode() for each in calls]
        what_if = WhatIf(id="one", pool="m", policy=None, weights={}, minutes=60, changes={})
        file = _written(tmp_path, what_if, _Played(lines, moved, changes), ENGINE, lambda: CONFIG)
        return process._simulated(process.msgspec.json.decode(file.read_bytes(), type=process.WhatIfSpec))

    return run


def median_ttft_s(answer, tenant):
    return [answer[run]["tenants"][tenant]["ttft_p50_s"] for run in ("replayed", "instead")]


def test_without_changes_both_simulations_are_alike(simulated):
    answer = simulated(PlayedChanges())
    assert answer["replayed"] == answer["instead"]


def test_one_engine_more_lets_all_wait_shorter_and_one_fewer_than_one_is_one(simulated):
    for tenant in ("chat", "batch"):
        now, then = median_ttft_s(simulated(PlayedChanges(engines=1)), tenant)
        assert then < 0.7 * now
    answer = simulated(PlayedChanges(engines=-5))
    assert answer["replayed"] == answer["instead"]


def test_engines_that_come_or_go_are_of_the_median_pace():
    unequal = EngineSpec(engines=3, requests_running_max=4, kv_tokens_max=None, paces=[1.0, 1.2, 5.0])
    assert PlayedChanges(engines=1).engine(unequal).paces == [1.0, 1.2, 5.0, 1.2]
    fewer = PlayedChanges(engines=-1).engine(unequal)
    assert (fewer.engines, fewer.paces) == (2, [1.0, 5.0])
    assert PlayedChanges(engines=1).engine(ENGINE).paces == []


@pytest.mark.parametrize("tier", [{"weight": 9.0}, {"reserve_ratio": 0.75}])
def test_a_tier_of_a_larger_weight_or_with_a_reserve_waits_shorter(simulated, tier):
    now, then = median_ttft_s(simulated(PlayedChanges(patches={"tiers": {"first": tier}})), "chat")
    assert then < 0.8 * now


def test_a_tenant_of_a_group_is_in_the_tier_of_the_group_and_limited_by_it(simulated):
    patches = {"tenants": {"batch": {"group": "loud"}}, "groups": {"loud": {"requests_per_minute_max": 10}}}
    tenants = simulated(PlayedChanges(patches=patches))["instead"]["tenants"]
    assert tenants["batch"]["served"] == 10
    assert tenants["chat"]["served"] == CALLS
    assert PlayedChanges(patches=patches).config(CONFIG)["tenants"]["batch"] == {"group": "loud"}
    assert CONFIG["tenants"]["batch"] == {"tier": "second"}, "what is changed is a copy"


def test_a_limit_of_a_tenant_holds_and_spares_the_other(simulated):
    answer = simulated(PlayedChanges(patches={"tenants": {"batch": {"in_flight_max": 1}}}))
    now, then = median_ttft_s(answer, "chat")
    assert then < 0.7 * now, "it has three of four slots, and had two"
    now, then = median_ttft_s(answer, "batch")
    assert then > now


def alias_calls(number, model, **given):
    return [a_call(each, "chat", model=model, alias="a", **given) for each in range(number)]


def by_model(changes, calls):
    lines = b"".join(json.dumps(each).encode() + b"\n" for each in calls)
    moved = [json.loads(line) for line in changes.calls(lines).splitlines()]
    counts = {model: sum(each["model"] == model for each in moved) for model in ("m", "n")}
    moves = sum(after["model"] != before["model"] for before, after in zip(calls, moved, strict=True))
    return counts, moves


def test_a_split_by_lot_moves_as_few_calls_as_give_the_new_weights():
    alias = AliasSection(models=("m", "n"), split={"m": 80, "n": 20})
    calls = [*alias_calls(800, "m"), *alias_calls(200, "n"), a_call(0, "batch")]
    counts, moves = by_model(PlayedChanges(splits={"a": SplitChange.of(alias, {"m": 50, "n": 50})}), calls)
    assert counts["m"] == pytest.approx(501, abs=45)
    assert moves == counts["n"] - 200, "none moves back"
    assert by_model(PlayedChanges(splits={"a": SplitChange.of(alias, {"m": 4, "n": 1})}), calls)[1] == 0
    assert by_model(PlayedChanges(splits={"a": SplitChange.of(alias, {"n": 1})}), calls)[0] == {"m": 1, "n": 1000}


def test_a_sticky_split_moves_whole_tenants():
    alias = AliasSection(models=("m", "n"), split={"m": 1}, sticky="tenant")
    calls = [a_call(number, f"t{number % 40}", alias="a") for number in range(400)]
    lines = b"".join(json.dumps(each).encode() + b"\n" for each in calls)
    changes = PlayedChanges(splits={"a": SplitChange.of(alias, {"m": 1, "n": 1})})
    moved = [json.loads(line) for line in changes.calls(lines).splitlines()]
    models = {(each["tenant"], each["model"]) for each in moved}
    assert len(models) == 40, "each tenant has one model"
    assert 10 <= sum(model == "n" for _, model in models) <= 30


def test_calls_that_a_split_sends_to_another_pool_leave_the_simulation(simulated):
    alias = AliasSection(models=("m", "n"))
    calls = [*alias_calls(CALLS, "m"), *[a_call(number, "batch") for number in range(CALLS)]]
    changes = PlayedChanges(splits={"a": SplitChange.of(alias, {"m": 1, "n": 3})})
    lines = b"".join(json.dumps(each).encode() + b"\n" for each in calls)
    moved = _by_pool(changes.calls(lines), {"m": "m", "n": "n"})["m"]
    answer = simulated(changes, calls, moved)
    assert answer["replayed"]["tenants"]["chat"]["requests"] == CALLS
    assert answer["instead"]["tenants"]["chat"]["requests"] == pytest.approx(CALLS / 4, abs=8)
    now, then = median_ttft_s(answer, "batch")
    assert then < now
