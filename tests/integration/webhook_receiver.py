"""A webhook's receiver: a real server that checks signatures as the Standard Webhooks specification says."""

import base64
import contextlib
import hmac
import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from listening import listening

SECRET = b"a secret of the receiver"


@dataclass
class Receiver:
    """What it was told. `statuses` are its next answers; then 204."""

    url: str = ""
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # ids and documents that it took
    attempts: int = 0
    redirected: int = 0
    statuses: list[int] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.attempts += 1
        body, id_, at = await request.read(), request.headers["webhook-id"], request.headers["webhook-timestamp"]
        assert is_signed(id_, at, body, request.headers["webhook-signature"])
        status = self.statuses.pop(0) if self.statuses else 204
        if status == 204:
            self.events.append((id_, json.loads(body)))
        return web.Response(status=status, headers={"location": self.url + "/elsewhere"} if status == 307 else {})

    async def elsewhere(self, _request: web.Request) -> web.Response:
        self.redirected += 1
        return web.Response(status=204)

    def thresholds(self) -> list[tuple[str, int]]:
        data = [document["data"] for _, document in self.events]
        return [(each["tenant"], each["threshold_percent"]) for each in data]


def is_signed(id_: str, at: str, body: bytes, signatures: str, secret: bytes = SECRET) -> bool:
    """Whether one of the signatures is of these bytes by this secret."""
    expected = base64.b64encode(hmac.digest(secret, f"{id_}.{at}.".encode() + body, "sha256")).decode()
    return f"v1,{expected}" in signatures.split(" ")


@contextlib.asynccontextmanager
async def receiver():
    """A Receiver that listens."""
    made, app = Receiver(), web.Application()
    app.router.add_post("/hook", made.answer)
    app.router.add_post("/hook/elsewhere", made.elsewhere)
    async with listening(app) as url:
        made.url = url + "/hook"
        yield made
