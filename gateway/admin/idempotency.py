"""Idempotency-Key: a POST that is repeated with the same key is run once, and gets the first response again.

A request with the same caller and key within KEPT_S gets the response of the first; a different request with that key
is rejected (422). While the first request runs, repeats wait for it. A rejected request has changed nothing, so it is
not remembered and may be retried. (draft-ietf-httpapi-idempotency-key-header) Callers of one name with different roles
or groups are different callers: tokens without a subject have the same name.

Responses are kept in memory and not in the store: the response for a new API key holds its secret, which is written
nowhere. So a repeat after a restart, or at another replica, is a new request: it gets 409 for a tenant, tier or backend
of the same id. For an API key it creates a second key; the unused one can be deleted.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.admin.problems import field_problem
from gateway.admin.routes import AdminAnswer, Caller

HEADER = "Idempotency-Key"
KEY_PATTERN = r"^[!-~]{1,255}$"
KEPT_S = 86_400.0
KEPT_MAX = 10_000  # the oldest are forgotten


@dataclass(frozen=True, slots=True)
class _Done:
    fingerprint: bytes
    until_s: float
    reply: "asyncio.Future[AdminAnswer]"


class Repeats:
    """The recent requests with an Idempotency-Key header, by caller and key, with their responses: a repeated request
    gets the first response again. Mutable; used on one loop.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._done: OrderedDict[tuple[Caller, str], _Done] = OrderedDict()

    async def once(
        self, caller: Caller, key: str, request: tuple[str, bytes], run: Callable[[], Awaitable[AdminAnswer]]
    ) -> AdminAnswer:
        """Run the request (its path and body), or return the response of an earlier run. Raises the AdminProblem of
        this or the earlier run.
        """
        self._forget_old()
        path, body = request
        fingerprint = hashlib.sha256(path.encode() + b"\0" + body).digest()
        known = self._done.get((caller, key))
        if known is not None:
            if known.fingerprint != fingerprint:
                raise field_problem(f"header.{HEADER}", "was used for another request")
            return await asyncio.shield(known.reply)
        doing = asyncio.ensure_future(run())
        self._done[caller, key] = _Done(fingerprint, self._clock() + KEPT_S, doing)
        doing.add_done_callback(lambda done: self._ended((caller, key), done))
        return await asyncio.shield(doing)

    def _ended(self, of: tuple[Caller, str], done: "asyncio.Future[AdminAnswer]") -> None:
        """Drop a failed request, even if its client has disconnected."""
        if done.cancelled() or done.exception() is not None:
            self._done.pop(of, None)

    def _forget_old(self) -> None:
        now = self._clock()
        while self._done and (len(self._done) >= KEPT_MAX or next(iter(self._done.values())).until_s <= now):
            self._done.popitem(last=False)
