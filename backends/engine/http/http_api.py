"""HTTP handlers of vLLM's paths: parse the call as vLLM does, run it on the engines, write the answer as vLLM does."""

import time

from aiohttp import web

from backends.engine.http import input_api, message_api
from backends.engine.http.engine_calls import EngineCalls, content_type, header, json_response, rank
from backends.engine.http.exposition import CONTENT_TYPE
from backends.engine.http.requests import EngineCall, parse_batch, parse_chat, parse_completion
from backends.engine.http.response_api import ResponseReply, not_found, parse_response
from backends.engine.http.responses import VLLM_VERSION, ChatShape, CompletionShape, model_list


class EngineApi:
    """The HTTP handlers of an EngineServer, which answers vLLM's API from simulated engines. Create it on the event
    loop that serves it.
    """

    def __init__(self, calls: EngineCalls) -> None:
        self.calls, self.serving, self.options = calls, calls.serving, calls.options

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self.calls.complete(request, parse_chat, ChatShape, "chatcmpl")

    async def batch(self, request: web.Request) -> web.StreamResponse:
        return await self.calls.complete(request, parse_batch, ChatShape, "chatcmpl")

    async def completion(self, request: web.Request) -> web.StreamResponse:
        return await self.calls.complete(request, parse_completion, CompletionShape, "cmpl")

    async def response(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        with self.serving.limits() as limits:
            call, body = parse_response(data, content_type(request), limits)
        id_ = call.request_id or f"resp_{self.serving.new_id()}"
        return await self.calls.run(request, ResponseReply(**self.calls.about(call), id=id_, body=body))

    async def stored_response(self, request: web.Request) -> web.Response:
        raise not_found(request.match_info["id"])

    async def cancel_response(self, request: web.Request) -> web.Response:
        raise not_found(request.match_info["id"])

    async def message(self, request: web.Request) -> web.StreamResponse:
        return await self.calls.complete(request, message_api.parse_message, message_api.MessageReply, "chatcmpl")

    async def count_tokens(self, request: web.Request) -> web.Response:
        return await self.calls.said(request, message_api.count_tokens)

    async def tokenize(self, request: web.Request) -> web.Response:
        return await self.calls.said(request, input_api.tokenize)

    async def detokenize(self, request: web.Request) -> web.Response:
        return await self.calls.said(request, input_api.detokenize)

    async def embedding(self, request: web.Request) -> web.Response:
        """Handle a call for an embedding: the engine computes the prompt, and one token that is not shown."""
        data = await request.read()
        with self.serving.limits() as limits:
            prompts, body = input_api.parse_embedding(data, content_type(request), limits)
        call = EngineCall(model=body.model, prompts=prompts, tokens_max=(1,) * len(prompts))
        id_ = f"embd-{header(request, 'X-Request-Id') or self.serving.new_id()}"
        reply = CompletionShape(**self.calls.about(call), id=id_)
        await self.serving.whole(reply, self.serving.candidates(rank(request)), 0)
        return json_response(input_api.embeddings(prompts, body, id_=id_, created=reply.created, model=reply.model))

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
