"""Answer lengths: how likely a running answer is to go on, learnt from ended and from running answers.

A predictor gives one number per answer. This module learns how the real lengths relate to it, as a survival function of
the ratio of both: the part of the answers that reaches a given number of predicted lengths. It is estimated as Kaplan
and Meier do ("Nonparametric Estimation from Incomplete Observations", 1958): of the answers that reached a bin of the
ratio, which part ended in it. Running answers count as far as they have come, so the first answers to end, which are
short, are not taken for typical. Each power of two of the prediction has its own function, since a small prediction is
wrong by a larger factor.

Without any data, an answer is assumed to reach its predicted length, and then to end with equal probability in every
step, in the mean one predicted length later.
"""

from collections.abc import Iterable
from itertools import accumulate
from math import ceil, exp, log2
from operator import mul

BINS_PER_LENGTH = 16  # bins of one predicted length: a bin is as wide as a KV block for an answer of 256 tokens
BINS = 4 * BINS_PER_LENGTH  # beyond these lengths the hazard is the one before anything was known
HAZARD = 1.0 - exp(-1.0 / BINS_PER_LENGTH)
PRIOR_ANSWERS = 4.0  # answers that weigh as much as what is assumed of a class before it has any
ENDED_MEMORY = 256  # ended answers of a class that are remembered: several fillings of an engine

ROUNDING = 1e-9

_HAZARDS = [0.0] * (BINS_PER_LENGTH + 1) + [HAZARD] * (BINS - BINS_PER_LENGTH)
_PRIOR = list(accumulate((1.0 - hazard for hazard in _HAZARDS), mul))


class AnswerLengths:
    """The distribution of the answer lengths of one backend, for the forecast of KV memory (expected.py). For each
    class of predicted lengths (a power of two) it has a survival function: the part of answers that reach a given
    length. Mutable.
    """

    def __init__(self) -> None:
        self._ended: dict[int, list[float]] = {}  # by class: answers that ended in each bin
        self._alive: dict[int, list[float]] = {}

    def ended(self, predicted: float, produced: float) -> None:
        """Record that an answer ended after `produced` tokens, for any reason, and so freed its memory."""
        counts = self._ended.setdefault(_class_of(predicted), [0.0] * (BINS + 1))
        for place, count in enumerate(counts):
            counts[place] = count * (1.0 - 1.0 / ENDED_MEMORY)
        counts[min(BINS, max(1, ceil(produced / predicted * BINS_PER_LENGTH - ROUNDING)))] += 1.0

    def learn(self, running: Iterable[tuple[float, float]]) -> None:
        """Recompute the survival functions. `running` has the predicted and the produced tokens of every running
        answer.
        """
        reached: dict[int, list[float]] = {}
        for predicted, produced in running:
            counts = reached.setdefault(_class_of(predicted), [0.0] * (BINS + 1))
            place = min(float(BINS), produced / predicted * BINS_PER_LENGTH)
            part = place - int(place)  # of the bin that it is in
            counts[int(place)] += 1.0 - part
            counts[min(BINS, int(place) + 1)] += part
        nothing = [0.0] * (BINS + 1)
        for number in reached.keys() | self._ended.keys():
            self._alive[number] = _survival(self._ended.get(number, nothing), reached.get(number, nothing))

    def alive(self, predicted: float) -> list[float]:
        """The survival function for this prediction: the part of the answers that still run at the end of each bin."""
        return self._alive.get(_class_of(predicted), _PRIOR)


def part_alive(alive: list[float], ratio: float) -> float:
    """The part of the answers that still run after `ratio` predicted lengths."""
    place = ratio * BINS_PER_LENGTH
    before = int(place)
    if before >= BINS:
        return alive[BINS] * exp((BINS - place) / BINS_PER_LENGTH)
    return alive[before] + (alive[before + 1] - alive[before]) * (place - before)


def _survival(ended: list[float], running: list[float]) -> list[float]:
    at_risk, alive = PRIOR_ANSWERS, [1.0] * (BINS + 1)
    for place in range(BINS, 0, -1):
        at_risk += ended[place] + running[place]
        alive[place] = 1.0 - (ended[place] + PRIOR_ANSWERS * _HAZARDS[place]) / at_risk
    return list(accumulate(alive, mul))


def _class_of(predicted: float) -> int:
    return round(log2(predicted))
