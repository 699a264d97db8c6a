"""A canary in a prompt, an answer or a key is in no log, metric, trace log or error, at debug level and in crashes."""

import logging

import pytest
from gateway_process import serving
from gateway_rig import CHAT, answer, bearer, call, gateway, hang_up, scripted

from gateway.intake.admission import RequestAdmission

PROMPT, ANSWER, KEY = "canary-of-the-prompt", "canary-of-the-answer", "sk-canary-of-the-key"
MESSAGES = [{"role": "user", "content": PROMPT}]
ANSWERED = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
}
WRONG = (
    {"messages": MESSAGES, "max_tokens": PROMPT},
    {"messages": PROMPT},
    {"messages": MESSAGES, "n": 10**6},
)


async def test_nothing_that_a_debugging_gateway_writes_has_a_canary(tmp_path, figure):
    log, trace_log = tmp_path / "access.log", tmp_path / "trace.jsonl"
    settings = {
        "log": {"level": "debug"},
        "access_log": {"enabled": True, "path": str(log)},
        "trace_log": {"enabled": True, "path": str(trace_log)},
    }
    async with (
        scripted(answer(ANSWERED), answer(ANSWERED), hang_up, hang_up, answer(ANSWERED, status=500)) as backend,
        serving(tmp_path, backend, settings=settings) as process,
    ):
        statuses = [await process.ask(KEY, messages=MESSAGES) for _ in range(4)]
        assert statuses[0] == 200
        replies = []
        for fields in WRONG:
            async with process.session.post(process.url + CHAT, json=call(**fields), headers=bearer(KEY)) as reply:
                assert reply.status == 400
                replies.append(await reply.text())
        written = [(await process.admin("GET", path))[1] for path in ("/metrics", "/admin/v1/audit", "/admin/v1/state")]
        said = process.said + await process.end(15)
    places = [said, log.read_text(), trace_log.read_text(), *map(str, written), *replies]
    assert len(log.read_text().splitlines()) == 7
    hits = sum(canary in place for canary in (PROMPT, ANSWER, KEY) for place in places)
    figure(48, "places with a canary", hits, f"of {len(places)}", target="0")
    assert hits == 0


@pytest.mark.parametrize("where", ["take", "learn"])
async def test_a_crash_writes_a_traceback_without_what_was_said(monkeypatch, caplog, where):
    caplog.set_level(logging.DEBUG)

    def crash(*given, **named):
        raise RuntimeError("a bug")

    monkeypatch.setattr(RequestAdmission, where, crash)
    async with scripted(answer(ANSWERED)) as backend, gateway(backend) as rig:
        reply = await rig.post(call(messages=MESSAGES), headers=bearer(KEY))
        assert reply.status in (200, 500)
    assert "a bug" in caplog.text
    for canary in (PROMPT, ANSWER, KEY):
        assert canary not in caplog.text
        assert reply.status == 200 or canary not in reply.body.decode()
