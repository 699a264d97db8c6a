"""RoleWork: the tasks of one process that follow from its role in the shared order.

The leader polls the backends, reports their state to the others, admits calls to budgets for all, and writes the learnt
state; a follower receives the results. The role may change while the process runs.
"""

import asyncio
from typing import Final

import msgspec

from backends.health import Evidence
from gateway.admin.management import Management
from gateway.cluster.wire import LimitsOf
from gateway.live.schema import MemberRole
from gateway.parts import GatewayParts
from gateway.shared_order.backends import SharedPolls
from gateway.shared_order.order import SharedOrder
from gateway.shared_order.services import Peers
from gateway.tasks import Tasks
from policies.types import RateLimits

FOUND: Final = "found"
"""The topic of what discovery has found, where one process discovers for all."""

pack: Final = msgspec.msgpack.Encoder().encode
_EVIDENCE: Final = msgspec.msgpack.Decoder(tuple[str, Evidence, float])
_LIMITS_OF: Final = msgspec.msgpack.Decoder(tuple[str, LimitsOf])
_FOUND: Final = msgspec.msgpack.Decoder(dict[int, frozenset[str]])


class RoleWork:
    """The tasks of one process that depend on whether it leads or follows in a shared order: the leader polls backends,
    decides on budgets and writes the checkpoint. Made on the loop when all parts of the gateway exist; call `stop`
    before these are stopped.
    """

    def __init__(
        self,
        order: SharedOrder,
        *,
        peers: Peers,
        tasks: Tasks,
        polls: SharedPolls,
        parts: GatewayParts,
        management: Management,
    ) -> None:
        self._order, self._tasks = order, tasks
        self._polls, self.parts = polls, parts
        self.management = management
        self._is_over = False
        self._found: dict[int, frozenset[str]] = {}
        peers.services |= {
            "evidence": self._hear_evidence,
            "limits": self._limits,
        }
        if management.keeps_state:
            tasks.start(management.claims.run())

    def stop(self) -> None:
        """Take up no role any more, because a new role would use a store that is closed next."""
        self._is_over = True

    # -- the role of this process ----------------------------------------------------------------------------

    def take_up(self, role: MemberRole, *, is_other: bool) -> None:
        """Take up this role; the role or the leader has changed. `is_other`: this process's own leadership, too."""
        if self._is_over:
            return
        if is_other:
            self.parts.metrics.schedulers.replaced()
        is_leading = self._order.leader is not None
        self.management.budgets.ledger.cut_off(
            self._order.member.lead.share.part.replicas if role is MemberRole.STANDALONE else 1
        )
        if is_leading:
            self.management.claims.lead()
            self._polls.lead()
        else:
            self._polls.follow()
        self._tasks.start(self.management.lead(is_leading=is_leading))
        self._share_found()

    # -- what the leader tells -------------------------------------------------------------------------------

    def hear_found(self, body: bytes) -> None:
        """Apply the servers that the leader's discovery has found."""
        for number, urls in _FOUND.decode(body).items():
            self.management.found(number, urls)

    def found(self, number: int, urls: frozenset[str]) -> None:
        """Discovery, here or in the process that discovers for all, has found these servers."""
        self._found[number] = urls
        self._share_found()

    def _share_found(self) -> None:
        discovers_for_all = self._order.place.is_appointed
        if discovers_for_all and self._found and self._order.leader is not None:
            self._order.leader.members.share(FOUND, pack(self._found))
            self._order.turns.soon()

    # -- what followers tell and ask -------------------------------------------------------------------------

    async def _hear_evidence(self, body: bytes) -> bytes:
        backend_id, evidence, ago_s = _EVIDENCE.decode(body)
        now = asyncio.get_running_loop().time()
        is_known = backend_id in self.parts.backends.states()
        if is_known and self._order.leader is not None:
            self.parts.backends.report(backend_id, evidence, sent_at=now - ago_s, now=now)
        return b""

    async def _limits(self, body: bytes) -> bytes:
        pool, of = _LIMITS_OF.decode(body)
        leader = self._order.leader
        order = None if leader is None else leader.pools.get(pool)
        limits = RateLimits() if order is None else order.tenants.rate_limits(of, asyncio.get_running_loop().time())
        return pack(limits)
