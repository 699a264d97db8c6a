"""The windows of a calibration that had too few, stored beside its output file: the next run continues from them."""

from dataclasses import asdict
from pathlib import Path

import orjson

from policies.step_time import Observation


def path_of(out: Path) -> Path:
    """The path at which the windows for this file of coefficients are stored."""
    return out.with_name(out.name + ".windows")


def write_windows(out: Path, backend: str, model: str, windows: list[Observation]) -> Path:
    """Store the windows; return the path. Raises OSError."""
    path = path_of(out)
    path.write_bytes(orjson.dumps({"backend": backend, "model": model, "windows": [asdict(each) for each in windows]}))
    return path


def read_windows(out: Path, backend: str, model: str) -> list[Observation]:
    """The stored windows of this model at this backend; empty if there is no file for this model and backend."""
    try:
        read = orjson.loads(path_of(out).read_bytes())
        if (read["backend"], read["model"]) != (backend, model):
            return []
        return [Observation(**each) for each in read["windows"]]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def delete_windows(out: Path) -> None:
    path_of(out).unlink(missing_ok=True)
