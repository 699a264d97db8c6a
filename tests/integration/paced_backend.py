"""A backend that reports nothing of itself, and computes streams at a speed that a test changes while it runs.

Every stream in a slot gets a token each `token_s` seconds; where all slots are taken, others wait in the order in which
they came. A stream is sent its first token when it has its slot, and the others at its end: how long answers take is
what the gateway learns from here. Whole answers take no time.
"""

import asyncio
import contextlib
import json
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf

from gateway_rig import MODEL, ScriptedBackend, answer, whole
from listening import backend_listening

PROMPT_TOKENS = 9
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass(slots=True)
class _Stream:
    tokens: int
    began: asyncio.Future
    ended: asyncio.Future
    at_work: float = 0.0


@dataclass
class PacedBackend(ScriptedBackend):
    """`tokens` and `streams` are those computed until now; a part of a stream counts as such."""

    slots: float = inf
    streams: int = 0
    wholes: int = 0
    _token_s: float = 0.010
    _work: float = 0.0  # tokens that each stream in a slot has got
    _at: float = 0.0
    _ended_tokens: int = 0
    _inside: list[tuple[float, int, _Stream]] = field(default_factory=list)
    _line: deque[_Stream] = field(default_factory=deque)
    _numbers: count = field(default_factory=count)
    _timer: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        return len(self._inside) + len(self._line)

    @property
    def tokens(self) -> float:
        self._go_on()
        return self._ended_tokens + sum(self._work - stream.at_work for _, _, stream in self._inside)

    def set_token_s(self, token_s: float) -> None:
        self._go_on()
        self._token_s = token_s
        self._go_on()

    async def chat(self, reader, writer) -> bool:
        asked = json.loads(self.calls.pop().body)
        tokens = asked["max_tokens"]
        usage = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS + tokens, "completion_tokens": tokens}
        if not asked.get("stream"):
            self.wholes += 1
            message = {"role": "assistant", "content": "word " * tokens}
            writer.write(
                whole({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})
            )
            return True
        loop = asyncio.get_running_loop()
        stream = _Stream(tokens, loop.create_future(), loop.create_future())
        self._line.append(stream)
        self._go_on()
        await stream.began
        writer.write(HEAD + self._event({"content": "word "}))
        await stream.ended
        writer.write(self._event({"content": "word " * (tokens - 1)}, "length"))
        writer.write(self._event(None, usage=usage) + chunked("[DONE]") + b"0\r\n\r\n")
        return True

    def _event(self, delta, finish=None, **fields) -> bytes:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
        said = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": self.model, "choices": choices}
        return chunked(json.dumps(said | fields))

    def _go_on(self) -> None:
        """Compute until now, and wake up when the next stream ends."""
        now = asyncio.get_running_loop().time()
        self._work += (now - self._at) / self._token_s
        self._at = now
        while self._inside and self._inside[0][0] <= self._work:
            self._end(heappop(self._inside)[2])
        while self._line and len(self._inside) < self.slots:
            stream = self._line.popleft()
            stream.at_work = self._work
            heappush(self._inside, (self._work + stream.tokens, next(self._numbers), stream))
            settle(stream.began)
        if self._timer is not None:
            self._timer.cancel()
        if self._inside:
            left_s = (self._inside[0][0] - self._work) * self._token_s
            self._timer = asyncio.get_running_loop().call_later(left_s, self._go_on)

    def _end(self, stream: _Stream) -> None:
        self._ended_tokens += stream.tokens
        self.streams += 1
        settle(stream.ended)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await super().close()


def settle(future: asyncio.Future) -> None:
    if not future.done():  # its connection may be gone
        future.set_result(None)


def chunked(payload: str) -> bytes:
    event = f"data: {payload}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


@contextlib.asynccontextmanager
async def paced(*, model: str = MODEL, token_s: float, slots: float = inf):
    backend = PacedBackend(answer(), model=model, slots=slots, _token_s=token_s)
    backend.default = backend.chat
    async with backend_listening(backend):
        yield backend
