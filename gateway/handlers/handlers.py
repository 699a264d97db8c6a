"""RequestHandlers: one handler for each path, and the parts that the handlers share.

GatewayServer -> CallMiddleware -> Generation: RequestAdmission (RequestParser) -> Dispatcher -> Attempt
                                -> Background: a response made in the background, else as Generation
                                -> Utilities:  RequestParser -> a backend at once
                                -> Models, Version
              -> Probes
"""

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from gateway.api import endpoints
from gateway.api.endpoints import ENDPOINTS, RESPONSES, ChargeRule, Endpoint, passthrough_endpoint
from gateway.api.fields import CacheSalts
from gateway.api.token_counts import ExactPromptTokens, LearntPromptTokens, OutputTokens, make_encoding
from gateway.api.trusted_hops import TrustedHops
from gateway.budgets.claims import BudgetClaims
from gateway.config import Config
from gateway.config.jwt import TenantIssuer
from gateway.config.sections import PromptTokens
from gateway.continuation.held_bytes import HeldBytes
from gateway.continuation.stream import ContinuationSettings
from gateway.forwarding.answers.unread_bytes import UnreadBytes
from gateway.forwarding.attempt import AttemptContext
from gateway.forwarding.backend_client import BackendClients
from gateway.forwarding.background import Background
from gateway.forwarding.retry import Generation
from gateway.forwarding.shadows import Shadows
from gateway.handlers.own_answers import Models, Probes, Version, no_realtime
from gateway.handlers.utilities import Utilities
from gateway.http.answer_headers import AnswerHeaders
from gateway.http.connection import Handler
from gateway.http.cors import Cors
from gateway.http.middleware import CallMiddleware, Run
from gateway.http.request_ids import RequestIds
from gateway.http.server import GatewayServer
from gateway.identity.auth import Identity, TrustedProxies, make_authenticator
from gateway.identity.tenants import TenantDirectory
from gateway.intake.admission import Call, RequestAdmission
from gateway.intake.envelopes import Envelopes
from gateway.intake.long_bodies import LongBodies
from gateway.intake.memory import MemoryGuard, memory_limit
from gateway.intake.request_parsing import RequestParser
from gateway.intake.sessions import Sessions
from gateway.intake.stored_responses import StoredResponse, StoredResponses
from gateway.observability.telemetry import Telemetry
from gateway.others import Others
from gateway.scheduling.alias_table import AliasTable
from gateway.scheduling.pools import Pools
from gateway.scheduling.shadow_tenant import SHADOW_TENANT, SHADOW_TIER
from policies.types import Tier

if TYPE_CHECKING:
    from gateway.identity.tokens import Tokens


