"""A what-if of each recorded workload replays it within a factor of 1.5 in the worst tenant's median TTFT, but for one
tenant of one of them, whose medians in two recordings are further apart than that.

tests/benchmarks/what_ifs/record.py has recorded them from a real gateway. Those of two backends were recorded before
calls named their backends, which are told by the time per token: 0.035 s and 0.18 s.
"""

import gzip
from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec
import pytest

from gateway.steering.what_if import process
from gateway.steering.what_if.messages import WhatIfSpec

DATA = Path(__file__).parents[1] / "benchmarks" / "data"
FACTOR_MAX = 1.5
MOVED_S = 0.02


@pytest.fixture
def found(monkeypatch):
    """Simulates what was recorded, without any change; each once."""
    monkeypatch.setattr(process, "_write", lambda _line: None)
    return lambda workload, moved_by=None: deepcopy(simulated_once(workload, moved_by))


def simulated(workload, moved_by=None):
    lines = gzip.decompress((DATA / f"what_if_{workload}.jsonl.gz").read_bytes()).splitlines()
    if moved_by is not None:
        lines[2:] = moved(lines[2:], Random(moved_by))
    spec = msgspec.json.decode(lines[0], type=WhatIfSpec)
    with TemporaryDirectory() as folder:
        trace, config = Path(folder, "calls.jsonl"), Path(folder, "fairlead.yaml")
        config.write_bytes(lines[1])
        trace.write_bytes(b"\n".join(lines[2:]) + b"\n")
        spec.trace, spec.config = str(trace), str(config)
        return process._simulated(spec)


simulated_once = cache(simulated)


def moved(lines, rng):
    """The calls, each of them up to MOVED_S earlier or later."""
    calls = [msgspec.json.decode(line) for line in lines]
    for call in calls:
        call["arrival_s"] = max(0.0, call["arrival_s"] + rng.uniform(-MOVED_S, MOVED_S))
    return [msgspec.json.encode(call) for call in sorted(calls, key=lambda call: call["arrival_s"])]


@pytest.mark.parametrize("workload", ["flood", "agents", "two-backends-again"])
def test_a_recorded_workload_is_replayed_as_it_was(found, workload):
    """Takes seconds: minutes of calls are simulated."""
    answer = found(workload)
    assert answer["trust"]["is_trusted"]
    assert answer["trust"]["factor"] <= FACTOR_MAX
    assert answer["closed_loop_calls"] > answer["replayed"]["requests"] / 2


@pytest.mark.parametrize("moved_by", [None, *(pytest.param(seed, marks=pytest.mark.long) for seed in (16, 19))])
def test_so_are_all_tenants_of_two_unequal_backends_but_the_one_whose_only_call_runs_at_either_by_chance(
    found, moved_by
):
    """Half of the calls of `intern`, which may have one in flight, ran at the backend that is five times as slow, one
    after another; of the others' 14 %. Where its replay is far off, the answer says that it is not to be trusted. Takes
    seconds: minutes of calls are simulated.
    """
    answer = found("two-backends", moved_by)
    if moved_by is None:
        assert (answer["trust"]["is_trusted"], answer["trust"]["tenant"]) == (False, "intern")
    if answer["trust"]["factor"] > FACTOR_MAX:
        assert answer["trust"]["tenant"] == "intern"
    for run in ("happened", "replayed"):
        del answer[run]["tenants"]["intern"]
    assert process._trust(answer["happened"], answer["replayed"])["factor"] <= FACTOR_MAX


@pytest.mark.long  # of which call is moved how: the replays of all tenants are judged above
def test_that_tenants_waits_are_chance_in_the_replay_too(found):
    """A call that is next in order takes the slot that its tenant's last call has left, so it stays at a backend until
    another slot is free at that moment. Calls that come 20 ms earlier or later decide it.
    """
    stays, goes = (found("two-backends", seed) for seed in (3, 5))
    waits = [each["replayed"]["tenants"]["intern"]["ttft_p50_s"] for each in (stays, goes)]
    assert waits[1] > 2 * waits[0]
    assert goes["trust"]["factor"] <= FACTOR_MAX


def test_and_in_what_happened_where_the_same_workload_is_recorded_twice(found):
    """No replay can be nearer to both recordings of `intern` than the root of their factor, which is above 1.5."""
    one, other = (found(each)["happened"]["tenants"] for each in ("two-backends", "two-backends-again"))
    factors = {name: process._factor(one[name]["ttft_p50_s"], other[name]["ttft_p50_s"]) for name in one}
    assert factors.pop("intern") > FACTOR_MAX**2
    assert max(factors.values()) < FACTOR_MAX


@pytest.mark.parametrize("workload", [pytest.param("two-backends", marks=pytest.mark.long), "agents"])
@pytest.mark.usefixtures("found")
def test_it_would_not_be_by_calls_at_their_recorded_times(workload, monkeypatch):
    """Takes seconds: minutes of calls are simulated."""
    monkeypatch.setattr(process, "closed_loops", lambda _calls: {})
    assert simulated(workload)["trust"]["factor"] > 3.0
