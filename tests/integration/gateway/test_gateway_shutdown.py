"""How the gateway ends: no call is refused while it can serve, and none waits for it once it cannot."""

import asyncio
import contextlib
import io
import json
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import aiohttp
import pytest
from forked import FAIRLEAD, fork
from gateway_rig import (
    CHAT,
    MODEL,
    PATIENCE_S,
    answer,
    call,
    engine,
    fall_silent,
    gateway,
    http,
    running,
    scripted,
    until,
    wire,
)

LAME = {"shutdown": {"lame_duck_s": 0.3, "drain_s": 5.0}}
NOW = {"shutdown": {"lame_duck_s": 0.0, "drain_s": 0.1}}
ACCESS_FIELDS = {
    "ts", "request_id", "client", "tenant", "model", "alias", "endpoint", "status", "reason", "backend", "stream",
    "queue_ms",
    "ttft_ms", "duration_ms", "prompt_tokens", "cached_tokens", "output_tokens", "cost", "currency", "ttft_met",
    "tpot_met", "envelope_met", "tokens_in_time", "estimated", "overstated", "shadow", "outcome",
}  # fmt: skip


@pytest.mark.jumping
async def test_a_lame_duck_is_not_ready_but_serves_and_then_refuses():
    async with engine(speed=0.1) as server, gateway(server, **LAME) as rig, wire(rig) as connection:
        connection.send(http(call(stream=True, max_tokens=100)))
        await connection.head()
        draining = asyncio.create_task(rig.gateway.drain())
        await asyncio.sleep(0.05)
        assert (await rig.get("/readyz")).status == (await rig.get("/health")).status == 503
        assert (await rig.get("/livez")).status == 200
        served = await rig.post()
        assert served.status == 200
        assert served.headers["Connection"] == "close"
        streamed = await rig.post(call(stream=True))
        assert streamed.events[-1] == "[DONE]"
        assert streamed.headers["Connection"] == "close"
        await asyncio.sleep(0.3)
        refused = await rig.post()
        assert refused.status == 503
        assert refused.headers["x-llm-d-request-dropped-reason"] == "rejected-shutting-down"
        assert refused.headers["Retry-After"]
        assert running(server) == 1
        assert not draining.done()
        rest = await connection.reader.readuntil(b"data: [DONE]\n\n")
        assert b"error" not in rest
        await asyncio.wait_for(draining, 2.0)


async def test_what_waits_in_the_queue_is_still_served_while_draining(caplog):
    caplog.set_level("INFO")
    async with engine(speed=0.2) as server:
        entry = {"name": "b0", "url": server.url, "requests_running_max": 1}
        async with gateway(entry, shutdown={"lame_duck_s": 0.0, "drain_s": 5.0}) as rig:
            calls = [asyncio.create_task(rig.post(call(max_tokens=10))) for _ in range(4)]
            await until(lambda: (rig.snapshot().in_flight_requests, rig.snapshot().queued_requests) == (1, 3))
            await asyncio.wait_for(rig.gateway.drain(), 3.0)
            assert [(await task).status for task in calls] == [200] * 4
            assert "new calls are refused, and those that are here have 5 s to end" in caplog.text
            assert "all calls have ended" in caplog.text


@contextlib.asynccontextmanager
async def draining(rig):
    """The gateway drains during the block, not less, and has drained soon after it."""
    await until(rig.gateway._handlers.server.is_answering)
    drained = asyncio.create_task(rig.gateway.drain())
    await asyncio.sleep(0.3)
    assert not drained.done()
    yield
    await asyncio.wait_for(drained, 2.0)


async def test_a_call_whose_body_arrives_is_still_served_while_draining():
    async with engine() as server, gateway(server) as rig, wire(rig) as connection:
        request = http(call())
        connection.send(request[:-9])
        async with draining(rig):
            connection.send(request[-9:])
            assert (await connection.reply()).status == 200


