"""The embedded engine behind vLLM's HTTP face, in real time: the default backend and every test's fake.

It answers with made-up words, and means everything else: queueing, batching, memory, preemption,
metrics and errors are those of a vLLM server with the same limits.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from hmac import compare_digest
from http import HTTPStatus

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from backends.engine import exposition
from backends.engine.batching import BATCHING, CHUNK_TOKENS_MAX
from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import BLOCK_TOKENS, Engine, EngineSnapshot
from backends.engine.exchange import Choice, Chunks, Exchange
from backends.engine.realtime import PacedEngine, least_loaded
from backends.engine.requests import Call, Limits, WireError, parse_chat, parse_completion
from backends.engine.responses import (
    DONE,
    VLLM_VERSION,
    ChatShape,
    CompletionShape,
    Json,
    Shape,
    event,
    model_list,
)
from backends.engine.seats import ORDERS
from backends.engine.sequence import EngineRequest
from backends.engine.text import Answer, make_answer

BODY_BYTES_MAX = 64 * 2**20
KEEPALIVE_S = 5.0
"""Idle connections are closed after as long as vLLM's (uvicorn's) are."""
STOP_S_MAX = 0.05
"""What handlers get to end by themselves when the server stops."""
GUARDED_PREFIXES = ("/v1", "/v2", "/inference", "/cohere")
ENGINE_DEAD: Json = {
    "error": {
        "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What the server is. Sizes are of all engines together and split evenly; faults are for tests."""

    model: str = "embedded"
    coefficients: str = "a10g-llama3.2-3b"
    """A name in COEFFICIENTS."""
    max_model_len: int = 8192
    kv_tokens_max: int | None = None
    """KV pool; None for what the coefficients say."""
    block_tokens: int = BLOCK_TOKENS
    requests_running_max: int = 256
    chunk_tokens_max: int = CHUNK_TOKENS_MAX
    batching: str = "chunked-prefill"
    """What a step computes, a name in BATCHING."""
    order: str = "fcfs"
    """Scheduling policy, a name in ORDERS: fcfs or priority."""
    engines: int = 1
    speed: float = 1.0
    """How many times faster than the model it stands for."""
    seed: int = 0
    output_tokens_mean: int | None = 128
    """Mean of exponential answer lengths; None: every answer runs to its max_tokens."""
    api_key: str | None = None
    max_num_queued_reqs: int | None = None
    """Most sequences in flight, waiting or running, before requests are answered with 503."""
    prompt_tokens_details: bool = False
    """Report cached_tokens."""
    stream_interval: int = 1
    """Tokens per chunk after the first."""
    continuous_usage: bool = True
    """False: ignore continuous_usage_stats, as other servers do."""
    cut_stream_after_tokens: int | None = None
    """Drop the connection of a stream once it carried so many tokens."""
    fail_stream_after_tokens: int | None = None
    """End a stream as vLLM does when its engine process dies: an error event, then [DONE]."""

    def __post_init__(self) -> None:
        """ValueError: an option that no server could start with."""
        if self.coefficients not in COEFFICIENTS:
            raise ValueError(f"no coefficients {self.coefficients!r}; there are {', '.join(COEFFICIENTS)}")
        if self.batching not in BATCHING:
            raise ValueError(f"no batching {self.batching!r}; there are {', '.join(BATCHING)}")
        if self.order not in ORDERS:
            raise ValueError(f"no order {self.order!r}; there are {', '.join(ORDERS)}")
        for name in ("engines", "max_model_len", "block_tokens", "chunk_tokens_max", "stream_interval"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.output_tokens_mean is not None and self.output_tokens_mean < 1:
            raise ValueError(f"output_tokens_mean must be at least 1, got {self.output_tokens_mean}")
        if self.requests_running_max < self.engines:
            raise ValueError("every engine needs at least one seat")
        if self.speed <= 0:
            raise ValueError(f"speed must be positive, got {self.speed}")
        if self.blocks_per_engine * self.block_tokens < self.max_model_len:
            raise ValueError(f"a KV pool must hold one request of max_model_len={self.max_model_len} tokens")

    @property
    def blocks_per_engine(self) -> int:
        tokens = self.kv_tokens_max or COEFFICIENTS[self.coefficients].kv_tokens_max
        return tokens // self.engines // self.block_tokens


class EngineFace:
    """Engines, and the handlers that speak for them. Created on the loop that serves it."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self._limits_idle = Limits((options.model,), options.max_model_len, options.block_tokens)
        self.rejections: Counter[str] = Counter()
        self.engines: dict[PacedEngine, exposition.EngineMeters] = {}
        loop = asyncio.get_running_loop()
        for _ in range(options.engines):
            meters = exposition.EngineMeters()
            paced = PacedEngine(_engine(options), loop=loop, speed=options.speed, on_step=meters.step)
            self.engines[paced] = meters
        self._exchanges = 0

    def snapshots(self) -> list[EngineSnapshot]:
        """Look at the engines, in the order of their labels."""
        return [paced.engine.snapshot() for paced in self.engines]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        with self._limits() as limits:
            call = parse_chat(body, request.headers.get("Content-Type", ""), limits)
        return await self._answer(request, call, ChatShape, "chatcmpl")

    async def completion(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        with self._limits() as limits:
            call = parse_completion(body, request.headers.get("Content-Type", ""), limits)
        return await self._answer(request, call, CompletionShape, "cmpl")

    async def models(self, _: web.Request) -> web.Response:
        return _json(model_list(self.options.model, self.options.max_model_len, int(time.time())))

    async def healthy(self, _: web.Request) -> web.Response:
        return web.Response()

    async def version(self, _: web.Request) -> web.Response:
        return _json({"version": VLLM_VERSION})

    async def load(self, _: web.Request) -> web.Response:
        return _json({"server_load": 0})  # vLLM counts only when it is told to

    async def metrics(self, _: web.Request) -> web.Response:
        options = self.options
        text = exposition.render(
            [(paced.engine.snapshot(), meters) for paced, meters in self.engines.items()],
            model=options.model,
            cache=exposition.CacheConfig(options.block_tokens, options.blocks_per_engine, options.max_model_len),
            rejections=self.rejections,
        )
        return web.Response(body=text.encode(), headers={"Content-Type": exposition.CONTENT_TYPE})

    async def _answer(
        self, request: web.Request, call: Call, shape_of: type[Shape], id_prefix: str
    ) -> web.StreamResponse:
        if not self.options.continuous_usage:
            call = replace(call, continuous_usage=False)
        candidates = self._candidates(request)
        self._exchanges += 1
        base = _header(request, "X-Request-Id") or call.request_id or self._made_up_id()
        shape = shape_of(
            id=f"{id_prefix}-{base}",
            created=int(time.time()),
            model=self.options.model,
            call=call,
            answers=tuple(self._answers(call)),
        )
        priority = _integer(request.headers.get("X-Vllm-Priority"))
        with self._running(shape, candidates, call.priority if priority is None else priority) as exchange:
            if call.stream:
                response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
                with suppress(ConnectionError):  # the client left, and the loop has not said so yet
                    await self._stream(request, response, shape, exchange)
                return response
            await exchange.events()
            return _json(shape.whole(self._cached_tokens(exchange)))

    async def _stream(
        self, request: web.Request, response: web.StreamResponse, shape: Shape, exchange: Exchange
    ) -> None:
        chunks = Chunks(shape, interval=max(shape.call.stream_interval, self.options.stream_interval))
        await response.prepare(request)
        while not exchange.done:
            await response.write(b"".join(chunks.take(await exchange.events())))
            if _reached(self.options.cut_stream_after_tokens, chunks.sent):
                if request.transport is not None:
                    request.transport.abort()
                return
            if _reached(self.options.fail_stream_after_tokens, chunks.sent):
                await response.write(event(ENGINE_DEAD) + DONE)
                return
        if shape.call.include_usage:
            await response.write(event(shape.closing(self._cached_tokens(exchange))))
        await response.write(DONE)

    @contextmanager
    def _running(self, shape: Shape, candidates: list[PacedEngine], priority: int) -> Iterator[Exchange]:
        """Submit every choice; whatever is unfinished when the handler leaves is aborted at once."""
        exchange = Exchange(streaming=shape.call.stream)
        try:
            for index, answer in enumerate(shape.answers):
                paced = least_loaded(candidates)
                prompt = shape.prompt(index)
                engine_id = f"{shape.id}-{index}-{self._exchanges}"
                choice = Choice(
                    exchange, index, answer.tokens, answer.finish_reason, paced, engine_id, self.engines[paced]
                )
                exchange.add(choice)
                paced.submit(EngineRequest(engine_id, prompt.tokens, answer.tokens, prompt.prefix, priority), choice)
            yield exchange
        finally:
            for choice in exchange.choices:
                choice.engine.abort(choice.engine_id)

    def _answers(self, call: Call) -> Iterator[Answer]:
        for index in range(len(call.prompts) * call.n):
            yield make_answer(
                call.prompts[index // call.n],
                seed=f"{self.options.seed}/{call.seed}/{index}",
                tokens_max=call.tokens_max[index // call.n],
                tokens_min=call.tokens_min,
                tokens_mean=None if call.ignore_eos else self.options.output_tokens_mean,
                stops=call.stops,
            )

    def _candidates(self, request: web.Request) -> list[PacedEngine]:
        """List the engines a request may go to: the one its header names, or all."""
        engines = list(self.engines)
        rank = _integer(request.headers.get("X-data-parallel-rank"))
        if rank is None:
            return engines
        if not 0 <= rank < len(engines):
            raise WireError(f"data_parallel_rank {rank} is out of range [0, {len(engines)}).")
        return [engines[rank]]

    @contextmanager
    def _limits(self) -> Iterator[Limits]:
        """Lend the limits of this moment, and count what they turn away."""
        queued_max = self.options.max_num_queued_reqs
        in_flight = sum(paced.requests_in_flight for paced in self.engines)
        choices_free = None if queued_max is None else max(0, queued_max - in_flight)
        try:
            yield replace(self._limits_idle, choices_free=choices_free)
        except WireError as error:
            self.rejections["max_num_queued_reqs"] += error.status == HTTPStatus.SERVICE_UNAVAILABLE
            raise

    def _cached_tokens(self, exchange: Exchange) -> int | None:
        return exchange.cached_tokens if self.options.prompt_tokens_details else None

    def _made_up_id(self) -> str:
        return blake2b(f"{self.options.seed}/{self._exchanges}".encode(), digest_size=8).hexdigest()


def make_app(face: EngineFace) -> web.Application:
    """Routes of a vLLM server. Whatever else is asked gets its 404 or 405."""
    app = web.Application(middlewares=[_authenticate(face.options.api_key), _errors], client_max_size=BODY_BYTES_MAX)
    app.add_routes(
        [
            web.post("/v1/chat/completions", face.chat),
            web.post("/v1/completions", face.completion),
            web.get("/v1/models", face.models, allow_head=False),
            web.get("/health", face.healthy, allow_head=False),
            web.get("/ping", face.healthy, allow_head=False),
            web.post("/ping", face.healthy),
            web.get("/version", face.version, allow_head=False),
            web.get("/load", face.load, allow_head=False),
            web.get("/metrics", face.metrics, allow_head=False),
        ]
    )
    return app


class EngineServer:
    """A running server: `start` it on the loop that uses it, `stop` it to drop what is in flight."""

    def __init__(self, options: EngineOptions | None = None) -> None:
        self._options = options or EngineOptions()
        self._runner: web.AppRunner | None = None
        self._face: EngineFace | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve, and say where: the URL without a slash at its end. OSError: the port is taken."""
        self._face = EngineFace(self._options)
        self._runner = web.AppRunner(
            make_app(self._face),
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=STOP_S_MAX,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        bound_host, bound_port = self._runner.addresses[0][:2]
        return f"http://{bound_host}:{bound_port}"

    async def stop(self) -> None:
        """Close all connections, whatever they are in the middle of."""
        if self._face is None or self._runner is None:
            return
        for paced in self._face.engines:
            paced.stop()
        await self._runner.cleanup()

    def snapshots(self) -> list[EngineSnapshot]:
        """Look at the engines of a started server."""
        assert self._face is not None, "start the server first"
        return self._face.snapshots()


def _engine(options: EngineOptions) -> Engine:
    kv_tokens_max = options.blocks_per_engine * options.block_tokens
    return Engine(
        COEFFICIENTS[options.coefficients],
        kv_tokens_max=kv_tokens_max,
        block_tokens=options.block_tokens,
        requests_running_max=options.requests_running_max // options.engines,
        batching=BATCHING[options.batching](kv_tokens_max, options.chunk_tokens_max),
        order=ORDERS[options.order](),
    )


def _authenticate(api_key: str | None) -> Middleware:
    expected = (api_key or "").encode()

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        guarded = api_key is not None and request.path.startswith(GUARDED_PREFIXES) and request.method != "OPTIONS"
        if guarded:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not compare_digest(token.encode(errors="replace"), expected):
                return _json({"error": "Unauthorized"}, status=401)
        return await handler(request)

    return authenticate


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except WireError as error:
        return _json(error.body, status=error.status)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed, web.HTTPRequestEntityTooLarge) as error:
        response = _json({"detail": HTTPStatus(error.status).phrase}, status=error.status)
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response


def _json(body: Json, *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, headers={"Content-Type": "application/json"})


def _reached(tokens_max: int | None, sent: list[int]) -> bool:
    return tokens_max is not None and sum(sent) >= tokens_max


def _header(request: web.Request, name: str) -> str:
    """Read a header as vLLM's framework does: any byte is a letter."""
    return request.headers.get(name, "").encode(errors="surrogateescape").decode("latin-1")


def _integer(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
