"""The gateway's own ports behind TLS: their certificate, and another one while they serve."""

import asyncio
import contextlib
import shutil
import socket
import ssl

import aiohttp
import pytest
from admin_rig import admin
from gateway_rig import CHAT, answer, call, gateway, http, scripted, stream, until
from tls_rig import NEEDS_OPENSSL, make_authority

from backends.tls import server_context
from gateway.http.connection import LINGER_S, WAITING_BYTES_MAX
from gateway.ports.certificate import Certificate

pytestmark = NEEDS_OPENSSL

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return make_authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory):
    return make_authority(tmp_path_factory.mktemp("other"))


def trusting(folder):
    return ssl.create_default_context(cafile=folder / "ca.pem")


def put(folder, authority):
    """Renew the certificate as a tool does: each file at once, one after the other."""
    for name in ("server.pem", "server.key"):
        shutil.copy(authority / name, folder / f"{name}.new")
        (folder / f"{name}.new").replace(folder / name)
    return {"cert_file": folder / "server.pem", "key_file": folder / "server.key"}


async def post(rig, context, body):
    async with rig.session.post(rig.url + CHAT, json=body, ssl=context) as response:
        return response.status, await response.read()


async def test_calls_whole_and_streamed_go_over_tls_and_not_without(authority, tmp_path):
    async with (
        scripted(answer()) as backend,
        gateway(backend, listen={"port": 0, "tls": put(tmp_path, authority)}) as rig,
    ):
        assert rig.url.startswith("https://")
        trusted = trusting(authority)
        assert (await post(rig, trusted, call()))[0] == 200
        backend.default = stream(EVENT, b"data: [DONE]\n\n")
        assert await post(rig, trusted, call(stream=True)) == (200, EVENT + b"data: [DONE]\n\n")
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await post(rig, ssl.create_default_context(), call())
        with pytest.raises(aiohttp.ClientError):
            await rig.session.post(rig.url.replace("https", "http") + CHAT, json=call())
        # As without TLS: a client that takes nothing is known as one at the same mark.
        connections = rig.gateway._handlers.server.connections
        assert {each.transport.get_write_buffer_limits()[1] for each in connections} == {WAITING_BYTES_MAX}


async def test_connections_that_are_accepted_together_shake_hands_and_those_without_tls_are_cut(authority, tmp_path):
    tls = put(tmp_path, authority)
    async with scripted(answer()) as backend, gateway(backend, listen={"port": 0, "tls": tls}) as rig:
        # Nothing here lets the loop run.
        sockets = [socket.create_connection(("127.0.0.1", rig.port)) for _ in range(20)]
        for number, connection in enumerate(sockets):
            if number % 4 == 0:
                connection.sendall(http(call()))
                reader, writer = await asyncio.open_connection(sock=connection)
                with contextlib.suppress(ConnectionError):
                    assert not (await reader.read()).startswith(b"HTTP")
            else:
                options = {"ssl": trusting(authority), "server_hostname": "127.0.0.1"}
                reader, writer = await asyncio.open_connection(sock=connection, **options)
                writer.write(http(call()))
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
        await until(lambda: not rig.gateway._listener._connecting)


async def test_an_answer_that_ends_with_its_connection_does_so_at_once(authority, tmp_path):
    tls = put(tmp_path, authority)
    options = {"ssl": trusting(authority), "server_hostname": "127.0.0.1"}
    async with (
        scripted(stream(EVENT, b"data: [DONE]\n\n")) as backend,
        gateway(backend, listen={"port": 0, "tls": tls}) as rig,
    ):
        for data in (http(call(stream=True), version="1.0"), http(call(stream=True), "Connection: close")):
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.port, **options)
            writer.write(data)
            async with asyncio.timeout(LINGER_S / 2):
                assert b"[DONE]" in await reader.read()
            writer.close()


async def test_what_is_older_than_tls_1_2_is_refused(authority, tmp_path):
    assert server_context(**put(tmp_path, authority)).minimum_version == ssl.TLSVersion.TLSv1_2


async def test_the_admin_port_has_a_certificate_of_its_own(authority, tmp_path):
    key_file = tmp_path / "admin-key"
    own = {"enabled": True, "port": 0, "key_file": str(key_file), "tls": put(tmp_path, authority)}
    async with scripted() as backend, admin(tmp_path, backend, admin=own) as asked:
        assert asked.url.startswith("https://")
        headers = {"Authorization": f"Bearer {asked.key}"}
        async with asked.session.get(
            f"{asked.url}/admin/v1/state", headers=headers, ssl=trusting(authority)
        ) as response:
            assert response.status == 200


async def test_a_renewed_certificate_serves_the_next_connection_and_half_of_one_does_not(
    authority, other_authority, tmp_path
):
    certificate = Certificate(**put(tmp_path, authority), look_s=0.01)
    server = await asyncio.start_server(lambda _r, writer: writer.close(), "127.0.0.1", 0, ssl=certificate.context)
    port = server.sockets[0].getsockname()[1]

    async def is_of(folder, **name):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(folder), **name)
        except ssl.SSLCertVerificationError:
            return False
        writer.transport.abort()
        return True

    certificate.renewal.start()
    try:
        assert await is_of(authority)
        shutil.copy(other_authority / "server.key", tmp_path / "server.key")  # which is of no certificate there
        seen = certificate._seen
        await until(lambda: certificate._seen != seen)
        await asyncio.sleep(0.05)
        assert await is_of(authority)
        newest = certificate._newest
        put(tmp_path, other_authority)
        await until(lambda: certificate._newest is not newest)
        assert await is_of(other_authority)
        assert not await is_of(authority)
    finally:
        await certificate.renewal.stop()
        server.close()


@pytest.mark.parametrize(
    ("cert", "key", "said"),
    [("nix.pem", "server.key", "there is no file"), ("server.pem", "ca.key", "no certificate and its key")],
)
async def test_files_that_are_no_certificate_and_its_key_end_the_start(authority, tmp_path, cert, key, said):
    tls = {"cert_file": str(authority / cert), "key_file": str(authority / key)}
    with pytest.raises(ValueError, match=said):
        async with gateway({"url": "http://127.0.0.1:9"}, listen={"port": 0, "tls": tls}):
            pass
