"""Rows of published tables, and the experiments that are run for them.

A row names its measure, its runs, the published figure and the tolerance. Experiments with randomness are run several
times, and the median is judged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, nextafter
from typing import Any, Protocol


class Experiment(Protocol):
    """An experiment. Hashable, picklable, and equal to another one that runs the same."""

    @property
    def repeats(self) -> int:
        """The number of runs, each slightly different."""
        ...

    def run(self, number: int) -> Any:
        """Run number `number`, counted from 0; the same number always gives the same result."""
        ...


@dataclass(frozen=True, slots=True)
class Band:
    """The range of accepted figures, ends included, and its text."""

    low: float
    high: float
    text: str

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


Tolerance = Callable[[float], Band]  # published figure -> accepted range


def percent(ratio: float) -> Tolerance:
    """Accept figures within this ratio of the published one."""
    return lambda published: Band(published * (1 - ratio), published * (1 + ratio), f"±{ratio:.0%}")


def plus_minus(distance: float) -> Tolerance:
    return lambda published: Band(published - distance, published + distance, f"±{distance:g}")


def between(low: float, high: float) -> Tolerance:
    """Accept figures in this range, whatever was published."""
    return lambda _: Band(low, high, f"{low:g} to {high:g}")


def at_most(high: float) -> Tolerance:
    return lambda _: Band(-inf, high, f"≤ {high:,g}")


def more_than(low: float) -> Tolerance:
    return lambda _: Band(nextafter(low, inf), inf, f"> {low:,g}")


def at_least(low: float) -> Tolerance:
    return lambda _: Band(low, inf, f"≥ {low:,g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A figure, measured on one run of each of `experiments` at a time.

    Without a `tolerance` it is reported and not judged; `published` may be missing if the paper gives only an order.
    """

    says: str
    experiments: tuple[Experiment, ...]
    measure: Callable[..., float]
    published: float | None = None
    tolerance: Tolerance | None = None

    def __post_init__(self) -> None:
        assert len({each.repeats for each in self.experiments}) == 1, "runs are compared one by one"

    @property
    def band(self) -> Band | None:
        return self.tolerance(self.published or 0.0) if self.tolerance else None


@dataclass(frozen=True, slots=True)
class Target:
    """A table or figure: its title, the workload that it is reproduced on, and its rows."""

    says: str
    workload: str
    rows: tuple[Row, ...]
    judged: bool = True  # whether `make tables` runs it by default
