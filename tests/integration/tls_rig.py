"""Backends behind TLS, of a CA that only these tests know."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gateway_rig import ScriptedBackend

NEEDS_OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


def make_authority(folder: Path) -> Path:
    """A folder with a CA that exists for this run alone, and the certificate it gave to 127.0.0.1 and gateway.test."""

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=a test's CA")
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=backend")
    folder.joinpath("san").write_text("subjectAltName=IP:127.0.0.1,DNS:gateway.test\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "san")
    openssl("x509", "-req", "-in", "server.csr", "-out", "server.pem", *signed)
    return folder


@contextlib.asynccontextmanager
async def behind_tls(authority: Path, default: Any):
    """A scripted backend that has that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "server.pem", authority / "server.key")
    async with serving_tls(ScriptedBackend(default), context) as backend:
        yield backend


@contextlib.asynccontextmanager
async def serving_tls(backend: ScriptedBackend, context: ssl.SSLContext):
    """A scripted backend at a port of its own, by this context."""
    server = await asyncio.start_server(backend.serve, "127.0.0.1", 0, ssl=context)
    backend.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield backend
    finally:
        server.close()
        await backend.close()
