"""`fairlead calibrate` against embedded engines, whose coefficients are known, and against servers of no use."""

import asyncio
import random
from statistics import median

import pytest
from aiohttp import web
from gateway_rig import until
from listening import listening
from typer.testing import CliRunner

from backends.engine.coefficients import COEFFICIENTS
from backends.engine.http.server import EngineOptions, EngineServer
from backends.spec import BackendSpec
from gateway.calibrate import calls, run
from gateway.calibrate.calls import CalibrationError
from gateway.calibrate.mix import Mix
from gateway.cli import app
from gateway.config.step_time import read_step_time
from policies.step_time import Observation, StepTimeModel

pytestmark = pytest.mark.jumping

MODEL = StepTimeModel(1e-3, 9e-6, 0.05e-6, 35e-6)


async def calibrated(url, *, seconds=3.0, model=None):
    plan = run.CalibrationPlan(BackendSpec("b", url), model, seconds, every_s=seconds / 60)
    return await run.calibrate(plan, lambda _: None)


async def test_an_engine_s_own_coefficients_are_recovered():
    server = EngineServer(EngineOptions(coefficients="cpu-tiny", requests_running_max=32))
    try:
        found = await calibrated(await server.start(), seconds=4.0)
    finally:
        await server.stop()
    true = COEFFICIENTS["cpu-tiny"]
    assert found.step_time.error_ratio < 0.15
    errors = [
        abs(
            found.step_time.model.step_s(new_tokens=new, context_tokens=context, requests=requests)
            / true.mixed_s(new_tokens=new, context_tokens=context, requests=requests)
            - 1.0
        )
        for new, context, requests in [(1, 100, 1), (8, 4000, 8), (32, 20_000, 32), (500, 5000, 9), (1000, 1000, 1)]
    ]
    assert median(errors) < 0.1
    assert max(errors) < 0.25


async def models(_):
    return web.json_response({"object": "list", "data": [{"id": "m"}]})


async def test_a_server_that_does_not_count_its_steps_is_said_to_be_of_no_use():
    async def metrics(_):
        return web.Response(text="sglang:num_running_reqs 1\n")

    async with listening([web.get("/v1/models", models), web.get("/metrics", metrics)]) as url:
        with pytest.raises(CalibrationError, match="does not count its steps"):
            await calibrated(url)
        with pytest.raises(CalibrationError, match="serves m, not other"):
            await calibrated(url, model="other")


async def test_a_server_that_answers_no_call_is_given_up(monkeypatch):
    monkeypatch.setattr(calls, "REFUSED_PAUSE_S", 0.01)
    engine = EngineServer(EngineOptions(max_num_queued_reqs=0))
    try:
        with pytest.raises(CalibrationError, match="answers no call: status 503"):
            await calibrated(await engine.start(), seconds=60.0)
    finally:
        await engine.stop()


def test_calls_fit_into_the_model_and_are_the_same_every_time():
    calls = [Mix(random.Random(0), context_tokens_max=512).call() for _ in range(2)]
    assert calls[0] == calls[1]
    mix = Mix(random.Random(0), context_tokens_max=512)
    for _ in range(1000):
        call = mix.call()
        assert 2 * len(call.prompt.split()) + call.output_tokens <= 512


def canned(*_, **__):
    rng = random.Random(1)
    windows = []
    for _ in range(100):
        requests, steps = rng.randint(1, 32), 30
        prompts, context = rng.randint(0, 2000), requests * rng.randint(100, 1000)
        new = steps * requests + prompts
        seconds = steps * MODEL.step_s(new_tokens=new / steps, context_tokens=context, requests=requests)
        seconds *= rng.uniform(0.95, 1.05)
        windows.append(Observation(seconds, steps, new, steps * context, steps * requests))
    return run.judge(windows, model="m", seconds=120.0, calls=7)


async def _canned(*given, **named):
    return canned()


