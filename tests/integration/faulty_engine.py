"""An EngineServer with what only tests need of a vLLM server: stored responses, an API key, and faults."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, replace
from hmac import compare_digest

from aiohttp import web

from backends.engine.http.engine_calls import EngineCalls, content_type, json_response, rank
from backends.engine.http.exchange import Chunks
from backends.engine.http.http_api import EngineApi
from backends.engine.http.response_api import ResponseReply, not_found, parse_response
from backends.engine.http.responses import DONE, event
from backends.engine.http.server import EngineOptions, EngineServer
from backends.engine.http.serving import Serving
from backends.engine.http.wire import WireError
from tests.priority_order import ORDERS

RESPONSES_STORED_MAX = 1000
GUARDED_PREFIXES = ("/v1", "/v2", "/inference", "/cohere")
ENGINE_DEAD = {
    "error": {
        "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyOptions(EngineOptions):
    api_key: str | None = None
    order: str = "fcfs"
    """A name in ORDERS."""
    responses_stored: bool = False
    """Keep responses to be asked for by id, and take them in the background (VLLM_ENABLE_RESPONSES_API_STORE)."""
    continuous_usage: bool = True
    """False: ignore continuous_usage_stats, as other servers do."""
    cut_stream_after_tokens: int | None = None
    """Drop the connection of a stream once it has carried this many tokens."""
    fail_stream_after_tokens: int | None = None
    """End a stream as vLLM does when its engine process dies: an error event, then [DONE]."""


class FaultyServer(EngineServer):
    def __init__(self, **options) -> None:
        super().__init__(FaultyOptions(**options))

    def make_api(self, options):
        return FaultyApi(FaultyCalls(FaultyServing(options), options))

    def make_app(self, api):
        app = super().make_app(api)
        app.middlewares.insert(0, _authenticate(api.options.api_key))
        return app


class FaultyServing(Serving):
    def make_engine(self, options, order=None):
        return super().make_engine(options, ORDERS[options.order]())

    async def write(self, request, response, reply, exchange):
        options = self.options
        if options.cut_stream_after_tokens is None and options.fail_stream_after_tokens is None:
            await super().write(request, response, reply, exchange)
            return
        chunks = Chunks(reply, interval=max(reply.call.stream_interval, options.stream_interval))
        while not exchange.done:
            await response.write(b"".join(chunks.take(await exchange.events())))
            if _reached(options.cut_stream_after_tokens, chunks.sent):
                if request.transport is not None:
                    request.transport.abort()
                return
            if _reached(options.fail_stream_after_tokens, chunks.sent):
                await response.write(event(ENGINE_DEAD) + DONE)
                return
        await response.write(reply.ended(self._cached_tokens(exchange)))


class FaultyCalls(EngineCalls):
    def about(self, call):
        return super().about(call if self.options.continuous_usage else replace(call, continuous_usage=False))


class FaultyApi(EngineApi):
    """Create it on the event loop that serves it."""

    def __init__(self, calls) -> None:
        super().__init__(calls)
        self._responses = OrderedDict()  # by id, if responses are stored
        self._background = {}

    async def stop(self):
        await super().stop()
        for task in list(self._background.values()):
            task.cancel()
        await asyncio.gather(*self._background.values(), return_exceptions=True)

    async def response(self, request):
        if not self.options.responses_stored:
            return await super().response(request)
        data = await request.read()
        with self.serving.limits() as limits:
            call, body = parse_response(data, content_type(request), limits, stores=True)
        id_ = call.request_id or f"resp_{self.serving.new_id()}"
        reply = ResponseReply(**self.calls.about(call), id=id_, body=body)
        if body.background:
            return json_response(self._begin(reply, request))
        answer = await self.calls.run(request, reply)
        if body.store:
            self._store(reply.whole(None))
        return answer

    async def stored_response(self, request):
        return json_response(self._stored(request.match_info["id"]))

    async def cancel_response(self, request):
        response = self._stored(request.match_info["id"])
        if response["status"] not in {"queued", "in_progress"}:
            raise WireError("Cannot cancel a synchronous response.", kind="invalid_request_error", param="response_id")
        self._store({**response, "status": "cancelled"})
        self._background[response["id"]].cancel()
        return json_response(self._responses[response["id"]])

    def _begin(self, reply, request):
        """Answer a background response at once, and compute it in a task."""
        self._store(reply.said("in_progress"))
        candidates = self.serving.candidates(rank(request))
        task = asyncio.create_task(self._go_on(reply, candidates), name=reply.id)
        self._background[reply.id] = task
        task.add_done_callback(lambda _: self._background.pop(reply.id, None))
        return reply.said("queued")

    async def _go_on(self, reply, candidates):
        self._store(await self.serving.whole(reply, candidates, reply.call.priority))

    def _store(self, response):
        self._responses[response["id"]] = response
        if len(self._responses) > RESPONSES_STORED_MAX:
            self._responses.popitem(last=False)

    def _stored(self, id_):
        if id_ not in self._responses:
            raise not_found(id_)
        return self._responses[id_]


def _authenticate(api_key):
    expected = (api_key or "").encode()

    @web.middleware
    async def authenticate(request, handler):
        guarded = api_key is not None and request.path.startswith(GUARDED_PREFIXES) and request.method != "OPTIONS"
        if guarded:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not compare_digest(token.encode(errors="replace"), expected):
                return json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    return authenticate


def _reached(tokens_max, sent):
    return tokens_max is not None and sum(sent) >= tokens_max
