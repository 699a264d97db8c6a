"""Concurrency limit by latency: how many sequences a backend may run, learnt only from how fast it answers.

The limit is as large as still adds throughput. It is found by trials: run fewer sequences for a while and compare their
throughput with that of more (latency_by_batch.py). If half as many sequences make 95 % of the tokens or more, half is
enough: that is the knee of a step-time model (knee.py), and the number of slots of a backend that queues further
requests. If they make less, running fewer does not help, however slow the answers are: the limit stays, and the backend
cannot be faster. So throughput is lost only during a trial, and no limit stays that buys no speed. A limit that is
reached is tried upwards: twice as many, then four times as many if that was right, and so on, so that the limit
recovers in proportion from any level.

Fewer sequences are tried only for a reason: answers are slower than answers in smaller batches, by the ratio of a step
at the knee to an empty step; or the size of the backend is not known. A trial ends as soon as its result is sure; one
that stays unsure ends in favour of the throughput. (PCC and BBR probe network paths in this way. Netflix's gradient
limits and TCP Vegas take any delay for a queue, and so a slow engine for a full one.)

A backend that becomes slower or faster at once does so at an unchanged batch: all learnt speeds are then shifted by the
same factor. When most answers are of other kinds than those that the limit was learnt from, the limit is dropped.
"""

from collections import deque
from dataclasses import dataclass, field
from math import exp, floor, frexp, inf, log, sqrt

from policies.limit.knee import RATE_SHARE, STEP_RATIO_MAX
from policies.limit.latency_by_batch import Kind, Speeds, TimedAnswer

SEQUENCES_MIN = 4  # no trial goes below
ANSWERS_MIN = 8  # the fewest answers that support a result
ANSWERS_CHANGED = 2 * ANSWERS_MIN  # latest answers whose median shift shows that the backend has changed
HALF_CHANGED = ANSWERS_CHANGED // 2
MIDDLE = slice(HALF_CHANGED - 1, HALF_CHANGED + 1)
ERRORS = 3.0  # standard errors that make a result sure; high, as it is tested with every answer
FEWER, MORE, MORE_MAX = 0.5, 2.0, 16.0
ROUNDS = 128  # between trials that change nothing: they cost a percent or two. A round: as many answers as run
ROUNDS_FIRST = 4
ROUNDS_TRIAL = 4  # after which a trial has to be decided
CHANGED = log(1.5)  # by which a backend has to become slower or faster at once to count as changed


@dataclass(slots=True)
class Trial:
    """A trial of another concurrency limit at one backend. `sequences_max` is the limit that is tried, `ran_with` the
    number of sequences that ran at once before the trial. The trial compares the speeds of the answers during the trial
    (`speeds`) with those before it (`before`). Mutable.
    """

    before: Speeds
    ran_with: float
    sequences_max: float
    was: float  # the limit before the trial
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
        """Whether an answer that ran with `ran_with` sequences belongs to the trial."""
        if self.is_down:
            return self.sequences_max * FEWER <= ran_with <= self.sequences_max + 1
        return ran_with >= self.ran_with * sqrt(MORE)

    def is_right(self) -> bool | None:
        """Whether the tried limit is better than the old one; None while that is not sure."""
        is_at_end = max(self.speeds.count, self.seen / 2) >= self.answers_max
        fewer, more = (self.speeds, self.before) if self.is_down else (self.before, self.speeds)
        margin, error = margin_of(fewer, more)
        errors = 0.0 if is_at_end and self.is_down else ERRORS
        if abs(margin) <= errors * error or self.speeds.count < ANSWERS_MIN:
            return False if is_at_end else None  # without enough answers the old limit stays
        is_right = (margin > 0) == self.is_down
        if is_right and self.speeds.count < self.ran_with_most and not is_at_end:
            return None  # the first answers to end are the quick ones: the result would look too good
        return is_right


def margin_of(fewer: Speeds, more: Speeds) -> tuple[float, float]:
    """The margin by which the throughput with fewer sequences exceeds the throughput that is enough, and its error.
    Both are natural logarithms of ratios; (0, infinity) where the two cannot be compared.
    """
    found = fewer.compared(more)
    if found is None:
        return 0.0, inf
    # Enough is the throughput ratio of a backend with steps of a + k n seconds that is at the knee with fewer.
    enough = log(RATE_SHARE + (1 - RATE_SHARE) * exp(found.ran_with))
    return found.throughput - enough, found.error


