"""How much may a backend run of which nothing is known but how fast it answers?

As much as still buys throughput. What more in flight is worth is asked of the backend itself, by trials: run fewer for
a while, and compare (speeds.py) what it made of them with what it makes of more. If half of them make 95 % of the
tokens or more, they are enough: that is the knee of a model of steps (knee.py) and the seats of a backend that lets
others wait in a line. If they do not, running less is not the cure, however slow the answers are: all go on as before,
and how slow they are is what the backend can do. So no throughput is given up but for the time of a trial, and no
limit is left standing that buys no speed. A limit that binds is tried in the other direction, by twice as many, four
times as many after that was right, so that it comes back in proportion, wherever it stands.

Fewer are tried where there is a reason: answers take so many times as long as when fewer ran as a step at the knee
takes of an empty one, or nobody said how large the backend is. A trial that is sure of its result ends; one that is
not goes on, and ends in favour of the throughput. (PCC and BBR probe paths through a network in this way; Netflix's
gradient limits and TCP Vegas take any delay for a queue, and an engine that has become slow for one that is full.)

A backend that becomes slower or faster all at once is so beside as many as before: then all that is known of its
speeds is moved alike. When other kinds of answers come than those that it was limited for, it is not limited.
"""

from collections import deque
from dataclasses import dataclass, field
from math import exp, floor, inf, log, log2, sqrt
from statistics import median

from policies.limit.knee import RATE_SHARE, STEP_RATIO_MAX
from policies.limit.latency_by_batch import Kind, Speeds, TimedAnswer

SEQUENCES_MIN = 4  # fewer tell nothing
ANSWERS_MIN = 8  # of which anything is believed
ANSWERS_CHANGED = 2 * ANSWERS_MIN  # that are all slower than their like before it is not they
ERRORS = 3.0  # by which a result has to be off to be sure, looked at with every answer
FEWER, MORE, MORE_MAX = 0.5, 2.0, 16.0
ROUNDS = 128  # of as many answers as run, between trials that change nothing: they cost a percent or two
ROUNDS_FIRST = 4
ROUNDS_TRIAL = 4  # in which one has to be decided
CHANGED = log(1.5)  # a backend that is so much slower or faster than a moment before is another


@dataclass(slots=True)
class Trial:
    """Another number in flight than before, and how fast that is."""

    before: Speeds
    ran_with: float
    sequences_max: float
    was: float  # the limit
    speeds: Speeds = field(default_factory=Speeds)
    ran_with_most: float = 0.0
    seen: int = 0

    @property
    def is_down(self) -> bool:
        return self.sequences_max < self.ran_with

    @property
    def answers_max(self) -> float:
        return ROUNDS_TRIAL * max(ANSWERS_MIN, self.sequences_max, self.ran_with)

    def concerns(self, ran_with: float) -> bool:
        """Whether an answer that ran with so many is of the trial."""
        if self.is_down:
            return self.sequences_max * FEWER <= ran_with <= self.sequences_max + 1
        return ran_with >= self.ran_with * sqrt(MORE)

    def is_right(self) -> bool | None:
        """Whether the other number is the better one; None while that is not sure."""
        is_at_end = max(self.speeds.count, self.seen / 2) >= self.answers_max
        fewer, more = (self.speeds, self.before) if self.is_down else (self.before, self.speeds)
        margin, error = margin_of(fewer, more)
        errors = 0.0 if is_at_end and self.is_down else ERRORS
        if abs(margin) <= errors * error or self.speeds.count < ANSWERS_MIN:
            return False if is_at_end else None  # what was hardly seen is as it was before
        is_right = (margin > 0) == self.is_down
        if is_right and self.speeds.count < self.ran_with_most and not is_at_end:
            return None  # the first that end are the quick ones: all looks better than it is
        return is_right


def margin_of(fewer: Speeds, more: Speeds) -> tuple[float, float]:
    """By how much the throughput of fewer in flight is more than enough, and the error of that; logarithms."""
    found = fewer.compared(more)
    if found is None:
        return 0.0, inf
    # What a backend makes of fewer, with a step of a + k n seconds, where it is at the knee with them.
    enough = log(RATE_SHARE + (1 - RATE_SHARE) * exp(found.ran_with))
    return found.throughput - enough, found.error


