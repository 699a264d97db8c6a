"""Cluster section: the addresses and credentials by which gateways that share a Redis also share one order."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from gateway.config.sections import Section, ServerTls, secret_lines
from gateway.config.value_types import Name

PORT_MAX = 65_535


def _address(value: str) -> str:
    host, separator, port = value.rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= PORT_MAX:
        raise ValueError("must be host:port")
    return value


class ClusterTls(ServerTls):
    """The TLS files for connections between gateways. Each side shows `cert_file`. It trusts the certificates that
    `ca_file` has signed and that have one of the names of `cert_file`.
    """

    ca_file: Path


class ClusterSection(Section):
    """The settings of the order that several gateways share. `enabled` None: where state.redis is set.

    `host` None: the local address by which Redis is reached; `port` 0: any free one; `advertise` None: host and port as
    bound. `name` None: the host's name and chance. `secret_file`: one secret a line; the first issues certificates,
    those of all are accepted. None: derived from that of API keys.
    """

    enabled: bool | None = None
    host: str | None = None
    port: Annotated[int, Field(ge=0, le=PORT_MAX)] = 0
    advertise: Annotated[str, AfterValidator(_address)] | None = None
    name: Name | None = None
    secret_file: Path | None = None
    tls: ClusterTls | None = None

    def secrets(self) -> list[bytes]:
        """The configured secrets. Raises ValueError where their file cannot be read, or a secret is too short."""
        if self.secret_file is None:
            return []
        return secret_lines(self.secret_file)
