"""Files of a gateway. In a configuration, a relative path is relative to the folder of the configuration file.

The rule holds for every section and every command: a gateway finds the same secret whatever folder it is started from.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)

STDOUT = Path("-")


def folder_of(config_file: Path | None) -> Path:
    """The base of relative paths: the absolute folder of the file; without a file the working directory, as an empty
    path.
    """
    return Path() if config_file is None else config_file.absolute().parent


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A new file beside `path`, readable by its owner only, which replaces it once the block has written all of it. If
    the block fails, the new file is removed.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(descriptor)
    try:
        yield Path(name)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def resolve_files(section: M, folder: Path) -> M:
    """Return the section with every relative path in it, at any depth, below `folder`; `-` stays."""
    resolved = {name: _resolve(getattr(section, name), folder) for name in type(section).model_fields}
    changed = {name: value for name, value in resolved.items() if value is not getattr(section, name)}
    return section.model_copy(update=changed) if changed else section


def _resolve(value: Any, folder: Path) -> Any:
    if isinstance(value, Path):
        return value if value.is_absolute() or value == STDOUT else folder / value
    if isinstance(value, BaseModel):
        return resolve_files(value, folder)
    if isinstance(value, tuple):
        items = tuple(_resolve(item, folder) for item in value)
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    if isinstance(value, dict):
        entries = {name: _resolve(item, folder) for name, item in value.items()}
        return value if all(entries[name] is value[name] for name in value) else entries
    return value
