"""Handlers of paths that need no scheduling: probes, the list of models, and the version of a backend."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from backends.pool import BackendPool
from backends.upstream import UpstreamError
from gateway.api import errors
from gateway.api.endpoints import VERSION, Endpoint
from gateway.api.errors import ProblemError, WholeAnswer, problem_error
from gateway.config.aliases import AliasSection
from gateway.forwarding.backend_client import BackendClient
from gateway.handlers.utilities import TRIES_MAX
from gateway.http.answer_headers import AnswerHeaders
from gateway.http.request import HttpRequest
from gateway.http.response import Response, to_response
from gateway.intake.request_parsing import RequestParser
from gateway.observability.telemetry import CallTrace
from gateway.scheduling.alias_table import AliasTable
from gateway.scheduling.pools import Pools
from policies.types import Reason

OWNER: Final = "fairlead"
VERSION_S = 10.0  # for which an answer is cached
VERSION_BYTES_MAX = 64 << 10


class Probes:
    """The handlers of probes: liveness and readiness of the gateway."""

    def __init__(self, pools: Pools, is_ready: Callable[[], bool]) -> None:
        self._pools = pools
        self._is_ready = is_ready
        self.draining = False

    async def alive(self, request: HttpRequest) -> Response:
        return Response(200)

    async def ready(self, request: HttpRequest) -> Response:
        """200 if a backend is available, a leader decides, and the gateway does not drain; else 503. The same at
        /health and /ping, where clients of vLLM look.
        """
        is_ready = not self.draining and self._is_ready() and self._pools.routes.any_available()
        return Response(200 if is_ready else 503)


async def no_realtime(_request: HttpRequest, _endpoint: Endpoint, _trace: CallTrace) -> Response:
    """Reject a WebSocket session, which vLLM has for speech models. Raises ProblemError."""
    raise ProblemError(errors.NO_REALTIME)


class Models:
    """The handlers of /v1/models. They list the models of all backends, and the aliases, that the caller's key may use;
    or they return one of them by its id.
    """

    def __init__(
        self, request_parser: RequestParser, backends: BackendPool, aliases: AliasTable, headers: AnswerHeaders
    ) -> None:
        self._request_parser = request_parser
        self._backends = backends
        self._aliases = aliases
        self._created = int(time.time())  # as in vLLM, where it is the present time
        self._headers = headers

    async def answer(self, request: HttpRequest, endpoint: Endpoint, trace: CallTrace) -> Response:
        """The list of models. Raises ProblemError."""
        identity = self._request_parser.identify(request, trace)
        entries = {card.id: card.entry for card in self._backends.catalog.models()}
        # An alias takes the place of a model of its name.
        entries |= {name: self._entry(name, alias) for name, alias in self._aliases.all.items()}
        models = [entry for name, entry in entries.items() if identity.may_use(name)]
        return self._answer({"object": "list", "data": models}, trace)

    async def answer_one(self, request: HttpRequest, endpoint: Endpoint, trace: CallTrace) -> Response:
        """The model or alias whose name is in the path. Raises ProblemError, which is the same if there is no such
        model and if the key may not use it.
        """
        identity, name = self._request_parser.identify(request, trace), request.path_id
        alias, card = self._aliases.find(name), self._backends.catalog.model(name)
        if identity.may_use(name) and alias is not None:
            return self._answer(self._entry(name, alias), trace)
        if identity.may_use(name) and card is not None:
            return self._answer(card.entry, trace)
        raise ProblemError(errors.problem_about(errors.MODEL_NOT_FOUND, "model"))

    def _answer(self, values: Mapping[str, Any], trace: CallTrace) -> Response:
        return to_response(WholeAnswer(200, orjson.dumps(values)), **self._headers.of(trace))

    def _entry(self, name: str, alias: AliasSection) -> dict[str, Any]:
        """The alias as a model that the gateway has, of the shortest context of those that it may stand for. What these
        are is the operator's.
        """
        cards = map(self._backends.catalog.model, sorted(alias.targets()))
        lengths = [card.max_model_len for card in cards if card is not None and card.max_model_len is not None]
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": OWNER,
            "root": name,
            "parent": None,
            "max_model_len": min(lengths, default=None),
        }


class Version:
    """The handler of /version: it returns the version that a backend reports, from which clients learn what the backend
    can do. It needs no key, as in vLLM. So the version is cached for VERSION_S, and at most one request to a backend is
    open at a time.
    """

    def __init__(self, pools: Pools, backend_clients: Mapping[str, BackendClient], headers: AnswerHeaders) -> None:
        self._pools = pools
        self._backend_clients = backend_clients
        self._headers = headers
        self._known: WholeAnswer | None = None
        self._known_until = 0.0
        self._asking = asyncio.Lock()

    async def answer(self, request: HttpRequest, endpoint: Endpoint, trace: CallTrace) -> Response:
        """The version of a backend. Raises ProblemError, UpstreamError."""
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if self._known is None or now >= self._known_until:
                self._known, self._known_until = await self._ask(), now + VERSION_S
        return to_response(self._known, **self._headers.of(trace))

    async def _ask(self) -> WholeAnswer:
        route = self._pools.routes.any()
        backend_ids = self._pools.routes.available(route[1].id)[:TRIES_MAX] if route else []
        if not backend_ids:
            raise problem_error(Reason.NO_BACKEND)
        for last, backend_id in enumerate(backend_ids, 1 - len(backend_ids)):
            backend_client = self._backend_clients.get(backend_id)
            if backend_client is None:  # removed while another backend was asked
                continue
            try:
                exchange = await backend_client.upstream.open("GET", VERSION.path, backend_client.credentials)
            except UpstreamError:
                if not last:
                    raise
                continue
            async with exchange:
                return WholeAnswer(exchange.status, bytes(await exchange.read(VERSION_BYTES_MAX)))
        raise problem_error(Reason.NO_BACKEND)