async def test_a_call_that_is_not_queued_is_still_answered_while_draining():
    may_answer = asyncio.Event()

    async def act(reader, writer):
        await may_answer.wait()
        return await answer({"count": 1, "tokens": [1]})(reader, writer)

    async with scripted(act) as backend, gateway(backend) as rig, wire(rig) as connection:
        connection.send(http({"model": MODEL, "prompt": "a"}, path="/tokenize"))
        await until(lambda: backend.calls)
        async with draining(rig):
            may_answer.set()
            assert (await connection.reply()).status == 200


async def test_a_client_that_reads_slowly_still_gets_its_answer_while_draining():
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "a" * (20 << 20)}}]}
    async with scripted(answer(body)) as backend, gateway(backend) as rig, wire(rig) as connection:
        connection.send(http(call()))
        status, headers = await connection.head()
        await until(rig.idle)
        async with draining(rig):
            assert status == 200
            await connection.reader.readexactly(int(headers["content-length"]))
            connection.writer.close()


async def test_calls_that_are_refused_do_not_prolong_the_draining():
    async def flood():
        while True:
            assert (await rig.post()).status == 503

    async with engine() as server, gateway(server, **LAME) as rig:
        rig.gateway._handlers.refuse_new()
        floods = [asyncio.create_task(flood()) for _ in range(16)]
        await asyncio.sleep(0.2)
        started = time.monotonic()
        await rig.gateway.drain()
        assert time.monotonic() - started < LAME["shutdown"]["drain_s"] / 2
        assert not any(each.done() for each in floods)
        for each in floods:
            each.cancel()
        await asyncio.gather(*floods, return_exceptions=True)


@pytest.mark.jumping
async def test_a_client_still_there_when_time_is_up_is_told_and_none_is_waited_for(caplog):
    async with engine(speed=0.05) as server, scripted(fall_silent, model="silent") as silent:
        entry = {"name": "b0", "url": server.url, "requests_running_max": 1}
        async with gateway(entry, silent, **NOW) as rig, wire(rig) as streamed:
            streamed.send(http(call(stream=True, max_tokens=4000)))
            await streamed.head()
            whole = asyncio.create_task(rig.post(call(model="silent")))
            queued = asyncio.create_task(rig.post(call(max_tokens=10)))
            await until(lambda: silent.calls and rig.snapshot(call()["model"]).queued_requests)
            started = time.monotonic()
            await rig.gateway.drain()
            await rig.gateway.stop()
            assert time.monotonic() - started < 1.5
            body = await streamed.reader.read()
            assert b'"error"' in body
            assert b"[DONE]" not in body
            assert body.endswith(b"0\r\n\r\n")
            assert (await whole).status in {502, 503}
            refused = await queued
            assert refused.status == 503
            assert refused.headers["x-llm-d-request-dropped-reason"] == "rejected-shutting-down"
            await until(lambda: not running(server))
    said = [record for record in caplog.records if record.levelname in {"ERROR", "WARNING"}]
    assert [record for record in said if "--max-num-seqs is not known" not in record.getMessage()] == []


async def test_a_gateway_that_could_not_start_leaves_nothing_behind():
    async with engine() as server, gateway(server) as rig:
        with pytest.raises(OSError, match="in use"):
            async with gateway(server, listen={"port": rig.port}):
                pass


@contextlib.asynccontextmanager
async def serving(tmp_path, **environment):
    """`fairlead serve` with no configuration but its port, as a process; its output comes in lines."""
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "FAIRLEAD_LOG__LEVEL": "warning", **environment}
    process = await fork(FAIRLEAD, "serve", "--port", "0", folder=tmp_path, environment=variables)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def unexpected(errors: bytes) -> list[bytes]:
    """What it said after its greeting, but for the link to its page and how to get another."""
    page = (b"page: http://127.0.0.1:", b"A new link: fairlead admin link")
    return [line for line in errors.splitlines() if not line.startswith(page)]


async def greeting_of(process) -> str:
    async with asyncio.timeout(20):
        lines = []
        while not (lines and lines[-1].startswith("print(")):
            line = (await process.stderr.readline()).decode()
            assert line, lines
            lines.append(line)
        return "".join(lines)


