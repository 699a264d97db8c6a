"""Transfer: export and import of the API's documents, as a file to back up or to move to another gateway.

The export holds no declarations, usage or audit log. Keys are exported as HMACs, which are useless without their
secret.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from gateway.config import Config
from gateway.config.key_file import read_keys
from gateway.config.problems import ConfigProblem
from gateway.registry.changes import Edit, Invalid
from gateway.registry.entries import declared_by
from gateway.registry.registry import Registry
from gateway.registry.resource_kinds import RESOURCE_KINDS, read_body
from gateway.store.assembly import make_tool_store
from gateway.store.base import CHANGES_MAX

FORMAT = 1
ACTOR = "fairlead import"
IMPORT_BYTES_MAX = 256 << 20


def export_from(config: Config, config_file: Path | None) -> str:
    """The export of this configuration's state. Raises ValueError, StateFileError, StoreUnavailable."""

    async def export() -> str:
        async with _registry(config, config_file) as registry:
            return write_export(registry).decode()

    return asyncio.run(export())


def import_into(config: Config, config_file: Path | None, file: Path) -> int:
    """Import the file; return the number of entries created or changed. Raises OSError, and the errors of `export_from`
    and `import_entries`.
    """
    with file.open("rb") as opened:
        edits = read_export(opened.read(IMPORT_BYTES_MAX))

    async def import_edits() -> int:
        async with _registry(config, config_file) as registry:
            return await import_entries(registry, edits, actor=ACTOR)

    return asyncio.run(import_edits())


@asynccontextmanager
async def _registry(config: Config, config_file: Path | None) -> AsyncIterator[Registry]:
    keys = read_keys(config.auth.keys_file) if config.auth.mode == "keys" else []
    store = make_tool_store(config.state, config_file)
    registry = Registry(store, declared_by(config, keys))
    try:
        await registry.start()
        yield registry
    finally:
        await registry.stop()


def write_export(registry: Registry) -> bytes:
    """All entries that the API has written, as JSON that `read_export` reads."""
    made = {
        kind: {entry.name: dict(entry.body) for entry in registry.entries(kind) if entry.origin != "declared"}
        for kind in RESOURCE_KINDS
    }
    return orjson.dumps({"fairlead_export": FORMAT, **made}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def read_export(data: bytes) -> list[Edit]:
    """The edits of an export, in an order in which they can be applied. Raises ValueError for an invalid export."""
    try:
        read: Any = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"this is not JSON: {error}") from error
    if not isinstance(read, dict) or read.get("fairlead_export") != FORMAT:
        raise ValueError(f"this is not an export of fairlead (format {FORMAT})")
    unknown = sorted(set(read) - {"fairlead_export", *RESOURCE_KINDS})
    if unknown:
        raise ValueError(f"it has what is not known here: {', '.join(unknown)}")
    edits = []
    for kind in RESOURCE_KINDS:  # tiers before tenants, tenants before keys
        entries = read.get(kind, {})
        if not isinstance(entries, dict) or not all(isinstance(body, dict) for body in entries.values()):
            raise ValueError(f"{kind} must hold entries by name")
        edits += [Edit(kind, name, body) for name, body in entries.items()]
    return edits


async def import_entries(registry: Registry, edits: list[Edit], *, actor: str) -> int:
    """Apply the edits that differ, in transactions of CHANGES_MAX; return the number of entries created or changed.
    Entries that are not in the export stay. Raises the errors of `Registry.apply`: transactions before the failed one
    stay applied, and repeating the import continues from there.
    """
    differing = [edit for edit in edits if not _is_there(registry, edit)]
    problems = [problem for edit in differing for problem in _problems(edit)]
    if problems:
        raise Invalid(problems)
    for at in range(0, len(differing), CHANGES_MAX):
        await registry.changes.apply(differing[at : at + CHANGES_MAX], actor=actor, names_entries=True)
    return len(differing)


def _problems(edit: Edit) -> list[ConfigProblem]:
    """The problems of one entry by itself; paths begin with its kind and name."""
    _, found = read_body(edit.kind, edit.body or {})
    return [ConfigProblem((edit.kind, edit.name, *problem.path), problem.text) for problem in found]


def _is_there(registry: Registry, edit: Edit) -> bool:
    entry = registry.get(edit.kind, edit.name)
    return entry is not None and entry.origin != "declared" and dict(entry.body) == edit.body
