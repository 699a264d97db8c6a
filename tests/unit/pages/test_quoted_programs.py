"""Every benchmark and every table can be started the way the pages, the Makefile and its own docstring say.

Each program starts in a fork of this process: what programs share is imported once, not once for each of them.
"""

import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable
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


def start(command: str) -> None:
    """Run a command's program with --help, as `python COMMAND --help` would in the repository's root."""
    os.chdir(ROOT)
    for name, module in list(sys.modules.items()):  # tests before this one have imported theirs, some by the same names
        if (file := getattr(module, "__file__", None)) and Path(file).is_relative_to(ROOT / "tests"):
            del sys.modules[name]
    sys.argv = [file_of(command), "--help"]
    if command.startswith("-m "):
        sys.path.insert(0, str(ROOT))
        runpy.run_module(command.removeprefix("-m "), run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(ROOT / Path(command).parent))
        runpy.run_path(command, run_name="__main__")


def in_a_fork(called: Callable[[], None], output: Path) -> int:
    """The exit code of a child that calls this. What it prints goes to the file."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code: object = 1
    try:
        with output.open("w") as file:
            sys.stdout = sys.stderr = file
            try:
                called()
                code = 0
            except SystemExit as ended:
                code = ended.code or 0
            except BaseException:  # noqa: BLE001 - a child says what failed, whatever it is
                traceback.print_exc()
    finally:
        os._exit(code if isinstance(code, int) else 1)  # not through pytest, which runs on in the parent alone


@pytest.mark.parametrize("command", QUOTED)
def test_a_quoted_command_starts(command, tmp_path):
    # The packages of tests are found from the repository's root alone, which only a module has on its path.
    assert command.startswith("-m ") or not re.search(r"^(from|import) tests\b", FILES[command], re.MULTILINE)
    output = tmp_path / "output"
    code = in_a_fork(lambda: start(command), output)
    assert code == 0, output.read_text()
    assert "usage:" in output.read_text().lower()


def test_every_program_is_quoted_somewhere():
    programs = {file for file, text in FILES.items() if 'if __name__ == "__main__":' in text}
    assert programs == {file_of(command) for command in QUOTED} | STARTED_BY_OTHERS
