"""Execution of experiments: every one runs once, on all cores, and rows are judged by the medians of their runs."""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from statistics import median
from typing import Any

from tests.evidence.experiment import Experiment, Row, Target

Results = Mapping[Experiment, list[Any]]


@dataclass(frozen=True, slots=True)
class Finding:
    """A row and its result: the median, the least and the greatest of its runs."""

    target: str
    says: str
    published: float | None
    ours: float
    least: float
    greatest: float
    tolerance: str
    verdict: str  # in, OUT, or - if the row is not judged

    @property
    def is_out(self) -> bool:
        return self.verdict == "OUT"


def find(targets: Mapping[str, Target], *, progressed: Callable[[int, int], None]) -> list[Finding]:
    """Run all experiments of the targets and judge their rows. `progressed` gets the numbers of finished and of all
    runs.
    """
    rows = [(name, row) for name, target in targets.items() for row in target.rows]
    results = run_all({experiment for _, row in rows for experiment in row.experiments}, progressed=progressed)
    return [judge(name, row, results) for name, row in rows]


def run_all(experiments: Iterable[Experiment], *, progressed: Callable[[int, int], None]) -> Results:
    tasks = [(each, number) for each in experiments for number in range(each.repeats)]
    results: dict[Experiment, list[Any]] = {each: [None] * each.repeats for each, _ in tasks}
    # Spawned, not forked: the calling process may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(tasks)), mp_context=context) as pool:
        waited_for = {pool.submit(each.run, number): (each, number) for each, number in tasks}
        for done, future in enumerate(as_completed(waited_for), start=1):
            each, number = waited_for[future]
            results[each][number] = future.result()
            progressed(done, len(tasks))
    return results


def judge(target: str, row: Row, results: Results) -> Finding:
    runs = zip(*(results[experiment] for experiment in row.experiments), strict=True)
    values = [row.measure(*each) for each in runs]
    ours = median(values)
    band = row.band
    verdict = "-" if band is None else "in" if band.holds(ours) else "OUT"
    return Finding(
        target=target,
        says=row.says,
        published=row.published,
        ours=ours,
        least=min(values),
        greatest=max(values),
        tolerance=band.text if band else "",
        verdict=verdict,
    )