async def output_of(*command: str, cwd) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=cwd
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def output_of_program(program: str, **variables: str) -> str:
    """Of a Python program, which runs in this process, where its packages are imported already."""

    def run() -> str:
        with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(io.StringIO()) as said:
            for name, value in variables.items():
                patched.setenv(name, value)
            exec(compile(program, "<pasted>", "exec"), {"__name__": "__main__"})
        return said.getvalue()

    return await asyncio.to_thread(run)


async def test_serve_without_configuration_greets_with_two_ways_that_work_as_pasted(tmp_path):
    async with serving(tmp_path, FAIRLEAD_ENGINE__COEFFICIENTS="cpu-tiny") as process:
        greeting = await greeting_of(process)
        curl = re.search(r"^curl .*?}'$", greeting, re.DOTALL | re.MULTILINE)[0]
        snippet = greeting[greeting.index("from openai") :]
        assert snippet.count("\n") == 3
        pasted = [output_of_program(snippet)]
        if shutil.which("curl"):
            pasted.append(output_of("sh", "-c", curl, cwd=tmp_path))
        answers = await asyncio.gather(*pasted)
        assert "ChatCompletion(" in answers[0]
        assert all("\n\ndata: [DONE]\n\n" in answer for answer in answers[1:])

        process.send_signal(signal.SIGINT)
        output, errors = await asyncio.wait_for(process.communicate(), 5.0)
        assert process.returncode == 0
        assert unexpected(errors) == []
        records = [json.loads(line) for line in output.splitlines() if line]
        assert [record["status"] for record in records] == [200] * len(pasted)
        assert len({record["tenant"] for record in records}) == len(pasted)  # alice, and calls without a key


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
async def test_where_keys_are_checked_the_greeting_says_how_to_get_one_and_works_as_pasted(tmp_path):
    """In a folder with a fairlead.yaml no option names it."""
    (tmp_path / "fairlead.yaml").write_text(
        f"auth: {{mode: keys, secret: {'s' * 32}, keys_file: keys}}\ntenants: {{chat: {{}}}}\n"
        "engine: {coefficients: cpu-tiny}\n"
    )
    (tmp_path / "keys").touch()
    async with serving(tmp_path, FAIRLEAD_LOG__LEVEL="info") as process:
        greeting = await greeting_of(process)
        assert "the configuration is fairlead.yaml" in greeting
        export, curl, snippet = re.search(
            r"^(export .*?)\n(curl .*?}')\n\n(from .*)", greeting, re.DOTALL | re.MULTILINE
        ).groups()
        key = await output_of(
            "sh",
            "-c",
            f"PATH={Path(sys.executable).parent}:$PATH; {{ {export}; }} 2>/dev/null; echo $FAIRLEAD_KEY",
            cwd=tmp_path,
        )
        key = key.strip()
        with_key = f"FAIRLEAD_KEY={key}; export FAIRLEAD_KEY; "
        async with asyncio.timeout(PATIENCE_S):
            while "[DONE]" not in (answer := await output_of("sh", "-c", with_key + curl, cwd=tmp_path)):
                assert '"reason":"invalid_api_key"' in answer, answer  # until the gateway has read the key
                await asyncio.sleep(0.25)  # it looks every 2 s, and hears 20 wrong keys at once
        assert "ChatCompletion(" in await output_of_program(snippet, FAIRLEAD_KEY=key)


@pytest.mark.parametrize("signals", [("LAME_DUCK_S", 2), ("DRAIN_S", 2), (None, 1)], ids=lambda given: str(given[0]))
async def test_who_is_left_at_the_end_is_told_and_a_second_sigterm_is_that_end(tmp_path, signals):
    """Whether it still serves all calls, or waits for what is left: a stream ends in an error, the process with 0."""
    queue_timeout, times = signals
    environment = {
        "FAIRLEAD_SHUTDOWN__LAME_DUCK_S": "0",
        "FAIRLEAD_SHUTDOWN__DRAIN_S": "0",
    } | ({f"FAIRLEAD_SHUTDOWN__{queue_timeout}": "300"} if queue_timeout else {})
    async with serving(tmp_path, **environment) as process, aiohttp.ClientSession() as session:
        url = re.search(r"http://[^. ]+\.0\.0\.1:\d+", await greeting_of(process))[0]
        body = json.dumps(call(model=None, stream=True, max_tokens=4000))
        async with session.post(url + CHAT, data=body, headers={"Content-Type": "application/json"}) as response:
            await response.content.readuntil(b"\n\n")
            process.send_signal(signal.SIGTERM)
            if times == 2:
                await until_not_ready(session, url)
                process.send_signal(signal.SIGTERM)
            rest = await response.text()
        assert '"error"' in rest
        assert "[DONE]" not in rest
        _, errors = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert (process.returncode, unexpected(errors)) == (0, [])


