"""Every test runs once, in one of the workers, and what each says arrives, also of a worker that ends."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import os
import pytest

@pytest.fixture(scope="module")
def once(tmp_path_factory):
    with open("made", "a") as file:
        print(tmp_path_factory.mktemp("once"), file=file)
    yield
    with open("ended", "a") as file:
        print(os.getpid(), file=file)

@pytest.mark.parametrize("number", range(40))
def test_passes(number, once, capfd):
    with open("ran", "a") as file:
        print(os.getpid(), number, file=file)
    print(number)
    assert capfd.readouterr().out == f"{number}\\n"

def test_fails():
    print("what it printed")
    assert 1 + 1 == 3

def test_ends_its_process():
    os._exit(7)

@pytest.mark.skip("it is left out")
def test_is_skipped():
    pass
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_x.py").write_text(TESTS)

    def ran():
        command = [sys.executable, "-m", "pytest", "-p", "tests.forked_workers", "--workers", "3", "-ra"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    return ran


def test_every_test_runs_once_in_one_of_the_workers_and_says_how_it_ended(run, tmp_path):
    status, said = run()
    assert status == 1
    assert "2 failed, 40 passed, 1 skipped" in said
    assert "what it printed" in said
    assert "assert (1 + 1) == 3" in said
    assert "the process that ran this ended with status 7" in said
    assert re.search("SKIPPED.*it is left out", said)
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert sorted(int(number) for _, number in ran) == [*range(40)]
    workers = {worker for worker, _ in ran}
    assert len(workers) >= 2
    made, ended = ((tmp_path / name).read_text().splitlines() for name in ("made", "ended"))
    assert len(set(made)) == len(made) < 40, "a fixture of a module is made for its tests, in a folder of its own"
    assert {*ended} <= workers
    assert len(made) - len(ended) <= 1, "all but that of the worker that ended are taken down"
