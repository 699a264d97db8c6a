"""share_live: the live document of several processes, which the leader makes and every other one asks for."""

from typing import Final

from gateway.live.live import Live
from gateway.shared_order.order import SharedOrder
from gateway.shared_order.services import Peers, Service
from gateway.store.base import StoreUnavailable

DOCUMENT: Final = "live"  # services, by name
ENDED: Final = "ended"


def share_live(live: Live, order: SharedOrder, peers: Peers) -> dict[str, Service]:
    """Connect this process's part to those of the others. Returns the services that answer them."""

    async def ask_leader() -> bytes | None:
        return None if order.leader is not None else await peers.ask_leader(DOCUMENT)

    async def ask_other(name: str, body: bytes) -> bytes:
        return await peers.ask(name, ENDED, body)

    async def document(_body: bytes) -> bytes:
        if order.leader is None:
            raise StoreUnavailable("this process does not lead")
        return await live.encoded()

    live.ask_leader, live.ask_other, live.others = ask_leader, ask_other, order.followers
    return {DOCUMENT: document, ENDED: live.tell}
