"""PEP 517 hooks that build fairlead-vllm: those of setuptools, on sources that vendoring.py stages.

The sources are staged in a temporary directory, so that a build does not depend on an earlier one.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta
from vendoring import stage


def build_wheel(wheel_directory: str, config_settings: Any = None, _metadata_directory: Any = None) -> str:
    """Build a wheel (PEP 517)."""
    target = Path(wheel_directory).absolute()
    with _staged():
        return str(build_meta.build_wheel(os.fspath(target), config_settings))


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """Build a source archive (PEP 517) of the staged sources. It builds without this file."""
    target = Path(sdist_directory).absolute()
    with _staged():
        return str(build_meta.build_sdist(os.fspath(target), config_settings))


@contextmanager
def _staged() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as name:
        stage(Path(name))
        with chdir(name):
            yield
