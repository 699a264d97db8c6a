"""Names with control characters, HTML or formulas stay text, wherever they are shown."""

import json
import re

import pytest
from gateway_rig import assert_error, call, gateway, http, scripted, wire

from gateway.config.sections import TenantSection
from gateway.registry.resource_kinds import RESOURCE_KINDS

NAMES = {
    "ANSI": "\x1b[31mred\x1b[0m",
    "a line of a log": 'a\r\n{"tenant":"other"}',
    "HTML": "</script><script>alert(1)</script><img src=x onerror=alert(1)>",
    "a formula": "=cmd|'/c calc'!A1",
    "a label of a metric": 'a"} 1\nfake{x="',
    "separators of lines": "a\u2028b\u0085c",
}
# Named after a model: text without control characters, which is escaped where it is shown.
OF_MODELS = {"pools", "prices", "aliases"}


@pytest.mark.parametrize("kind", NAMES)
async def test_a_model_name_is_text_in_answers_logs_and_metrics(tmp_path, kind, figure):
    log = tmp_path / "access.log"
    async with scripted() as backend, gateway(backend, access_log={"enabled": True, "path": str(log)}) as rig:
        reply = await rig.post(call(model=NAMES[kind]))
        assert_error(reply, 404)
        assert reply.headers["Content-Type"] == "application/json"
        assert NAMES[kind] not in reply.body.decode()
        page = (await rig.gateway.metrics.page()).text
        assert NAMES[kind] not in page
    (line,) = log.read_bytes().split(b"\n")[:-1]
    assert all(byte >= 0x20 for byte in line), "no control character is written as it is"
    figure(54, f"records that {kind} makes of one", log.read_bytes().count(b"\n"), target="1")
    assert json.loads(line)["status"] == 404


@pytest.mark.parametrize("kind", NAMES)
def test_no_tenant_tier_key_or_backend_can_have_such_a_name(kind):
    for name, each in RESOURCE_KINDS.items():
        if name not in OF_MODELS or re.search(r"[\x00-\x1f]", NAMES[kind]):
            assert not each.name.fullmatch(NAMES[kind]), name
    assert TenantSection()


@pytest.mark.parametrize("kind", NAMES)
async def test_no_header_of_a_response_is_made_of_a_header_of_a_request(kind):
    text = NAMES[kind].encode().replace(b"\r", b"").replace(b"\n", b"").replace(b"\x1b", b"")
    async with scripted() as backend, gateway(backend) as rig, wire(rig) as connection:
        connection.send(
            http(call()).replace(b"\r\n\r\n", b"\r\nX-Request-ID: " + text + b"\r\nOrigin: " + text + b"\r\n\r\n", 1)
        )
        head = b"%r" % (await connection.head(),)
        assert text not in head
