"""What-ifs over a gateway that serves: its own calls under another policy or other weights, beside what happened."""

import asyncio
import tempfile
from types import SimpleNamespace

import orjson
import pytest
from admin_rig import admin, within
from forked import fork_modules
from gateway_rig import FAST, bearer, call, engine, until
from typer.testing import CliRunner

from gateway.admin.command import output
from gateway.admin.command import what_if as command
from gateway.cli import app
from gateway.steering.what_if import recorded_calls, what_ifs

LOUD, QUIET = 24, 6


async def calls_of(api, tenant, count, **fields):
    """The tenant's calls, all at once."""
    headers = bearer(await api.key_for(tenant))
    body = call(max_tokens=40, stream=True, **fields)
    return await asyncio.gather(*(api.rig.post(body, headers=headers) for _ in range(count)))


async def ended(api, path):
    """The what-if at this path, once it does not run any more."""
    found = []

    async def is_over():
        reply = await api.get(path)
        assert reply.status == 200, reply.body
        found[:] = [reply.json]
        return reply.json["state"] != "running"

    await within(is_over, timeout_s=90.0, every_s=0.1)
    return found[0]


@pytest.fixture
async def api(tmp_path):
    """A gateway whose one backend runs two requests at a time; two tenants have called."""
    async with engine(**FAST) as server:
        known = {"base_ms": 0.95, "token_us": 9, "context_token_ns": 50, "request_us": 35}
        gpu = {"name": "gpu", "url": server.url, "requests_running_max": 2, "step_time": known}
        async with admin(tmp_path, gpu) as asker:
            for tenant in ("loud", "quiet"):
                await asker.post("/tenants", {"id": tenant})
            await asyncio.gather(calls_of(asker, "loud", LOUD), calls_of(asker, "quiet", QUIET))
            await until(asker.rig.idle)
            yield asker


