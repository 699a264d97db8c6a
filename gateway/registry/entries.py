"""Entries of the registry: the file's declarations, and the documents that the API has written over them.

The API overrides the file. A document replaces the whole declaration of its name, until the API deletes the document;
then the declaration of that time applies again. An entry that only the file declares can be overridden, but not
deleted.
"""

import json
import zlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from gateway.config.config import Config
from gateway.config.key_file import KeyRecord
from gateway.config.sections import BackendSection, Section
from gateway.registry.resource_kinds import RESOURCE_KINDS, ApiKey, ManagedBackend, body_to_json
from gateway.store.base import Document

HMAC_CHARS_IN_NAME = 16

S = TypeVar("S", bound=Section)

Origin = Literal["declared", "admin", "overridden"]
Declared = Mapping[str, Mapping[str, Section]]
"""Declared sections, by kind and name."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the registry: the desired state of a tenant, a backend or another thing. `body` holds the fields
    that were set; `section` also has the defaults of the others.

    `version` is the version of its document in the store, 0 if it has none there; `etag` changes whenever `body` does.
    """

    kind: str
    name: str
    origin: Origin
    version: int
    etag: str
    body: Mapping[str, Any]
    section: Section

    def of(self, kind: type[S]) -> S:
        """The section of this entry, checked to be of the class `kind`."""
        assert isinstance(self.section, kind), "an entry is of its kind"
        return self.section


def declared_by(config: Config, keys: list[KeyRecord]) -> Declared:
    """The entries that a configuration and its key file declare."""
    return {
        "tiers": dict(config.tiers),
        "groups": dict(config.groups),
        "tenants": dict(config.tenants),
        **declared_backends(config.backends),
        "pools": dict(config.pools),
        "prices": dict(config.prices),
        "aliases": dict(config.aliases),
        "keys": {record.hmac[:HMAC_CHARS_IN_NAME]: _declared_key(record) for record in keys},
    }


def declared_backends(backends: Iterable[BackendSection]) -> Declared:
    """The entries of these backends."""
    made = {
        backend.id: ManagedBackend.model_construct(
            _fields_set=backend.model_fields_set,
            **{name: getattr(backend, name) for name in type(backend).model_fields},
        )
        for backend in backends
    }
    return {"backends": made}


def _declared_key(record: KeyRecord) -> ApiKey:
    return ApiKey.model_validate(
        {
            "tenant": record.tenant,
            "hmac": record.hmac,
            "last_four": record.last_four,
            "created_at": record.created_at,
        }
    )


class View:
    """All entries of the registry, in memory, by kind and name. An entry comes from its document in the store or,
    without one, from its declaration in the configuration file or by discovery. Mutable.
    """

    def __init__(self, declared: Declared) -> None:
        self._declared = {kind: _entries(kind, declared.get(kind, {})) for kind in RESOURCE_KINDS}
        self._written: dict[str, dict[str, Entry]] = {kind: {} for kind in RESOURCE_KINDS}
        self._sorted = {kind: sorted(self._declared[kind]) for kind in RESOURCE_KINDS}

    def get(self, kind: str, name: str) -> Entry | None:
        return self._written[kind].get(name) or self._declared[kind].get(name)

    def is_declared(self, kind: str, name: str) -> bool:
        return name in self._declared[kind]

    def declared_body(self, kind: str, name: str) -> Mapping[str, Any] | None:
        """The body of this entry in the configuration file; None if the file does not declare it."""
        entry = self._declared[kind].get(name)
        return None if entry is None else entry.body

    def names(self, kind: str) -> list[str]:
        """The names of one kind, sorted. The caller must not modify the list."""
        return self._sorted[kind]

    def behind(self, kind: str, after: str) -> Iterator[Entry]:
        """The entries after the name `after`, by name."""
        names = self.names(kind)
        return (self._at(kind, names[at]) for at in range(bisect_right(names, after), len(names)))

    def all(self, kind: str) -> Iterator[Entry]:
        return (self._at(kind, name) for name in self.names(kind))

    def redeclare(self, declared: Declared) -> frozenset[tuple[str, str]]:
        """Replace the declarations of these kinds. Returns the entries whose effective state differs."""
        changed = set()
        for kind, sections in declared.items():
            before, after = self._declared[kind], _entries(kind, sections)
            self._declared[kind], written = after, self._written[kind]
            for name in (before.keys() ^ after.keys()) & written.keys():
                written[name] = replace(written[name], origin=self._origin(kind, name))
            self._sorted[kind] = sorted({*written, *after})
            changed |= {
                (kind, name)
                for name in {*before, *after}
                if name not in written and _etag(before.get(name)) != _etag(after.get(name))
            }
        return frozenset(changed)

    def wrote(self, document: Document, section: Section | None) -> bool:
        """Apply a document with its `section`; None: it is deleted. Returns whether the entry changed."""
        kind, name = document.kind, document.name
        before = self._written[kind].get(name)
        if before is not None and before.version >= document.version:
            return False
        if document.body is None or section is None:
            return self._unwrote(kind, name)
        if self.get(kind, name) is None:
            insort(self._sorted[kind], name)
        self._written[kind][name] = Entry(
            kind,
            name,
            self._origin(kind, name),
            document.version,
            str(document.version),
            MappingProxyType(dict(document.body)),
            section,
        )
        return True

    def _origin(self, kind: str, name: str) -> Origin:
        """Where an entry of the API stands."""
        return "overridden" if self.is_declared(kind, name) else "admin"

    def _unwrote(self, kind: str, name: str) -> bool:
        if self._written[kind].pop(name, None) is None:
            return False
        if not self.is_declared(kind, name):
            names = self._sorted[kind]
            del names[bisect_left(names, name)]
        return True

    def _at(self, kind: str, name: str) -> Entry:
        return self._written[kind].get(name) or self._declared[kind][name]


def _etag(entry: Entry | None) -> str | None:
    return None if entry is None else entry.etag


def _entries(kind: str, sections: Mapping[str, Section]) -> dict[str, Entry]:
    return {name: _declared_entry(kind, name, section) for name, section in sections.items()}


def _declared_entry(kind: str, name: str, section: Section) -> Entry:
    body = body_to_json(section)
    text = json.dumps(body, sort_keys=True).encode()
    return Entry(kind, name, "declared", 0, f"file-{zlib.crc32(text):08x}", MappingProxyType(body), section)
