"""What a gateway pays for each engine, and for each connection, that has nothing to do with how many calls there are.

    python tests/benchmarks/scale/bench.py [--engines 10 100 1000] [--seconds 6] [--connections 2000]

    engines      CPU per round of polls (health, a page of metrics as vLLM 0.32 writes it, now and then the models) of
                 one engine that is busy, with so many of them; and the rounds that there were, of those that were due
    connections  resident memory of the gateway per connection that has had one answer and waits

The gateway is a process of its own (`fairlead serve`), and so are the engines: one server that answers for all of
them, at a path each. CPU and memory are read from /proc.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "unit/backends/data/vllm_0.32_metrics.txt").read_text()
COUNTERS = ("iteration_tokens_total_count", "iteration_tokens_total_sum", "generation_tokens_total")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
BUSY_S = 0.25  # the gateway's default between two polls of a busy engine
SETTLE_S = 4.0  # all engines are known then
MODELS = json.dumps({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm"}]}).encode()


def pages() -> Iterator[bytes]:
    """The page of an engine that decodes: its counters grow."""
    lines = PAGE.splitlines()
    at = {number: line for number, line in enumerate(lines) if line.startswith(tuple(f"vllm:{n}{{" for n in COUNTERS))}
    for steps in count(1):
        for number, line in at.items():
            name, _, value = line.rpartition(" ")
            lines[number] = f"{name} {float(value) + steps * (1 if 'count' in name else 3)}"
        yield "\n".join(lines).encode()


class Engines(asyncio.Protocol):
    """Answers for all engines, and counts the pages that were asked for."""

    asked = 0
    pages = pages()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        path = data.partition(b" ")[2].partition(b" ")[0]
        body, status = b"", b"200 OK"
        if path.endswith(b"/metrics"):
            Engines.asked += 1
            body = next(self.pages)
        elif path.endswith(b"/v1/models"):
            body = MODELS
        elif path == b"/asked":
            body = str(Engines.asked).encode()
        elif not path.endswith(b"/health"):
            status = b"404 Not Found"
        self._transport.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))


async def serve_engines() -> None:
    server = await asyncio.get_running_loop().create_server(Engines, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process, which is ended with the block. What it says, on either stream, is its `stdout`."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


@contextmanager
def gateway(folder: Path, engines: list[str]) -> Iterator[tuple[int, str]]:
    """Its process id and its URL."""
    backends = [{"name": f"e{number}", "url": url} for number, url in enumerate(engines)]
    config = folder / "fairlead.yaml"
    config.write_text(
        json.dumps(
            {"listen": {"port": 0}, "backends": backends, "access_log": {"enabled": False}, "log": {"level": "error"}}
        )
    )
    command = (sys.executable, "-m", "gateway.cli", "serve", "--config", str(config))
    with process(*command) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("fairlead serves "):
                yield running.pid, line.split()[2].rstrip(".")
                return
        raise OSError("the gateway has not started")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


async def get(url: str, path: str) -> bytes:
    reader, writer = await connected(url, path)
    answer = await reader.read(65_536)
    writer.close()
    return answer.partition(b"\r\n\r\n")[2]


async def connected(url: str, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which one call was made."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n".encode())
    return reader, writer


async def bench_engines(folder: Path, engines: str, number: int, seconds: float) -> str:
    urls = [f"{engines}/e{each}" for each in range(number)]
    with gateway(folder, urls) as (pid, _):
        await asyncio.sleep(SETTLE_S + number / 100)
        asked, began, cpu = int(await get(engines, "/asked")), time.monotonic(), cpu_s(pid)
        await asyncio.sleep(seconds)
        rounds, took = int(await get(engines, "/asked")) - asked, time.monotonic() - began
        spent = cpu_s(pid) - cpu
    due = number * took / BUSY_S
    return f"{number:>8}{rounds / took:>12.0f}{rounds / due:>10.0%}{spent / took:>10.0%}{spent / rounds * 1e6:>14.0f}"


async def bench_connections(folder: Path, engines: str, number: int) -> str:
    with gateway(folder, [f"{engines}/e0"]) as (pid, url):
        await asyncio.sleep(SETTLE_S)
        before = resident_bytes(pid)
        waiting = []
        for _ in range(number):
            reader, writer = await connected(url, "/v1/models")
            await reader.readuntil(b"\r\n\r\n")
            waiting.append(writer)
        after = resident_bytes(pid)
        for writer in waiting:
            writer.close()
    return f"{number} connections that wait: {(after - before) / number / 1024:.1f} KiB each"


async def main(options: argparse.Namespace) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        process(sys.executable, __file__, "--serve") as served,
    ):
        assert served.stdout is not None
        engines = f"http://127.0.0.1:{served.stdout.readline().strip()}"
        print(f"{'engines':>8}{'rounds/s':>12}{'of due':>10}{'CPU':>10}{'us a round':>14}", flush=True)
        for number in options.engines:
            print(await bench_engines(Path(folder), engines, number, options.seconds), flush=True)
        if options.connections:
            print(await bench_connections(Path(folder), engines, options.connections), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(serve_engines() if given.serve else main(given))
