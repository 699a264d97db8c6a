"""Declared state: the file as last read, its keys, and the backends that discovery found.

All of these may change while the gateway runs; the registry gets the changes. A backend in the file overrides a
discovered backend with the same id, and a discovery source overrides later sources.
"""

from collections.abc import Iterator

from pydantic import BaseModel

from gateway.config import Config
from gateway.config.key_file import KeyRecord, read_keys
from gateway.config.problems import Loc, dotted_path
from gateway.config.scheduling import PoolSettings, Scheduling
from gateway.config.sections import BackendSection
from gateway.registry.entries import Declared, declared_backends, declared_by

LIVE_SECTIONS = frozenset({"backends", "tiers", "groups", "tenants", "pools", "prices", "aliases", "scheduling"})
LIVE_SCHEDULING = frozenset({"fairness", "prediction", "placement"})
"""The fields of `scheduling` that take effect on reload, like the other live sections; all else at the next start."""


class Declaration:
    """The registry entries (such as backends and tenants) that are declared now: by the configuration file, by the key
    file that it names (the API keys of tenants), and by discovery. `config` is the configuration in force. Mutable. The
    constructor and `read_anew` read the key file, and raise ValueError if they cannot.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._keys = _keys(config)
        self._found: dict[int, frozenset[str]] = {}  # by source: the URLs there

    def declared(self) -> Declared:
        return {**declared_by(self.config, self._keys), **self.backends()}

    def backends(self) -> Declared:
        """The backends alone: all that discovery changes."""
        backends: dict[str, BackendSection] = {backend.id: backend for backend in self.config.backends}
        for number, source in enumerate(self.config.discovery):
            for url in sorted(self._found.get(number, ())):
                backend = source.backend_at(url)
                backends.setdefault(backend.id, backend)
        return declared_backends(backends.values())

    def found(self, number: int, urls: frozenset[str]) -> None:
        """Set the servers that the discovery source with this number has found."""
        self._found[number] = urls

    def read_anew(self, config: Config) -> list[str]:
        """Apply a reloaded configuration. Returns the changed fields (`queue.wait_s_max`) that wait for the next start.
        Raises ValueError; then nothing has changed.
        """
        keys = _keys(config)
        before = self.config
        names = sorted(before.pools.keys() | config.pools.keys())
        differing = list(_differing(before, config))
        for name in names:
            of_pool = _differing(_own(before, name), _own(config, name))
            differing += [("pools", name, "scheduling", *path) for path in of_pool if path[0] not in LIVE_SCHEDULING]
        kept = {name: getattr(before, name) for name in type(config).model_fields if name not in LIVE_SECTIONS}
        kept["scheduling"] = _in_force(before.scheduling, config.scheduling)
        pools = {name: _in_force(_own(before, name), _own(config, name)) for name in names}
        kept["pools"] = {
            name: PoolSettings(scheduling=own)
            for name, own in pools.items()
            if name in config.pools or own.model_fields_set
        }
        self.config, self._keys = config.model_copy(update=kept), keys
        return sorted(dotted_path(path) for path in differing if not _is_live(path))


def _own(config: Config, pool: str) -> Scheduling:
    """The pool's own settings, which may be none."""
    return config.pools.get(pool, PoolSettings()).scheduling


def _in_force(before: Scheduling, after: Scheduling) -> Scheduling:
    """The settings after a change, of which those that wait for the next start are as before."""
    live = {name: getattr(after, name) for name in after.model_fields_set & LIVE_SCHEDULING}
    return Scheduling(**live, **{name: getattr(before, name) for name in before.model_fields_set - LIVE_SCHEDULING})


def _differing(before: BaseModel, after: BaseModel, path: Loc = ()) -> Iterator[Loc]:
    """Yield the paths of all fields that differ."""
    for name in type(before).model_fields:
        one, other = getattr(before, name), getattr(after, name)
        if isinstance(one, BaseModel) and type(one) is type(other):
            yield from _differing(one, other, (*path, name))
        elif one != other:
            yield (*path, name)


def _is_live(path: Loc) -> bool:
    """Whether a change of this field takes effect at once."""
    if "scheduling" in path:
        return path[path.index("scheduling") + 1] in LIVE_SCHEDULING
    return path[0] in LIVE_SECTIONS


def _keys(config: Config) -> list[KeyRecord]:
    return read_keys(config.auth.keys_file) if config.auth.mode == "keys" else []
