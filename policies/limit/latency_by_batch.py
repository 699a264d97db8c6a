"""How fast are answers of each kind where so many run? And is a backend that runs fewer as fast as one that runs more?

Answers are compared with their own kind alone: whether they are streamed, how long their prompts and they themselves
are, each to a factor of two. What ran with an answer is what was in flight when it was sent and when it ended, and
where these differ much it says nothing. With n in flight, each of which gets a token every t seconds, a backend makes
n / t tokens per second (Little's law): so two sets of answers say which of two numbers in flight makes more of them,
without a look at the clock, whatever the load was made of.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import log, sqrt
from typing import NamedTuple

STEP_S_MIN = 0.5e-3  # no engine's steps are shorter: what is below is the noise of a server that need not compute
RAN_WITH_RATIO_MAX = 1.1  # of what ran at its end and at its beginning: beyond, an answer is of both and of neither
COUNT_MAX = 256  # an answer counts as a part of so many at least: what was long ago is forgotten
ERROR_MIN = 0.05  # of one answer; also where a few happened to be all the same

Kind = tuple[bool, int, int]


class TimedAnswer(NamedTuple):
    """One that has ended: seconds from its sending, tokens of one of its sequences, and how many sequences the backend
    had of ours, its own included, when it was sent and when it ended.
    """

    duration_s: float
    prompt_tokens: int
    output_tokens: int
    is_streamed: bool
    ran_with_first: int
    ran_with_last: int

    @property
    def kind(self) -> Kind:
        return self.is_streamed, self.prompt_tokens.bit_length(), self.output_tokens.bit_length()

    @property
    def token_s(self) -> float:
        return max(STEP_S_MIN, self.duration_s / self.output_tokens)

    @property
    def ran_with(self) -> float | None:
        """So many ran beside it and with it; None where that changed too much."""
        first, last = self.ran_with_first, self.ran_with_last
        if max(first, last) > RAN_WITH_RATIO_MAX * min(first, last) + 1:
            return None
        return sqrt(first * last)


@dataclass(slots=True)
class Speed:
    """Of answers of one kind, in logarithms: means of how long they took, of their tokens, and of what ran; and the
    sums of squares and products of the first two.
    """

    count: float = 0.0
    duration: float = 0.0
    tokens: float = 0.0
    ran_with: float = 0.0
    durations: float = 0.0
    tokens_squares: float = 0.0
    products: float = 0.0

    def add(self, duration: float, tokens: float, ran_with: float) -> None:
        if self.count >= COUNT_MAX:
            kept = 1 - 1 / COUNT_MAX
            self.durations, self.tokens_squares = kept * self.durations, kept * self.tokens_squares
            self.products, self.count = kept * self.products, COUNT_MAX - 1
        self.count += 1
        slower, longer = duration - self.duration, tokens - self.tokens
        self.duration += slower / self.count
        self.tokens += longer / self.count
        self.ran_with += (ran_with - self.ran_with) / self.count
        self.durations += slower * (duration - self.duration)
        self.tokens_squares += longer * (tokens - self.tokens)
        self.products += slower * (tokens - self.tokens)

    @property
    def token(self) -> float:
        """Of the time per token."""
        return self.duration - self.tokens


class SpeedComparison(NamedTuple):
    """What fewer in flight do to the throughput: the logarithms of its ratio, with an error, and of theirs."""

    throughput: float
    error: float
    ran_with: float


@dataclass(slots=True)
class Speeds:
    """Of answers of every kind that ran with about as many. Mutable."""

    by_kind: dict[Kind, Speed] = field(default_factory=dict)
    count: int = 0

    def add(self, answer: TimedAnswer, ran_with: float) -> None:
        self.count += 1
        tokens = log(answer.output_tokens)
        self.by_kind.setdefault(answer.kind, Speed()).add(log(answer.token_s) + tokens, tokens, log(ran_with))

    def shift(self, by: float) -> None:
        """The backend as a whole has become slower by this, as a logarithm."""
        for speed in self.by_kind.values():
            speed.duration += by

    def compared(self, more: "Speeds") -> SpeedComparison | None:
        """These, of fewer in flight, with those of more; None where they have no kind in common.

        An analysis of covariance: within a kind an answer of more tokens takes longer, in proportion where the time
        goes into tokens, hardly where it goes into waiting in a line. By how much is the same slope in both.
        """
        pairs = list(self._pairs(more))
        tokens_squares = sum(fewer.tokens_squares + other.tokens_squares for fewer, other in pairs)
        products = sum(fewer.products + other.products for fewer, other in pairs)
        slope = products / tokens_squares if tokens_squares else 1.0
        weights = slower = ran_with = freedom = 0.0
        squares = -slope * products
        for fewer, other in pairs:
            weight = 1 / (1 / fewer.count + 1 / other.count)
            weights += weight
            slower += weight * (fewer.duration - other.duration - slope * (fewer.tokens - other.tokens))
            ran_with += weight * (fewer.ran_with - other.ran_with)
            squares += fewer.durations + other.durations
            freedom += fewer.count + other.count - 2
        if freedom < 1:
            return None
        error = max(ERROR_MIN, sqrt(max(0.0, squares) / freedom)) / sqrt(weights)
        return SpeedComparison((ran_with - slower) / weights, error, ran_with / weights)

    def slower_than(self, others: Collection["Speeds"]) -> float:
        """By how much these take longer per token than the fastest of their kind among others, as a logarithm."""
        slower = weights = 0.0
        for kind, speed in self.by_kind.items():
            known = [each.by_kind[kind].token for each in others if each is not self and kind in each.by_kind]
            if known:
                slower += speed.count * (speed.token - min(known))
                weights += speed.count
        return slower / weights if weights else 0.0

    def _pairs(self, more: "Speeds") -> Iterator[tuple[Speed, Speed]]:
        for kind, speed in self.by_kind.items():
            other = more.by_kind.get(kind)
            if other is not None:
                yield speed, other
