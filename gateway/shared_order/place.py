"""MemberPlace: a process as the others of its order know it, and the transport between them.

An address is `host:port`, or the path of a Unix socket. Replicas connect by TCP and mutual TLS; workers of one machine
by Unix sockets in a private folder, which only their own user can open.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp

from gateway.cluster.wire import VERSION

if TYPE_CHECKING:  # cryptography is loaded where there are replicas
    from gateway.shared_order.credentials import Credentials


@dataclass(slots=True)
class MemberPlace:
    """The identity and the addresses of one process among the members of a shared order (processes of which one, the
    leader, decides for all). Mutable: `address` is set when the process listens; `secret` and `credentials`, if not
    configured, when Redis gives the secret.

    `name` is never used again by another process. `listen` is the path of a Unix socket, or host and port; `advertise`
    is the address that others connect to, "" if it is the one that it listens at. `secret` is known to all processes of
    the order and to no other; `credentials` authenticate them over TCP. If `leader_address` is set, a parent process
    has appointed the leader, which is the process that listens there. Its leadership has the number `epoch` (each new
    leadership has a higher one), and `others` are the names of the members that run already. If `leader_address` is
    None, the leader is elected by a store.
    """

    name: str
    secret: bytes
    listen: str | tuple[str, int]
    advertise: str = ""
    leader_address: str | None = None
    epoch: int = 0
    others: tuple[str, ...] = ()
    processes: int = 1
    """That serve on this machine."""
    version: int = VERSION
    """Of the protocol: processes of unequal ones do not join."""
    credentials: "Credentials | None" = None
    address: str = ""
    leads: bool = True
    """Whether this process leads others now, and so may be followed."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Where the others listen, by name, as the store lists them."""

    @property
    def is_appointed(self) -> bool:
        """Whether a parent process has appointed this one to lead."""
        return self.leader_address is not None and self.leader_address == self.listen

    @property
    def has_state(self) -> bool:
        """Whether this process has the state, its discovery, and the ports for operators: of the processes of one
        machine, only the leader.
        """
        return self.leader_address is None or self.is_appointed


def open_session(address: str) -> tuple[aiohttp.ClientSession, str]:
    """A session to the process at this address, and the root of its URLs. The caller closes the session."""
    if address.startswith("/"):
        return aiohttp.ClientSession(connector=aiohttp.UnixConnector(address)), "http://member"
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector()), f"https://{address}"
