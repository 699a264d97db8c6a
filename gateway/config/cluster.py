"""Cluster section: how gateways that share a Redis reach each other, to share one order."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from gateway.config.sections import Name, Section, ServerTls, file_text

SECRET_BYTES_MIN = 16
PORT_MAX = 65_535


def _address(value: str) -> str:
    host, separator, port = value.rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= PORT_MAX:
        raise ValueError("must be host:port")
    return value


class ClusterTls(ServerTls):
    """Mutual TLS: each side shows `cert_file`, and trusts what `ca_file` has signed."""

    ca_file: Path


class ClusterSection(Section):
    """`enabled` None: where state.redis is set. `host` None: the local address by which Redis is reached; `port` 0: any
    free one; `advertise` None: host and port as bound. `name` None: the host's name and chance. `secret_file` None:
    the secret is derived from that of API keys.
    """

    enabled: bool | None = None
    host: str | None = None
    port: Annotated[int, Field(ge=0, le=PORT_MAX)] = 0
    advertise: Annotated[str, AfterValidator(_address)] | None = None
    name: Name | None = None
    secret_file: Path | None = None
    tls: ClusterTls | None = None

    def secret(self) -> bytes | None:
        """The configured secret. Raises ValueError where its file cannot be read, or is too short."""
        if self.secret_file is None:
            return None
        secret = file_text(self.secret_file).encode()
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(f"the file {self.secret_file} must hold at least {SECRET_BYTES_MIN} bytes")
        return secret
