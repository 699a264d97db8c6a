"""Backends behind TLS: believed where their CA is configured, and not used where it is not."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess

import pytest
from gateway_rig import ScriptedBackend, answer, call, gateway, stream

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """A CA that exists for this run alone, and the certificate it gave to 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=a test's CA")
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=backend")
    folder.joinpath("san").write_text("subjectAltName=IP:127.0.0.1\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "san")
    openssl("x509", "-req", "-in", "server.csr", "-out", "server.pem", *signed)
    return folder


@contextlib.asynccontextmanager
async def behind_tls(authority, default):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "server.pem", authority / "server.key")
    backend = ScriptedBackend(default)
    server = await asyncio.start_server(backend.serve, "127.0.0.1", 0, ssl=context)
    backend.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield backend
    finally:
        server.close()
        await backend.close()


async def test_a_backend_whose_ca_is_configured_is_asked_and_answers_whole_and_streamed(authority):
    async with behind_tls(authority, answer()) as backend:
        entry = {"name": "b0", "url": backend.url, "ca_file": str(authority / "ca.pem")}
        async with gateway(entry) as rig:
            assert rig.gateway.backends.states() == {"b0": "healthy"}
            assert (await rig.post()).status == 200
            backend.default = stream(EVENT, b"data: [DONE]\n\n")
            assert (await rig.post(call(stream=True))).body == EVENT + b"data: [DONE]\n\n"
            assert len(backend.calls) == 2


async def test_a_backend_whose_ca_nobody_knows_is_not_spoken_to(authority):
    async with behind_tls(authority, answer()) as backend, gateway({"name": "b0", "url": backend.url}) as rig:
        assert (await rig.post()).status == 503
        assert rig.gateway.backends.states()["b0"] in {"unknown", "down"}
        assert backend.polls == backend.calls == []


@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "no PEM"])
async def test_a_ca_file_that_cannot_be_read_ends_the_start(tmp_path, content):
    ca_file = tmp_path / "ca.pem"
    if content is not None:
        ca_file.write_text(content)
    with pytest.raises(ValueError, match=r"ca\.pem"):
        async with gateway({"url": "https://127.0.0.1:9", "ca_file": str(ca_file)}):
            pass
