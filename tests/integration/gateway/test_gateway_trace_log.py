"""A live gateway's traffic as a trace: what is written, what never is, and that a simulation plays it."""

import asyncio
import json

from typer.testing import CliRunner

from gateway.cli import app
from gateway.observability.trace_log import RECORDS_MAX, make_trace_log, trace_record
from policies.types import Request, Usage
from tests.integration.gateway_rig import call, engine, gateway, http, until, wire

FIELDS = {
    "arrival_s",
    "tenant",
    "model",
    "endpoint",
    "prompt_tokens",
    "output_tokens",
    "output_tokens_max",
    "choices",
    "prefix",
    "prefix_block_tokens",
    "program",
    "parent",
    "final",
    "tools",
    "outcome",
}
LONG = "zebra and another word of this long beginning, " * 60  # two blocks of 1,024 bytes and more


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def simulated(path):
    result = CliRunner().invoke(app, ["simulate", "run", "--trace", str(path), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


async def test_no_trace_is_written_unless_it_is_wanted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with engine() as server, gateway(server) as rig:
        assert (await rig.post()).status == 200
    assert list(tmp_path.iterdir()) == []


async def test_calls_of_a_live_gateway_are_a_trace_that_a_simulation_plays(tmp_path):
    path = tmp_path / "trace.jsonl"
    async with engine(speed=20.0) as server, gateway(server, trace_log={"enabled": True, "path": str(path)}) as rig:
        for number in range(3):
            messages = [{"role": "user", "content": f"{LONG}{number}"}]
            headers = {"Authorization": f"Bearer zebra-{number % 2}"}
            body = call(messages=messages, max_tokens=5 + number, stream=number == 1)
            assert (await rig.post(body, headers=headers)).status == 200
        assert (await rig.post(call(n=1000))).status == 400  # never read, so never queued: not in the trace
    written = lines(path)
    assert [set(line) for line in written] == [FIELDS] * 3
    assert [line["output_tokens"] for line in written] == [5, 6, 7]
    assert [line["output_tokens_max"] for line in written] == [5, 6, 7]
    assert [line["outcome"] for line in written] == ["completed"] * 3
    assert written[0]["tenant"] == written[2]["tenant"] != written[1]["tenant"]
    assert {line["endpoint"] for line in written} == {"/v1/chat/completions"}
    assert len(written[0]["prefix"]) == 2
    assert written[0]["prefix"] == written[1]["prefix"] == written[2]["prefix"]
    assert 0 < 2 * written[0]["prefix_block_tokens"] < written[0]["prompt_tokens"]
    assert "zebra" not in path.read_text()  # neither the text nor a key
    (policy,) = simulated(path)["policies"]
    assert policy["served"] == 3
    assert {tenant["requests"] for tenant in policy["tenants"].values()} == {1, 2}
    assert policy["hit_ratio"] > 0.3


async def test_what_was_refused_or_left_is_told_and_a_simulation_leaves_out_what_has_no_output(tmp_path):
    path = tmp_path / "trace.jsonl"
    config = {"trace_log": {"enabled": True, "path": str(path)}, "queue": {"wait_s_max": 0.3}}
    async with engine(speed=0.1) as server:
        entry = {"name": "b0", "url": server.url, "requests_running_max": 1}
        async with gateway(entry, **config) as rig, wire(rig) as connection:
            connection.send(http(call(max_tokens=4000, stream=True)))
            await until(lambda: rig.snapshot().in_flight_requests)
            assert (await rig.post()).status == 429
            await asyncio.sleep(0.3)
            connection.reset()
            await until(rig.idle)
    refused, left = lines(path)
    assert (refused["outcome"], refused["output_tokens"]) == ("queue_timeout", 0)
    assert refused["prompt_tokens"] > 0
    assert left["outcome"] == "client_gone"
    assert 0 < left["output_tokens"] < 4000
    assert left["arrival_s"] < refused["arrival_s"]  # it ended later
    found = simulated(path)
    assert found["policies"][0]["served"] == 1
    assert found["setting"]["calls"] == "1; left out: 1 without output"


def test_what_waits_for_the_disk_is_bounded_and_no_line_spoils_a_trace(tmp_path):
    log = make_trace_log(str(tmp_path / "trace.jsonl"))
    assert log._records_max == RECORDS_MAX
    # A prompt that was estimated as nothing, and that no backend counted.
    request = Request("r", "a", "m", 0.0, prompt_tokens=0, output_tokens_max=9)
    log.write(trace_record(request, Usage(0, 0, 3), endpoint="/v1/completions", arrived_at=1.0, outcome="completed"))
    log.close()
    assert simulated(tmp_path / "trace.jsonl")["policies"][0]["served"] == 1


async def test_the_calls_of_an_agent_have_one_program_and_no_name_is_written(tmp_path):
    path = tmp_path / "trace.jsonl"
    async with engine(speed=20.0) as server, gateway(server, trace_log={"enabled": True, "path": str(path)}) as rig:
        for named in ({"X-Fairlead-Program-Id": "zebra"}, {"X-Session-ID": "zebra"}, {"X-Session-ID": "other"}, {}):
            await rig.post(headers=named)
        await rig.post(call(session_id="zebra"))
        await rig.post(headers={"X-Session-ID": "zebra", "Authorization": "Bearer bob"})
    first, second, other, none, third, bobs = [line["program"] for line in lines(path)]
    assert first == second == third
    assert none is None
    assert len({first, other, bobs}) == 3
    assert "zebra" not in path.read_text()
