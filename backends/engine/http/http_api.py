"""HTTP handlers of vLLM's paths: parse the call as vLLM does, run it on the engines, write the answer as vLLM does."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
from aiohttp import web

from backends.engine.http import input_api, message_api, response_api
from backends.engine.http.exposition import CONTENT_TYPE
from backends.engine.http.requests import EngineCall, parse_batch, parse_chat, parse_completion
from backends.engine.http.response_api import ResponseReply
from backends.engine.http.responses import VLLM_VERSION, ChatShape, CompletionShape, EngineReply, Json, model_list
from backends.engine.http.serving import Serving
from backends.engine.http.wire import EngineLimits, WireError
from backends.engine.options import EngineOptions

RESPONSES_STORED_MAX = 1000

Parse = Callable[[bytes, str, EngineLimits], EngineCall]


class EngineApi:
    """The HTTP handlers of an embedded server. Create it on the event loop that serves it."""

    def __init__(self, options: EngineOptions) -> None:
        self.serving = Serving(options)
        self.options = options
        self._responses: OrderedDict[str, Json] = OrderedDict()  # by id, if responses are stored
        self._background: dict[str, asyncio.Task[None]] = {}

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, parse_chat, ChatShape, "chatcmpl")

    async def batch(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, parse_batch, ChatShape, "chatcmpl")

    async def completion(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, parse_completion, CompletionShape, "cmpl")

    async def message(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, message_api.parse_message, message_api.MessageReply, "chatcmpl")

    async def count_tokens(self, request: web.Request) -> web.Response:
        return await self._said(request, message_api.count_tokens)

    async def tokenize(self, request: web.Request) -> web.Response:
        return await self._said(request, input_api.tokenize)

    async def detokenize(self, request: web.Request) -> web.Response:
        return await self._said(request, input_api.detokenize)

    async def embedding(self, request: web.Request) -> web.Response:
        """Handle an embedding: compute a prompt, and one token that is not shown."""
        data = await request.read()
        with self.serving.limits() as limits:
            prompts, body = input_api.parse_embedding(data, _content_type(request), limits)
        call = EngineCall(model=body.model, prompts=prompts, tokens_max=(1,) * len(prompts))
        id_ = f"embd-{_header(request, 'X-Request-Id') or self.serving.new_id()}"
        reply = CompletionShape(**self._about(call), id=id_)
        await self.serving.whole(reply, self.serving.candidates(_rank(request)), 0)
        return json_response(input_api.embeddings(prompts, body, id_=id_, created=reply.created, model=reply.model))

    async def response(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        stores = self.options.responses_stored
        with self.serving.limits() as limits:
            call, body = response_api.parse_response(data, _content_type(request), limits, stores=stores)
        id_ = call.request_id or f"resp_{self.serving.new_id()}"
        reply = ResponseReply(**self._about(call), id=id_, body=body)
        if body.background:
            return json_response(self._begin(reply, request))
        answer = await self._run(request, reply)
        if stores and body.store:
            self._store(reply.whole(None))
        return answer

    async def stored_response(self, request: web.Request) -> web.Response:
        return json_response(self._stored(request.match_info["id"]))

    async def cancel_response(self, request: web.Request) -> web.Response:
        response = self._stored(request.match_info["id"])
        if response["status"] not in {"queued", "in_progress"}:
            raise WireError("Cannot cancel a synchronous response.", kind="invalid_request_error", param="response_id")
        self._store({**response, "status": "cancelled"})
        self._background[response["id"]].cancel()
        return json_response(self._responses[response["id"]])

    async def models(self, _: web.Request) -> web.Response:
        options = self.options
        return json_response(model_list(options.model, options.adapters, options.max_model_len, int(time.time())))

    async def healthy(self, _: web.Request) -> web.Response:
        return web.Response()

    async def version(self, _: web.Request) -> web.Response:
        return json_response({"version": VLLM_VERSION})

    async def load(self, _: web.Request) -> web.Response:
        return json_response({"server_load": 0})  # vLLM counts only if it is configured to

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.serving.metrics().encode(), headers={"Content-Type": CONTENT_TYPE})

    async def stop(self) -> None:
        for paced in self.serving.engines:
            paced.stop()
        for task in list(self._background.values()):
            task.cancel()
        await asyncio.gather(*self._background.values(), return_exceptions=True)

    async def _complete(
        self, request: web.Request, parse: Parse, reply_of: type[EngineReply], id_prefix: str
    ) -> web.StreamResponse:
        data = await request.read()
        with self.serving.limits() as limits:
            call = parse(data, _content_type(request), limits)
        if not self.options.continuous_usage:
            call = replace(call, continuous_usage=False)
        base = _header(request, "X-Request-Id") or call.request_id or self.serving.new_id()
        return await self._run(request, reply_of(**self._about(call), id=f"{id_prefix}-{base}"))

    async def _run(self, request: web.Request, reply: EngineReply) -> web.StreamResponse:
        priority = _integer(request.headers.get("X-Vllm-Priority"))
        priority = reply.call.priority if priority is None else priority
        candidates = self.serving.candidates(_rank(request))
        if reply.call.stream:
            return await self.serving.stream(request, reply, candidates, priority)
        return json_response(await self.serving.whole(reply, candidates, priority))

    async def _said(self, request: web.Request, say: Callable[[bytes, str, EngineLimits], Json]) -> web.Response:
        data = await request.read()
        with self.serving.limits() as limits:
            return json_response(say(data, _content_type(request), limits))

    def _about(self, call: EngineCall) -> dict[str, Any]:
        model = call.model or self.options.model
        return {"created": int(time.time()), "model": model, "call": call, "answers": self.serving.answers(call)}

    def _begin(self, reply: ResponseReply, request: web.Request) -> Json:
        """Answer a background response at once, and compute it in a task."""
        self._store(reply.said("in_progress"))
        candidates = self.serving.candidates(_rank(request))
        task = asyncio.create_task(self._go_on(reply, candidates), name=reply.id)
        self._background[reply.id] = task
        task.add_done_callback(lambda _: self._background.pop(reply.id, None))
        return reply.said("queued")

    async def _go_on(self, reply: ResponseReply, candidates: list[Any]) -> None:
        self._store(await self.serving.whole(reply, candidates, reply.call.priority))

    def _store(self, response: Json) -> None:
        self._responses[response["id"]] = response
        if len(self._responses) > RESPONSES_STORED_MAX:
            self._responses.popitem(last=False)

    def _stored(self, id_: str) -> Json:
        response = self._responses.get(id_)
        if response is None:
            message = f"Response with id '{id_}' not found."
            raise WireError(message, kind="invalid_request_error", status=404, param="response_id")
        return response


def json_response(body: Json, *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, headers={"Content-Type": "application/json"})


def _content_type(request: web.Request) -> str:
    return request.headers.get("Content-Type", "")


def _rank(request: web.Request) -> int | None:
    return _integer(request.headers.get("X-data-parallel-rank"))


def _header(request: web.Request, name: str) -> str:
    """Read a header as vLLM's framework does: each byte becomes one character."""
    return request.headers.get(name, "").encode(errors="surrogateescape").decode("latin-1")


def _integer(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
