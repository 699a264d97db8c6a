"""What is declared: the file as it was last read, its keys, and the backends that were found.

Each of them may change while the gateway runs; what all of them say together is what the registry is told. A
backend that the file names goes before one that is found at the same place, and a source before those behind it.
"""

from collections.abc import Iterator

from pydantic import BaseModel

from gateway.config import Config
from gateway.config.key_file import KeyRecord, read_keys
from gateway.config.problems import Loc, dotted_path
from gateway.config.sections import BackendSection
from gateway.state.entries import Declared, declared_by

LIVE_SECTIONS = frozenset({"backends", "tiers", "tenants", "pools", "scheduling"})
LIVE_SCHEDULING = frozenset({"fairness", "prediction", "placement"})
"""What of these sections takes effect while the gateway runs; all else at its next start."""


class Declaration:
    """Mutable. Raises ValueError where the file of keys cannot be read."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._keys = _keys(config)
        self._found: dict[int, frozenset[str]] = {}  # by source: the URLs there

    def declared(self) -> Declared:
        """All of it."""
        backends: dict[str, BackendSection] = {backend.id: backend for backend in self.config.backends}
        for number, source in enumerate(self.config.discovery):
            for url in sorted(self._found.get(number, ())):
                backend = source.backend_at(url)
                backends.setdefault(backend.id, backend)
        return declared_by(self.config.model_copy(update={"backends": tuple(backends.values())}), self._keys)

    def found(self, number: int, urls: frozenset[str]) -> None:
        """The source of this number has these servers now."""
        self._found[number] = urls

    def read_anew(self, config: Config) -> list[str]:
        """The file says this now. Returns the fields (`queue.wait_s_max`) of which the change waits for the next start.
        Raises ValueError, and then nothing has changed.
        """
        keys = _keys(config)
        late = sorted(dotted_path(path) for path in _differing(self.config, config) if not _is_live(path))
        kept = {name: getattr(self.config, name) for name in type(config).model_fields if name not in LIVE_SECTIONS}
        self.config, self._keys = config.model_copy(update=kept), keys
        return late


def _differing(before: BaseModel, after: BaseModel, path: Loc = ()) -> Iterator[Loc]:
    """The paths of all fields that are not the same in both."""
    for name in type(before).model_fields:
        one, other = getattr(before, name), getattr(after, name)
        if isinstance(one, BaseModel) and type(one) is type(other):
            yield from _differing(one, other, (*path, name))
        elif one != other:
            yield (*path, name)


def _is_live(path: Loc) -> bool:
    """Whether a change there takes effect at once."""
    return path[0] in LIVE_SECTIONS and (path[0] != "scheduling" or path[1] in LIVE_SCHEDULING)


def _keys(config: Config) -> list[KeyRecord]:
    return read_keys(config.auth.keys_file) if config.auth.mode == "keys" else []
