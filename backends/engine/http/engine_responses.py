"""EngineResponses: the handlers of vLLM's Responses API: answers that are kept, and computed in the background."""

import asyncio
from collections import OrderedDict
from typing import Any

from aiohttp import web

from backends.engine.http import response_api
from backends.engine.http.engine_calls import EngineCalls, content_type, json_response, rank
from backends.engine.http.response_api import ResponseReply
from backends.engine.http.responses import Json
from backends.engine.http.wire import WireError

RESPONSES_STORED_MAX = 1000


class EngineResponses:
    """The responses of an embedded server. Create it on the event loop that serves it."""

    def __init__(self, calls: EngineCalls) -> None:
        self._calls = calls
        self._serving, self._options = calls.serving, calls.options
        self._responses: OrderedDict[str, Json] = OrderedDict()  # by id, if responses are stored
        self._background: dict[str, asyncio.Task[None]] = {}

    async def stop(self) -> None:
        for task in list(self._background.values()):
            task.cancel()
        await asyncio.gather(*self._background.values(), return_exceptions=True)

    async def response(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        stores = self._options.responses_stored
        with self._serving.limits() as limits:
            call, body = response_api.parse_response(data, content_type(request), limits, stores=stores)
        id_ = call.request_id or f"resp_{self._serving.new_id()}"
        reply = ResponseReply(**self._calls.about(call), id=id_, body=body)
        if body.background:
            return json_response(self._begin(reply, request))
        answer = await self._calls.run(request, reply)
        if stores and body.store:
            self._store(reply.whole(None))
        return answer

    async def stored(self, request: web.Request) -> web.Response:
        return json_response(self._stored(request.match_info["id"]))

    async def cancel(self, request: web.Request) -> web.Response:
        response = self._stored(request.match_info["id"])
        if response["status"] not in {"queued", "in_progress"}:
            raise WireError("Cannot cancel a synchronous response.", kind="invalid_request_error", param="response_id")
        self._store({**response, "status": "cancelled"})
        self._background[response["id"]].cancel()
        return json_response(self._responses[response["id"]])

    def _begin(self, reply: ResponseReply, request: web.Request) -> Json:
        """Answer a background response at once, and compute it in a task."""
        self._store(reply.said("in_progress"))
        candidates = self._serving.candidates(rank(request))
        task = asyncio.create_task(self._go_on(reply, candidates), name=reply.id)
        self._background[reply.id] = task
        task.add_done_callback(lambda _: self._background.pop(reply.id, None))
        return reply.said("queued")

    async def _go_on(self, reply: ResponseReply, candidates: list[Any]) -> None:
        self._store(await self._serving.whole(reply, candidates, reply.call.priority))

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
