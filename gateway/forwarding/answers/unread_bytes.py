"""UnreadBytes: limits, for each tenant, the memory of whole answers that wait for their clients.

The gateway reads a whole answer as fast as its backend sends it, and holds it until its client has read it. Each tenant
has a limit of such bytes. Over the limit the gateway pauses reading the tenant's further answers until its clients have
read earlier ones, so a tenant that reads slowly slows only itself. But a paused answer holds a slot of its backend. So
over the limit, a client that reads nothing for PRESSED_STALL_S is disconnected, long before the limit for connections
(gateway/http/connection.py). The oldest arriving answer is not paused while no complete answer waits: one answer can
always finish, and a tenant holds at most its limit and one answer more.

Streams are not counted: each holds its transport's high-water mark and one read at most (relay.py).
"""

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakSet

from backends.upstream import HttpExchange

# Long round trips take 0.3 s, and TCP resends lost data after 0.2 to 1 s: a client that reads makes progress in 2 s.
PRESSED_STALL_S: Final = 2.0
# Of one tenant: four answers of the largest size that are read whole, 60 MB with log probabilities
# (docs/results/load.md).
BYTES_MAX: Final = 256 << 20
PRESSED: Final = "tenant_unread_bytes"


class _Tenant:
    """The answers of one tenant that arrive, or wait complete."""

    __slots__ = ("arriving", "bytes", "timer", "whole")

    def __init__(self) -> None:
        self.bytes = 0
        self.arriving: dict[UnreadAnswer, None] = {}  # oldest first
        self.whole: WeakSet[UnreadAnswer] = WeakSet()
        self.timer: asyncio.TimerHandle | None = None


class UnreadBytes:
    """A limiter of the memory, for each tenant, of answers that are not streamed and that clients have not read yet.
    Over the limit it pauses reading the tenant's further answers from the backends. Mutable.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        """`bytes_max`: the limit of each tenant."""
        self._bytes_max = bytes_max
        self._tenants: dict[str, _Tenant] = {}

    def arriving(self, tenant_id: str, exchange: HttpExchange) -> "UnreadAnswer":
        """The account of an answer of this tenant that begins to arrive. The caller releases it."""
        answer = UnreadAnswer(self, tenant_id, exchange)
        self._tenants.setdefault(tenant_id, _Tenant()).arriving[answer] = None
        return answer

    def grew(self, answer: "UnreadAnswer", bytes_: int) -> None:
        tenant = self._tenants[answer.tenant_id]
        tenant.bytes += bytes_
        if not self._may_arrive(tenant, answer):
            answer.pause()
            self._watch(tenant)

    def arrived(self, answer: "UnreadAnswer") -> None:
        tenant = self._tenants[answer.tenant_id]
        tenant.arriving.pop(answer, None)
        tenant.whole.add(answer)
        answer.moved()
        self._let_arrive(tenant)

    def released(self, answer: "UnreadAnswer", bytes_: int) -> None:
        tenant = self._tenants[answer.tenant_id]
        tenant.bytes -= bytes_
        tenant.arriving.pop(answer, None)
        tenant.whole.discard(answer)
        self._let_arrive(tenant)
        if not tenant.bytes and not tenant.arriving:
            self._tenants.pop(answer.tenant_id, None)
            if tenant.timer is not None:
                tenant.timer.cancel()

    def _may_arrive(self, tenant: _Tenant, answer: "UnreadAnswer") -> bool:
        if tenant.bytes <= self._bytes_max:
            return True
        return not tenant.whole and next(iter(tenant.arriving)) is answer

    def _let_arrive(self, tenant: _Tenant) -> None:
        for answer in tenant.arriving:
            if answer.is_paused and self._may_arrive(tenant, answer):
                answer.resume()

    def _watch(self, tenant: _Tenant) -> None:
        if tenant.timer is None:
            tenant.timer = asyncio.get_running_loop().call_later(PRESSED_STALL_S / 4, self._cut_stalled, tenant)

    def _cut_stalled(self, tenant: _Tenant) -> None:
        tenant.timer = None
        if any(answer.is_paused for answer in tenant.arriving):
            for answer in list(tenant.whole):
                answer.cut_if_stalled()
            self._watch(tenant)


class UnreadAnswer:
    """The account, in UnreadBytes, of the bytes of one answer that is not streamed, until its client has read it. If
    the answer is dropped unsent, the destructor of this object releases the bytes.
    """

    __slots__ = ("__weakref__", "_bytes", "_cut", "_exchange", "_moved_at", "_unread", "is_paused", "tenant_id")

    def __init__(self, unread: UnreadBytes, tenant_id: str, exchange: HttpExchange) -> None:
        self.tenant_id = tenant_id
        self.is_paused = False
        self._unread: UnreadBytes | None = unread
        self._exchange: HttpExchange | None = exchange
        self._bytes = 0
        self._cut: Callable[[str], None] | None = None
        self._moved_at = 0.0

    def __del__(self) -> None:
        self.release()

    def grew(self, bytes_: int) -> None:
        """Count bytes that have arrived. Over the tenant's limit this pauses the exchange."""
        self._bytes += bytes_
        if self._unread is not None:
            self._unread.grew(self, bytes_)

    def arrived(self) -> None:
        """The answer is complete."""
        self._exchange = None
        if self._unread is not None:
            self._unread.arrived(self)

    def sending(self, cut: Callable[[str], None]) -> None:
        self._cut = cut
        self.moved()

    def moved(self) -> None:
        self._moved_at = asyncio.get_running_loop().time()

    def release(self) -> None:
        unread, self._unread, self._cut = self._unread, None, None
        if unread is not None:
            unread.released(self, self._bytes)

    def pause(self) -> None:
        if self._exchange is not None and not self.is_paused:
            self.is_paused = True
            self._exchange.pause()

    def resume(self) -> None:
        self.is_paused = False
        if self._exchange is not None:
            self._exchange.resume()

    def cut_if_stalled(self) -> None:
        if self._cut is not None and asyncio.get_running_loop().time() - self._moved_at >= PRESSED_STALL_S:
            self._cut(PRESSED)
