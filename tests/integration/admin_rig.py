"""A gateway with an admin port, and a client of it."""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from gateway_rig import Reply, Rig, gateway

from gateway.store.sqlite import SqliteStore

SECRET = "0123456789abcdef"
ROOT = "/admin/v1"
LOCAL = ["127.0.0.0/8"]
EFFECT_S = 1.0  # within which a change is in force


async def within(
    condition: Callable[[], Awaitable[bool]], timeout_s: float = EFFECT_S, *, every_s: float = 0.02
) -> None:
    """It comes true in time."""
    deadline = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(every_s)


@dataclass
class Admin:
    """A client with a key to the admin port."""

    rig: Rig
    session: aiohttp.ClientSession
    key: str

    @property
    def url(self) -> str:
        return self.rig.gateway.admin_url

    async def ask(self, method: str, path: str, body: Any = None, *, key: str | None = None, **headers: str) -> Reply:
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        sent = {"Authorization": f"Bearer {self.key if key is None else key}", "Content-Type": content_type}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        url = self.url + (path if path.startswith("/admin") or path == "/metrics" else ROOT + path)
        async with self.session.request(method, url, data=data, headers=sent, allow_redirects=False) as response:
            return Reply(response.status, response.headers, await response.read())

    async def get(self, path: str, **kwargs: Any) -> Reply:
        return await self.ask("GET", path, **kwargs)

    async def post(self, path: str, body: Any = None, **kwargs: Any) -> Reply:
        return await self.ask("POST", path, {} if body is None else body, **kwargs)

    async def patch(self, path: str, body: Any, **kwargs: Any) -> Reply:
        return await self.ask("PATCH", path, body, **kwargs)

    async def delete(self, path: str, **kwargs: Any) -> Reply:
        return await self.ask("DELETE", path, **kwargs)

    async def key_for(self, tenant: str, **fields: Any) -> str:
        """A new key of this tenant."""
        made = await self.post("/keys", {"tenant": tenant, **fields})
        assert made.status == 201, made.body
        return made.json["secret"]


@contextlib.asynccontextmanager
async def admin(folder: Path, *backends: Any, state: Path | None = None, **config: Any):
    """An Admin of a gateway that checks keys. `state` None: in memory."""
    (folder / "keys").touch()
    settings = {
        "auth": {"mode": "keys", "secret": SECRET, "keys_file": str(folder / "keys")},
        "tenants": {"declared": {"weight": 2}},
        "admin": {"enabled": True, "port": 0, "key_file": str(folder / "admin-key"), "backend_networks": LOCAL},
        **config,
    }
    async with gateway(*backends, store=SqliteStore(state), **settings) as rig:
        yield Admin(rig, rig.session, (folder / "admin-key").read_text().strip())
