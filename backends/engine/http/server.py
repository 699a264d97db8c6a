"""Engine server: the embedded engine behind vLLM's HTTP API, in real time: the default backend, and the fake of all
tests.

Its answers are made-up words; everything else is as in vLLM. Queueing, batching, memory, preemption, metrics and errors
are those of a vLLM server with the same limits.
"""

from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler

from backends.engine.engine import EngineSnapshot
from backends.engine.http.engine_calls import EngineCalls, json_response
from backends.engine.http.http_api import EngineApi
from backends.engine.http.serving import Serving
from backends.engine.http.wire import WireError
from backends.engine.options import EngineOptions

__all__ = ["EngineOptions", "EngineServer"]

BODY_BYTES_MAX = 64 * 2**20
KEEPALIVE_S = 5.0
"""Idle connections are closed after as long as vLLM's (uvicorn's) are."""
STOP_S_MAX = 0.05
"""The time for handlers to end by themselves when the server stops."""


class EngineServer:
    """An HTTP server with vLLM's API over simulated engines (an embedded server), in the caller's process. Call `start`
    on the event loop that runs it; `stop` drops all requests in flight.
    """

    def __init__(self, options: EngineOptions | None = None) -> None:
        self._options = options or EngineOptions()
        self._runner: web.AppRunner | None = None
        self._api: EngineApi | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Start serving and return the URL, without a slash at its end. Raises OSError if the port is taken."""
        self._api = self.make_api(self._options)
        self._runner = web.AppRunner(
            self.make_app(self._api),
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=STOP_S_MAX,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        bound_host, bound_port = self._runner.addresses[0][:2]
        return f"http://{bound_host}:{bound_port}"

    def make_app(self, api: EngineApi) -> web.Application:
        """Return the routes of a vLLM server. All other paths and methods get its 404 or 405."""
        app = web.Application(middlewares=[_errors], client_max_size=BODY_BYTES_MAX)
        app.add_routes(
            [
                web.post("/v1/chat/completions", api.chat),
                web.post("/v1/chat/completions/batch", api.batch),
                web.post("/v1/completions", api.completion),
                web.post("/v1/responses", api.response),
                web.get("/v1/responses/{id}", api.stored_response, allow_head=False),
                web.post("/v1/responses/{id}/cancel", api.cancel_response),
                web.post("/v1/messages", api.message),
                web.post("/v1/messages/count_tokens", api.count_tokens),
                web.post("/v1/embeddings", api.embedding),
                web.post("/tokenize", api.tokenize),
                web.post("/detokenize", api.detokenize),
                web.get("/v1/models", api.models, allow_head=False),
                web.get("/health", api.healthy, allow_head=False),
                web.get("/ping", api.healthy, allow_head=False),
                web.post("/ping", api.healthy),
                web.get("/version", api.version, allow_head=False),
                web.get("/load", api.load, allow_head=False),
                web.get("/metrics", api.metrics, allow_head=False),
            ]
        )
        return app

    def make_api(self, options: EngineOptions) -> EngineApi:
        """The handlers that it serves with."""
        return EngineApi(EngineCalls(Serving(options), options))

    async def stop(self) -> None:
        """Close all connections, even those with requests in flight."""
        if self._api is None or self._runner is None:
            return
        await self._api.stop()
        await self._runner.cleanup()

    def snapshots(self) -> list[EngineSnapshot]:
        """Return the state of the engines of a started server."""
        assert self._api is not None, "start the server first"
        return self._api.serving.snapshots()


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except WireError as error:
        return json_response(error.body, status=error.status)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed, web.HTTPRequestEntityTooLarge) as error:
        response = json_response({"detail": HTTPStatus(error.status).phrase}, status=error.status)
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
