"""Expected KV use: the tokens that a backend's requests will hold in the mean, over the time that their answers take.

A running sequence holds its prompt and one more token after every step, and frees all of it when it ends. The time of
its end is known as a probability (answer_lengths.py). So the tokens held at a later step are expected to be

    sum over sequences of (tokens now + steps) * P(not over by then)  +  what has come in their place by then

Without the second term, requests are sent until the forecast, in which many of them have ended, fills the pool. Then no
request can be sent until that time, because their ends were counted already: dispatches come in waves, and a light
tenant waits for the next wave. So the place of a sequence that ends is assumed to be filled again, by the mean of the
latest sequences, and so on (a renewal process). A sequence that ends then leaves room for about one new sequence, and
any further dispatch raises the tokens that the pool holds in the long run.

The forecast is a mean. The headroom (headroom.py) covers the tokens beyond it, and learns from the engine's preemptions
how many they are.

Rows of `POINTS` numbers, one per step of a grid, are added and subtracted as requests come and go. Measurements report
progress; all rows are then recomputed when the forecast is next read.
"""

from collections import deque
from collections.abc import Callable
from operator import add, sub

from policies.capacity.kv_use.answer_lengths import AnswerLengths, part_alive
from policies.reservation import Reservation

POINTS = 12
POINTS_PER_LENGTH = 6  # of the mean prediction: so the grid covers two, where most have ended
STEPS_MIN = 4.0  # between two points
NEWCOMERS = 32  # that the mean of a newcomer is taken over

Row = tuple[list[float], list[float]]
"""At each point: tokens that a request is expected to hold, and its sequences that end between the point before and
this one.
"""


class ExpectedSums:
    """Sums over the running requests of one backend, at each of `POINTS` later engine steps: the KV tokens that they
    are expected to hold then (`held`), and the sequences expected to end since the point before (`ends`). Mutable.
    """

    def __init__(self) -> None:
        self.held = [0.0] * POINTS
        self.ends = [0.0] * POINTS

    def count(self, row: Row, operation: Callable[[float, float], float]) -> None:
        """Add a row, or subtract it, by `operation`."""
        self.held = list(map(operation, self.held, row[0]))
        self.ends = list(map(operation, self.ends, row[1]))

    def most(self, renewed: list[float]) -> float:
        """The most tokens at any point: those of running requests, and those of the successors of ended ones."""
        held, ends, most = self.held, self.ends, 0.0
        for point in range(POINTS):
            later = sum(ends[each] * renewed[point - each] for each in range(1, point + 1))
            most = max(most, held[point] + later)
        return most

    def with_row(self, row: Row) -> "ExpectedSums":
        """These sums with one more row."""
        sums = ExpectedSums()
        sums.held, sums.ends = list(map(add, self.held, row[0])), list(map(add, self.ends, row[1]))
        return sums


