"""EngineCalls: runs one call of a path on the engines, and writes the answer as vLLM does."""

import time
from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from backends.engine.http.requests import EngineCall
from backends.engine.http.responses import EngineReply, Json
from backends.engine.http.serving import Serving
from backends.engine.http.wire import EngineLimits
from backends.engine.options import EngineOptions

Parse = Callable[[bytes, str, EngineLimits], EngineCall]


class EngineCalls:
    """The handler of those calls to an EngineServer that ask for generated text. It parses a call, runs it on the
    simulated engines, and writes the reply as vLLM does.
    """

    def __init__(self, serving: Serving, options: EngineOptions) -> None:
        self.serving = serving
        self.options = options

    async def complete(
        self, request: web.Request, parse: Parse, reply_of: type[EngineReply], id_prefix: str
    ) -> web.StreamResponse:
        data = await request.read()
        with self.serving.limits() as limits:
            call = parse(data, content_type(request), limits)
        base = header(request, "X-Request-Id") or call.request_id or self.serving.new_id()
        return await self.run(request, reply_of(**self.about(call), id=f"{id_prefix}-{base}"))

    async def run(self, request: web.Request, reply: EngineReply) -> web.StreamResponse:
        priority = _integer(request.headers.get("X-Vllm-Priority"))
        priority = reply.call.priority if priority is None else priority
        candidates = self.serving.candidates(rank(request))
        if reply.call.stream:
            return await self.serving.stream(request, reply, candidates, priority)
        return json_response(await self.serving.whole(reply, candidates, priority))

    async def said(self, request: web.Request, say: Callable[[bytes, str, EngineLimits], Json]) -> web.Response:
        data = await request.read()
        with self.serving.limits() as limits:
            return json_response(say(data, content_type(request), limits))

    def about(self, call: EngineCall) -> dict[str, Any]:
        model = call.model or self.options.model
        return {"created": int(time.time()), "model": model, "call": call, "answers": self.serving.answers(call)}


def json_response(body: Json, *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, headers={"Content-Type": "application/json"})


def content_type(request: web.Request) -> str:
    return request.headers.get("Content-Type", "")


def rank(request: web.Request) -> int | None:
    return _integer(request.headers.get("X-data-parallel-rank"))


def header(request: web.Request, name: str) -> str:
    """Read a header as vLLM's framework does: each byte becomes one character."""
    return request.headers.get(name, "").encode(errors="surrogateescape").decode("latin-1")


def _integer(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
