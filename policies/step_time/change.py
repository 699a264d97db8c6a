"""Has the engine become another one? A sequential test of what the model does not explain.

An observation is strange if it is off by far more than usual. Now and then one is: a pause, a collection, somebody
else on the machine. How often it happens is remembered, and a row of strange ones, all too slow or all too fast, is
weighed against it: what each says for another engine is the logarithm of how much likelier it is of one (Page's
CUSUM of the likelihood ratio, Biometrika 1954). So two or three are enough for an engine that is never strange, and
half a dozen are needed where one in ten is.
"""

from collections import deque
from math import log
from statistics import median

ERRORS_KEPT = 64
STRANGE_RATIO_MIN = 0.2
STRANGE_TIMES = 3.0  # the usual error
STRANGE_RATIO_MAX = log(3.0)  # where all are as far off it is not noise, however much of that is usual
ROUGH = log(2.0) / 2 / STRANGE_TIMES  # with a larger usual error, a doubling hardly is strange
ERRORS_MIN = 16  # before it is said how large the usual error is
REMEMBERED = 512  # observations
PRIOR_STRANGE, PRIOR_SEEN = 1.0, 20.0  # what is taken to be usual before anything is seen: one in twenty
STRANGE_OF_ANOTHER = 0.95  # of another engine's observations, so many are strange
# In the mean so many observations pass between two false alarms (Lorden 1971): a day of four a second. In doubt it is
# after the square root of it, 10 minutes.
CHANGED_MIN = log(4 * 86_400)
DOUBTED_MIN = CHANGED_MIN / 2


class ChangeTest:
    """Is told how far off every prediction was, on a logarithmic scale, and says whether that is chance."""

    def __init__(self) -> None:
        self._errors: deque[float] = deque(maxlen=ERRORS_KEPT)
        self._usually_strange = 0.0  # of the latest, fading
        self._seen = 0.0
        self._undecided: list[tuple[float, bool]] = []  # since something speaks for another engine
        self._evidence = {True: 0.0, False: 0.0}  # too slow, too fast

    @property
    def in_doubt(self) -> bool:
        """Whether it may be another engine."""
        return max(self._evidence.values()) >= DOUBTED_MIN

    @property
    def has_changed(self) -> bool:
        """Whether it is another engine."""
        return max(self._evidence.values()) >= CHANGED_MIN

    @property
    def begins(self) -> bool:
        """Whether nothing says so: what comes next may be the first of another engine."""
        return not any(self._evidence.values())

    @property
    def strange_ratio(self) -> float:
        """What is off by less is as usual."""
        usual = STRANGE_TIMES * median(self._errors) if self._errors else 0.0
        return min(max(STRANGE_RATIO_MIN, usual), STRANGE_RATIO_MAX)

    def observed(self, off: float, edge: float = 0.0) -> None:
        """A prediction was off by the logarithm `off`, positive if it took longer, of which chance explains `edge`."""
        is_strange = abs(off) > self.strange_ratio + edge
        usual = (self._usually_strange + PRIOR_STRANGE) / (self._seen + PRIOR_SEEN)
        for_it = max(0.0, log(STRANGE_OF_ANOTHER / usual))
        against = log((1.0 - STRANGE_OF_ANOTHER) / (1.0 - min(usual, STRANGE_OF_ANOTHER)))
        for slower, evidence in self._evidence.items():
            if is_strange and (off > 0.0) != slower:
                self._evidence[slower] = 0.0  # no engine is too slow for what is believed, and then too fast
            else:
                self._evidence[slower] = max(0.0, evidence + (for_it if is_strange else against))
        self._undecided.append((abs(off), is_strange))
        if self.begins:
            self._were_usual()

    @property
    def is_rough(self) -> bool:
        """Whether what it is told is usually too far off for a doubling to be seen."""
        return len(self._errors) >= ERRORS_MIN and median(self._errors) > ROUGH

    def begin_anew(self) -> None:
        """It is known what was strange about the latest: that was not chance."""
        self._undecided.clear()
        for slower in self._evidence:
            self._evidence[slower] = 0.0

    def _were_usual(self) -> None:
        """Nothing speaks for another engine any more: the latest were as the others are."""
        fades = 1.0 - 1.0 / REMEMBERED
        for error, is_strange in self._undecided:
            self._errors.append(error)
            self._usually_strange = self._usually_strange * fades + is_strange
            self._seen = self._seen * fades + 1.0
        self._undecided.clear()