class ExpectedOverTime:
    """A forecast of the most KV tokens that the requests of one backend will hold at once, from the distribution of
    answer lengths (AnswerLengths). Prompt blocks that requests share are not included. Mutable.
    """

    def __init__(self) -> None:
        self._lengths = AnswerLengths()
        self._block_slack = 0
        self._rows: dict[Reservation, Row] = {}
        self._newcomers: deque[Reservation] = deque(maxlen=NEWCOMERS)
        self._steps = 0.0  # between two points; 0: nothing has come yet
        self._sums = ExpectedSums()
        self._renewed = [0.0] * POINTS  # what is held in the place of a sequence, so many points after its end
        self._is_current = True  # the rows are as of the last measurement
        self._fullest: float | None = 0.0  # None: something has changed since it was computed

    def add(self, reservation: Reservation) -> None:
        self._newcomers.append(reservation)
        if not self._steps:
            self._renew()
        row = self._rows[reservation] = self._row(reservation, reservation.produced_tokens)
        self._sums.count(row, add)
        self._fullest = None

    def remove(self, reservation: Reservation) -> None:
        self._sums.count(self._rows.pop(reservation), sub)
        self._fullest = None
        self._lengths.ended(_predicted(reservation), reservation.produced_tokens / reservation.sequences)

    def moved(self, reservation: Reservation) -> None:
        """Recompute the row of a reservation after its tokens have changed or its first token has come."""
        self._sums.count(self._rows[reservation], sub)
        row = self._rows[reservation] = self._row(reservation, reservation.produced_tokens)
        self._sums.count(row, add)
        self._fullest = None

    def measured(self, block_tokens: int) -> None:
        """Mark all rows as out of date, and set the tokens per KV block."""
        self._block_slack = block_tokens - 1
        self._is_current, self._fullest = False, None

    def tokens(self) -> float:
        """The KV tokens that are expected to be held at the fullest moment from now on."""
        if not self._is_current:
            self._renew()
        if self._fullest is None:
            self._fullest = self._sums.most(self._renewed)
        return self._fullest

    def tokens_now(self) -> float:
        """The KV tokens that are held now."""
        if not self._is_current:
            self._renew()
        return self._sums.held[0]

    def tokens_at_least(self) -> float:
        return self.tokens()

    def surely_exceeds(self, newcomer: Reservation, tokens_max: float) -> bool:
        """True where the running requests alone exceed `tokens_max`, so that the newcomer has no room. False does not
        mean that there is room.
        """
        return self.tokens() > tokens_max

    def tokens_with(self, newcomer: Reservation) -> float:
        """The KV tokens that are expected to be held at the fullest moment if the newcomer starts now."""
        if not self._is_current or not self._steps:
            self._renew()
        return self._sums.with_row(self._row(newcomer, newcomer.produced_tokens)).most(self._renewed)

    def own_tokens(self, reservation: Reservation) -> int:
        """The tokens of the reservation's predicted length, plus the most that its last blocks leave unused."""
        return reservation.tokens + self._block_slack * reservation.sequences

    def _renew(self) -> None:
        """Recompute all rows, and the tokens held by the successors of a request that ends."""
        self._is_current = True
        running = self._rows
        self._lengths.learn((_predicted(each), each.produced_tokens / each.sequences) for each in running)
        mean_of = running or self._newcomers
        if mean_of:
            predicted = sum(map(_predicted, mean_of)) / len(mean_of)
            self._steps = max(STEPS_MIN, predicted / POINTS_PER_LENGTH)
        self._sums, self._fullest = ExpectedSums(), None
        for each in running:
            row = running[each] = self._row(each, each.produced_tokens)
            self._sums.count(row, add)
        self._renewed = self._renewals()

    def _renewals(self) -> list[float]:
        """The tokens held at each point by the mean newcomer that takes a place now, and later by its successors."""
        sequences = sum(each.sequences for each in self._newcomers)
        held, ends = [0.0] * POINTS, [0.0] * POINTS
        for each in self._newcomers:
            row = self._row(each, 0)
            held, ends = list(map(add, held, row[0])), list(map(add, ends, row[1]))
        renewed: list[float] = []
        for point in range(POINTS):
            later = sum(ends[each] * renewed[point - each] for each in range(1, point + 1))
            renewed.append((held[point] + later) / max(1, sequences))
        return renewed

    def _row(self, reservation: Reservation, produced_tokens: int) -> Row:
        sequences, predicted = reservation.sequences, _predicted(reservation)
        alive, produced = self._lengths.alive(predicted), produced_tokens / sequences
        left = reservation.output_tokens_max / sequences - produced
        now = reservation.tokens - max(0.0, reservation.output_tokens - produced_tokens)
        alive_now = part_alive(alive, produced / predicted)
        held, ends, before = [now], [0.0], 1.0
        for point in range(1, POINTS):
            steps = point * self._steps
            part = part_alive(alive, (produced + steps) / predicted) / alive_now if steps <= left else 0.0
            held.append((now + steps * sequences) * part)
            ends.append(sequences * (before - part))
            before = part
        return held, ends


def _predicted(reservation: Reservation) -> float:
    return max(1.0, reservation.output_tokens / reservation.sequences)
