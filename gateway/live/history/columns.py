"""Columns of a ring's rows: one byte per value, on a scale of four steps per octave.

A value that is read back is wrong by at most 9 %, as quantiles of latencies are (recent_counts.py); 0 is exact. So a
steady value takes few different bytes, and a day by minutes compresses to a quarter.
"""

from collections.abc import Callable, Sequence
from math import log2
from operator import add, mul
from typing import Final, NamedTuple

from gateway.live.recent_counts import LEAST_S, PER_OCTAVE

CODE_MAX: Final = 255

Values = list[float]


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    return float(sum(map(mul, values, weights))) / (sum(weights) or 1.0)


def _summed(values: Sequence[float], _weights: Sequence[float]) -> float:
    return sum(values)


def _greatest(values: Sequence[float], _weights: Sequence[float]) -> float:
    return max(values)


def _usual(values: Sequence[float], _weights: Sequence[float]) -> float:
    """The mean of those that there are."""
    return _weighted(values, [float(value > 0.0) for value in values])


class RingColumn(NamedTuple):
    """A column of a Ring, the table of a gateway's past values: how its values are stored in a byte and merged. `least`
    is the smallest value above 0 that the byte can hold. `merge` makes one value from those of two processes for the
    same time. `span` makes the value of a longer time from the values of its parts and a weight of each part, such as
    the tokens that the pool served in it.
    """

    name: str
    least: float
    merge: Callable[[float, float], float]
    span: Callable[[Sequence[float], Sequence[float]], float]

    def code(self, value: float) -> int:
        if value <= 0.0:
            return 0
        return min(CODE_MAX, 1 + max(0, round(PER_OCTAVE * log2(value / self.least))))

    def values(self, codes: bytes) -> Values:
        scale = _SCALES[self.name]
        return [scale[code] for code in codes]


TOKENS: Final = RingColumn("tokens", 1.0, add, _summed)
# TTFT comes in buckets, whose middles are values here.
# Of a tenant. A share is of the pool's service. Only the process that leads knows it, the tokens
# and what still waits.
USE: Final = (
    RingColumn("share", 2**-13, max, _weighted),
    TOKENS,
    RingColumn("wait_s", 0.01, max, _greatest),
    RingColumn("ttft_s", LEAST_S * 2 ** (0.5 / PER_OCTAVE), max, _usual),
    RingColumn("refused", 1.0, add, _summed),
    RingColumn("cost", 1e-6, add, _summed),
)
# Of a pool, tier or group: these are few, and a tenant's row has no byte to spare (2 kB a day).
USE_TOGETHER: Final = (*USE, RingColumn("queued", 1.0, max, _greatest))
# Of a backend: means over the looks at it.
ENGINE: Final = (
    RingColumn("available", 1 / 128, max, _weighted),
    RingColumn("in_flight", 1 / 16, max, _weighted),
    RingColumn("requests_limit", 1.0, max, _weighted),
    RingColumn("kv_tokens", 1.0, max, _weighted),
    RingColumn("kv_tokens_limit", 1.0, max, _weighted),
    RingColumn("step_s", 1e-4, max, _usual),
)
_SCALES: Final = {
    each.name: [0.0, *(each.least * 2 ** (code / PER_OCTAVE) for code in range(CODE_MAX))]
    for each in (*USE_TOGETHER, *ENGINE)
}


def coded(columns: Sequence[RingColumn], values: Sequence[float]) -> bytes:
    """Encode one row."""
    return bytes([column.code(value) for column, value in zip(columns, values, strict=True)])


def merged(columns: Sequence[RingColumn], one: Sequence[Values], other: Sequence[Values]) -> list[Values]:
    """Merge the values of two processes for the same times, column by column."""
    return [list(map(column.merge, *both)) for column, *both in zip(columns, one, other, strict=True)]


def spanned(columns: Sequence[RingColumn], parts: Sequence[Values], weights: Sequence[float]) -> Values:
    """One row for a longer time, from each column's values in its parts."""
    return [column.span(values, weights) for column, values in zip(columns, parts, strict=True)]
