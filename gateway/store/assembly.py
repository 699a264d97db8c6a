"""Assembly of the store: a file only, or a file that mirrors the Redis that gateways share.

Modules that need Redis are imported only where one is configured: its client takes a fifth of the time of a start.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.config.state import RedisSection, StateSection
from gateway.store.base import Store
from gateway.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from gateway.store.redis_election import RedisElection
    from gateway.store.redis_store import RedisStore

FILE_NAME = "fairlead.db"


def make_store(state: StateSection, config_file: Path | None) -> Store:
    """Make the store of a gateway. Raises ValueError where a password cannot be read. The file is beside the
    configuration by default; without either, state is in memory alone.
    """
    own = SqliteStore(_file(state, config_file))
    if state.redis is None:
        return own
    from gateway.store.mirrored import MirroredStore  # noqa: PLC0415

    return MirroredStore(_shared(state.redis), own)


def make_tool_store(state: StateSection, config_file: Path | None) -> Store:
    """Make a store of the same state for a command that runs briefly beside the gateways. Raises ValueError where there
    is no state.
    """
    if state.redis is not None:
        return _shared(state.redis)
    file = _file(state, config_file)
    if file is None:
        raise ValueError("no state is kept without a configuration that says where (state.file)")
    return SqliteStore(file, is_tool=True)


def _file(state: StateSection, config_file: Path | None) -> Path | None:
    return state.file or (None if config_file is None else config_file.parent / FILE_NAME)


def make_elections(redis: RedisSection) -> "RedisElection":
    """The election store of the gateways that share this Redis. Raises ValueError where a password cannot be read."""
    from gateway.cluster.asking import ANSWER_S_MAX  # noqa: PLC0415
    from gateway.store.redis_election import RedisElection  # noqa: PLC0415

    # An answer counts as long as the candidate waits for it, however short the state's timeout is: a lease is at stake.
    settings = _settings(redis)
    return RedisElection(redis.url, **settings | {"timeout_s": max(settings["timeout_s"], ANSWER_S_MAX)})


def _shared(redis: RedisSection) -> "RedisStore":
    from gateway.store.redis_store import RedisStore  # noqa: PLC0415

    return RedisStore(redis.url, **_settings(redis))


def _settings(redis: RedisSection) -> dict[str, Any]:
    given = {"username": redis.username, "password": redis.secret()}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if redis.ca_file is not None:
        options["ssl_ca_certs"] = str(redis.ca_file)
    return {"prefix": redis.prefix, "timeout_s": redis.timeout_ms / 1000, "options": options}
