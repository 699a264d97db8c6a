"""CI runs a test again once, and not at all if it needed that before."""

import datetime as dt
import json
import subprocess

import pytest

from tests.reruns import FAILED, RERUNS_MAX, Flaky, enter, main, read_list, verdict

LISTED = [Flaky("tests/a.py::test_b", dt.date(2026, 1, 31), "a port was taken")]


def test_what_failed_is_run_again_unless_it_is_listed():
    assert verdict(["tests/a.py::test_a"], LISTED) == (["tests/a.py::test_a"], [])
    again, reasons = verdict(["tests/a.py::test_a", "tests/a.py::test_b"], LISTED)
    assert not again
    assert reasons == ["FAILED tests/a.py::test_b: it needed a rerun on 2026-01-31, too (a port was taken)"]


@pytest.mark.parametrize(("statuses", "status"), [([0], 0), ([1, 0], 0), ([1, 1], 1)])
def test_what_failed_runs_twice_more_at_most_where_it_ran(tmp_path, capsys, monkeypatch, statuses, status):
    test, left, listed = "test_x.py::test_y", list(statuses), tmp_path / "flaky.toml"
    listed.touch()

    def run(command, *, cwd, env, **_):
        assert (command[-1], cwd, env["PYTHONPATH"]) == (test, tmp_path, str(tmp_path))
        return subprocess.CompletedProcess(command, left.pop(0))

    monkeypatch.setattr(subprocess, "run", run)
    (tmp_path / FAILED).parent.mkdir(parents=True)
    (tmp_path / FAILED).write_text(json.dumps({test: True}))
    assert main(tmp_path, listed) == status
    assert not left
    assert (f"RERUN {len(statuses)} of {test} passed" in capsys.readouterr().out) == (status == 0)
    assert [entry.test for entry in read_list(listed)] == ([test] if status == 0 else [])
    if status == 0:
        assert main(tmp_path, listed) == 1, "in the next run it is not run again"


def test_an_entry_is_written_as_it_is_read(tmp_path):
    listed = tmp_path / "flaky.toml"
    listed.write_text("# what it is for\n")
    tests = ['tests/a.py::test_a[1-"x"\\n]', "tests/a.py::test_b[é]"]
    for test in tests:
        enter([test], listed, dt.date(2026, 1, 31))
    assert [(entry.test, entry.date) for entry in read_list(listed)] == [(test, dt.date(2026, 1, 31)) for test in tests]


def test_many_failures_are_no_chance():
    assert verdict([f"tests/a.py::test_{number}" for number in range(RERUNS_MAX + 1)], [])[1]


def test_a_run_that_failed_without_a_failed_test_has_failed():
    assert verdict([], [])[1]


def test_the_list_is_short_and_says_since_when_and_why():
    listed = read_list()
    assert len(listed) <= 10
    assert all(entry.cause and entry.date <= dt.datetime.now(tz=dt.UTC).date() for entry in listed)
