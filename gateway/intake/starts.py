"""When a call is begun: as it comes, or in its tenant's turn where the event loop is short of time (start_queue.py).

A turn of the loop is timed from the first call that comes in it to where the loop gets next to what was scheduled then:
it has read its sockets, run its timers, and what was ready in between. A call that is refused here was looked at no
further than its head, and is counted and logged as every other.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from gateway.api.endpoints import Endpoint
from gateway.api.errors import REFUSALS
from gateway.http.names import RequestNames
from gateway.identity.auth import Identity
from gateway.intake.start_queue import StartQueue
from gateway.observability.telemetry import CallTrace, Telemetry
from policies.types import Reason

Start = asyncio.Future[None]  # done when the call may begin, or is not wanted any more

QUIET_S: Final = 60.0  # without a refusal, and it is over
NAMED_MAX: Final = 3  # of the tenants that were refused most
STATUS: Final = REFUSALS[Reason.GATEWAY_BUSY].status
UNKNOWN: Final = ""  # whoever calls without a valid key counts as one tenant

log = logging.getLogger(__name__)


class Refusal(NamedTuple):
    """Of a call that is not to wait: for how long its tenant's oldest has waited, and its name."""

    waited_s: float
    request_id: str


class Starts:
    """The calls of one gateway that wait to be begun. Mutable. Made on the loop that it watches."""

    def __init__(
        self,
        *,
        caller: Callable[[Mapping[str, str], str | None], Identity | None],
        weight_of: Callable[[str], float],
        names: RequestNames,
        telemetry: Telemetry,
    ) -> None:
        """`caller` tells by headers and address who calls, None where that is not known; `weight_of` is a tenant's, by
        its id.
        """
        self._queue: StartQueue[Start] = StartQueue(is_gone=asyncio.Future.done)
        self._caller = caller
        self._weight_of = weight_of
        self._names = names
        self._telemetry = telemetry
        self._log = _RefusalLog()
        self._loop = asyncio.get_running_loop()
        self._is_timing = False
        self._turn_began_s = 0.0

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return self._queue.calls

    def may_start(self) -> bool:
        """Whether a call may begin at once; it then counts as begun."""
        if not self._is_timing:
            self._is_timing = True
            self._turn_began_s = time.thread_time()
            self._loop.call_soon(self._turn)
        return self._queue.may_start()

    def put(self, start: Start, endpoint: Endpoint, headers: Mapping[str, str], remote: str | None) -> Refusal | None:
        """Let a call that may not begin wait until `start` is done, or say that it shall not."""
        identity = self._caller(headers, remote)
        tenant_id = UNKNOWN if identity is None else identity.tenant_id
        waited_s = self._queue.put(tenant_id, self._weight_of(tenant_id), start, time.perf_counter())
        if waited_s is None:
            return None
        self._log.refused(tenant_id)
        trace = CallTrace(endpoint.path, request_id=self._names.name(headers))
        if identity is not None:
            trace.tenant_id, trace.key_id = identity.tenant_id, identity.key_id
        trace.status, trace.reason = STATUS, Reason.GATEWAY_BUSY
        self._telemetry.ended(trace)
        return Refusal(waited_s, trace.request_id)

    def _turn(self) -> None:
        now = time.thread_time()
        for start in self._queue.turn(now - self._turn_began_s):
            start.set_result(None)
        self._turn_began_s = now
        self._is_timing = not self._queue.is_idle
        if self._is_timing:
            self._loop.call_soon(self._turn)


class _RefusalLog:
    """A line when refusals begin, and one when they are over: that a gateway is too small is for people to mend."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._refused: Counter[str] = Counter()
        self._last_at = 0.0

    def refused(self, tenant_id: str) -> None:
        self._last_at = self._loop.time()
        if not self._refused:
            log.warning(
                "the gateway is short of CPU: calls wait to be read, and tenants that ask for more than their share "
                "of it are refused, the first of them %s",
                tenant_id or "callers without a valid key",
            )
            self._loop.call_later(QUIET_S, self._look)
        self._refused[tenant_id] += 1

    def _look(self) -> None:
        quiet_at = self._last_at + QUIET_S
        if self._loop.time() < quiet_at:
            self._loop.call_at(quiet_at, self._look)
            return
        most = ", ".join(f"{tenant_id or 'no valid key'} {n}" for tenant_id, n in self._refused.most_common(NAMED_MAX))
        log.warning("the gateway has CPU enough again: it refused %d calls, most of %s", self._refused.total(), most)
        self._refused.clear()
