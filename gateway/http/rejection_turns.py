"""RejectionTurns: a limit on the 429 responses in one turn of the event loop.

A rejected client may call again at once, and to read and reject a call costs nearly as much as to serve one. A gateway
that is short of CPU would reject all calls of a greedy tenant, and serve no tenant. So a turn sends REJECTS_MAX
responses, and the others wait, tenant after tenant. A connection that waits for its response sends nothing more. Turns
are short while there is enough CPU, and then no rejection waits longer than a few milliseconds.
"""

import asyncio
from collections import deque
from typing import Final

# A turn of a busy gateway begins up to 32 calls (DECISIONS_MAX of policies/pool/scheduler_parts.py): these cost a
# twentieth of it.
REJECTS_MAX: Final = 2


class RejectionTurns:
    """A limit on the 429 responses in one turn of the event loop, so that rejected clients do not use up the CPU.
    Further rejections wait for a later turn. Mutable. Made and used on the gateway's loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sent = 0  # in this turn
        self._is_turning = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by tenant, the next to be served first

    async def wait(self, tenant_id: str) -> None:
        """Return when a rejection of a call of this tenant may be sent."""
        if not self._is_turning:
            self._is_turning = True
            self._loop.call_soon(self._turn)
        if self._sent < REJECTS_MAX and not self._waiting:
            self._sent += 1
            return
        turn = self._loop.create_future()
        self._waiting.setdefault(tenant_id, deque()).append(turn)
        await turn

    def _turn(self) -> None:
        self._sent = 0
        while self._waiting and self._sent < REJECTS_MAX:
            tenant_id = next(iter(self._waiting))
            queue = self._waiting.pop(tenant_id)
            turn = queue.popleft()
            if queue:
                self._waiting[tenant_id] = queue  # behind the others
            if not turn.done():  # its client has not left
                turn.set_result(None)
                self._sent += 1
        self._is_turning = self._sent > 0
        if self._is_turning:
            self._loop.call_soon(self._turn)
