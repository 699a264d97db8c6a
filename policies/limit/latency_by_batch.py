"""Latency by batch size: how fast answers of each kind are at each batch size, and a comparison of two batch sizes.

An answer is compared only with its own kind: streamed or not, and the lengths of prompt and answer, each to a factor of
two. The batch of an answer is the number in flight when it was sent and when it ended; where these differ much, the
answer is ignored. With n in flight, each with a token every t seconds, a backend makes n / t tokens per second
(Little's law). So two sets of answers tell which of two batch sizes makes more tokens per second, whatever the mix of
the load, and no tokens are counted over a window of time.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import log, sqrt
from typing import NamedTuple

STEP_S_MIN = 0.5e-3  # no engine's steps are shorter: less is the noise of a server that computes nothing
RAN_WITH_RATIO_MAX = 1.1  # between the batch at an answer's end and at its start: beyond, the answer is ignored
COUNT_MAX = 256  # answers in a mean at most: older ones fade
ERROR_MIN = 0.05  # least error of one answer, also where a few happened to be equal

Kind = tuple[bool, int, int]


class TimedAnswer:
    """The measured speed of one ended answer (`token`: the logarithm of its seconds per token), its kind, and the
    number of sequences that ran at once (`ran_with`). Two answers are of one kind if both or neither were streamed, and
    the lengths of their prompts and of their outputs are within the same powers of two.
    """

    __slots__ = ("kind", "ran_with", "token", "tokens")

    def __init__(  # noqa: PLR0917 - compiled, and called with every answer
        self,
        duration_s: float,
        prompt_tokens: int,
        output_tokens: int,
        is_streamed: bool,  # noqa: FBT001
        ran_with_first: int,
        ran_with_last: int,
    ) -> None:
        """The answer took `duration_s` seconds from its dispatch, for `output_tokens` per sequence. At its dispatch
        `ran_with_first` of our sequences ran there, and at its end `ran_with_last`, both with its own.
        """
        self.kind: Kind = is_streamed, prompt_tokens.bit_length(), output_tokens.bit_length()
        self.tokens, token_s = log(output_tokens), duration_s / output_tokens
        self.token = log(token_s if token_s > STEP_S_MIN else STEP_S_MIN)
        """The logarithm of the seconds per token."""
        first, last = ran_with_first, ran_with_last
        is_steady = last <= RAN_WITH_RATIO_MAX * first + 1 and first <= RAN_WITH_RATIO_MAX * last + 1
        self.ran_with: float | None = sqrt(first * last) if is_steady else None
        """The sequences that ran, its own included (geometric mean); None where that changed too much."""


@dataclass(slots=True)
class Speed:
    """The statistics of all answers of one kind (TimedAnswer). They are taken over natural logarithms: of each answer's
    seconds, output tokens per sequence, and sequences at once. `duration`, `tokens` and `ran_with` are the means of
    these three. `durations` and `tokens_squares` are the sums of the squared deviations of the first two from their
    means, `products` is the sum of the products of these deviations.
    """

    count: float = 0.0
    duration: float = 0.0
    tokens: float = 0.0
    ran_with: float = 0.0
    durations: float = 0.0
    tokens_squares: float = 0.0
    products: float = 0.0

    @property
    def token(self) -> float:
        """The mean logarithm of the seconds per token."""
        return self.duration - self.tokens


class SpeedComparison(NamedTuple):
    """A comparison of a backend's throughput with fewer and with more sequences at once. `throughput` is the natural
    logarithm of the ratio, fewer over more, `error` the error of this logarithm. `ran_with` is the logarithm of the
    ratio of the numbers of sequences.
    """

    throughput: float
    error: float
    ran_with: float


@dataclass(slots=True)
class Speeds:
    """The speeds of those answers of a backend that had about the same batch size (the number of sequences that ran at
    once), to compare it with another size. `by_kind` has, for each kind of answers (alike in streaming and lengths, see
    TimedAnswer), statistics over logarithms of seconds and tokens. `count` is the number of answers. Mutable.
    """

    by_kind: dict[Kind, Speed] = field(default_factory=dict)
    count: int = 0

    def add(self, answer: TimedAnswer, ran_with: float, like: Speed | None = None) -> None:
        """Add an answer. `like` is the Speed of the answer's kind, if the caller has it."""
        self.count += 1
        speed = like or self.by_kind.get(answer.kind)
        if speed is None:
            speed = self.by_kind[answer.kind] = Speed()
        duration, tokens = answer.token + answer.tokens, answer.tokens
        if speed.count >= COUNT_MAX:
            kept = 1 - 1 / COUNT_MAX
            speed.durations, speed.tokens_squares = kept * speed.durations, kept * speed.tokens_squares
            speed.products, speed.count = kept * speed.products, COUNT_MAX - 1.0
        speed.count += 1
        slower, longer = duration - speed.duration, tokens - speed.tokens
        speed.duration += slower / speed.count
        speed.tokens += longer / speed.count
        speed.ran_with += (log(ran_with) - speed.ran_with) / speed.count
        speed.durations += slower * (duration - speed.duration)
        speed.tokens_squares += longer * (tokens - speed.tokens)
        speed.products += slower * (tokens - speed.tokens)

    def shift(self, by: float) -> None:
        """Shift all durations by `by`, a logarithm, because the whole backend has become slower."""
        for speed in self.by_kind.values():
            speed.duration += by

    def compared(self, more: "Speeds") -> SpeedComparison | None:
        """Compare these answers, with fewer in flight, with those of `more`; None where too few share a kind. An
        analysis of covariance: within a kind, an answer of more tokens takes longer, in proportion where the time goes
        into tokens, hardly where it goes into waiting in a queue. One slope is fitted for both.
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
        """The logarithm of how much longer per token these answers take than the fastest of their kind in `others`."""
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