class LatencyLimit:
    """Sequences that one backend may run, learnt from its answers. Mutable."""

    def __init__(self) -> None:
        self.sequences_max: float = inf
        """No more than its seats in any case; infinite: nothing is known against it."""
        self._octaves: dict[int, Speeds] = {}  # by how many ran, to a factor of two
        self._trial: Trial | None = None
        self._answers = 0  # since there was a trial, and what ran was steady
        self._bound = 0  # those of them that ran with as many as allowed
        self._down_rounds, self._up_rounds, self._more = 1, ROUNDS_FIRST, MORE
        self._settling = 0.0  # answers from the end of a trial that came of it
        self._off: deque[float] = deque(maxlen=ANSWERS_CHANGED)  # the latest: how much slower than their like
        self._kinds: set[Kind] = set()  # that it was limited for
        self._others: set[Kind] = set()  # that came since
        self._strange = 0  # answers of these, less those of those

    def answered(self, answer: TimedAnswer, *, slots: float, is_sized: bool) -> None:
        """One has ended, of a backend with so many seats for ours: said of it or, where it is not `is_sized`, assumed
        while nothing better is known.
        """
        if self.sequences_max < inf and self._is_strange(answer.kind):
            self.__init__()  # type: ignore[misc]
        ran_with = answer.ran_with
        if self._trial is not None:
            self._go_on(self._trial, answer, ran_with)
        elif self._settling > 0:
            self._settling -= 1
        elif ran_with is not None:
            self._observe(answer, ran_with)
            allowed = min(slots, self.sequences_max)
            self._answers += 1
            self._bound += allowed - 1 <= ran_with <= allowed
            self._look_for_trial(ran_with, allowed, is_sized=is_sized)

    def _is_strange(self, kind: Kind) -> bool:
        """Whether by now most of what comes is not what it was limited for."""
        if kind not in self._kinds:
            self._others.add(kind)
            self._strange += 1
        elif self._strange:
            self._strange -= 1
            if not self._strange:  # they are some of many
                self._kinds |= self._others
                self._others.clear()
        return self._strange >= ANSWERS_MIN

    def _observe(self, answer: TimedAnswer, ran_with: float) -> None:
        speeds = self._octaves.setdefault(octave(ran_with), Speeds())
        like = speeds.by_kind.get(answer.kind)
        if like is not None and like.count >= ANSWERS_MIN / 2:
            self._off.append(log(answer.token_s) - like.token)
            off = median(self._off)
            if len(self._off) == ANSWERS_CHANGED and abs(off) > CHANGED:
                self._changed(off)
        speeds.add(answer, ran_with)

    def _changed(self, off: float) -> None:
        """All of the backend is so much slower."""
        for speeds in self._octaves.values():
            speeds.shift(off)
        self._off.clear()
        self._up_rounds, self._more = 1, MORE

    def _look_for_trial(self, ran_with: float, allowed: float, *, is_sized: bool) -> None:
        answers_round = max(ANSWERS_MIN, ran_with)
        is_bound = allowed - 1 <= ran_with <= allowed and not (is_sized and self.sequences_max == inf)
        if is_bound and self._bound >= self._up_rounds * answers_round:
            self._begin(ran_with, allowed * self._more)
        elif self._answers >= self._down_rounds * answers_round and ran_with * FEWER >= SEQUENCES_MIN:
            share = self._share_to_try(ran_with, is_sized=is_sized)
            if share < 1.0:
                self._begin(ran_with, floor(ran_with * share))
            elif not is_sized:
                self._answers, self._down_rounds = 0, ROUNDS

    def _share_to_try(self, ran_with: float, *, is_sized: bool) -> float:
        """Of what runs now, which might be enough; 1 where there is no reason to think so."""
        now = self._octaves[octave(ran_with)]
        if not is_sized:
            fewer = self._octaves.get(octave(ran_with * FEWER))
            margin, error = (0.0, inf) if fewer is None else margin_of(fewer, now)
            return 1.0 if margin < -ERRORS * error else FEWER
        slower = exp(now.slower_than(self._octaves.values()))
        return max(FEWER, STEP_RATIO_MAX / slower)

    # -- trials ----------------------------------------------------------------------------------------------

    def _begin(self, ran_with: float, sequences_max: float) -> None:
        before = self._octaves[octave(ran_with)]
        self._trial = Trial(before, ran_with, sequences_max, self.sequences_max)
        self.sequences_max = sequences_max
        self._kinds = {kind for speeds in self._octaves.values() for kind in speeds.by_kind}
        self._others.clear()
        self._strange = 0

    def _go_on(self, trial: Trial, answer: TimedAnswer, ran_with: float | None) -> None:
        trial.seen += 1
        if ran_with is not None and trial.concerns(ran_with):
            trial.speeds.add(answer, ran_with)
            trial.ran_with_most = max(trial.ran_with_most, ran_with)
        is_right = trial.is_right()
        if is_right is not None:
            self._end(trial, is_right=is_right)

    def _end(self, trial: Trial, *, is_right: bool) -> None:
        self._trial = None
        self._answers = self._bound = 0
        if trial.is_down and not is_right:  # how slow it is is what it can do
            self._octaves = {octave(trial.ran_with): trial.before}
        if trial.speeds.count:
            self._octaves[octave(trial.sequences_max)] = trial.speeds
        self._off.clear()
        self._settling = trial.ran_with if not is_right else 0.0
        if is_right:  # on in the same direction
            self._down_rounds, self._up_rounds = (0, ROUNDS_FIRST) if trial.is_down else (ROUNDS_FIRST, 0)
            self._more = MORE if trial.is_down else min(MORE_MAX, self._more**2)
            return
        self.sequences_max = trial.was
        if trial.is_down:
            self._down_rounds = ROUNDS
        else:
            self._up_rounds, self._more = min(ROUNDS, max(ROUNDS_FIRST, 2 * self._up_rounds)), MORE


def octave(sequences: float) -> int:
    return floor(log2(max(1.0, sequences)))
