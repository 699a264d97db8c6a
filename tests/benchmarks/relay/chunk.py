"""What a chunk costs in this process alone: `data_received`, the meter and the write to the client, without a kernel.

    python tests/benchmarks/relay/chunk.py [--streams 500] [--chunks 40] [--per-read 1] [--beside CHECKOUT]
    python tests/benchmarks/relay/chunk.py --token-ids [--beside CHECKOUT]
    python tests/benchmarks/relay/chunk.py --calls

Each of so many streams gets one chunk in turn, as a backend's independent streams do: what a stream holds is in no
near cache when its next chunk comes. The bytes are those of a real vLLM 0.32 that reports its usage in each chunk. The
transport takes what is written and does nothing with it. --beside takes turns with another checkout, each round in a
process of its own, and prints the ratio of the medians. --token-ids is for streams whose token ids are kept and taken
out again, as those are that another backend may continue; without --beside it takes turns with streams that are not.
--calls counts the calls of functions and builtins per chunk, which no neighbour disturbs.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

# Of the checkout that PYTHONPATH names.
from backends.connection import Connection
from backends.meters.chunks import ChunkMeter
from backends.meters.events import StreamCall, StreamMemo
from gateway.forwarding.answers import relay

ROOT = Path(__file__).resolve().parents[3]
TASKS: list[asyncio.Task] = []
MEMO = StreamMemo()  # of one backend
HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
EVENT = (
    b'data: {"id":"chatcmpl-8f3c2d1e4b5a6978%016x","object":"chat.completion.chunk","created":1795172665,'
    b'"model":"mock-model","choices":[{"index":0,"delta":{"content":" token%03d"},"logprobs":null,"finish_reason":null,'
)
WITH_USAGE = (
    b'"token_ids":null}],"usage":{"prompt_tokens":210,"total_tokens":%d,"completion_tokens":%d,'
    b'"completion_tokens_details":null}}\n\n'
)
WITH_IDS = b'"token_ids":[%d]}]}\n\n'  # which count tokens as well


class Sink:
    """A transport that drops what is written: to write is to call a function of C."""

    def __init__(self) -> None:
        self.write = len

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Nothing is read."""

    resume_reading = abort = pause_reading

    def writelines(self, _data: Any) -> None:
        """Nothing is sent."""


def framed(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


def chunk(stream: int, number: int, *, has_ids: bool) -> bytes:
    end = WITH_IDS % (1000 + number) if has_ids else WITH_USAGE % (210 + number, number)
    return framed(EVENT % (stream, number % 1000) + end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--chunks", type=int, default=40, help="of each stream")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--per-read", type=int, default=1, help="chunks that come in one read, as when CPU is short")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT")
    parser.add_argument("--token-ids", action="store_true", help="streams whose ids are kept")
    parser.add_argument("--calls", action="store_true", help="count calls instead")
    options = parser.parse_args()
    if options.calls:
        calls = asyncio.run(
            measure(options.streams, options.chunks, options.per_read, has_ids=options.token_ids, counts=True)
        )
        print(f"{calls:.1f} calls a chunk")
        return
    if options.rounds == 1:
        print(asyncio.run(measure(options.streams, options.chunks, options.per_read, has_ids=options.token_ids)))
        return
    turns = {"this": (ROOT, options.token_ids)}
    if options.beside is not None:
        turns["beside"] = (options.beside.resolve(), options.token_ids)
    elif options.token_ids:
        turns["without"] = (ROOT, False)
    figures: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(options.rounds):
        for name, (checkout, has_ids) in turns.items():
            figures[name].append(in_process(checkout, options, has_ids=has_ids))
    for name, found in figures.items():
        print(f"{name:8} {statistics.median(found):6.3f} us per chunk ({min(found):.3f} to {max(found):.3f})")
    if len(figures) > 1:
        one, other = (statistics.median(found) for found in figures.values())
        print(f"ratio    {one / other:6.3f}")


def in_process(checkout: Path, options: argparse.Namespace, *, has_ids: bool) -> float:
    command = [sys.executable, __file__, "--rounds", "1", *(["--token-ids"] if has_ids else [])]
    command += ["--streams", str(options.streams), "--chunks", str(options.chunks)]
    command += ["--per-read", str(options.per_read)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


async def measure(streams: int, chunks: int, per_read: int, *, has_ids: bool, counts: bool = False) -> float:
    """Per chunk: CPU in us, or calls."""
    receivers = [await begun(stream, has_ids=has_ids) for stream in range(streams)]
    reads = [
        [b"".join(chunk(stream, number + i, has_ids=has_ids) for i in range(per_read)) for stream in range(streams)]
        for number in range(3, chunks * per_read + 3, per_read)
    ]
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    if counts:
        sys.setprofile(count)
    begun_ns = time.process_time_ns()
    for turn in reads:
        for receive, data in zip(receivers, turn, strict=True):
            receive(data)
    cost = calls if counts else (time.process_time_ns() - begun_ns) / 1000
    sys.setprofile(None)
    return cost / (streams * chunks * per_read)


async def begun(stream: int, *, has_ids: bool) -> Any:
    """The `data_received` of a stream whose first two tokens have passed."""
    owner = SimpleNamespace(give_back=lambda _connection: None, lost=lambda _connection: None)
    connection = Connection(owner, asyncio.get_running_loop())
    connection.connection_made(Sink())
    exchange = connection.begin(())
    connection.data_received(HEAD)
    client = Sink()
    request = SimpleNamespace(transport=client, connection=SimpleNamespace(transport=client), is_new=True)
    older = ()
    if "writer" in relay._StreamRelay.__init__.__annotations__:  # a checkout whose server is aiohttp's
        from aiohttp import HttpVersion11  # noqa: PLC0415

        request.version, older = HttpVersion11, (None,)
    meter = make_meter(has_ids=has_ids)
    told: dict[str, Any] = {"on_usage": lambda _usage: 1e9, "timeliness": None, "on_unread": lambda _seconds: None}
    if hasattr(relay, "StreamReports"):  # an older checkout has none
        told = {"reports": relay.StreamReports(**told)}
    stream_relay = relay._StreamRelay(request, exchange, meter, *older, **told)
    TASKS.append(asyncio.create_task(stream_relay.run()))
    await asyncio.sleep(0)
    for number in (1, 2):
        connection.data_received(chunk(stream, number, has_ids=has_ids))
    return connection.data_received


def make_meter(*, has_ids: bool) -> Any:
    call = StreamCall(memo=MEMO)
    if not has_ids:
        return ChunkMeter(call)
    from backends.meters.token_ids import TokenIdMeter, TokenIds  # noqa: PLC0415 - an older checkout has none

    return TokenIdMeter(call, TokenIds(1 << 20), keeps_ids=False)


if __name__ == "__main__":
    main()
