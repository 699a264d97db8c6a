"""Mutants of source files: a mechanism is taken out of a copy, and the tests of it have to fail there."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.calm.table import ROOT

COPIED = ("gateway", "backends", "policies", "tests", "docs", "pyproject.toml", "requirements.lock")
HANGS_S = 240.0  # more than the slowest of these tests takes on a busy machine
FAILED = 1  # pytest's exit code where tests failed; others say that they did not run


@dataclass(frozen=True)
class Mutant:
    """A mechanism, the text that takes it out, and the tests that have to notice."""

    mechanism: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    check: int = 0  # of tests/calm; 0: of none
    marks: str = ""  # which of these tests, as pytest's -m names them

    def applied(self, text: str) -> str:
        """The file's text without the mechanism. Raises ValueError where the text is not there once."""
        if text.count(self.before) != 1:
            raise ValueError(f"{self.mechanism}: {self.file} has {self.before!r} {text.count(self.before)} times")
        return text.replace(self.before, self.after)


def copied(folder: Path) -> Path:
    """A copy of what the tests of mutants run."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        elif source.exists():
            shutil.copy(source, target)
    return folder


def noticed_by(mutant: Mutant, folder: Path, hangs_s: float = HANGS_S) -> str | None:
    """The test that fails with the mutant, None where none does. All of them take less than `hangs_s`."""
    file = folder / mutant.file
    text = file.read_text(encoding="utf-8")
    file.write_text(mutant.applied(text), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **mutant.environment}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", mutant.marks, "-p", "no:cacheprovider", *mutant.tests]
    try:
        ran = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=hangs_s
        )
    except subprocess.TimeoutExpired:
        return f"{mutant.tests[0]} (hangs)"
    finally:
        file.write_text(text, encoding="utf-8")
    if ran.returncode == 0:
        return None
    if "+++ Timeout +++" in ran.stdout + ran.stderr:  # of one test, which ends pytest
        return f"{mutant.tests[0]} (hangs)"
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", ran.stdout, re.MULTILINE)
    if ran.returncode != FAILED or failed is None:
        raise RuntimeError(f"{mutant.mechanism}: the tests did not run\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return failed[1]


def run_all(
    mutants: Sequence[Mutant],
    record: Callable[[Mutant, str | None], None] = lambda _mutant, _test: None,
    *,
    hangs_s: float = HANGS_S,
) -> int:
    """Run the tests of these mutants and print what became of each. 1 where one survives, else 0."""
    alive = 0
    with tempfile.TemporaryDirectory() as made:
        folder = copied(Path(made))
        for mutant in mutants:
            began = time.monotonic()
            test = noticed_by(mutant, folder, hangs_s)
            alive += test is None
            verdict = "ALIVE" if test is None else "killed"
            print(f"{verdict:6} {mutant.mechanism}: {test} ({time.monotonic() - began:.0f} s)", flush=True)
            record(mutant, test)
    print(f"{len(mutants) - alive} of {len(mutants)} mutants are killed")
    return int(alive > 0)


def run_chosen(description: str | None, mutants: Sequence[Mutant]) -> int:
    """The command of a table of mutants: run those that the command line names, or list them. Returns the exit code."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the mutants, and run none")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="only mutants whose description contains one of these")
    asked = parser.parse_args()
    chosen = [each for each in mutants if not asked.texts or any(text in each.mechanism for text in asked.texts)]
    if asked.list:
        print("\n".join(f"{mutant.mechanism} ({mutant.file})" for mutant in chosen))
        return 0
    return run_all(chosen)