async def until_not_ready(session, url):
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with session.get(url + "/readyz") as answer:
                if answer.status == 503:
                    return


async def test_sigterm_drains_and_exits_with_0(tmp_path):
    environment = {
        "FAIRLEAD_ENGINE__COEFFICIENTS": "2xh100-qwen3-30b",
        "FAIRLEAD_SHUTDOWN__LAME_DUCK_S": "0.2",
        "FAIRLEAD_ACCESS_LOG__PATH": str(tmp_path / "access.log"),
    }
    async with serving(tmp_path, **environment) as process:
        url = re.search(r"http://[^. ]+\.0\.0\.1:\d+", await greeting_of(process))[0]
        body = json.dumps({"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 60, "stream": True})
        headers = {"Authorization": "Bearer key-secret", "Content-Type": "application/json"}
        async with aiohttp.ClientSession() as session, session.post(url + CHAT, data=body, headers=headers) as response:
            process.send_signal(signal.SIGTERM)
            assert (await response.text()).endswith("data: [DONE]\n\n")
        _, errors = await asyncio.wait_for(process.communicate(), 10.0)
        assert (process.returncode, unexpected(errors)) == (0, [])
    log = (tmp_path / "access.log").read_text()
    (record,) = [json.loads(line) for line in log.splitlines()]
    assert set(record) == ACCESS_FIELDS
    assert "secret" not in log
    assert (record["status"], record["stream"], record["outcome"]) == (200, True, "completed")
    assert record["output_tokens"] <= 60
    assert 0 <= record["queue_ms"] <= record["ttft_ms"] <= record["duration_ms"]


async def test_the_access_log_tells_every_kind_of_end_and_neither_prompts_nor_keys(tmp_path):
    path = tmp_path / "access.log"
    off = {"enabled": False}  # a stream that is continued does not fail
    config = {"access_log": {"enabled": True, "path": str(path)}, "queue": {"wait_s_max": 0.3}, "continuation": off}
    headers = {"Authorization": "Bearer key-zebra", "X-Request-Id": "named"}
    async with engine(speed=0.1, cut_stream_after_tokens=30) as server:
        entry = {"name": "b0", "url": server.url, "requests_running_max": 1}
        async with gateway(entry, **config) as rig:
            messages = [{"role": "user", "content": "prompt-zebra"}]
            await rig.post(call(messages=messages), headers=headers)
            await rig.post(call(messages=messages, n=100), headers=headers)
            await rig.post(call(stream=True, max_tokens=100), headers=headers)
            async with wire(rig) as connection:
                connection.send(http(call(max_tokens=4000)))
                await until(lambda: rig.snapshot().in_flight_requests)
                assert (await rig.post(headers=headers)).status == 429
                connection.reset()
                await until(rig.idle)
    log = path.read_text()
    assert "zebra" not in log
    records = [json.loads(line) for line in log.splitlines()]
    ends = [(record["status"], record["reason"], record["outcome"]) for record in records]
    assert ends[0] == (200, None, "completed")
    assert ends[1] == (400, "bad_request", None)
    assert (ends[2][0], ends[2][2]) == (200, "backend_failed")
    assert ends[2][1]
    assert ends[3] == (429, "queue_timeout", None)
    assert ends[4] == (499, None, "client_gone")
    assert records[0]["request_id"] == "named"
    assert records[0]["backend"] == "b0"
    assert records[0]["output_tokens"] == 8
