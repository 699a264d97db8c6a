"""Runs the tests again that have just failed, alone, twice at most, and names them.

    python -m tests.reruns [FOLDER]

FOLDER is where pytest ran, if it is not this checkout: the compiled copy.
For CI, where what else a machine does can make a test with real processes fail by chance. flaky.toml lists the tests
that needed a rerun within the last ten runs of CI, with the date and the cause. One that is listed is not run again: a
test that needs a rerun in two of ten runs fails, and so does one that needs it in two suites of one run. What passed
when it ran again is entered, with its cause still to be found, and .ci/run prints what to commit. An entry goes when
its cause is mended, or when ten runs did without it.
"""

import datetime as dt
import json
import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests/flaky.toml"
FAILED = ".pytest_cache/v/cache/lastfailed"
RERUNS_MAX = 5  # more than these in one run is no chance
TIMES = 2
UNKNOWN = "to be found"


@dataclass(frozen=True)
class Flaky:
    """A test that needed a rerun in one of the last ten runs of CI."""

    test: str
    date: dt.date
    cause: str


def read_list(path: Path = LIST) -> list[Flaky]:
    """The entries of flaky.toml. Raises TypeError for an entry with other fields."""
    return [Flaky(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("flaky", [])]


def verdict(failed: list[str], listed: list[Flaky]) -> tuple[list[str], list[str]]:
    """What may be run again, and why the run has failed already, in words."""
    known = {entry.test: entry for entry in listed}
    reasons = [
        f"FAILED {test}: it needed a rerun on {known[test].date}, too ({known[test].cause})"
        for test in failed
        if test in known
    ]
    if len(failed) > RERUNS_MAX:
        reasons.append(f"FAILED: {len(failed)} tests, of which at most {RERUNS_MAX} are run again")
    if not failed:
        reasons.append("FAILED: no test is known to have failed")
    return [] if reasons else failed, reasons


def enter(tests: list[str], path: Path, date: dt.date) -> None:
    """Entries of these tests at the end of the list."""
    with path.open("a", encoding="utf-8") as file:
        for test in tests:
            name = json.dumps(test)  # TOML writes text as JSON does
            file.write(f'\n[[flaky]]\ntest = {name}\ndate = {date}\ncause = "{UNKNOWN}"\n')


def main(folder: Path = ROOT, path: Path = LIST) -> int:
    noted = folder / FAILED
    failed = sorted(json.loads(noted.read_text(encoding="utf-8"))) if noted.exists() else []
    again, reasons = verdict(failed, read_list(path))
    for reason in reasons:
        print(reason)
    if reasons:
        return 1
    for number in range(1, TIMES + 1):
        for test in again:
            print(f"RERUN {number} of {test}", flush=True)
        command = [sys.executable, "-m", "pytest", *again]
        done = subprocess.run(command, check=False, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)})
        if done.returncode == 0:
            for test in again:
                print(f"RERUN {number} of {test} passed: it is entered in tests/flaky.toml, with its cause {UNKNOWN}")
            enter(again, path, dt.datetime.now(tz=dt.UTC).date())
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(*map(Path.absolute, map(Path, sys.argv[1:]))))
