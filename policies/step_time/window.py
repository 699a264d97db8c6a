"""Observation window: the latest observations of every kind of step, not the latest of all.

Traffic can consist of one kind of step for minutes. A window of the latest observations would then forget the time of a
step with only one request, or with a long prompt. So the kind of a step is the octaves of its new tokens and of the
context that it reads, and the latest of each kind are kept. An observation is dropped in any case when it is AGE_MAX
observations old.
"""

from collections import deque
from collections.abc import Iterator
from math import frexp
from typing import NamedTuple

from policies.step_time.fit import Equation

ROWS_MAX = 384
KIND_ROWS_MAX = 32
AGE_MAX = 8192  # observations

Kind = tuple[int, int]


class _Row(NamedTuple):
    number: int
    equation: Equation


def kind_of(equation: Equation) -> Kind:
    """The octaves of a step's new tokens and of its context tokens. The equation's scale does not matter."""
    steps, tokens, context, _ = equation
    return frexp(tokens / steps)[1], frexp(context / steps)[1]


class ObservationWindow:
    """The latest observations of every kind of step, to fit a step-time model to. An iteration gives them kind by kind.
    Steps are of one kind if their new tokens and their context tokens are each within the same power of two. At most
    ROWS_MAX observations are kept, and at most KIND_ROWS_MAX of one kind. Mutable.
    """

    def __init__(self) -> None:
        self._rows: dict[Kind, deque[_Row]] = {}
        self._size = 0
        self._number = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Equation]:
        for rows in self._rows.values():
            for row in rows:
                yield row.equation

    def add(self, equation: Equation) -> None:
        """Add an equation. A full kind drops its oldest one; a full window the oldest one of its largest kind."""
        self._number += 1
        rows = self._rows.setdefault(kind_of(equation), deque())
        rows.append(_Row(self._number, equation))
        self._size += 1
        if len(rows) > KIND_ROWS_MAX:
            self._drop(rows)
        elif self._size > ROWS_MAX:
            self._drop(max(self._rows.values(), key=len))

    def forget_old(self) -> None:
        """Drop equations that are at least AGE_MAX observations old."""
        for kind, rows in list(self._rows.items()):
            while rows and rows[0].number <= self._number - AGE_MAX:
                self._drop(rows)
            if not rows:
                del self._rows[kind]

    def _drop(self, rows: deque[_Row]) -> None:
        rows.popleft()
        self._size -= 1
