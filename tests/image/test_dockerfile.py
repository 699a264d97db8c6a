"""What the Dockerfile installs, installed: its commands run here, in folders of their own in place of the image's.

There is no Docker engine where this runs, so that is all: nothing is pulled, no layer is built, the base is what this
machine has of Python 3.11.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import setup

ROOT = Path(__file__).parents[2]
INSTALL_S_MAX = 600.0  # compiling takes 200 s of two processors, and these are shared
START_S_MAX = 60.0
LOCK, COMPILE_LOCK = (ROOT.joinpath(name).read_text() for name in ("requirements.lock", "compile.lock"))
LOCKED_FOR = re.search(r"--python-version ([\d.]+)", ROOT.joinpath("Makefile").read_text())[1]


def instructions():
    """(name, arguments) of every line, with continued lines joined."""
    lines = [line for line in ROOT.joinpath("Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line]


def stages():
    """The instructions of each stage; before them those that stand before the first."""
    found = [[]]
    for name, arguments in instructions():
        if name == "FROM":
            found.append([])
        found[-1].append((name, arguments))
    return found


def said(stage, name):
    return [arguments for instruction, arguments in stage if instruction == name]


BEFORE, BUILD, FINAL = stages()
pytestmark = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image has Python 3.11")


@dataclass
class Image:
    """The folders that stand for the image's, and what its last stage says."""

    folder: Path
    home: Path = field(init=False)
    work: Path = field(init=False)

    def __post_init__(self):
        self.home, self.work = self.folder / "home", self.folder / "work"

    def mapped(self, command):
        """/fairlead and /compiler are folders of ours."""
        return re.sub(r"(?<![\w./])/(fairlead|compiler)\b", rf"{self.folder}/\1", command)

    def run(self, command, **options):
        return subprocess.run(self.mapped(command), shell=True, check=False, text=True, capture_output=True, **options)

    @property
    def environment(self):
        """As in a container, but listening on this machine alone."""
        said_there = dict(pair.split("=", 1) for line in said(FINAL, "ENV") for pair in line.split())
        assert said_there == {"FAIRLEAD_LISTEN__HOST": "0.0.0.0"}
        own = {
            "FAIRLEAD_LISTEN__HOST": "127.0.0.1",
            "FAIRLEAD_LISTEN__PORT": "0",
            "FAIRLEAD_SHUTDOWN__LAME_DUCK_S": "0",
        }
        return {"PATH": "/usr/bin:/bin", "HOME": str(self.home), **own}

    @property
    def command(self):
        words = [word for name in ("ENTRYPOINT", "CMD") for word in json.loads(said(FINAL, name)[0])]
        return [self.mapped(word) for word in words]

    def files(self):
        """What is there, and when it was written."""
        paths = [path for folder in ("fairlead", "home", "work") for path in (self.folder / folder).rglob("*")]
        return {path: path.lstat().st_mtime_ns for path in paths}


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The build stage, done; the source and the compiler are gone, as in the last stage."""
    built = Image(tmp_path_factory.mktemp("image"))
    source, tools = built.folder / "src", built.folder / "tools"
    for folder in (source, tools, built.home, built.work):
        folder.mkdir()
    python = tools / "python"  # the base's
    python.write_text(f'#!/bin/sh\nexec {base_python()} "$@"\n')
    python.chmod(0o755)
    left = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment = {**left, "PATH": f"{tools}:/usr/bin:/bin", "HOME": str(built.home)}
    for name, arguments in BUILD[1:]:
        match name:
            case "WORKDIR":
                assert arguments == "/src"
            case "COPY":
                copy(arguments.split(), source)
            case "RUN":
                done = built.run(f"umask 022; {arguments}", cwd=source, env=environment, timeout=INSTALL_S_MAX)
                assert done.returncode == 0, done.stdout + done.stderr
            case _:
                pytest.fail(f"not known here: {name}")
    shutil.rmtree(source)
    shutil.rmtree(built.folder / "compiler")
    return built


def base_python():
    """One that needs no package which the lock lacks: before Python 3.11.3, redis needs async-timeout."""
    for python in (sys._base_executable, *(f"{folder}/python3.11" for folder in os.environ["PATH"].split(":"))):
        with contextlib.suppress(OSError):
            said = subprocess.run([python, "-c", "import sys; print(sys.version_info[:3] >= (3, 11, 3))"],
                                  check=False, capture_output=True)  # fmt: skip
            if said.stdout == b"True\n":
                return python
    pytest.skip("no Python 3.11.3 or later of 3.11 is here")


def copy(arguments, source):
    """Only what .dockerignore lets pass is there to be copied."""
    *names, target = arguments
    let_pass = ROOT.joinpath(".dockerignore").read_text().split()
    assert let_pass[0] == "**"
    for name in names:
        assert f"!{name}" in let_pass
        if ROOT.joinpath(name).is_dir():
            shutil.copytree(ROOT / name, source / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / target)


def test_the_image_is_built_of_what_has_a_hash_by_nobody_in_particular():
    bases = dict(arguments.split("=", 1) for name, arguments in BEFORE if name == "ARG")
    made_of = {name: re.fullmatch(r"python:([\d.]+-)(slim-)?(\w+)@sha256:[0-9a-f]{64}", bases[name]) for name in bases}
    base, compiler = made_of.pop("PYTHON_IMAGE"), made_of.pop("COMPILER_IMAGE")
    assert (base[1], base[2], compiler[2]) == ("3.11-", "slim-", None)
    assert base.group(1, 3) == compiler.group(1, 3), "the same Python on the same Debian"
    assert made_of == {}
    assert [stage[0][1].split()[0] for stage in (BUILD, FINAL)] == ["${COMPILER_IMAGE}", "${PYTHON_IMAGE}"]
    assert said(FINAL, "RUN") == []
    assert said(FINAL, "COPY") == ["--from=build /fairlead /fairlead"]
    (user,) = said(FINAL, "USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


def test_nothing_is_installed_without_its_hash():
    installs = re.findall(r"pip install ([^&\n]*)", "\n".join(said(BUILD, "RUN")))
    assert len(installs) == 3
    hashed = "--require-hashes --only-binary :all: -r"
    assert f"{hashed} requirements.lock" in installs[0]
    assert f"{hashed} compile.lock --target /compiler" in installs[1]
    assert "--no-deps --no-build-isolation ." in installs[2]  # fairlead itself


@pytest.mark.long  # pip installs all of the lock
def test_what_the_commands_install_is_what_is_locked_and_serves_without_writing(image):
    assert_installed(image)
    before = image.files()
    assert [path for path in before if not path.is_symlink() and not readable_by_others(path)] == []
    assert_serves(image)
    assert image.files() == before  # its root may be read-only


def assert_installed(image):
    version = image.run("/fairlead/bin/fairlead --version", env=image.environment, cwd=image.work)
    assert (version.stdout, version.stderr) == (f"fairlead {metadata.version('fairlead')} (compiled)\n", "")
    names = "from importlib import metadata; print(*(f'{i.name}=={i.version}' for i in metadata.distributions()))"
    listed = image.run(f'/fairlead/bin/python -c "{names}"', env=image.environment, cwd=image.work).stdout.split()
    installed = {canonicalize_name(name): version for name, _, version in (entry.partition("==") for entry in listed)}
    assert installed.pop("fairlead") == metadata.version("fairlead")
    assert installed == locked(LOCK)
    assert list(image.folder.rglob("*.pth")) == [], "nothing runs when Python starts"
    found = image.run("/fairlead/bin/python -c 'import backends.discovery.cluster'", env=image.environment)
    assert found.returncode == 0, found.stderr
    assert not modules_from_source(image)


def modules_from_source(image):
    """Those of setup.py's modules that the image does not import compiled."""
    names = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in compiled_files()]
    find = "import sys, importlib; print(*(importlib.import_module(name).__file__ for name in sys.argv[1:]))"
    files = image.run(f'/fairlead/bin/python -c "{find}" {" ".join(names)}', env=image.environment, cwd=image.work)
    assert files.returncode == 0, files.stderr
    found = files.stdout.split()
    assert len(found) == len(names) > 100
    assert all(Path(file).is_relative_to(image.folder / "fairlead") for file in found)
    return [file for file in found if not file.endswith(".so")]