class LatencyLimit:
    """A concurrency limit: the most sequences that one backend may run at once, learnt by trials from the speed of its
    answers. Mutable.
    """

    def __init__(self) -> None:
        self.sequences_max: float = inf
        """The limit on sequences, below the number of slots; infinite: no limit is learnt."""
        self._octaves: dict[int, Speeds] = {}  # by the number of sequences that ran, to a factor of two
        self._trial: Trial | None = None
        self._answers = 0  # since the last trial, with a steady batch
        self._bound = 0  # those of them that ran at the limit
        self._down_rounds, self._up_rounds, self._more = 1, ROUNDS_FIRST, MORE
        self._settling = 0.0  # answers to ignore after a failed trial, as they still ran in it
        self._off: deque[float] = deque(maxlen=ANSWERS_CHANGED)  # latest log ratios to the mean of the same kind
        self._far = 0  # how many of them are beyond CHANGED
        self._kinds: set[Kind] = set()  # kinds of answers that the limit was learnt from
        self._others: set[Kind] = set()  # kinds that came since
        self._strange = 0  # answers of new kinds, less answers of known kinds

    def answered(self, answer: TimedAnswer, *, slots: float, is_sized: bool) -> bool:
        """Learn from an answer that has ended; returns whether the limit has changed. `slots` are the slots for our
        sequences at the backend: known with `is_sized`, else assumed.
        """
        before, ran_with = self.sequences_max, answer.ran_with
        if before < inf and self._is_strange(answer.kind):
            self.__init__()  # type: ignore[misc]
        if self._trial is not None:
            self._go_on(self._trial, answer, ran_with)
        elif self._settling > 0:
            self._settling -= 1
        elif ran_with is not None:
            self._observe(answer, ran_with)
            allowed = slots if slots < self.sequences_max else self.sequences_max
            self._answers += 1
            self._bound += allowed - 1 <= ran_with <= allowed
            self._look_for_trial(ran_with, allowed, is_sized=is_sized)
        return self.sequences_max != before

    def _is_strange(self, kind: Kind) -> bool:
        """Whether most recent answers are of kinds that the limit was not learnt from."""
        if kind not in self._kinds:
            self._others.add(kind)
            self._strange += 1
        elif self._strange:
            self._strange -= 1
            if not self._strange:  # the new kinds are a minority: they count as known
                self._kinds |= self._others
                self._others.clear()
        return self._strange >= ANSWERS_MIN

    def _observe(self, answer: TimedAnswer, ran_with: float) -> None:
        number = frexp(ran_with)[1] - 1 if ran_with > 1.0 else 0  # `octave`, inlined
        if number not in self._octaves:
            self._octaves[number] = Speeds()
        speeds = self._octaves[number]
        like = speeds.by_kind.get(answer.kind)
        if like is not None and like.count >= ANSWERS_MIN / 2:
            off, latest = answer.token - (like.duration - like.tokens), self._off  # `token`, inlined
            is_full = len(latest) == ANSWERS_CHANGED
            if is_full and not -CHANGED <= latest[0] <= CHANGED:
                self._far -= 1
            latest.append(off)
            if not -CHANGED <= off <= CHANGED:
                self._far += 1
            if self._far >= HALF_CHANGED and len(latest) == ANSWERS_CHANGED:
                below, above = sorted(latest)[MIDDLE]
                median = (below + above) / 2
                if abs(median) > CHANGED:
                    self._changed(median)
        speeds.add(answer, ran_with, like)

    def _changed(self, off: float) -> None:
        """Shift all learnt speeds, because the whole backend has become slower by `off` (a logarithm)."""
        for speeds in self._octaves.values():
            speeds.shift(off)
        self._forget_off()
        self._up_rounds, self._more = 1, MORE

    def _forget_off(self) -> None:
        self._off.clear()
        self._far = 0

    def _look_for_trial(self, ran_with: float, allowed: float, *, is_sized: bool) -> None:
        answers_round = ran_with if ran_with > ANSWERS_MIN else ANSWERS_MIN
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
        """The share of the sequences that run now to try as a limit; 1 where there is no reason for a trial."""
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
        if trial.is_down and not is_right:  # the backend can do no better: this speed is the new reference
            self._octaves = {octave(trial.ran_with): trial.before}
        if trial.speeds.count:
            self._octaves[octave(trial.sequences_max)] = trial.speeds
        self._forget_off()
        self._settling = trial.ran_with if not is_right else 0.0
        if is_right:  # go on in the same direction
            self._down_rounds, self._up_rounds = (0, ROUNDS_FIRST) if trial.is_down else (ROUNDS_FIRST, 0)
            self._more = MORE if trial.is_down else min(MORE_MAX, self._more**2)
            return
        self.sequences_max = trial.was
        if trial.is_down:
            self._down_rounds = ROUNDS
        else:
            self._up_rounds, self._more = min(ROUNDS, max(ROUNDS_FIRST, 2 * self._up_rounds)), MORE


def octave(sequences: float) -> int:
    """The exponent of the largest power of two, 0 or more, that is not above `sequences`."""
    return frexp(sequences)[1] - 1 if sequences > 1.0 else 0