class RequestHandlers:
    """The handlers of all paths of the data port, and the server that calls them. Made and used on the gateway's loop.
    The reconciler sets its tenants, keys, SLO envelopes (latency targets) and aliases.
    """

    def __init__(
        self,
        config: Config,
        *,
        processes: int,
        others: Others,
        process_secret: bytes | None,
        is_ready: Callable[[], bool],
        pools: Pools,
        clients: BackendClients,
        tiers: Mapping[str, Tier],
        telemetry: Telemetry,
        tokens: "Tokens[TenantIssuer, Identity] | None" = None,
        claims: BudgetClaims | None = None,
    ) -> None:
        """`processes` serve on this machine. `process_secret` is that of all processes, which counts where none is
        configured. `is_ready`: it is decided on requests. `tiers` are live: each look-up sees the present ones. Raises
        ValueError where a secret cannot be read.
        """
        self._secret, self._config = process_secret, config
        self._pools, self._clients, self._claims = pools, clients, claims
        self._names = RequestIds()
        listen = config.listen
        self._headers = AnswerHeaders(show_queue_ms=listen.show_queue_ms, show_backend=listen.show_backend)
        self._responses = StoredResponses(others)
        self._continuation = _continuation_settings(config)
        self.aliases = AliasTable({})
        self.auth = make_authenticator(config.auth, process_secret, tokens)
        self.tenants = _make_tenants(config, pools)
        self.envelopes = Envelopes()
        memory_bytes_max = memory_limit(config.limits.memory_bytes_max)
        self.memory = MemoryGuard(memory_bytes_max and memory_bytes_max // processes)
        self._request_parser = self._make_request_parser()
        self.prompt_tokens, exact_tokens = LearntPromptTokens(), _exact_tokens(config.prompt_tokens)
        request_admission = self._make_request_admission(exact_tokens)
        self._shadows = Shadows(self.aliases, clients=clients, names=self._names, ended=telemetry.ended)
        output_tokens = OutputTokens(self.prompt_tokens, exact_tokens)
        context = AttemptContext(
            request_admission, clients, self._headers, output_tokens, UnreadBytes(), self._continuation
        )
        self._generation = self._make_generation(context, tiers)
        self.active = self._generation.active
        self._background = Background(request_admission, self._generation, clients.by_id, self._names, telemetry.ended)
        xargs_allowed = config.limits.xargs_allowed
        self._utilities = Utilities(context, self._request_parser, pools, self._responses, xargs_allowed)
        self._probes = Probes(pools, is_ready)
        cors = Cors(config.listen.allowed_origins)
        hops = TrustedHops(listen.trusted_hops)
        self._middleware = CallMiddleware(
            names=self._names, hops=hops, headers=self._headers, cors=cors, telemetry=telemetry
        )
        body_bytes_max = config.limits.body_bytes_max
        self.server = GatewayServer(self._handlers(), names=self._names, cors=cors, body_bytes_max=body_bytes_max)

    def _make_generation(self, context: AttemptContext, tiers: Mapping[str, Tier]) -> Generation:
        return Generation(
            context=context,
            tiers=tiers,
            shadows=self._shadows,
            resends_max=self._config.limits.resends_max,
            heartbeat_s=self._config.queue.heartbeat_s,
            on_answer=partial(_remember, self._responses),
        )

    def _make_request_parser(self) -> RequestParser:
        return RequestParser(
            auth=self.auth,
            proxies=TrustedProxies(self._config.auth.trusted_proxies),
            tenants=self.tenants,
            tenant_is_model=self._config.auth.tenant_from == "model",
            pools=self._pools,
            aliases=self.aliases,
            responses=self._responses,
            body_timeout_s=self._config.limits.body_timeout_s,
            long_bodies=LongBodies(),
            memory=self.memory,
        )

    def lame_duck(self) -> None:
        """Answer "not ready" at the probes, and close each connection after its answer."""
        self._probes.draining = self.server.closing = True

    def refuse_new(self) -> None:
        self._request_parser.draining = True

    @property
    def is_serving(self) -> bool:
        """Whether new calls are accepted."""
        return not self._request_parser.draining

    async def stop(self) -> None:
        """Reject new calls, and stop background responses. From now on the gateway itself ends exchanges, so their
        failures are no evidence about backends.
        """
        self._request_parser.draining = self._generation.stopping = True
        await self._shadows.stop()
        await self._background.stop()

    def _handlers(self) -> dict[Endpoint, Handler]:
        """The handler of each endpoint; other paths do not exist."""
        extra = [passthrough_endpoint(path, charge) for path, charge in self._config.endpoints.items()]
        models = Models(self._request_parser, self._clients.backends, self.aliases, self._headers)
        handlers: dict[Endpoint, Handler] = {
            endpoints.MODELS: self._logged(endpoints.MODELS, models.answer),
            endpoints.MODEL: self._logged(endpoints.MODEL, models.answer_one),
            endpoints.VERSION: self._logged(
                endpoints.VERSION, Version(self._pools, self._clients.by_id, self._headers).answer
            ),
            endpoints.HEALTH: self._probes.ready,
            endpoints.READYZ: self._probes.ready,
            endpoints.PING: self._probes.ready,
            endpoints.LIVEZ: self._probes.alive,
            endpoints.REALTIME: self._logged(endpoints.REALTIME, no_realtime),
        }
        for endpoint in (*ENDPOINTS, *extra):
            if endpoint is RESPONSES:
                handlers[endpoint] = self._logged(endpoint, self._background.answer)
            elif endpoint.queued:
                handlers[endpoint] = self._logged(endpoint, self._generation.answer)
            elif endpoint.charge is ChargeRule.UNIT:
                handlers[endpoint] = self._logged(endpoint, self._utilities.answer)
        return handlers

    def _logged(self, endpoint: Endpoint, run: Run) -> Handler:
        return partial(self._middleware.answer, endpoint, run)

    def _make_request_admission(self, exact_tokens: ExactPromptTokens | None) -> RequestAdmission:
        config = self._config
        secret = config.auth.secret_bytes() or self._secret or secrets.token_bytes(32)
        return RequestAdmission(
            request_parser=self._request_parser,
            names=self._names,
            pools=self._pools,
            responses=self._responses,
            limits=config.call_limits(),
            envelopes=self.envelopes,
            cache_salts=CacheSalts(config.auth.cache_isolation, secret),
            sessions=Sessions(secret),
            prompt_tokens=self.prompt_tokens,
            exact_prompt_tokens=exact_tokens,
            claims=self._claims,
            continues=self._continuation.enabled,
        )

    def aliases_changed(self) -> None:
        """Apply a change of aliases: if any has shadow calls, these need a tenant and a tier."""
        if any(each.shadow is not None for each in self.aliases.all.values()):
            self.tenants.put(SHADOW_TENANT)
            self._pools.settings.tiers_changed([SHADOW_TIER])


def _remember(responses: StoredResponses, answer_id: str, call: Call, backend_id: str, context_tokens: int) -> None:
    """An answer that can be fetched later, and continued by another call."""
    responses.made(answer_id, StoredResponse(call.owner, backend_id, call.request.model, context_tokens, call.alias))


def _make_tenants(config: Config, pools: Pools) -> TenantDirectory:
    # With `tenant_from: model` each model is a tenant, and backends may serve models that are not configured.
    is_open = config.auth.mode == "open" or config.auth.tenant_from == "model"
    return TenantDirectory(is_open=is_open, forget_if_idle=pools.settings.forget_if_idle)


def _exact_tokens(options: PromptTokens) -> ExactPromptTokens | None:
    if (ranks := options.ranks()) is None:
        return None
    return ExactPromptTokens(make_encoding(ranks, encoding=options.encoding, pattern=options.pattern))


def _continuation_settings(config: Config) -> ContinuationSettings:
    section = config.continuation
    # Without resends every call is sent once, and a continuation would be a second time.
    enabled = section.enabled and config.limits.resends_max > 0
    return ContinuationSettings(enabled, section.silence_s, config.queue.backend_wait_s_max, HeldBytes())
