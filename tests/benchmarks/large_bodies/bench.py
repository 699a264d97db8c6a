"""What do others wait for while a large body passes, and how much memory does it take?

    python tests/benchmarks/large_bodies/bench.py [--rounds 3] [--only unread]

A gateway as a process of its own (run from another tree's folder, that one's). Printed are

- the longest that its event loop was away, by a task that wakes every millisecond, less the time in which the kernel
  gave the loop's thread no core (/proc/thread-self/schedstat): what the gateway itself is to blame for;
- the longest that /livez took for another process, beside the longest with nothing else to do. Three busy processes
  share the cores here, so part of it is the kernel's;
- the peak of resident memory above what it was before, over the length of the body.

answer    one whole answer of 60 MB with logprobs
request   one request of 15 MB: many small objects; the same as one text; and as token ids
unread    30 answers of 20 MB whose clients take nothing (memory alone)
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

PIPE = asyncio.subprocess.PIPE
PIECE = 1 << 16

PROBE = """
import asyncio, os, signal, time
from gateway import cli, serve as program

serve, worst_s = program.serve_one, 0.0

async def tick():
    global worst_s
    waits = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    def now():
        return time.perf_counter() - int(os.pread(waits, 64, 0).split()[1]) / 1e9
    while True:
        before = now()
        await asyncio.sleep(0.001)
        worst_s = max(worst_s, now() - before)

def report():
    global worst_s
    print("away for", worst_s, flush=True)
    worst_s = 0.0

async def probed(*given):
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, report)
    ticking = asyncio.ensure_future(tick())
    await serve(*given)

program.serve_one = probed
cli.main()
"""
SERVE = [sys.executable, "-c", PROBE, "serve", "--config"]
CHAT = "/v1/chat/completions"
MB = 1_000_000
UNREAD = 30
UNREAD_S = 6.0
LOGPROB = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "b", "logprob": -1.5}] * 20}


ASKER = """
import http.client, select, sys, time
connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]))
worst = 0.0
print(flush=True)
while not select.select([sys.stdin], [], [], 0.001)[0]:
    before = time.perf_counter()
    connection.request("GET", "/livez")
    connection.getresponse().read()
    worst = max(worst, time.perf_counter() - before)
print(worst)
"""


def answer_of(length):
    """A whole answer of about this many bytes, with logprobs and the usage at its end."""
    one = json.dumps(LOGPROB)
    head = '{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,"message":'
    head += '{"role":"assistant","content":"hi"},"finish_reason":"stop","logprobs":{"content":['
    tail = ']}}],"usage":{"prompt_tokens":9,"total_tokens":12,"completion_tokens":3}}'
    return (head + ",".join([one] * (length // len(one))) + tail).encode()


LAST = b'{"role":"user","content":"x"}]}'
REQUESTS = {
    "small objects": b'{"model":"tiny","messages":['
    + b'{"role":"user"},' * 937_500
    + b'{"role":"user","content":"x"}]}',
    "one text": b'{"model":"tiny","messages":[{"role":"user","content":"' + b"word " * 3_000_000 + b'"}]}',
    "token ids": b'{"model":"tiny","max_tokens":1,"prompt":[' + b"123456," * 2_140_000 + b"1]}",
}


@contextlib.asynccontextmanager
async def serving(length):
    """The gateway's URL and its process, before a backend whose answers have this length."""
    bodies = answer_of(length)

    async def handle(request):
        if request.path == "/v1/models":
            return web.json_response({"object": "list", "data": [{"id": "tiny", "object": "model"}]})
        if request.method == "GET":
            return web.Response(text="")
        async for _ in request.content.iter_any():
            pass
        return web.Response(body=bodies, content_type="application/json")

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "fairlead.yaml")
        settings = {
            "listen": {"port": 0},
            "backends": [{"url": f"http://127.0.0.1:{runner.addresses[0][1]}", "requests_running_max": 64}],
            "access_log": {"enabled": False},
            "shutdown": {"lame_duck_s": 0.0, "drain_s": 0.1},
        }
        file.write_text(yaml.safe_dump(settings))  # noqa: ASYNC240 - before anything is measured
        process = await asyncio.create_subprocess_exec(
            *SERVE, str(file), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=dict(os.environ)
        )
        try:
            await process.stdout.readuntil(b"fairlead serves ")
            url = (await process.stdout.readline()).decode().split(". ")[0].strip()
            yield url, process
        finally:
            process.terminate()
            await process.communicate()
            await runner.cleanup()


def resident(pid):
    """Bytes now, and at the most so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return found["VmRSS"], found["VmHWM"]


class Asker:
    """Another process that asks /livez all the time: this one is busy with bodies."""

    def __init__(self, url):
        self._url = url

    async def __aenter__(self):
        command = [sys.executable, "-c", ASKER, *self._url.removeprefix("http://").split(":")]
        self._process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        await self._process.stdout.readline()
        return self

    async def __aexit__(self, *_):
        worst, _ = await self._process.communicate(b"\n")
        self.worst_ms = float(worst) * 1e3


async def measure(length, body, path):
    """How long the loop was away, and the longest wait of /livez idle and during the call, in ms; the peak of memory
    over the body; the status.
    """
    async with serving(length) as (url, process), aiohttp.ClientSession() as session:
        pid = process.pid
        async with Asker(url) as idle:
            await asyncio.sleep(1.0)
        before, _ = resident(pid)
        forget_peak(pid)
        await away_ms(process)

        async def pieces():
            for at in range(0, len(body), PIECE):
                yield body[at : at + PIECE]

        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        async with Asker(url) as during, session.post(url + path, data=pieces(), headers=headers) as answered:
            async for _ in answered.content.iter_chunked(1 << 18):
                pass
            status = answered.status
        return await away_ms(process), idle.worst_ms, during.worst_ms, resident(pid)[1] - before, status


async def away_ms(process):
    """The longest that the gateway's loop was away since this was last asked."""
    process.send_signal(signal.SIGUSR1)
    await process.stdout.readuntil(b"away for ")
    return float(await process.stdout.readline()) * 1e3


def forget_peak(pid):
    """The peak of memory begins anew (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


async def unread():
    """Peak of memory while clients take nothing of 30 answers of 20 MB."""
    async with serving(20 * MB) as (url, process):
        pid = process.pid
        before, _ = resident(pid)
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "x"}]}).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writers = []
        for _ in range(UNREAD):
            reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
            writer.write(head.encode() + body)
            writers.append((reader, writer))
        await asyncio.sleep(UNREAD_S)
        print(f"unread: {UNREAD} answers of 20 MB, resident + {(resident(pid)[1] - before) / MB:.0f} MB")
        for _, writer in writers:
            writer.close()


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    options = parser.parse_args()
    rounds = options.rounds
    cases = {"answer of 60 MB": (60 * MB, b'{"model":"tiny","messages":[{"role":"user","content":"x"}]}', CHAT)}
    for name, body in REQUESTS.items():
        cases[f"request of {len(body) / MB:.0f} MB, {name}"] = (300, body, "/v1/completions" if "ids" in name else CHAT)
    for name, (length, body, path) in cases.items():
        for _ in range(rounds if options.only in name else 0):
            away, idle, worst, peak, status = await measure(length, body, path)
            size = max(length, len(body))
            livez = f"/livez at most {worst:.1f} ms (idle {idle:.1f})"
            print(f"{name}: loop away {away:.1f} ms, {livez}, memory {peak / size:.1f} x body, {status}")
    if options.only in "unread":
        await unread()


if __name__ == "__main__":
    asyncio.run(main())
