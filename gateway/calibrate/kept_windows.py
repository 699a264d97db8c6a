"""The windows of a calibration that had too few, stored next to its output file: the next run continues from them."""

from dataclasses import asdict
from pathlib import Path

import orjson

from policies.step_time import Observation


def path_of(out: Path) -> Path:
    """Where they are kept for this file of coefficients."""
    return out.with_name(out.name + ".windows")


def write_windows(out: Path, backend: str, model: str, windows: list[Observation]) -> Path:
    """Return where. Raises OSError."""
    path = path_of(out)
    path.write_bytes(orjson.dumps({"backend": backend, "model": model, "windows": [asdict(each) for each in windows]}))
    return path


def read_windows(out: Path, backend: str, model: str) -> list[Observation]:
    """What was kept of this model at this backend; nothing where there is no such file, or it is of another."""
    try:
        read = orjson.loads(path_of(out).read_bytes())
        if (read["backend"], read["model"]) != (backend, model):
            return []
        return [Observation(**each) for each in read["windows"]]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def delete_windows(out: Path) -> None:
    path_of(out).unlink(missing_ok=True)