def compiled_files():
    with contextlib.chdir(ROOT):
        return setup.modules()


def assert_serves(image):
    process = subprocess.Popen(image.command, stderr=subprocess.PIPE, text=True, env=image.environment, cwd=image.work)
    try:
        serves = re.compile(r"fairlead serves (http://\S+:\d+)")
        url = next(found[1] for line in process.stderr if (found := serves.search(line)))
        with urllib.request.urlopen(f"{url}/readyz", timeout=START_S_MAX) as answer:
            assert answer.status == 200
        body = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}).encode()
        asked = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=START_S_MAX) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 4
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=START_S_MAX)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def readable_by_others(path):
    wanted = 0o5 if path.is_dir() else 0o4
    return path.stat().st_mode & wanted == wanted


def locked(lock):
    return dict(re.findall(r"^([\w.-]+)==([^ ]+) \\$", lock, re.MULTILINE))


@pytest.mark.parametrize("lock", [LOCK, COMPILE_LOCK], ids=["requirements", "compile"])
def test_a_lock_is_of_versions_and_hashes_alone_and_says_what_constraints_say(lock):
    allowed = re.compile(r"#.*|[\w.-]+==[\w.]+ \\|    --hash=sha256:[0-9a-f]{64}( \\)?")
    assert [line for line in lock.splitlines() if not allowed.fullmatch(line)] == []
    assert "/" not in lock
    lines = ROOT.joinpath("constraints.txt").read_text().split()
    constraints = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    assert locked(lock) == {name: constraints[name] for name in locked(lock)}


def test_the_locks_have_all_that_is_needed_and_nothing_else():
    project = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text())
    tools = project["dependency-groups"]["compile"]
    assert set(project["build-system"]["requires"]) < set(tools)
    assert set(locked(COMPILE_LOCK)) == set().union(*(needed(Requirement(tool).name, set()) for tool in tools))
    assert set(locked(LOCK)) == needed("fairlead", {"kubernetes"}) - {"fairlead"}


def needed(name, extras):
    """The distribution and all that it requires with these extras on the Python of the locks, as what is installed here
    says.
    """
    found, waiting = set(), [(name, frozenset(extras))]
    done = set(waiting)
    while waiting:
        name, extras = waiting.pop()
        found.add(canonicalize_name(name))
        for line in metadata.requires(name) or ():
            requirement = Requirement(line)
            wanted = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra, "python_full_version": LOCKED_FOR})
                for extra in extras or {""}
            )
            step = (requirement.name, frozenset(requirement.extras))
            if wanted and step not in done:
                done.add(step)
                waiting.append(step)
    return found
