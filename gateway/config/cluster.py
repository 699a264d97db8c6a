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
    """The TLS files for connections between the gateways of a cluster. Each side shows the certificate in `cert_file`.
    It trusts a peer's certificate if a CA in `ca_file` has signed it, and it has one of the names in `cert_file`.
    """

    ca_file: Path


class ClusterSection(Section):
    """The settings of a cluster: gateways that put all their requests into one fair order. `enabled` None: they are a
    cluster if state.redis is set.

    A gateway listens for the others at `host` (None: the local address by which Redis is reached) and `port` (0: any
    free one). `advertise` is the address at which the others reach it; None: this host and port. `name` None: the
    host's name and a random part. `secret_file` has one secret a line: the first one issues certificates, and
    certificates by any of them are accepted. `secret_file` None: the secret is derived from that of API keys.
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
