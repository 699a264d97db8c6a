"""Assembly of the store: a file alone, or a file that mirrors the Redis that gateways share."""

from pathlib import Path
from typing import Any

from gateway.config.state import RedisSection, StateSection
from gateway.store.base import Store
from gateway.store.mirrored import MirroredStore
from gateway.store.redis_exchange import RedisExchange
from gateway.store.redis_store import RedisStore
from gateway.store.sqlite import SqliteStore

FILE_NAME = "fairlead.db"


def make_store(state: StateSection, config_file: Path | None) -> Store:
    """The store of a gateway. The file is beside the configuration by default; without either, state is in memory
    alone. Raises ValueError where a password cannot be read.
    """
    own = SqliteStore(_file(state, config_file))
    if state.redis is None:
        return own
    return MirroredStore(_shared(state.redis), own)


def make_tool_store(state: StateSection, config_file: Path | None) -> Store:
    """The same state for a command that runs briefly beside the gateways. Raises ValueError where there is none."""
    if state.redis is not None:
        return _shared(state.redis)
    file = _file(state, config_file)
    if file is None:
        raise ValueError("no state is kept without a configuration that says where (state.file)")
    return SqliteStore(file, is_tool=True)


def _file(state: StateSection, config_file: Path | None) -> Path | None:
    return state.file or (None if config_file is None else config_file.parent / FILE_NAME)


def make_peer_exchange(state: StateSection) -> RedisExchange | None:
    """The peer exchange of gateways that share their state; None where they do not. Raises ValueError where a password
    cannot be read.
    """
    return None if state.redis is None else RedisExchange(state.redis.url, **_settings(state.redis))


def _shared(redis: RedisSection) -> RedisStore:
    return RedisStore(redis.url, **_settings(redis))


def _settings(redis: RedisSection) -> dict[str, Any]:
    given = {"username": redis.username, "password": redis.secret()}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if redis.ca_file is not None:
        options["ssl_ca_certs"] = str(redis.ca_file)
    return {"prefix": redis.prefix, "timeout_s": redis.timeout_ms / 1000, "options": options}
