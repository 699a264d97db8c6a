"""What a whole answer costs the gateway in one process, beside its clients and its backend: CPU time, or calls.

    python tests/benchmarks/relay/answer.py [--rounds 5] [--answers 4000] [--clients 32] [--beside CHECKOUT]
    python tests/benchmarks/relay/answer.py --calls [--stream] [--top 60] [--of 'settlement']

A whole answer has no hot spot: its cost is some hundred short functions. --calls counts them, builtins and resumed
coroutines included: a figure that no neighbour disturbs. It sees what is interpreted: compiled functions tell a
profiler nothing. --of prints only functions whose file or name contains the text. With --stream the answer is a stream
of four events that come in one read: what its start and its end cost.

Without it, the CPU time of the process is measured in batches of 200 answers. Clients and backend are a few lines
here, so their share is small, and the same on both sides of a comparison; the kernel's work for the sockets of all
three is in it. --beside takes turns with another checkout, each round in a process of its own, and prints the ratio of
the medians and of the lowest batches: the latter are what a busy machine disturbs least.
"""

import argparse
import asyncio
import gc
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import uvloop

from gateway.app import open_gateway
from gateway.config.config import Config
from gateway.observability.telemetry import Telemetry
from gateway.serve import GC_THRESHOLDS
from gateway.store.periodic import Periodic
from gateway.store.sqlite import SqliteStore

ROOT = Path(__file__).resolve().parents[3]
CLIENTS = 32  # as in bench.py
BATCH = 200
WARM_UP = 1000
ANSWER = (
    b'{"id":"chatcmpl-8f3c2d1e4b5a6978","object":"chat.completion","created":1795172665,"model":"mock-model",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"' + b"An answer of some words. " * 12 + b'"},'
    b'"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":184,"total_tokens":248,"completion_tokens":64}}'
)
MODELS = b'{"object":"list","data":[{"id":"mock-model","object":"model","max_model_len":32768}]}'
PROMPT = b"Summarise the following report for an engineer who has five minutes and wants numbers first. " * 8
BODY = (
    b'{"model":"mock-model","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user",'
    b'"content":"' + PROMPT + b'"}],"max_tokens":64,"temperature":0.7,"top_p":0.95}'
)
EVENT = b'data: {"id":"chatcmpl-8f3c2d1e4b5a6978","object":"chat.completion.chunk","created":1795172665,%b}\n\n'
CHOICE = b'"model":"mock-model","choices":[%b],"usage":{"prompt_tokens":184,"total_tokens":%d,"completion_tokens":%d}'
EVENTS = (  # as a vLLM sends them that is asked for usage in chunks
    EVENT % (CHOICE % (b'{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}', 184, 0)),
    EVENT % (CHOICE % (b'{"index":0,"delta":{"content":"An answer."},"finish_reason":null}', 185, 1)),
    EVENT % (CHOICE % (b'{"index":0,"delta":{"content":""},"finish_reason":"stop"}', 186, 2)),
    EVENT % (CHOICE % (b"", 186, 2)),
    b"data: [DONE]\n\n",
)
LAST_CHUNK = b"0\r\n\r\n"
CONTENT_LENGTH = re.compile(rb"(?i)content-length: (\d+)")
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: OpenAI/Python 1.99.0\r\n"
    b"Accept: application/json\r\nAuthorization: Bearer sk-1234\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)


class Peer(asyncio.Protocol):
    """One end of a connection that knows the end of a message by its length."""

    def __init__(self) -> None:
        self.left = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        data = self.left + data
        head_end = data.find(b"\r\n\r\n")
        if head_end >= 0:
            length = CONTENT_LENGTH.search(data, 0, head_end)
            if len(data) >= head_end + 4 + (0 if length is None else int(length[1])):
                self.left = b""
                self.message(data)
                return
        self.left = data


class Backend(Peer):
    """Answers each call at once, and the gateway's polls as a server without metrics."""

    def message(self, data: bytes) -> None:
        if data.startswith(b"POST") and b'"stream":true' in data:
            head = (
                b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked"
            )
            chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS]
            self.transport.write(b"\r\n\r\n".join((head, b"".join(chunks))) + LAST_CHUNK)
        elif data.startswith(b"POST"):
            self.reply(b"200 OK", ANSWER)
        elif b" /v1/models " in data[:40]:
            self.reply(b"200 OK", MODELS)
        else:
            self.reply(b"200 OK" if b" /health " in data[:40] else b"404 Not Found", b"")

    def reply(self, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %b\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % (status, len(body)) + body)


class Client(Peer):
    """Asks again as soon as it has its answer, while the load has any left."""

    def __init__(self, load: "Load") -> None:
        super().__init__()
        self.load = load

    def data_received(self, data: bytes) -> None:
        if not self.load.is_streamed:
            super().data_received(data)
        elif data.endswith(LAST_CHUNK):
            self.message(self.left + data)
            self.left = b""
        else:
            self.left += data

    def message(self, data: bytes) -> None:
        assert data.startswith(b"HTTP/1.1 200"), data[:200]
        assert (b"[DONE]" in data) is self.load.is_streamed, data[:200]
        self.load.answered(self)

    def ask(self) -> None:
        self.transport.write(self.load.request)


