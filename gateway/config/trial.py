"""Trial: a gateway without a configuration, whose admin port opens on this machine without writing any file.

Its first key is in no file, and its state is in memory: people sign in by a one-time link, and everything is lost when
the process ends. Commands of the same user sign in by a socket (gateway/admin/access/local_socket.py).
"""

import secrets
from typing import Final

from pydantic import SecretStr

from gateway.config.admin import Admin
from gateway.config.config import Config
from gateway.config.key_file import SECRET_BYTES

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
# With one of these set, the gateway is meant to serve others: its admin port is what its configuration says.
DECIDING: Final = ("admin", "auth", "jwt", "state", "cluster", "workers")
NEXT_PORTS: Final = 10  # of gateways that are tried out beside each other


def made_trial(config: Config) -> Config:
    """The configuration with a trial's admin port, if it comes from no file and leaves that port unset; else unchanged.
    There is no trial with a JSON log, whose readers open no links, or with a host that other machines reach.
    """
    is_open = all(getattr(config, name) == Config.model_fields[name].default for name in DECIDING)
    if not is_open or config.log.format == "json" or config.listen.host not in LOOPBACK:
        return config
    auth = config.auth
    if auth.secret_bytes() is None:
        auth = auth.model_copy(update={"secret": SecretStr(secrets.token_urlsafe(SECRET_BYTES))})
    trial = config.model_copy(update={"admin": Admin(enabled=True), "auth": auth})
    trial._is_trial = True  # noqa: SLF001 - set here alone
    return trial


def admin_ports(config: Config) -> tuple[int, ...]:
    """The ports to try for the admin port, in this order: only the configured port, or several in a trial."""
    first = config.admin.port
    if not config.is_trial:
        return (first,)
    # The data port is opened after the admin port, and keeps its number.
    return (*(port for port in range(first, first + NEXT_PORTS) if port != config.listen.port), 0)
