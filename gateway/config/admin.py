"""Admin section: the address of the admin port, its first key, and the networks that its backends may be in."""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from gateway.config.sections import Section, ServerTls
from gateway.config.value_types import Network, not_bool

PRIVATE_NETWORKS: tuple[IPv4Network | IPv6Network, ...] = (
    IPv4Network("10.0.0.0/8"),
    IPv4Network("172.16.0.0/12"),
    IPv4Network("192.168.0.0/16"),
    IPv6Network("fc00::/7"),
)


class Admin(Section):
    """The settings of the admin port. `key_file` holds the first API key, which has the role admin; the gateway
    generates a missing one.
    """

    enabled: bool = False
    host: str = "127.0.0.1"
    port: Annotated[int, BeforeValidator(not_bool), Field(ge=0, le=65_535)] = 8081
    tls: ServerTls | None = None
    key_file: Path = Path("fairlead.admin-key")
    backend_networks: tuple[Network, ...] = PRIVATE_NETWORKS
