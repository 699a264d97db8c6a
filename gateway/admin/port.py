"""Admin port: assembles the routes over the registry and the running gateway, the sign-in, and the listener."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import orjson
from aiohttp import web

from backends.address_allowlist import AddressAllowlist
from gateway.admin.access.local_access import LocalAccess
from gateway.admin.access.local_socket import ASK_KEY, ASK_LINK
from gateway.admin.access.one_time_links import OneTimeLinks
from gateway.admin.access.sign_in import SignIn
from gateway.admin.models.forms import MODULE, fields_module
from gateway.admin.page_files import StaticFiles
from gateway.admin.reconciler import Reconciler
from gateway.admin.resources import declared
from gateway.admin.resources.audit import AuditRoutes
from gateway.admin.resources.backends import BackendRoutes
from gateway.admin.resources.demo import DemoRoutes
from gateway.admin.resources.history import HistoryRoutes
from gateway.admin.resources.keys import KeyRoutes
from gateway.admin.resources.live import LiveRoutes
from gateway.admin.resources.live_page import LivePageRoutes
from gateway.admin.resources.pools import PoolRoutes
from gateway.admin.resources.preview import PreviewRoutes
from gateway.admin.resources.requests import RequestRoutes
from gateway.admin.resources.resource_files import ResourceFileRoutes
from gateway.admin.resources.sessions import SessionRoutes
from gateway.admin.resources.trials import TrialRoutes
from gateway.admin.resources.usage import UsageRoutes
from gateway.admin.resources.what_ifs import WhatIfRoutes
from gateway.admin.routes import ROLES, AdminAnswer, AdminRequest, Caller, JsonObject, Role, Route, RouteTable
from gateway.admin.server import AdminServer, AskLeader
from gateway.budgets.money.pricing import PriceBook
from gateway.config.admin import Admin
from gateway.config.jwt import AdminIssuer
from gateway.config.key_file import first_key, new_key
from gateway.identity.key_ring import KeyRing
from gateway.identity.last_use import LastUse
from gateway.live.schema import ClusterView
from gateway.parts import GatewayParts, OperatorParts
from gateway.ports.listener import Listener
from gateway.registry.registry import Changed, Registry
from gateway.registry.resource_kinds import ApiKey

if TYPE_CHECKING:
    from gateway.admin.access.oidc import Oidc
    from gateway.admin.management import Management
    from gateway.identity.tokens import Tokens

FIRST_KEY, LOCAL_KEY = "key-file", "local"  # names of their callers in the audit log
PROVIDERS = "providers.js"
STOP_S_MAX = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a gateway that the routes of the admin API read and change."""

    management: "Management"
    gateway: GatewayParts
    operators: OperatorParts
    in_force: Reconciler
    address_allowlist: AddressAllowlist
    cluster_view: Callable[[], ClusterView]
    ask_leader: AskLeader  # for live views, where there are several processes


class AdminPort:
    """The admin port, which serves the admin API and the page (its web interface). Create it on the loop that runs it;
    call `start` and `stop`.
    """

    def __init__(
        self,
        config: Admin,
        parts: Parts,
        *,
        secret: bytes,
        tokens: "Tokens[AdminIssuer, Caller] | None",
        render_metrics: Callable[[], Awaitable[web.Response]],
        has_first_key: bool,
    ) -> None:
        """`secret` is the HMAC secret of API keys. Without `has_first_key`, callers sign in by one-time links, and
        commands of this user by a socket. Raises ValueError where the first key cannot be read or created.
        """
        registry, clock = parts.management.registry, asyncio.get_running_loop().time
        self._registry = registry
        self._ring: KeyRing[Caller] = KeyRing(secret)
        if has_first_key:
            key = first_key(config.key_file)
            self._ring.put(FIRST_KEY, self._ring.hmac_hex(key), Caller(FIRST_KEY, Role.ADMIN))
        self._links = OneTimeLinks(self._ring, secret)
        self._has_first_key = has_first_key
        self._local: LocalAccess | None = None
        self._keys_changed(frozenset(("keys", entry.name) for entry in registry.entries("keys")))
        self._unsubscribe = registry.subscribe(self._keys_changed)
        oidc = _make_oidc(tokens, secret)
        sign_in = SignIn(
            admin_keys=self._ring,
            tenant_keys=parts.gateway.handlers.auth.keys,
            clock=clock,
            tokens=tokens,
            session_of=None if oidc is None else oidc.caller,
        )
        sessions = SessionRoutes(registry=registry, links=self._links, sign_in=sign_in)
        table = RouteTable(routes(parts, self._ring.hmac_hex, sessions, clock))
        made = {MODULE: fields_module(), PROVIDERS: _providers_module([] if oidc is None else oidc.labels)}
        files = StaticFiles(made=made)
        self.server = AdminServer(table, sign_in, parts.ask_leader, render_metrics, files, oidc=oidc)
        address = config.host, config.port
        self._listener = Listener(self.server, address, config.tls, stop_s_max=STOP_S_MAX, descriptors_ratio_max=1.0)

    async def start(self) -> str:
        """Listen, and return the URL. Raises OSError where the port is in use."""
        url = await self._listener.start()
        if not self._has_first_key:
            await self._open_socket(url)
        return url

    async def _open_socket(self, url: str) -> None:
        key = new_key()
        self._ring.put(LOCAL_KEY, self._ring.hmac_hex(key), Caller(LOCAL_KEY, Role.ADMIN))
        answers = {ASK_KEY: lambda: key, ASK_LINK: lambda: f"{url}/#once={self.make_link()}"}
        self._local = LocalAccess(url, answers)
        if not await self._local.start(urlsplit(url).port or 0):
            log.warning("no folder for a socket: `fairlead top` and `fairlead admin` need a key or a one-time link")

    def make_link(self) -> str:
        """The token of a new one-time link for the role admin."""
        return self._links.make(Role.ADMIN)

    async def stop(self) -> None:
        self._unsubscribe()
        if self._local is not None:
            await self._local.stop()
        await self._listener.stop()

    def _keys_changed(self, changed: Changed) -> None:
        for kind, name in changed:
            if kind != "keys":
                continue
            self._ring.drop(name)
            entry = self._registry.get(kind, name)
            key = None if entry is None else entry.section
            if isinstance(key, ApiKey) and key.role is not None and not key.revoked:
                expires_at_s = None if key.expires_at is None else key.expires_at.timestamp()
                self._ring.put(name, key.hmac, Caller(name, ROLES[key.role], key.group), expires_at_s=expires_at_s)


