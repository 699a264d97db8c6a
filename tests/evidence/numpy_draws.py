"""Random numbers of numpy's RandomState, without numpy: published workloads are defined by its seeds.

RandomState is a Mersenne Twister like the one in the standard library. It differs in how the seed fills the state and
in how numbers are made from its words. This covers what the workloads of the VTC paper draw: uniform doubles, bounded
integers (masked rejection) and exponential gaps (its gamma of shape 1).
"""

from math import log
from random import Random

WORDS = 624
WORD_MASK = 0xFFFFFFFF
SEED_MULTIPLIER = 1_812_433_253  # Knuth's, of MT19937's reference initialisation


class NumpyDraws:
    """Equal calls give the values that `numpy.random.RandomState(seed)` gives."""

    def __init__(self, seed: int) -> None:
        words = [seed & WORD_MASK]
        for number in range(1, WORDS):
            last = words[-1]
            words.append((SEED_MULTIPLIER * (last ^ (last >> 30)) + number) & WORD_MASK)
        self._twister = Random()
        self._twister.setstate((3, (*words, WORDS), None))

    def uniform(self) -> float:
        """Return a double in [0, 1): `rand()`."""
        return self._twister.random()

    def integers(self, low: int, high: int, count: int) -> list[int]:
        """Return `randint(low, high, count)`: `high` is excluded. If only one value is possible it costs no draw."""
        span = high - low - 1
        bits = span.bit_length()
        return [low + self._at_most(span, (1 << bits) - 1) if span else low for _ in range(count)]

    def gaps(self, mean: float, count: int) -> list[float]:
        """Return `gamma(1, mean, count)`: exponential."""
        return [-log(1.0 - self.uniform()) * mean for _ in range(count)]

    def _at_most(self, largest: int, mask: int) -> int:
        while (value := self._twister.getrandbits(32) & mask) > largest:
            pass
        return value
