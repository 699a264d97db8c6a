"""Execution of HTTP requests on the engines: a reply runs as one or several sequences, streamed or not.

When a handler ends, its unfinished sequences are aborted at once, as in vLLM.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import blake2b

from aiohttp import web

from backends.engine.batching import BATCHING
from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine, EngineSnapshot
from backends.engine.http.exchange import Choice, Chunks, EngineExchange
from backends.engine.http.exposition import CacheConfig, EngineMeters, render
from backends.engine.http.requests import EngineCall
from backends.engine.http.responses import EngineReply, Json
from backends.engine.http.wire import EngineLimits, WireError
from backends.engine.options import EngineOptions
from backends.engine.realtime import PacedEngine, least_loaded
from backends.engine.sequence import EngineRequest
from backends.engine.slots import SlotOrder
from backends.engine.text import AnswerText, make_answer


class Serving:
    """The simulated engines of one EngineServer, with methods that produce replies on them. Create it on the event loop
    that serves it.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.rejections: Counter[str] = Counter()
        self.engines: dict[PacedEngine, EngineMeters] = {}
        models = (options.model, *options.adapters)
        self._limits_idle = EngineLimits(models, options.max_model_len, options.block_tokens)
        loop = asyncio.get_running_loop()
        for _ in range(options.engines):
            meters = EngineMeters()
            paced = PacedEngine(self.make_engine(options), loop=loop, speed=options.speed, on_step=meters.step)
            self.engines[paced] = meters
        self._ids = self._runs = 0

    def make_engine(self, options: EngineOptions, order: SlotOrder | None = None) -> Engine:
        kv_tokens_max = options.blocks_per_engine * options.block_tokens
        coefficients = COEFFICIENTS[options.coefficients]
        return Engine(
            coefficients,
            kv_tokens_max=kv_tokens_max,
            block_tokens=options.block_tokens,
            requests_running_max=options.requests_running_max // options.engines,
            order=order,
            batching=BATCHING[options.batching](coefficients, kv_tokens_max, options.chunk_tokens_max),
        )

    def snapshots(self) -> list[EngineSnapshot]:
        """Return the state of the engines, in the order of their labels."""
        return [paced.engine.snapshot() for paced in self.engines]

    def metrics(self) -> str:
        options = self.options
        return render(
            [(paced.engine.snapshot(), meters) for paced, meters in self.engines.items()],
            model=options.model,
            cache=CacheConfig(options.block_tokens, options.blocks_per_engine, options.max_model_len),
            rejections=self.rejections,
        )

    @contextmanager
    def limits(self) -> Iterator[EngineLimits]:
        """Provide the present limits, and count the requests that are rejected by them."""
        queued_max = self.options.max_num_queued_reqs
        in_flight = sum(paced.requests_in_flight for paced in self.engines)
        choices_free = None if queued_max is None else max(0, queued_max - in_flight)
        try:
            yield replace(self._limits_idle, choices_free=choices_free)
        except WireError as error:
            self.rejections["max_num_queued_reqs"] += error.status == 503
            raise

    def candidates(self, rank: int | None) -> list[PacedEngine]:
        """Return the engines that a request may run on: the engine with the number `rank`, or all (None). Raises
        WireError for an unknown rank.
        """
        engines = list(self.engines)
        if rank is None:
            return engines
        if not 0 <= rank < len(engines):
            raise WireError(f"data_parallel_rank {rank} is out of range [0, {len(engines)}).")
        return [engines[rank]]

    def new_id(self) -> str:
        self._ids += 1
        return blake2b(f"{self.options.seed}/{self._ids}".encode(), digest_size=8).hexdigest()

    def answers(self, call: EngineCall) -> tuple[AnswerText, ...]:
        """Make the answers to a call, all known before the first token is due."""
        return tuple(
            make_answer(
                call.prompts[index // call.n],
                seed=f"{self.options.seed}/{call.seed}/{index}",
                tokens_max=call.tokens_max[index // call.n],
                tokens_min=call.tokens_min,
                tokens_mean=None if call.ignore_eos else self.options.output_tokens_mean,
                stops=call.stops,
            )
            for index in range(len(call.prompts) * call.n)
        )

    async def whole(self, reply: EngineReply, candidates: list[PacedEngine], priority: int) -> Json:
        """Run a reply to its end and return its body."""
        with self._running(reply, candidates, priority) as exchange:
            await exchange.events()
            return reply.whole(self._cached_tokens(exchange))

    async def stream(
        self, request: web.Request, reply: EngineReply, candidates: list[PacedEngine], priority: int
    ) -> web.StreamResponse:
        """Run a reply and stream it to the client. A disconnect aborts it."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        # A ConnectionError: a disconnect that the loop has not reported yet.
        with self._running(reply, candidates, priority) as exchange, suppress(ConnectionError):
            await response.prepare(request)
            if accepted := reply.accepted():
                await response.write(accepted)
            await self.write(request, response, reply, exchange)
        return response

    async def write(
        self, request: web.Request, response: web.StreamResponse, reply: EngineReply, exchange: EngineExchange
    ) -> None:
        chunks = Chunks(reply, interval=max(reply.call.stream_interval, self.options.stream_interval))
        while not exchange.done:
            await response.write(b"".join(chunks.take(await exchange.events())))
        await response.write(reply.ended(self._cached_tokens(exchange)))

    @contextmanager
    def _running(self, reply: EngineReply, candidates: list[PacedEngine], priority: int) -> Iterator[EngineExchange]:
        """Submit every choice of a reply; abort the unfinished ones when the handler ends."""
        exchange = EngineExchange(streaming=reply.call.stream)
        self._runs += 1
        try:
            for index, answer in enumerate(reply.answers):
                paced = least_loaded(candidates)
                prompt = reply.prompt(index)
                engine_id = f"{reply.id}-{index}-{self._runs}"
                choice = Choice(
                    exchange, index, answer.tokens, answer.finish_reason, paced, engine_id, self.engines[paced]
                )
                exchange.add(choice)
                paced.submit(EngineRequest(engine_id, prompt.tokens, answer.tokens, prompt.prefix, priority), choice)
            yield exchange
        finally:
            for choice in exchange.choices:
                choice.engine.abort(choice.engine_id)

    def _cached_tokens(self, exchange: EngineExchange) -> int | None:
        return exchange.cached_tokens if self.options.prompt_tokens_details else None
