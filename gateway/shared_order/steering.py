"""share_steering: requests and recorded calls of several processes, each of which knows those that it accepted."""

from gateway.cluster.wire import wire_id
from gateway.shared_order.order import SharedOrder
from gateway.shared_order.services import Peers
from gateway.steering.requests import Others
from gateway.steering.steering import ServiceOf, Steering


def share_steering(steering: Steering, order: SharedOrder, peers: Peers) -> ServiceOf:
    """Connect this process's part to those of the others. Returns the services that answer them."""
    process = order.place.name

    def scheduler_id(request_id: str) -> str:
        own = order.member.follower.own(request_id)
        return "" if own is None else wire_id(process, own.number)

    def names() -> list[str]:
        return [member.name for member in order.view().members if member.name != process]

    others = Others(names, peers.ask, peers.ask_leader, lambda: order.leader is not None)
    return steering.share(others, scheduler_id)
