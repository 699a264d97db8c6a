"""Change test: a sequential test on the errors of the step-time model, which finds whether the engine has changed.

An observation is strange if its error is far larger than usual. A few always are strange: a pause, a garbage
collection, another process on the machine. The test learns how often this happens and weighs a run of strange
observations, all too slow or all too fast, against it: each counts with the logarithm of how much likelier it is of a
changed engine (Page's CUSUM of the likelihood ratio, Biometrika 1954). So two or three are enough for an engine that is
never strange, and half a dozen are needed where one in ten is.
"""

from collections import deque
from math import log
from statistics import median

ERRORS_KEPT = 64
STRANGE_RATIO_MIN = 0.2
STRANGE_TIMES = 3.0  # times the usual error
STRANGE_RATIO_MAX = log(3.0)  # errors above it are strange, however large the usual error is
ROUGH = log(2.0) / 2 / STRANGE_TIMES  # with a larger usual error, a doubling of the step time is hardly strange
ERRORS_MIN = 16  # before the usual error can be called rough
REMEMBERED = 512  # observations over which the frequency of strange ones fades
PRIOR_STRANGE, PRIOR_SEEN = 1.0, 20.0  # assumed frequency before anything is seen: one in twenty
STRANGE_OF_ANOTHER = 0.95  # share of a changed engine's observations that are strange
# On average exp(CHANGED_MIN) observations pass between two false alarms (Lorden 1971): a day at four a second.
# Between two false doubts it is the square root of that: 588 observations, two and a half minutes.
CHANGED_MIN = log(4 * 86_400)
DOUBTED_MIN = CHANGED_MIN / 2


class ChangeTest:
    """A sequential statistical test: it takes the error of every prediction of a step time, and finds whether the
    engine has changed. An error is the natural logarithm of the ratio of measured to predicted time. Mutable.
    """

    def __init__(self) -> None:
        self._errors: deque[float] = deque(maxlen=ERRORS_KEPT)
        self._usually_strange = 0.0  # strange observations, fading
        self._seen = 0.0
        self._undecided: list[tuple[float, bool]] = []  # since there is evidence of a change
        self._evidence = {True: 0.0, False: 0.0}  # too slow, too fast

    @property
    def in_doubt(self) -> bool:
        """Whether the engine may have changed."""
        return max(self._evidence.values()) >= DOUBTED_MIN

    @property
    def has_changed(self) -> bool:
        """Whether the engine has changed."""
        return max(self._evidence.values()) >= CHANGED_MIN

    @property
    def begins(self) -> bool:
        """Whether there is no evidence of a change, so that the next observation may be the first after one."""
        return not any(self._evidence.values())

    @property
    def strange_ratio(self) -> float:
        """The error, as a logarithm, from which an observation is strange."""
        usual = STRANGE_TIMES * median(self._errors) if self._errors else 0.0
        return min(max(STRANGE_RATIO_MIN, usual), STRANGE_RATIO_MAX)

    def observed(self, off: float, edge: float = 0.0) -> None:
        """Test one error: `off` is log(observed / predicted). Of the error, up to `edge` is explained by chance."""
        is_strange = abs(off) > self.strange_ratio + edge
        usual = (self._usually_strange + PRIOR_STRANGE) / (self._seen + PRIOR_SEEN)
        for_it = max(0.0, log(STRANGE_OF_ANOTHER / usual))
        against = log((1.0 - STRANGE_OF_ANOTHER) / (1.0 - min(usual, STRANGE_OF_ANOTHER)))
        for slower, evidence in self._evidence.items():
            if is_strange and (off > 0.0) != slower:
                self._evidence[slower] = 0.0  # a changed engine is not too slow first and then too fast
            else:
                self._evidence[slower] = max(0.0, evidence + (for_it if is_strange else against))
        self._undecided.append((abs(off), is_strange))
        if self.begins:
            self._were_usual()

    @property
    def is_rough(self) -> bool:
        """Whether the usual error is too large to see a doubling of the step time."""
        return len(self._errors) >= ERRORS_MIN and median(self._errors) > ROUGH

    def begin_anew(self) -> None:
        """Drop the evidence, because the latest strange observations are explained."""
        self._undecided.clear()
        for slower in self._evidence:
            self._evidence[slower] = 0.0

    def _were_usual(self) -> None:
        """Count the undecided observations as usual, because there is no evidence of a change any more."""
        fades = 1.0 - 1.0 / REMEMBERED
        for error, is_strange in self._undecided:
            self._errors.append(error)
            self._usually_strange = self._usually_strange * fades + is_strange
            self._seen = self._seen * fades + 1.0
        self._undecided.clear()
