"""Output of `make tables`: the published and the reproduced figure, tolerance and verdict of every row."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

import orjson

from tests.evidence.experiment import Target
from tests.evidence.lab import Finding, find

COLUMNS = ("", "paper", "ours", "least - greatest", "tolerance", "")


def chosen(targets: Mapping[str, Target], only: str | None) -> dict[str, Target]:
    """Return the targets of these names, separated by commas; a letter names all of its kind. Without names, return all
    that are judged. Raises ValueError for an unknown target.
    """
    if only is None:
        return {name: target for name, target in targets.items() if target.judged}
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if not any(name in (target, target[0]) for target in targets)]
    if unknown or not names:
        raise ValueError(f"there is no target {', '.join(unknown) or only!r}: there are {', '.join(targets)}")
    return {name: target for name, target in targets.items() if name in names or name[0] in names}


def run(targets: Mapping[str, Target], *, as_json: bool) -> bool:
    """Run the targets and print the findings; return whether all are within their tolerances."""
    findings = find(targets, progressed=show_progress if sys.stderr.isatty() else ignore_progress)
    if as_json:
        sys.stdout.write(orjson.dumps([asdict(each) for each in findings], option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in shown(targets, findings))
    return not any(each.is_out for each in findings)


def shown(targets: Mapping[str, Target], findings: Sequence[Finding]) -> Iterable[str]:
    """Yield the lines of a table per target, with its workload below the title, and a summary."""
    for name, target in targets.items():
        yield f"{name}  {target.says}"
        yield f"    workload: {target.workload}"
        yield from aligned([COLUMNS, *(_cells(each) for each in findings if each.target == name)])
        yield ""
    judged = [each for each in findings if each.verdict != "-"]
    out = [each for each in judged if each.is_out]
    if judged:
        yield f"{len(judged) - len(out)} of {len(judged)} judged rows are in" + (", OUT:" if out else "")
    yield from (f"    {each.target}  {each.says}" for each in out)


def aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield ("    " + "  ".join(cells)).rstrip()


def _cells(finding: Finding) -> tuple[str, ...]:
    published = "" if finding.published is None else figure(finding.published)
    one_run = finding.least == finding.greatest
    spread = "" if one_run else f"{figure(finding.least)} - {figure(finding.greatest)}"
    return (finding.says, published, figure(finding.ours), spread, finding.tolerance, finding.verdict)


def figure(value: float) -> str:
    """Format a figure with its significant digits."""
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def show_progress(done: int, runs: int) -> None:
    sys.stderr.write(f"\r{done} of {runs} runs" + ("\n" if done == runs else ""))
    sys.stderr.flush()


def ignore_progress(done: int, runs: int) -> None:
    """Show no progress: stderr is no terminal."""