def test_what_was_learnt_is_printed_stored_and_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "calibrate", _canned)
    stored, plot = tmp_path / "a.yaml", tmp_path / "a.svg"
    result = CliRunner().invoke(
        app, ["calibrate", "--backend", "http://a:1", "--out", str(stored), "--plot", str(plot)]
    )
    assert result.exit_code == 0, result.output
    assert "100 windows of 3000 steps in 120 s, 7 calls answered" in result.stdout
    assert "in the median" in result.stdout
    read = read_step_time(stored)
    assert read.base_ms == pytest.approx(1.0, rel=0.1)
    assert read.token_us == pytest.approx(9.0, rel=0.1)
    assert 0.0 < read.error_ratio < 0.05
    assert plot.read_text().lstrip().startswith("<?xml")
    assert "measured, ms" in plot.read_text()


async def test_it_goes_on_until_there_is_enough_to_learn_from():
    server, told = EngineServer(EngineOptions(coefficients="cpu-tiny", requests_running_max=32)), []
    try:
        plan = run.CalibrationPlan(BackendSpec("b", await server.start()), None, seconds=0.6, every_s=0.1)
        found = await run.calibrate(plan, told.append)
    finally:
        await server.stop()
    assert found.windows >= run.WINDOWS_MIN
    assert found.seconds > 0.6, "so many are not to be had in that time"
    assert [now.windows for now in told] == sorted(now.windows for now in told)
    assert told[-1].windows <= found.windows


async def test_too_few_windows_at_the_end_are_given_to_the_tenants_that_asked():
    server, before = EngineServer(EngineOptions(coefficients="cpu-tiny")), [Observation(1, 30, 100, 1000, 100)] * 3
    try:
        spec = BackendSpec("b", await server.start())
        plan = run.CalibrationPlan(spec, None, seconds=0.3, seconds_max=0.3, every_s=60.0)
        with pytest.raises(run.TooFewWindowsError) as too_few:
            await run.calibrate(plan, lambda _: None, lambda _: list(before))
    finally:
        await server.stop()
    assert too_few.value.windows == before


async def test_who_has_seen_enough_gets_what_there_is():
    server, told = EngineServer(EngineOptions(coefficients="cpu-tiny", requests_running_max=32)), []
    try:
        url = await server.start()
        plan = run.CalibrationPlan(BackendSpec("b", url), None, seconds=300.0, every_s=0.05)
        running = asyncio.create_task(run.calibrate(plan, told.append))
        await until(lambda: told and told[-1].windows > run.WINDOWS_MIN)
        running.cancel()
        assert (await running).windows > run.WINDOWS_MIN
    finally:
        await server.stop()


def test_windows_that_were_too_few_are_kept_for_the_next_run(tmp_path, monkeypatch):
    windows, out, asked = [Observation(1, 30, 100, 1000, 100)] * 3, tmp_path / "a.yaml", []

    async def too_few(_plan, _on_progress, seen_before):
        asked.append((seen_before("m"), seen_before("another")))
        if len(asked) == 1:
            raise run.TooFewWindowsError("m", windows)
        return canned()

    monkeypatch.setattr(run, "calibrate", too_few)
    command = ["calibrate", "--backend", "http://a:1", "--out", str(out)]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 1
    assert f"only 3 windows of steps were seen, 16 are needed. They are kept in {out}.windows" in first.output
    assert CliRunner().invoke(app, command).exit_code == 0
    assert asked == [([], []), (windows, [])]
    assert [file.name for file in tmp_path.iterdir()] == ["a.yaml"]


def test_the_error_is_that_of_windows_that_were_not_learnt_from():
    found = canned()
    assert found.step_time.error_ratio == median(
        abs(predicted / window.seconds - 1.0) for window, predicted in found.held_out
    )
    assert len(found.held_out) == 50


def test_too_little_to_learn_from_is_said():
    with pytest.raises(CalibrationError, match="only 3 windows"):
        run.judge([Observation(1, 30, 100, 1000, 100)] * 3, model="m", seconds=1.0, calls=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--backend", "ftp://x"], "must be like http://host:port"),
        (["--backend", "http://127.0.0.1:9"], "cannot connect"),
        (["--backend", "http://127.0.0.1:9", "--api-key-file", "nowhere"], "the file nowhere cannot be read"),
    ],
)
def test_what_is_wrong_with_a_call_is_said_in_a_line(arguments, said):
    result = CliRunner().invoke(app, ["calibrate", *arguments])
    assert result.exit_code == 1
    assert said in result.output
    assert "Traceback" not in result.output
