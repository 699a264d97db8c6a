"""A load client that costs next to nothing, in a process of its own: it must not be what is measured.

Reads one JSON job from standard input, sends each request as a streamed completion on a connection of
its own, and writes one JSON record per request. It looks at the bytes of an answer for three things only:
the status, where events begin and the end. Requests go out at their times (open loop), or, with `concurrency`,
one as soon as another ends (closed loop), to find a server's capacity.

job:    {"port", "model", "concurrency": null | int, "requests": [{"tenant", "at_s", "prompt", "output"}, ...]}
record: {"tenant", "at_s", "prompt", "output", "first_s", "total_s", "tpot_s", "error"}
        latencies are null after an error; tpot_s is the largest, over tokens j >= 1, of the time from token 0 to
        token j over j
last:   {"cpu_s"}: the CPU time of this process
"""

import asyncio
import json
import re
import resource
import sys
import time
from collections import deque
from random import Random

import uvloop

CONNECTIONS_MAX = 4096
VOCABULARY = range(300, 4000)  # token ids that every vocabulary of the tiny model has, and no special ones
TAIL_BYTES = 1024  # the usage record and the end of the stream fit in it
EVENT = b"data: "  # one for each token, then the usage record and [DONE]
USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')


class Answer(asyncio.Protocol):
    """One request on one connection; `ended` is called once with its record."""

    def __init__(self, loop, request, body, sent_at, ended):
        self._loop, self._request, self._body, self._ended = loop, request, body, ended
        self._sent_at = sent_at
        self._first_s = None
        self._events = 0
        self._tpot_s = 0.0
        self._tail = b""
        self._transport = None

    def connection_made(self, transport):
        self._transport = transport
        transport.write(self._body)

    def data_received(self, data):
        now_s = time.perf_counter() - self._sent_at
        # An event that is cut in its first word counts with the rest of it.
        new = (self._tail[1 - len(EVENT) :] + data).count(EVENT)
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        if new and self._first_s is None:
            self._first_s = now_s
        if new and (token := self._events or 1) < self._request["output"]:
            self._tpot_s = max(self._tpot_s, (now_s - self._first_s) / token)
        self._events += new
        if b"data: [DONE]" in self._tail:
            self._end(None)

    def connection_lost(self, exc):
        self._end(f"{exc or 'closed early'}: {self._tail[-200:]!r}")

    def _end(self, error):
        if self._ended is None:
            return
        ended, self._ended = self._ended, None
        usages = USAGE.findall(self._tail)
        total_s = time.perf_counter() - self._sent_at
        if self._transport:
            self._transport.close()
        if error is None and (not usages or int(usages[-1]) != self._request["output"]):
            error = f"{usages[-1] if usages else 'no'} tokens in place of {self._request['output']}"
        first_s, total_s, tpot_s = (None, None, None) if error else (self._first_s, total_s, self._tpot_s)
        ended({**self._request, "first_s": first_s, "total_s": total_s, "tpot_s": tpot_s, "error": error})


def completion(prompt, output, *, port, model, tenant, headers):
    """A whole HTTP request for a completion of exactly `output` tokens, streamed, as bytes; `prompt` is token ids."""
    content = json.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": output,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        separators=(",", ":"),
    ).encode()
    told = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {tenant}\r\n{told}"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content


def body_of(request, *, port, model, rng):
    """The bytes of one request of a job, made before the clock starts."""
    prompt, tenant = [rng.choice(VOCABULARY) for _ in range(request["prompt"])], request["tenant"]
    headers = {"X-Tenant-ID": tenant}
    return completion(prompt, request["output"], port=port, model=model, tenant=tenant, headers=headers)


class Run:
    """All requests of a job, each due at its own time or when a place is free."""

    def __init__(self, job):
        self._loop = asyncio.get_running_loop()
        self._port = job["port"]
        rng = Random(0)
        self._waiting = deque(
            (request, body_of(request, port=job["port"], model=job["model"], rng=rng)) for request in job["requests"]
        )
        self._concurrency = job["concurrency"]
        self._expected = len(self._waiting)
        self._connects = set()
        self._done = self._loop.create_future()
        self.records = []

    async def __call__(self):
        self._started_at = self._loop.time() + 0.2
        if self._concurrency:
            for _ in range(min(self._concurrency, self._expected)):
                self._send_next()
        else:
            while self._waiting:
                request, body = self._waiting.popleft()
                self._loop.call_at(self._started_at + request["at_s"], self._send, request, body)
        await self._done

    def _send_next(self):
        if self._waiting:
            request, body = self._waiting.popleft()
            self._send({**request, "at_s": self._loop.time() - self._started_at}, body)

    def _send(self, request, body):
        sent_at = time.perf_counter()  # the loop's own clock counts milliseconds
        connect = self._loop.create_connection(
            lambda: Answer(self._loop, request, body, sent_at, self._ended), "127.0.0.1", self._port
        )
        task = self._loop.create_task(connect)
        self._connects.add(task)
        task.add_done_callback(lambda task: self._connected(task, request))

    def _connected(self, task, request):
        self._connects.discard(task)
        if task.exception():
            self._ended({**request, "first_s": None, "total_s": None, "tpot_s": None, "error": str(task.exception())})

    def _ended(self, record):
        self.records.append(record)
        if self._concurrency:
            self._send_next()
        if len(self.records) == self._expected:
            self._done.set_result(None)


async def main():
    job = json.load(sys.stdin)
    assert job["concurrency"] or len(job["requests"]) <= CONNECTIONS_MAX, "one connection per request in flight"
    run = Run(job)
    await run()
    for record in run.records:
        print(json.dumps(record))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu_s": usage.ru_utime + usage.ru_stime}))


if __name__ == "__main__":
    uvloop.run(main())
