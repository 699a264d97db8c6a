"""The corpus of ambiguous requests, sent to haproxy and to the gateway in one run: what haproxy refuses, so does it.

haproxy stands in front of a backend that accepts everything and notes whose requests arrive. A case is refused where
none arrives there. The gateway may refuse more, and does; a case that it forwards and haproxy does not would be laxer.
"""

import asyncio
import contextlib
import os
import re
import shutil
import socket

import pytest
from gateway_rig import gateway, until
from recording_backend import recording

from gateway.http import request_reader
from tests.integration.gateway.test_gateway_smuggling import TABLES, is_call, play

HAPROXY = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin")
pytestmark = pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed (apt-get install haproxy)")

TIMEOUT_S = 1.5
CONFIG = """
global
    tune.bufsize 32768
    log stderr format raw local0 emerg
defaults
    mode http
    timeout connect 5s
    timeout client 3s
    timeout server 3s
    timeout http-request {timeout_ms}
    option http-buffer-request
frontend f
    bind 127.0.0.1:{port}
    default_backend b
backend b
    http-reuse never
    server s {backend}
"""
NAMED = re.compile(rb"x-request-id: (case-\d+-\w+|smuggled)", re.IGNORECASE)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


@contextlib.asynccontextmanager
async def accepts_everything(seen):
    """The address of a backend that answers 200 to every head, and adds the ids in all that it reads to `seen`."""

    async def serve(reader, writer):
        received = b""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                received += data
                seen.update(NAMED.findall(received))
                if b"\r\n\r\n" in received:
                    writer.write(OK)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@contextlib.asynccontextmanager
async def haproxy(folder, backend):
    """Its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = folder / "haproxy.cfg"
    file.write_text(CONFIG.format(port=port, backend=backend, timeout_ms=f"{TIMEOUT_S * 1000:.0f}ms"))
    process = await asyncio.create_subprocess_exec(
        HAPROXY, "-db", "-f", str(file), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )

    def is_listening():
        assert process.returncode is None, "haproxy ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        await until(is_listening)
        yield port
    finally:
        process.kill()
        await process.wait()


async def send(port, data):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError, TimeoutError):
        writer.write(data)
        async with asyncio.timeout(4 * TIMEOUT_S):
            while await reader.read(1 << 16):
                pass
    writer.transport.abort()


async def test_no_request_that_haproxy_refuses_is_forwarded(tmp_path, figure, monkeypatch):
    monkeypatch.setattr(request_reader, "LINE_BYTES_MAX", 16_384)
    cases = {
        f"case-{number}-{table}": (name, case)
        for table, all_of_it in TABLES.items()
        for number, (name, case) in enumerate(all_of_it.items())
        if is_call(case)
    }
    seen, limits = set(), {"body_timeout_s": TIMEOUT_S}
    async with accepts_everything(seen) as address, haproxy(tmp_path, address) as port:
        await asyncio.gather(
            *(send(port, case.data.replace(b"@ID@", request_id.encode())) for request_id, (_, case) in cases.items())
        )
    passed_there = {each.decode() for each in seen}
    async with recording() as backend, gateway(backend, limits=limits) as rig:
        await asyncio.gather(*(play(rig, case, request_id, at_once=True) for request_id, (_, case) in cases.items()))
        passed_here = set(backend.bodies)
        assert backend.faults == []
    laxer = {request_id: cases[request_id][0] for request_id in passed_here - passed_there}
    refused = len(cases) - len(passed_there & cases.keys())
    figure(32, "cases sent to haproxy and to fairlead", len(cases), target=">= 48")
    figure(32, "rejected by haproxy", refused)
    figure(32, "rejected by fairlead", len(cases) - len(passed_here))
    figure(32, "forwarded by fairlead although haproxy rejects", len(laxer), target="0")
    assert "smuggled" not in passed_here
    assert passed_there & passed_here, "plain requests pass both"
    assert refused >= 48
    assert laxer == {}
