"""Do the pages of docs/results say what their commands print? Does the cheap, deterministic ones again and compares.

    python tests/docs/results.py             compare; the exit code is 1 where a page says something else
    python tests/docs/results.py --write     put what came out into the pages
    python tests/docs/results.py --only R3   a target of `make tables` that is too dear to be done always;
                                             --from FILE takes what that command printed before

What is compared are figures: the lines of Markdown tables, and the judged rows of a target's table in tables.txt, which
tables.md sums up. A row that no tolerance judges is in neither. docs/results/README.md has the command of each page.
Each page begins with the day of its last run; one that is long ago is named with a warning, which is no failure.
"""

import argparse
import difflib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/results"
PREDICTION = "prediction.md"
CHEAP = ("R9", "D3")  # 10 s of CPU at most
SUMMED_UP = ("R1",)  # a hundred figures that are all in: the page says so in a line
TABLES = "tables.txt"  # what tables.md sums up
TITLE = re.compile(r"^([A-Z]\d+)  \S")
COLUMNS = re.compile(r"^ +paper +ours ")
JUDGED = re.compile(r"  (in|OUT)$")
LAST_RUN = re.compile(r"# [^\n]+\n\nLast run: (\d{4}-\d\d-\d\d), commit ([0-9a-f]{7,})\.")  # how each page begins
DAYS_MAX, COMMITS_MAX = 60, 300


def last_run(page: str) -> tuple[date, str]:
    """The day and the commit of a page's last run. Raises ValueError where it does not begin with them."""
    if (said := LAST_RUN.match(page)) is None:
        raise ValueError("it does not begin with its title and 'Last run: DATE, commit HASH.'")
    return date.fromisoformat(said[1]), said[2]


def commits_since(commit: str) -> int | None:
    """None where the history of this checkout does not have the commit, such as one of a side branch."""

    def git(*asked: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *asked], cwd=ROOT, capture_output=True, text=True, check=False)

    if git("merge-base", "--is-ancestor", commit, "HEAD").returncode != 0:
        return None
    return int(git("rev-list", "--count", f"{commit}..HEAD").stdout)


def old_pages(
    pages: dict[str, str], *, today: date, commits: Callable[[str], int | None] = commits_since
) -> Iterator[str]:
    """A sentence on each page whose last run is long ago."""
    for name, text in pages.items():
        day, commit = last_run(text)
        days, since = (today - day).days, commits(commit)
        if days > DAYS_MAX or (since or 0) > COMMITS_MAX:
            ago = "" if since is None else f" and {since} commits"
            yield f"{name}: its last run, at {commit}, is {days} days{ago} old (docs/results/README.md has its command)"


def dear_pages() -> dict[str, str]:
    """The text of every page that is not compared in whole, by its name."""
    paths = sorted(PAGES.glob("*.md"))
    return {path.name: path.read_text(encoding="utf-8") for path in paths if path.name not in ("README.md", PREDICTION)}


def printed_by(*command: str) -> list[str]:
    """What it prints. Its exit code may say that a figure is out of its tolerance: that is the table's to say."""
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or done.stderr:
        sys.exit(f"{' '.join(command)}: {done.returncode}\n{done.stderr}")
    return done.stdout.splitlines()


def targets(lines: list[str]) -> Iterator[tuple[str, range]]:
    """Every target's name, and where the rows of its table are: from the columns' names to the next empty line."""
    name = ""
    for number, line in enumerate(lines):
        if title := TITLE.match(line):
            name = title[1]
        elif name and COLUMNS.match(line):
            end = next((at for at in range(number, len(lines)) if not lines[at].startswith("    ")), len(lines))
            yield name, range(number, end)
            name = ""


def tables(lines: list[str]) -> Iterator[tuple[str, range]]:
    """Every heading with a Markdown table below it, and where that is."""
    heading, start = "", None
    for number, line in enumerate([*lines, ""]):
        if line.startswith("## "):
            heading = line
        if line.startswith("|"):
            start = number if start is None else start
        elif start is not None:
            yield heading, range(start, number)
            start = None


def compare(page: str, came: list[str], *, find=targets, write: bool) -> bool:
    """Whether each table that came out stands in the page, figure by figure; or put it there."""
    path = PAGES / page
    lines = path.read_text(encoding="utf-8").splitlines()
    same = True
    for name, rows in find(came):
        printed = [came[number].rstrip() for number in rows]
        stands = next((where for known, where in find(lines) if known == name), None)
        if stands is None:
            print(f"{page}: there is no table of {name}")
            same = False
            continue
        said = [lines[number].rstrip() for number in stands]
        if [line.split() for line in said] == [line.split() for line in printed]:
            continue
        if write:
            lines[stands.start : stands.stop] = printed
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            print(f"{page}: {name} is as it came out now")
            continue
        same = False
        print(f"{page}: {name} is not what came out:")
        print("\n".join(difflib.unified_diff(said, printed, "page", "came out", lineterm="", n=0)))
    return same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put what came out into the pages")
    parser.add_argument("--only", help="only these targets, separated by commas")
    parser.add_argument("--from", dest="source", type=Path, help="what `make tables` printed")
    options = parser.parse_args()
    same = True
    if options.source is not None:
        came = options.source.read_text(encoding="utf-8").splitlines()
    else:
        names = options.only or ",".join(CHEAP)
        came = printed_by("-m", "tests.evidence", "--only", names)
    printed: list[str] = []
    for name, rows in targets(came):
        judged = [came[number] for number in rows if JUDGED.search(came[number].rstrip())]
        if judged and name not in SUMMED_UP:
            printed += [f"{name}  {name}", came[rows.start], *judged, ""]
    same = compare(TABLES, printed, write=options.write) and same
    if options.only is None and options.source is None:
        came = printed_by("tests/benchmarks/prediction/report.py")
        same = compare(PREDICTION, came, find=tables, write=options.write) and same
    for sentence in old_pages(dear_pages(), today=datetime.now(UTC).date()):
        print(f"warning: {sentence}")
    if not same:
        sys.exit(1)
    print("the pages say what came out")


if __name__ == "__main__":
    main()
