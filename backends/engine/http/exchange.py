"""Exchange: one HTTP request inside the engines, where several sequences advance and one handler writes.

The engine reports every token and never waits. The handler wakes when it can send an event (for a non-streamed answer,
when the answer is complete) and takes all events so far.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from backends.engine.http.exposition import EngineMeters
from backends.engine.http.responses import EngineReply
from backends.engine.realtime import PacedEngine


@dataclass(slots=True)
class Choice:
    """One of the n sequences of an HTTP call: its tokens so far, and the engine that runs it. Mutable."""

    exchange: "EngineExchange"
    index: int
    tokens_max: int
    finish_reason: str
    engine: PacedEngine
    engine_id: str
    meters: EngineMeters
    tokens: int = 0

    def prefilled(self, cached_tokens: int) -> None:
        self.exchange.prefilled(cached_tokens)

    def token(self) -> None:
        self.tokens += 1
        if self.tokens == self.tokens_max:
            self.meters.finished[self.finish_reason] += 1
        self.exchange.progressed(self)


class EngineExchange:
    """One HTTP call while it runs in the engines, and its events that the handler has not taken yet."""

    def __init__(self, *, streaming: bool) -> None:
        self.choices: list[Choice] = []
        self.cached_tokens: int | None = None
        self._streaming = streaming
        self._events: list[tuple[int, int]] = []
        self._unfinished = 0
        self._wake: asyncio.Future[None] | None = None

    def add(self, choice: Choice) -> None:
        self.choices.append(choice)
        self._unfinished += 1

    def prefilled(self, cached_tokens: int) -> None:
        if self.cached_tokens is None:
            self.cached_tokens = cached_tokens

    def progressed(self, choice: Choice) -> None:
        self._events.append((choice.index, choice.tokens))
        self._unfinished -= choice.tokens == choice.tokens_max
        if self._wake is not None and not self._wake.done() and (self._streaming or not self._unfinished):
            self._wake.set_result(None)

    @property
    def done(self) -> bool:
        """Whether all choices have finished and their events were taken."""
        return not self._unfinished and not self._events

    async def events(self) -> list[tuple[int, int]]:
        """Wait for events (choice, number of its tokens so far), one per token; without streaming, wait for all of
        them.
        """
        if self._unfinished and not (self._streaming and self._events):
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        events, self._events = self._events, []
        return events


class Chunks:
    """A converter of the tokens of a reply into the events of its stream. For each choice, the first event has one
    token, the next ones `interval` tokens each, and the last one the rest.
    """

    def __init__(self, reply: EngineReply, *, interval: int) -> None:
        self._reply = reply
        self._interval = interval
        self._opened = False
        self.sent = [0] * len(reply.answers)

    def take(self, events: list[tuple[int, int]]) -> Iterator[bytes]:
        """Yield the events to send for these tokens."""
        if events and not self._opened:
            self._opened = True
            yield self._reply.begun()
        for choice, tokens in events:
            sent = self.sent[choice]
            if not sent or tokens - sent >= self._interval or tokens == self._reply.answers[choice].tokens:
                self.sent[choice] = tokens
                yield self._reply.tokens(choice, sent, tokens)
