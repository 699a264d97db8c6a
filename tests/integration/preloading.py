"""C libraries that are loaded before all others, to make a system call fail or answer otherwise."""

import shutil
import subprocess
from pathlib import Path

import pytest


def compile_shim(source: Path, folder: Path) -> Path:
    """The library made of this source, for LD_PRELOAD. The test is skipped without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = folder / f"{source.stem}.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library
