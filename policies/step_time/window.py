"""What is remembered of an engine's steps: the latest of every kind, not the latest of all.

Traffic keeps to one kind of step for minutes, and a window of the latest observations would forget, meanwhile, what a
step costs with one request in it, or with a long prompt. So steps are told apart by the octaves of their new tokens
and of the context that they read, and of each kind the latest are kept. What has not been seen for AGE_MAX
observations is forgotten all the same.
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
    """The octaves of what a step computes and of what it reads; the equation's scale does not matter."""
    steps, tokens, context, _ = equation
    return frexp(tokens / steps)[1], frexp(context / steps)[1]


class ObservationWindow:
    """Equations, at most ROWS_MAX of them."""

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
        """Remember it; forget what is oldest of its kind, or of the kind that there is most of."""
        self._number += 1
        rows = self._rows.setdefault(kind_of(equation), deque())
        rows.append(_Row(self._number, equation))
        self._size += 1
        if len(rows) > KIND_ROWS_MAX:
            self._drop(rows)
        elif self._size > ROWS_MAX:
            self._drop(max(self._rows.values(), key=len))

    def forget_old(self) -> None:
        """Forget what is older than AGE_MAX observations."""
        for kind, rows in list(self._rows.items()):
            while rows and rows[0].number <= self._number - AGE_MAX:
                self._drop(rows)
            if not rows:
                del self._rows[kind]

    def _drop(self, rows: deque[_Row]) -> None:
        rows.popleft()
        self._size -= 1
