"""One short handler per path that generates nothing."""

from dataclasses import asdict
from importlib import metadata

import orjson
from aiohttp import web

from backends.pool import BackendPool
from gateway.api.errors import Answer, Api, answer
from gateway.intake import Intake, Refused
from gateway.pools import Pools
from gateway.server import to_response

VERSION = metadata.version("fairlead")


class Probes:
    """Is the gateway alive, is it ready, which version is it?"""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self.draining = False

    async def alive(self, request: web.BaseRequest) -> web.Response:
        return web.Response()

    async def ready(self, request: web.BaseRequest) -> web.Response:
        """Ready: it could send a call on. At /health too, where vLLM's clients look."""
        return web.Response(status=503 if self.draining or not self._pools.any_available() else 200)

    async def version(self, request: web.BaseRequest) -> web.Response:
        return to_response(Answer(200, orjson.dumps({"version": VERSION})))


class Models:
    """The models of all backends as one list."""

    def __init__(self, intake: Intake, backends: BackendPool) -> None:
        self._intake = intake
        self._backends = backends

    async def answer(self, request: web.BaseRequest) -> web.Response:
        try:
            self._intake.identify(request)
        except Refused as refused:
            return to_response(answer(refused.problem, Api.OPENAI))
        return to_response(Answer(200, orjson.dumps({"object": "list", "data": self._backends.models()})))


class DebugState:
    """The schedulers' live state, for tests and a first look. Off by default: it names tenants."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    async def answer(self, request: web.BaseRequest) -> web.Response:
        snapshots = {pool: asdict(snapshot) for pool, snapshot in self._pools.snapshots().items()}
        return to_response(Answer(200, orjson.dumps({"pools": snapshots})))
