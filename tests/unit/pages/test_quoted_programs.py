"""Every benchmark and every table can be started the way the pages, the Makefile and its own docstring say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("benchmarks", "calm", "evidence", "mutants", "docs", "simulation/cluster")
STARTED_BY_OTHERS = {
    "tests/benchmarks/demos/client.py",  # reads its job from standard input
    "tests/benchmarks/relay/slowed.py",  # takes the arguments of fairlead
}
COMMAND = re.compile(rf"\bpython (-m tests\.[a-z_.]+[a-z_]|tests/(?:{'|'.join(FOLDERS)})/[a-z_/]+\.py)")
FILES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for folder in FOLDERS
    for path in sorted((ROOT / "tests" / folder).rglob("*.py"))
}
PAGES = [ROOT / "Makefile", *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
QUOTED = sorted({
    command for text in (*FILES.values(), *(page.read_text(encoding="utf-8") for page in PAGES))
    for command in COMMAND.findall(text)
})  # fmt: skip


def file_of(command: str) -> str:
    """The file that a command starts."""
    if not command.startswith("-m "):
        return command
    path = command.removeprefix("-m ").replace(".", "/")
    return f"{path}/__main__.py" if (ROOT / path).is_dir() else f"{path}.py"


@pytest.mark.parametrize("command", QUOTED)
def test_a_quoted_command_starts(command):
    # The packages of tests are found from the repository's root alone, which only a module has on its path.
    assert command.startswith("-m ") or not re.search(r"^(from|import) tests\b", FILES[command], re.MULTILINE)
    started = subprocess.run(
        [sys.executable, *command.split(), "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert started.returncode == 0, started.stderr
    assert "usage:" in started.stdout.lower()


def test_every_program_is_quoted_somewhere():
    programs = {file for file, text in FILES.items() if 'if __name__ == "__main__":' in text}
    assert programs == {file_of(command) for command in QUOTED} | STARTED_BY_OTHERS