def _make_oidc(tokens: "Tokens[AdminIssuer, Caller] | None", secret: bytes) -> "Oidc | None":
    """None where no identity provider has the gateway as a client."""
    if tokens is None or all(each.sign_in is None for each in tokens.issuers):
        return None
    from gateway.admin.access.oidc import Oidc  # noqa: PLC0415

    return Oidc(tokens.issuers, tokens, secret)


def _providers_module(labels: Sequence[str]) -> bytes:
    """The module of the page that names the providers to sign in at."""
    return b"export const PROVIDERS = %b;\n" % orjson.dumps(labels)


def routes(
    parts: Parts, hmac_hex: Callable[[str], str], sessions: SessionRoutes, clock: Callable[[], float]
) -> list[Route]:
    """All routes, including the one that serves their OpenAPI document."""
    management, pools = parts.management, parts.gateway.pools
    registry, store, prices = management.registry, management.store, management.prices
    backends = BackendRoutes(
        registry=registry,
        backends=parts.gateway.backends,
        pools=pools,
        in_force=parts.in_force,
        address_allowlist=parts.address_allowlist,
    ).collection()
    collections = [*declared.collections(registry), backends]
    use = LastUse(store, clock=clock, today=lambda: datetime.now(UTC).date().isoformat())
    of_pools = PoolRoutes(registry=registry, pools=pools, in_force=parts.in_force)
    files = ResourceFileRoutes(registry=registry, collections={each.kind: each for each in collections}, pools=of_pools)
    found = [
        *chain.from_iterable(each.routes() for each in collections),
        *of_pools.routes(),
        *files.routes(),
        *KeyRoutes(
            registry=registry,
            hmac_hex=hmac_hex,
            checks_tenants=parts.gateway.handlers.auth.keys is not None,
            use=use,
        ).routes(),
        *LiveRoutes(
            registry=registry,
            pools=pools,
            ledger=management.budgets.ledger,
            clock=clock,
            cluster_view=parts.cluster_view,
        ).routes(),
        *sessions.routes(),
        *_operator_routes(parts.operators, registry, prices),
        *UsageRoutes(registry=registry, store=store, use=use, prices=prices, clock=time.time).routes(),
        *AuditRoutes(registry=registry).routes(),
    ]
    return _with_document(found)


def _operator_routes(operators: OperatorParts, registry: Registry, prices: PriceBook) -> Iterator[Route]:
    live, steering = operators.live, operators.steering
    yield from LivePageRoutes(live=live, registry=registry).routes()
    yield from HistoryRoutes(history=operators.history, registry=registry, prices=prices, clock=time.time).routes()
    yield from PreviewRoutes(registry=registry, live=live).routes()
    yield from DemoRoutes(demo=steering.demo).routes()
    yield from WhatIfRoutes(what_ifs=steering.what_ifs, registry=registry).routes()
    yield from RequestRoutes(registry=registry, requests=steering.requests).routes()
    yield from TrialRoutes(registry=registry, trials=steering.trials).routes()


def _with_document(found: list[Route]) -> list[Route]:
    """These routes, and the one that serves the OpenAPI document of all of them."""
    described: list[AdminAnswer] = []

    async def describe(_asked: AdminRequest) -> AdminAnswer:
        if not described:  # it takes a tenth of a second, so the first that asks waits for it and no start does
            from gateway.admin.openapi import document  # noqa: PLC0415

            described.append(AdminAnswer(JsonObject(await asyncio.to_thread(document, table))))
        return described[0]

    own = Route(
        method="GET", path="/openapi.json", role=Role.VIEWER, summary="This document (OpenAPI 3.1).", run=describe,
        answer=JsonObject,
    )  # fmt: skip
    table = [*found, own]
    return table
