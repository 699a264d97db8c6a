"""Every benchmark and every table can be started the way the pages, the Makefile and its own docstring say.

They all start in one fork of this process: what programs share is imported once, not once for each of them.
"""

import contextlib
import io
import json
import os
import re
import runpy
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[3]
TESTS = f"{ROOT}/tests/"
PATH = list(sys.path)
FOLDERS = ("benchmarks", "calm", "evidence", "mutants", "docs", "simulation/cluster", "simulation/sessions")
STARTED_BY_OTHERS = {
    "tests/benchmarks/demos/agents_client.py",  # reads its job from standard input
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


def start(command: str) -> str:
    """What a command's program says to --help, as `python COMMAND --help` would in the repository's root."""
    for name, module in list(sys.modules.items()):  # programs before this one have imported theirs, by the same names
        if (getattr(module, "__file__", None) or "").startswith(TESTS):
            if name.startswith("tests.") and name.removesuffix(".__main__") != command.removeprefix("-m "):
                continue  # the name of one file alone
            del sys.modules[name]
    sys.argv = [file_of(command), "--help"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            if command.startswith("-m "):
                sys.path[:] = [str(ROOT), *PATH]
                runpy.run_module(command.removeprefix("-m "), run_name="__main__", alter_sys=True)
            else:
                sys.path[:] = [str(ROOT / Path(command).parent), *PATH]
                runpy.run_path(command, run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise
    return said.getvalue()


def refused(commands: list[str]) -> dict[str, str]:
    """Of these commands, those that do not start, and why."""
    os.chdir(ROOT)
    found = {}
    for command in commands:
        try:
            said = start(command)
        except BaseException:  # noqa: BLE001 - what failed is said, whatever it is
            found[command] = traceback.format_exc()
        else:
            if "usage:" not in said.lower():
                found[command] = f"it says no usage, but: {said}"
    return found


def test_every_quoted_command_starts(tmp_path):
    """In one child, which imports once what programs share."""
    output = tmp_path / "output"
    child = os.fork()
    if not child:
        code = 1
        try:
            output.write_text(json.dumps(refused(QUOTED)))
            code = 0
        finally:
            os._exit(code)  # not through pytest, which runs on in the parent alone
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert json.loads(output.read_text()) == {}


def test_only_modules_import_the_packages_of_tests():
    """These are found from the repository's root alone, which only a module has on its path."""
    scripts = [command for command in QUOTED if not command.startswith("-m ")]
    assert [each for each in scripts if re.search(r"^(from|import) tests\b", FILES[each], re.MULTILINE)] == []


def test_every_program_is_quoted_somewhere():
    programs = {file for file, text in FILES.items() if 'if __name__ == "__main__":' in text}
    assert programs == {file_of(command) for command in QUOTED} | STARTED_BY_OTHERS