async def test_calls_are_played_under_another_policy_and_weights_beside_what_happened(api, tmp_path, monkeypatch):
    """Takes seconds: a process of its own plays each what-if."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    began = await api.post("/what-ifs", {"policy": "fifo", "weights": {"quiet": 3}})
    assert began.status == 202, began.body
    assert began.headers["Location"] == f"/admin/v1/what-ifs/{began.json['id']}"
    assert (began.json["state"], began.json["happened"]) == ("running", None)
    assert (await api.post("/what-ifs", {})).status == 409, "one at a time"
    found = await ended(api, f"/what-ifs/{began.json['id']}")
    assert (found["state"], found["error"], found["progress"]) == ("done", None, 1.0)
    happened, replayed, instead = found["happened"], found["replayed"], found["instead"]
    assert (happened["policy"], replayed["policy"], instead["policy"]) == ("vtc", "vtc", "fifo")
    for run in (happened, replayed, instead):
        assert run["tenants"].keys() == {"loud", "quiet"}
        assert [run["tenants"][each]["requests"] for each in ("loud", "quiet")] == [LOUD, QUIET]
        assert run["served"] == run["requests"] == LOUD + QUIET
        assert run["ttft_p50_s"] > 0
    assert [run["tenants"]["quiet"]["weight"] for run in (happened, replayed, instead)] == [1, 1, 3]
    assert replayed["tpot_s"] == pytest.approx(happened["tpot_s"], rel=0.1), "its backends are as fast as the real ones"
    assert happened["tenants"]["loud"]["service"] == pytest.approx(replayed["tenants"]["loud"]["service"], rel=0.05)
    assert (happened["jain"], happened["difference_max"]) == (None, None), "only a simulation knows it"
    assert replayed["tenants"]["quiet"]["ttft_p99_s"] != instead["tenants"]["quiet"]["ttft_p99_s"]
    assert found["setting"]["engines"].startswith("1 of measured")
    assert found["trust"]["factor"] >= 1.0
    assert found["trust"]["is_trusted"] == (found["trust"]["factor"] <= found["trust"]["factor_max"] == 2.0)
    await until(lambda: not list(temporary.iterdir()))  # its files are removed


@pytest.fixture
def is_forked(monkeypatch):
    """The process is a fork, for tests of what it finds. What is done while it runs needs the time of a start."""
    fork_modules(monkeypatch, what_ifs)


@pytest.fixture
def shell(api, tmp_path):
    """Runs `fairlead admin what-if` with these arguments."""

    async def run(*asked, exit_code=0):
        given = ["admin", "--url", api.url, "--key-file", str(tmp_path / "admin-key"), "what-if", *asked]
        result = await asyncio.to_thread(CliRunner().invoke, app, given)
        assert result.exit_code == exit_code, result.output
        return result

    return run


async def test_a_shell_plays_settings_of_the_whole_and_of_entries_and_prints_them_side_by_side(
    api, shell, monkeypatch, is_forked
):
    """Takes seconds: four what-ifs are played."""
    model = call()["model"]
    assert (await api.post("/tenants", {"id": "a.b/c"})).status == 201
    assert (await api.post("/aliases", {"id": "both", "models": [model, "other"]})).status == 201
    asked = (
        "engines=1", "policy=fifo", "minutes=10", "sessions.kv_scale=2", "tenants/quiet", "weight=3",
        "in_flight_max=null", "tenants/a.b/c", "tier=default", "aliases/both", 'split={"other": 1}',
    )  # fmt: skip
    ended_one = await shell(*asked)
    found = orjson.loads(ended_one.stdout)
    assert found["changes"] == {
        "engines": 1,
        "tenants": {"quiet": {"weight": 3.0, "in_flight_max": None}, "a.b/c": {"tier": "default"}},
        "aliases": {"both": {"split": {"other": 1.0}}},
    }
    assert (found["state"], found["policy"], found["minutes"], found["sessions"]["kv_scale"]) == (
        "done",
        "fifo",
        10,
        2.0,
    )
    assert ("Do not trust" in ended_one.stderr) == (not found["trust"]["is_trusted"])
    assert "state: done" in (await shell("-o", "yaml")).stdout
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    figures, tenants = (await shell("tenants/loud", "requests_per_minute_max=5")).stdout.split("\n\n")
    assert figures.splitlines()[0].split() == ["figure", "happened", "replayed", "instead"]
    assert ["served", "30", "30", "11"] in [line.split() for line in figures.splitlines()]
    header, *rows = tenants.splitlines()
    assert header.split() == ["tenant", "share:", "replayed", "instead", "ttft_p50_s:", "replayed", "instead"]
    shares = {row.split()[0]: row.split()[1:3] for row in rows}
    replayed, instead = (float(each.removesuffix("%")) for each in shares["loud"])
    assert (replayed > 70, instead < 50) == (True, True), shares
    wide = (await shell("-o", "wide")).stdout
    assert "difference_bound" in wide
    assert "ttft_p99_s: happened" in wide


async def test_a_shell_says_what_cannot_be_played_and_ends_what_it_began_when_it_is_interrupted(
    api, shell, monkeypatch
):
    """Takes seconds: a process of its own plays each what-if."""
    refused = await shell("engines=x", "tiers/none", "weight=2", exit_code=1)
    assert "changes.engines: must be" in refused.stderr
    assert "changes.tiers.none: has no settings here" in (await shell("tiers/none", exit_code=1)).stderr
    assert "there is no such field" in (await shell("weight=2", exit_code=1)).stderr
    assert "must be NAME=VALUE" in (await shell("tenants", exit_code=1)).stderr
    assert "speed" in (await shell("policy=vtc:speed=1", exit_code=1)).stderr, "it has failed"
    assert "policy: is none of" in (await shell("policy=none", exit_code=1)).stderr

    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=interrupted))
    await shell(exit_code=130)
    what_ifs = api.rig.gateway.operators.steering.what_ifs
    await until(lambda: not what_ifs._tasks)
    assert [each.state for each in what_ifs._kept.values()][-1] == "stopped"


async def test_one_engine_more_and_a_limit_are_played_and_said(api, is_forked):
    changes = {"engines": 1, "tenants": {"loud": {"requests_per_minute_max": 5}}, "tiers": {"default": {"weight": 2}}}
    found = await ended(
        api, (await api.post("/what-ifs", {"changes": changes})).headers["Location"].removeprefix("/admin/v1")
    )
    assert (found["state"], found["error"], found["changes"]) == ("done", None, changes)
    assert found["replayed"]["served"] == LOUD + QUIET
    assert found["instead"]["tenants"]["loud"]["served"] == 5
    assert found["instead"]["tenants"]["quiet"]["ttft_p99_s"] < found["replayed"]["tenants"]["quiet"]["ttft_p99_s"]


async def test_the_calls_of_an_alias_are_played_under_another_split(api, is_forked):
    model = call()["model"]
    headers = bearer(await api.key_for("quiet"))
    assert (await api.post("/aliases", {"id": "both", "models": [model, "other"]})).status == 201
    for _ in range(QUIET):
        assert (await api.rig.post(call(max_tokens=4, model="both"), headers=headers)).status == 200
    changes = {"aliases": {"both": {"split": {"other": 1}}}}
    found = await ended(
        api, (await api.post("/what-ifs", {"changes": changes})).headers["Location"].removeprefix("/admin/v1")
    )
    assert found["error"] is None
    assert found["replayed"]["tenants"]["quiet"]["requests"] == 2 * QUIET
    assert found["instead"]["tenants"]["quiet"]["requests"] == QUIET, "those of the alias are of another pool"


async def test_by_default_weights_and_policy_are_as_they_are(api, is_forked):
    found = await ended(api, f"/what-ifs/{(await api.post('/what-ifs')).json['id']}")
    assert found["replayed"] == found["instead"]


async def test_calls_of_clients_that_wait_for_their_answers_are_counted_and_wait_in_the_replay(tmp_path, is_forked):
    """Takes seconds: two clients call 15 times each, and a what-if is played."""
    async with engine(**FAST) as server, admin(tmp_path, {"name": "gpu", "url": server.url}) as asker:
        headers = bearer(await asker.key_for("declared"))

        async def caller():
            for _ in range(15):
                assert (await asker.rig.post(call(max_tokens=40, stream=True), headers=headers)).status == 200

        await asyncio.gather(caller(), caller())
        found = await ended(asker, f"/what-ifs/{(await asker.post('/what-ifs')).json['id']}")
    assert found["replayed"]["requests"] == 30
    assert found["closed_loop_calls"] == 28, "all but each caller's first"


async def test_what_waits_or_runs_is_recorded_and_what_came_before_begins_the_recording(tmp_path):
    async with engine(**FAST, speed=0.05) as server, admin(tmp_path, {"name": "gpu", "url": server.url}) as asker:
        headers = bearer(await asker.key_for("declared"))
        running = asyncio.create_task(asker.rig.post(call(max_tokens=60, stream=True), headers=headers))
        recorded = asker.rig.gateway.operators.steering._recorded
        await until(recorded.active.all)
        await asyncio.sleep(0.4)
        whole, late = [orjson.loads(await recorded.lines(seconds)) for seconds in (b"60", b"0.2")]
        assert (whole["is_running"], whole["came_before"]) == (True, False)
        assert (late["is_running"], late["came_before"], late["ttft_s"]) == (True, True, None)
        assert late["arrival_s"] - whole["arrival_s"] == pytest.approx(whole["took_s"] - late["took_s"], abs=0.05)
        assert (await running).status == 200
        ended_call, left = [orjson.loads(await recorded.lines(seconds)) for seconds in (b"60", b"0.2")]
        assert (ended_call["is_running"], ended_call["output_tokens"]) == (False, 60)
        assert (
            [ended_call["backend"]] == asker.rig.gateway.operators.steering._engine_of(FAST["model"]).names == ["gpu"]
        )
        assert 0 < left["output_tokens"] < 30


async def test_what_cannot_be_asked_is_refused(api, monkeypatch, is_forked):
    viewer = (await api.post("/keys", {"role": "viewer"})).json["secret"]
    assert (await api.post("/what-ifs", {}, key=viewer)).status == 403
    bodies = (
        {"policy": "none"}, {"policy": "vtc --trace /etc/passwd"}, {"minutes": 61}, {"minutes": 0},
        {"weights": {"quiet": 0}}, {"weights": {"<b>": 1}}, {"trace": "x"},
        {"changes": {"engines": 1.5}}, {"changes": {"tiers": {"none": {"weight": 2}}}},
        {"changes": {"tenants": {"loud": {"group": "none"}}}},
        {"changes": {"tenants": {"loud": {"tokens_per_day_max": 1}}}},
        {"changes": {"aliases": {"none": {"split": {"a": 1}}}}}, {"changes": {"groups": {"none": {}}}},
    )  # fmt: skip
    for body in bodies:
        assert (await api.post("/what-ifs", body)).status == 422, body
    assert (await api.post("/what-ifs", {"pool": "none"})).status == 409
    assert (await api.get("/what-ifs/none")).status == 404
    begun = (await api.post("/what-ifs", {"policy": "vtc:speed=1"})).json
    failed = await ended(api, f"/what-ifs/{begun['id']}")
    assert (failed["state"], failed["instead"]) == ("failed", None)
    assert "speed" in failed["error"]
    monkeypatch.setattr(what_ifs, "RUNS_S_MAX", 0.01)
    begun = (await api.post("/what-ifs")).json
    assert "longer than" in (await ended(api, f"/what-ifs/{begun['id']}"))["error"]


async def test_one_that_runs_is_stopped_and_its_process_ends(api):
    begun = (await api.post("/what-ifs")).json
    path = f"/what-ifs/{begun['id']}"
    refused = await api.post("/what-ifs")
    assert (refused.status, begun["id"] in refused.json["detail"]) == (409, True)
    viewer = (await api.post("/keys", {"role": "viewer"})).json["secret"]
    assert (await api.delete(path, key=viewer)).status == 403
    assert (await api.delete(path)).status == 204
    stopped = await ended(api, path)
    assert (stopped["state"], stopped["error"]) == ("stopped", "it was stopped")
    assert (await api.delete(path)).status == 409
    assert (await api.delete("/what-ifs/none")).status == 404
    await until(lambda: not api.rig.gateway.operators.steering.what_ifs._tasks)
    assert (await api.get(path)).json["state"] == "stopped", "it did not run to its end"


async def test_one_that_no_reader_asks_for_stops_by_itself(api, monkeypatch):
    monkeypatch.setattr(what_ifs, "ABANDONED_S", 0.05)  # its process takes longer to start
    begun = (await api.post("/what-ifs")).json
    await until(lambda: not api.rig.gateway.operators.steering.what_ifs._tasks)
    assert (await api.get(f"/what-ifs/{begun['id']}")).json["state"] == "stopped"


async def test_without_calls_there_is_nothing_to_play(tmp_path):
    async with engine() as server, admin(tmp_path, server) as asker:
        reply = await asker.post("/what-ifs", {})
        assert (reply.status, reply.json["detail"]) == (409, "no call was recorded in that time")


async def test_only_so_many_calls_and_hashes_are_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_calls, "CALLS_MAX", 3)
    async with engine() as server, admin(tmp_path, server) as asker:
        await calls_of(asker, "declared", 5)
        lines = await asker.rig.gateway.operators.steering._recorded.lines(b"60")
        assert len(lines.splitlines()) == 3
    monkeypatch.setattr(recorded_calls, "CALLS_MAX", 50)
    monkeypatch.setattr(recorded_calls, "HASHES_MAX", 10)
    async with engine() as server, admin(tmp_path, server) as asker:
        long = [{"role": "user", "content": "word " * 1200}]
        await calls_of(asker, "declared", 5, messages=long)
        recorded = asker.rig.gateway.operators.steering._recorded
        assert sum(len(each.record.prefix) for each in recorded._calls) == recorded._hashes
        assert 0 < recorded._hashes <= 10
        assert "word" not in (await recorded.lines(b"60")).decode()


async def test_a_larger_pool_and_the_room_of_sessions_may_differ(tmp_path, is_forked):
    async with engine(**FAST) as server, admin(tmp_path, {"name": "gpu", "url": server.url}) as asker:
        headers = bearer(await asker.key_for("declared")) | {"x-session-id": "one", "x-parent-session-id": "main"}
        for number in range(3):
            last = {"x-dynamo-session-final": "true"} if number == 2 else {}
            assert (await asker.rig.post(call(max_tokens=20, stream=True), headers=headers | last)).status == 200
        await until(asker.rig.idle)
        recorded = asker.rig.gateway.operators.steering._recorded
        lines = [orjson.loads(line) for line in (await recorded.lines(b"60")).splitlines()]
        asked = {"kv_scale": 2.0, "held": False, "room_ratio": 0.5}
        begun = await asker.post("/what-ifs", {"sessions": asked})
        assert begun.json["sessions"] == asked
        found = await ended(asker, f"/what-ifs/{begun.json['id']}")
        for wrong in (
            {"kv_scale": 0},
            {"kv_scale": 11},
            {"kv_scale": True},
            {"held": "x"},
            {"room_ratio": 1.1},
            {"eta": 1},
        ):
            assert (await asker.post("/what-ifs", {"sessions": wrong})).status == 422, wrong
    assert len({line["program"] for line in lines}) == len({line["parent"] for line in lines}) == 1
    assert [line["final"] for line in lines] == [False, False, True]
    assert lines[0]["parent"] not in {None, lines[0]["program"]}
    assert (found["state"], found["error"]) == ("done", None)
    assert found["happened"]["sessions"] is None, "only a simulation knows it"
    for run in ("replayed", "instead"):
        assert (found[run]["sessions"]["sessions"], found[run]["sessions"]["turns"]) == (1, 3)
    assert list(found["replayed"]["sessions"]["etas"]) == ["engine-1"]
    assert found["instead"]["sessions"]["etas"] == {}, "nothing is held"


async def test_a_process_that_writes_many_errors_is_not_waited_for(api, tmp_path, monkeypatch, caplog):
    """What is not read stops its writer when the pipe, and the 8 MiB of its reader, are full."""
    (tmp_path / "talks.py").write_text("""
import sys
sys.stderr.write("e" * 20_000_000 + "the last words")
sys.stderr.flush()
print('{"progress": 0.5}')
sys.exit(3)
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(what_ifs, "PROCESS", "talks")
    found = await ended(api, f"/what-ifs/{(await api.post('/what-ifs')).json['id']}")
    assert (found["state"], found["progress"], found["error"]) == ("failed", 0.5, "its process ended with status 3")
    (said,) = [record.getMessage() for record in caplog.records if "the process of a what-if" in record.getMessage()]
    assert said.endswith("the last words")
    assert len(said) < 3000