class Load:
    """So many answers for all clients together. Mutable."""

    def __init__(self, *, is_streamed: bool = False) -> None:
        self.is_streamed = is_streamed
        body = BODY[:-1] + b',"stream":true}' if is_streamed else BODY
        self.request = HEAD % len(body) + body
        self.clients: list[Client] = []

    async def connect(self, port: int, clients: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(clients):
            self.clients.append((await loop.create_connection(lambda: Client(self), "127.0.0.1", port))[1])

    async def run(self, answers: int) -> list[float]:
        """Have so many answers. Returns us of CPU an answer, of each batch."""
        self.to_ask, self.to_come, self.costs_us = answers - len(self.clients), answers, list[float]()
        self.done = asyncio.get_running_loop().create_future()
        self.since_ns = time.process_time_ns()
        for client in self.clients:
            client.ask()
        await self.done
        return self.costs_us

    def answered(self, client: Client) -> None:
        self.to_come -= 1
        if self.to_come % BATCH == 0:
            now_ns = time.process_time_ns()
            self.costs_us.append((now_ns - self.since_ns) / BATCH / 1000)
            self.since_ns = now_ns
        if self.to_ask:
            self.to_ask -= 1
            client.ask()
        elif not self.to_come:
            self.done.set_result(None)

    def close(self) -> None:
        for client in self.clients:
            client.transport.close()


class Calls:
    """Counts calls by code object, or by builtin, except those of this file. Mutable."""

    def __init__(self) -> None:
        self.python: Counter[CodeType] = Counter()
        self.builtin: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_filename == __file__:
            return
        if event == "call":
            self.python[frame.f_code] += 1
        elif event == "c_call":
            owner = getattr(argument, "__self__", None)
            kind = "" if owner is None or type(owner).__name__ == "module" else f"{type(owner).__name__}."
            self.builtin[f"{kind}{argument.__name__} <- {place(frame.f_code)}"] += 1

    def table(self, of: str, top: int) -> None:
        answers = self.python[Telemetry.ended.__code__]
        named = [*self.builtin.items(), *((place(code), count) for code, count in self.python.items())]
        functions, builtins = self.python.total() / answers, self.builtin.total() / answers
        print(f"{functions + builtins:.0f} calls an answer: {functions:.0f} of functions, {builtins:.0f} of builtins")
        rows = sorted(((count / answers, name) for name, count in named if of in name), reverse=True)
        for count, name in rows[:top]:
            print(f"{count:6.2f} {name}")


def place(code: CodeType) -> str:
    path = Path(code.co_filename)
    file = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(*path.parts[-2:])
    return f"{file}:{code.co_qualname}"


async def measure(options: argparse.Namespace) -> tuple[list[float], Calls]:
    loop, load, calls = asyncio.get_running_loop(), Load(is_streamed=options.stream), Calls()
    backend = await loop.create_server(Backend, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{backend.sockets[0].getsockname()[1]}"
    settings = {
        "listen": {"port": 0},
        "backends": [{"url": url, "requests_running_max": 8192}],
        "health": {"idle_s": 60.0, "busy_s": 60.0},  # a poll would count, the more of them the slower the machine is
    }
    Periodic.start = lambda _periodic: None  # nor does the state look for changes: that would count as polls do
    gateway = await open_gateway(Config.model_validate(settings), SqliteStore(None))
    await load.connect(int((await gateway.start()).rpartition(":")[2]), options.clients)
    await load.run(WARM_UP)
    gc.collect()  # as serve.py does
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    if options.calls:
        sys.setprofile(calls)
    costs_us = await load.run(options.answers)
    sys.setprofile(None)
    load.close()
    await gateway.stop()
    backend.close()
    return costs_us, calls


def round_of(checkout: Path, options: argparse.Namespace) -> list[float]:
    """Costs of batches, of a process of its own that runs the gateway of this checkout."""
    command = [sys.executable, __file__, "--one", "--answers", str(options.answers), "--clients", str(options.clients)]
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve())}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return [float(word) for word in output.stderr.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--answers", type=int, default=4000, help="of a round")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="one at a time have the same calls in each run")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another checkout, which takes turns")
    parser.add_argument("--calls", action="store_true", help="count calls instead")
    parser.add_argument("--stream", action="store_true", help="the answer is a stream, only with --calls")
    parser.add_argument("--top", type=int, default=60, help="rows of the table of calls")
    parser.add_argument("--of", default="", help="only functions whose file or name contains this")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one or options.calls:
        report = os.dup(sys.stdout.fileno())
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # where the access log goes
        costs_us, calls = uvloop.run(measure(options))
        if options.one:
            print(*costs_us, file=sys.stderr)
        else:
            os.dup2(report, sys.stdout.fileno())
            calls.table(options.of, options.top)
        return
    checkouts = {"here": ROOT} | ({} if options.beside is None else {"beside": options.beside})
    costs_us = {name: list[float]() for name in checkouts}
    for _ in range(options.rounds):
        for name, checkout in checkouts.items():
            costs_us[name] += round_of(checkout, options)
    for name, each in costs_us.items():
        print(f"{name:8} median {statistics.median(each):6.1f} us, lowest tenth {low(each):6.1f} us")
    if options.beside is not None:
        here, beside = costs_us["here"], costs_us["beside"]
        print(f"here / beside: median {statistics.median(here) / statistics.median(beside):.3f}", end=", ")
        print(f"lowest tenth {low(here) / low(beside):.3f}")


def low(costs_us: list[float]) -> float:
    return statistics.quantiles(costs_us, n=10)[0]


if __name__ == "__main__":
    main()
