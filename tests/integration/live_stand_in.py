"""A server with the live stream and the requests of an admin port, which fails when it is told to."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web
from listening import listening

KEY = "a-viewers-key"


def tenant(**fields: Any) -> dict[str, Any]:
    return {
        "tier": "default", "weight": 1.0, "queued": 0, "in_flight": 0, "oldest_wait_s": None,
        "share": [0.1, 0.2, 0.3], "due": [0.2, 0.2, 0.2], "service_per_s": 100.0, "output_tokens_per_s": 10.0,
        "ttft_s": [0.2, 0.9], "tpot_s": None, "cached_ratio": 0.5, "attainment_ratio": None, "refused": 0,
        "waits": None, **fields,
    }  # fmt: skip


def document(tenants: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A live document with one pool."""
    backend = {
        "available": True, "draining": False, "trouble": None, "in_flight": 3, "requests_limit": 8, "size": "given",
        "tokens": 5000, "tokens_limit": 20000, "queued_there": 0, "external_requests": 0, "external_tokens": 0,
        "step_s": 0.031, "step_measured_s": 0.029, "bound_by": "slots",
    }  # fmt: skip
    tier = {
        "weight": 1.0, "queued": 1, "in_flight": 2, "share": [1.0] * 3, "due": [1.0] * 3, "gap": 120.0,
        "bound": 4096.0, "jain": 0.97, "attainment": {},
    }  # fmt: skip
    pool = {
        "policy": "vtc", "queued": 1, "in_flight": 3, "oldest_wait_s": 2.5, "tokens_per_s": 812.0, "refused": {},
        "tiers": {"default": tier}, "backends": {"b0": backend}, "tenants": tenants, **fields,
    }  # fmt: skip
    gateway = {"name": "stand-in", "version": "0.1.0", "role": "leader", "embedded_engine": False, "demo": False}
    return {"at": 1_790_000_000.0, "gateway": gateway, "cluster": {}, "pools": {"default": pool}}


class LiveStandIn:
    """`document` goes to every client that connects; `patch` changes it for all. `refuses`: the status of all."""

    def __init__(self, begin: dict[str, Any]) -> None:
        self.document = begin
        self.requests: list[dict[str, Any]] = []
        self.refuses: int | None = None
        self.url = ""
        self._streams: set[web.StreamResponse] = set()
        self._over = asyncio.Event()

    async def patch(self, patch: dict[str, Any]) -> None:
        for stream in set(self._streams):
            with contextlib.suppress(ConnectionError):  # it has left
                await _send(stream, "patch", patch)

    async def drop(self) -> None:
        """Every stream breaks."""
        self._over.set()
        await asyncio.sleep(0)
        self._over = asyncio.Event()

    async def me(self, request: web.Request) -> web.Response:
        self._check(request)
        return web.json_response({"name": "key-1", "role": "viewer", "group": None})

    async def live(self, request: web.Request) -> web.StreamResponse:
        self._check(request)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        await stream.write(b": hello\n\n")
        await _send(stream, "state", self.document)
        self._streams.add(stream)
        try:
            await self._over.wait()
        finally:
            self._streams.discard(stream)
        return stream

    async def list_requests(self, request: web.Request) -> web.Response:
        self._check(request)
        asked = {name: request.query[name] for name in ("state", "tenant", "pool") if name in request.query}
        items = [each for each in self.requests if asked.items() <= each.items()]
        return web.json_response({"items": items, "next_cursor": None})

    def _check(self, request: web.Request) -> None:
        status = 401 if request.headers.get("Authorization") != f"Bearer {KEY}" else self.refuses
        if status is not None:
            body = json.dumps({"status": status, "detail": "it says no"})
            raise {401: web.HTTPUnauthorized, 503: web.HTTPServiceUnavailable}[status](text=body)


async def _send(stream: web.StreamResponse, event: str, data: Any) -> None:
    await stream.write(f"id: 1\nevent: {event}\ndata: {json.dumps(data)}\n\n".encode())


@contextlib.asynccontextmanager
async def live_stand_in(begin: dict[str, Any]) -> AsyncIterator[LiveStandIn]:
    made = LiveStandIn(begin)
    app = web.Application()
    app.router.add_get("/admin/v1/me", made.me)
    app.router.add_get("/admin/v1/live", made.live)
    app.router.add_get("/admin/v1/requests", made.list_requests)
    async with listening(app) as made.url:
        try:
            yield made
        finally:
            await made.drop()


def key_file(folder: Path, key: str = KEY) -> str:
    path = folder / "viewer-key"
    path.write_text(key + "\n")
    return str(path)
