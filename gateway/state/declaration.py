"""What is declared: the file as it was last read, its keys, and the backends that were found.

Each of them may change while the gateway runs; what all of them say together is what the registry is told. A
backend that the file names goes before one that is found at the same place, and a source before those behind it.
"""

from gateway.config import Config
from gateway.config.sections import Backend
from gateway.identity.key_file import KeyRecord, read_keys
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
        backends: dict[str, Backend] = {backend.id: backend for backend in self.config.backends}
        for number, source in enumerate(self.config.discovery):
            for url in sorted(self._found.get(number, ())):
                backend = source.backend_at(url)
                backends.setdefault(backend.id, backend)
        return declared_by(self.config.model_copy(update={"backends": tuple(backends.values())}), self._keys)

    def found(self, number: int, urls: frozenset[str]) -> None:
        """The source of this number has these servers now."""
        self._found[number] = urls

    def read_anew(self, config: Config) -> list[str]:
        """The file says this now. Returns what of it waits for the next start. Raises ValueError, and then nothing
        has changed.
        """
        keys = _keys(config)
        late = [name for name in sorted(type(config).model_fields) if _differs(name, config, self.config)]
        kept = {name: getattr(self.config, name) for name in type(config).model_fields if name not in LIVE_SECTIONS}
        self.config, self._keys = config.model_copy(update=kept), keys
        return late


def _differs(section: str, config: Config, before: Config) -> bool:
    """Whether the section says something else that does not take effect at once."""
    if section == "scheduling":
        live = dict.fromkeys(LIVE_SCHEDULING)
        return config.scheduling.model_copy(update=live) != before.scheduling.model_copy(update=live)
    return section not in LIVE_SECTIONS and getattr(config, section) != getattr(before, section)


def _keys(config: Config) -> list[KeyRecord]:
    return read_keys(config.auth.keys_file) if config.auth.mode == "keys" else []
