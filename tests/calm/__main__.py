"""Runs the tests of the checks, or writes their pages.

    python -m tests.calm              all checks but the long ones: first those that share the machine, then the timed
    python -m tests.calm 5 12         those of these checks
    python -m tests.calm --own        those in tests/calm: the others run in `make test` too
    python -m tests.calm --long       the long ones: a soak
    python -m tests.calm --page       write docs/results/calm.md and docs/security.md of the recorded figures

A test that is marked `alone` measures times: it runs when no other test of this run does.
"""

import argparse
import json
import sys

import pytest

from tests.calm.figures import Recorder
from tests.calm.table import (
    FIGURES,
    FIGURES_PAGE,
    PROMISES_PAGE,
    ROOT,
    figures_page,
    read_table,
    unsaid_misses,
    with_promises,
)

NO_TESTS = 5  # pytest's exit code


def run(numbers: set[int], *, is_own: bool) -> int:
    checks = [check for check in read_table() if not numbers or check.number in numbers]
    tests = list(dict.fromkeys(test for check in checks for test in check.tests))
    ours = [test for test in tests if test.startswith("tests/calm/")]
    # Playwright keeps an event loop running in its process, beside which no other test could run one.
    web = [test for test in tests if test.startswith("tests/web/") and not is_own]
    together = ours if is_own else [test for test in tests if test not in web]
    many = pytest.main(
        ["-q", "-p", "tests.forked_workers", "--workers", "4", "-m", "not long and not alone", *together],
        plugins=[Recorder()],
    )
    timed = pytest.main(["-q", "-m", "alone and not long", *ours], plugins=[Recorder()]) if ours else 0
    browser = pytest.main(["-q", *web], plugins=[Recorder()]) if web else 0
    return max(0 if code == NO_TESTS else int(code) for code in (many, timed, browser))


def run_long() -> int:
    return int(pytest.main(["-q", "-m", "long", str(ROOT / "tests/calm")], plugins=[Recorder()]))


def write_pages() -> int:
    checks = read_table()
    PROMISES_PAGE.write_text(with_promises(PROMISES_PAGE.read_text(encoding="utf-8"), checks), encoding="utf-8")
    recorded = json.loads(FIGURES.read_text())
    FIGURES_PAGE.write_text(figures_page(checks, recorded), encoding="utf-8")
    unsaid = unsaid_misses(checks, recorded)
    if unsaid:
        print(f"figures beyond their targets, of which no margin in checks.toml says why: {unsaid}", file=sys.stderr)
    return int(bool(unsaid))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.calm", description="Runs the checks, or writes their pages.")
    parser.add_argument("numbers", nargs="*", type=int, help="checks to run; none: all but the long ones")
    parser.add_argument("--own", action="store_true", help="leave out tests that `make test` runs, too")
    parser.add_argument("--long", action="store_true", help="run the long ones")
    parser.add_argument("--page", action="store_true", help="write the pages of the recorded figures")
    asked = parser.parse_args()
    if asked.page:
        return write_pages()
    return run_long() if asked.long else run(set(asked.numbers), is_own=asked.own)


if __name__ == "__main__":
    sys.exit(main())
