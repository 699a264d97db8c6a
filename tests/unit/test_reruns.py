"""CI runs a test again once, and not at all if it needed that before."""

import datetime as dt

import pytest

from tests.reruns import FAILED, RERUNS_MAX, Flaky, main, read_list, verdict

LISTED = [Flaky("tests/a.py::test_b", dt.date(2026, 1, 31), "a port was taken")]


def test_what_failed_is_run_again_unless_it_is_listed():
    assert verdict(["tests/a.py::test_a"], LISTED) == (["tests/a.py::test_a"], [])
    again, reasons = verdict(["tests/a.py::test_a", "tests/a.py::test_b"], LISTED)
    assert not again
    assert reasons == ["FAILED tests/a.py::test_b: it needed a rerun on 2026-01-31, too (a port was taken)"]


@pytest.mark.parametrize(("fails", "status"), [(0, 0), (1, 0), (2, 1)])
def test_what_failed_runs_twice_more_at_most_where_it_ran(tmp_path, capfd, fails, status):
    (tmp_path / "test_x.py").write_text(
        "from pathlib import Path\n\n"
        "def test_y():\n"
        "    runs = Path('runs')\n"
        "    runs.write_text(runs.read_text() + 'x' if runs.exists() else 'x')\n"
        f"    assert len(runs.read_text()) > {fails}\n"
    )
    (tmp_path / FAILED).parent.mkdir(parents=True)
    (tmp_path / FAILED).write_text('{"test_x.py::test_y": true}')
    assert main(tmp_path) == status
    assert len((tmp_path / "runs").read_text()) == min(fails + 1, 2)
    said = f"RERUN {fails + 1} of test_x.py::test_y passed" in capfd.readouterr().out
    assert said == (status == 0)


def test_many_failures_are_no_chance():
    assert verdict([f"tests/a.py::test_{number}" for number in range(RERUNS_MAX + 1)], [])[1]


def test_a_run_that_failed_without_a_failed_test_has_failed():
    assert verdict([], [])[1]


def test_the_list_is_short_and_says_since_when_and_why():
    listed = read_list()
    assert len(listed) <= 10
    assert all(entry.cause and entry.date <= dt.datetime.now(tz=dt.UTC).date() for entry in listed)
