"""`fairlead bench` before an embedded engine, and before servers that are of no use to it."""

import asyncio
import json
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from forked import FAIRLEAD, fork, fork_modules
from gateway_rig import PATIENCE_S, until
from listening import listening
from test_calibrate import models
from typer.testing import CliRunner

from backends.engine.http.server import EngineOptions, EngineServer
from backends.spec import BackendSpec
from gateway.bench import child, run
from gateway.calibrate import calls
from gateway.calibrate.calls import CalibrationError
from gateway.cli import app


@asynccontextmanager
async def engine():
    server = EngineServer(EngineOptions(coefficients="a800-llama3.1-8b"))
    try:
        yield await server.start()
    finally:
        await server.stop()


def plan(url, **changed):
    whole = {"spec": BackendSpec("b", url), "api_key": None, "model": None, "seconds": 6.0, "tenants": 2, "slots": 8}
    return run.Plan(**whole | changed)


@pytest.fixture
def is_forked(monkeypatch):
    fork_modules(monkeypatch, child)


async def test_what_is_added_and_each_tenants_share_is_measured_before_a_real_port(monkeypatch, is_forked):
    # Short calls: the more of them there are, the less the seats that are taken at both ends of the time weigh.
    monkeypatch.setattr(run, "PROMPTS", run.Shape(prompt_words=64, output_tokens=4))
    monkeypatch.setattr(run, "ANSWERS", run.Shape(prompt_words=16, output_tokens=16))
    stages = []
    async with engine() as url:
        found = await run.bench(plan(url, slots=4), lambda part, stage: stages.append((part, stage)))
    assert (found.model, found.is_whole, found.failed_calls) == ("embedded", True, 0), found.failure
    for compared in (found.request, found.first_token, found.token):
        assert compared.direct.samples == compared.gateway.samples > 0
        assert 0 < compared.direct.median_ms <= compared.direct.p99_ms
    assert found.token.direct.samples == 63 * found.first_token.direct.samples, "64 tokens each"
    assert found.request.gateway.median_ms > found.request.direct.median_ms
    assert found.cpu_us_per_request > 10, "no gateway is so quick"
    assert found.cpu_us_per_request > found.cpu_us_per_chunk >= 0
    assert [(share.tenant, share.weight) for share in found.shares] == [("tenant-1", 1.0), ("tenant-2", 2.0)]
    assert sum(share.share for share in found.shares) == pytest.approx(1.0)
    assert all(0.75 < share.ratio < 1.33 for share in found.shares), found.shares
    assert [part for part, _ in stages] == sorted(part for part, _ in stages)
    assert len({stage for _, stage in stages}) == 5


async def test_a_user_that_has_seen_enough_gets_what_there_is_and_no_gateway_stays(monkeypatch, is_forked):
    pids, stages = [], []

    @asynccontextmanager
    async def watched(*given, **named):
        async with child.gateway(*given, **named) as started:
            pids.append(started.pid)
            yield started

    monkeypatch.setattr(run, "gateway", watched)
    async with engine() as url:
        running = asyncio.create_task(run.bench(plan(url, seconds=4.0), lambda _, stage: stages.append(stage)))
        await until(lambda: any(stage.startswith("streams") for stage in stages))
        running.cancel()
        found = await running
    assert not found.is_whole
    assert found.request.gateway.samples > 0
    assert found.shares == []
    (pid,) = pids
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_ctrl_c_prints_what_there_is():
    async with engine() as url:
        command = ("bench", url, "--seconds", "4", "--json")
        process = await fork(FAIRLEAD, *command, folder=Path.cwd(), environment=dict(os.environ))
        async with asyncio.timeout(PATIENCE_S):
            while b"streams" not in await process.stderr.readline():
                pass
            process.send_signal(signal.SIGINT)
            output, errors = await process.communicate()
    assert process.returncode == 130, errors
    found = json.loads(output)
    assert (found["is_whole"], found["shares"]) == (False, [])
    assert found["request"]["direct"]["samples"] > 0
    assert b"Traceback" not in errors


async def test_a_server_that_refuses_every_call_is_given_up(monkeypatch, is_forked):
    monkeypatch.setattr(calls, "REFUSED_PAUSE_S", 0.001)

    async def refuse(_):
        return web.json_response({"error": {"message": "no such path"}}, status=404)

    async def metrics(_):
        return web.Response(text="")

    handlers = [web.get("/v1/models", models), web.get("/metrics", metrics), web.post("/{_:.*}", refuse)]
    async with listening(handlers) as url:
        with pytest.raises(CalibrationError, match="answers no call: status 404"):
            await run.bench(plan(url, seconds=30.0), lambda *_: None)


async def test_a_server_that_wants_a_key_is_told_it_by_the_gateway_too_and_without_it_that_is_said(is_forked):
    async def answer(request):
        if request.headers.get("Authorization") != "Bearer sesame":
            return web.json_response({"error": {"message": "who are you?"}}, status=401)
        if request.path == "/v1/models":
            return await models(request)
        return web.json_response(
            {"choices": [{"text": "a"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
        )

    async with listening(answer) as url:
        invoked = await asyncio.to_thread(CliRunner().invoke, app, ["bench", url])
        assert invoked.exit_code == 1
        assert "status 401: it wants another API key" in invoked.output
        keyed = BackendSpec("b", url, {"authorization": "Bearer sesame"})
        with pytest.raises(CalibrationError, match="serves m, not other"):
            await run.bench(plan(url, spec=keyed, api_key="sesame", model="other"), lambda *_: None)
        async with child.gateway(keyed, {"a": 1.0}, api_key="sesame") as gateway, aiohttp.ClientSession() as session:
            body = {"model": "m", "prompt": "x", "max_tokens": 1}
            headers = {"authorization": f"Bearer {gateway.keys['a']}"}
            async with session.post(f"{gateway.url}/v1/completions", json=body, headers=headers) as response:
                assert response.status == 200, await response.text()


async def test_a_gateway_of_its_own_takes_nothing_from_the_environment(monkeypatch):
    monkeypatch.setenv("FAIRLEAD_LISTEN__PORT", "nonsense")
    async with engine() as url, child.gateway(BackendSpec("b", url), {"a": 1.0}, api_key=None) as gateway:
        assert gateway.cpu_s() is None or gateway.cpu_s() > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["ftp://x"], "must be like http://host:port"), (["http://127.0.0.1:9"], "cannot connect"), ([], "URL")],
)
def test_what_is_wrong_with_a_call_is_said_in_a_line(arguments, said):
    invoked = CliRunner().invoke(app, ["bench", *arguments])
    assert invoked.exit_code in (1, 2)
    assert said in invoked.output
    assert "Traceback" not in invoked.output
