"""One row of a published table, and what is run for it.

A row says what is measured on which runs, what was published, and how far from it is near enough. Whatever varies
by chance is run several times and the median is judged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, nextafter
from typing import Any, Protocol


class Experiment(Protocol):
    """What happens if this is done? Hashable, picklable, and equal where the same would be done."""

    @property
    def repeats(self) -> int:
        """How many runs there are, each a little different."""
        ...

    def run(self, number: int) -> Any:
        """Run it for the given time, counted from 0; a run of a number comes out the same always."""
        ...


@dataclass(frozen=True, slots=True)
class Band:
    """From where to where a figure is near enough, ends included, and how that was said."""

    low: float
    high: float
    text: str

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


Tolerance = Callable[[float], Band]  # around what was published


def percent(ratio: float) -> Tolerance:
    """At most this part of it away."""
    return lambda published: Band(published * (1 - ratio), published * (1 + ratio), f"±{ratio:.0%}")


def plus_minus(distance: float) -> Tolerance:
    return lambda published: Band(published - distance, published + distance, f"±{distance:g}")


def between(low: float, high: float) -> Tolerance:
    """Between these, whatever was published."""
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

    Without a `tolerance` it is reported and not judged; `published` may be missing where the paper gives an order
    only.
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
    """A table or figure: where it was published, on what workload it is done again, and its rows."""

    says: str
    workload: str
    rows: tuple[Row, ...]
    judged: bool = True  # whether `make tables` runs it unasked
