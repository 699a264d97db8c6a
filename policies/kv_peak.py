"""When will a backend's KV pool be fullest, and how full?

A running sequence holds its prompt and one token more after every step, and gives all of it back when it ends. So
the sum of full lengths is never held at once: the pool is fullest just as some request ends. With the batch in
order of remaining output, longest first, the k-th end finds k sequences that have all grown by its remainder l_k,
so that the most ever held is

    max over k of (k * l_k + sum of what the first k hold now)

(the memory rule of the S-LoRA and VTC code; there with known lengths, here with predicted ones). While all
sequences step together no term changes: what is held grows as what remains shrinks. So the curve of what is
held is drawn when somebody came, left or had a first token, and read later at the steps that have passed since;
a newcomer then costs a binary search. Where a step is not one token each (a prompt that waits for its prefill,
speculative decoding) the curve is off by that much until it is drawn again, which is what the headroom is for.

Who has outgrown its prediction is taken to hold what it has for ever: nobody knows until when.
"""

from bisect import bisect_right
from itertools import accumulate
from operator import add

from policies.reservation import Reservation


class PeakOverTime:
    """What the requests of one backend hold at the fullest moment, by what is predicted of each.

    Shared prompt blocks are not in it. A sequence holds whole blocks: up to a block less one token more than it
    has tokens.
    """

    def __init__(self) -> None:
        self._block_slack = 0
        self._members: dict[Reservation, None] = {}
        self._is_drawn = False
        self._unstarted: list[Reservation] = []  # had no token when the curve was drawn
        self._pacemaker: Reservation | None = None  # whose tokens since then are the steps since then
        self._pace = 0.0  # steps it had left
        self._outgrown_tokens = 0
        # One entry for each that is expected to end, soonest first. Steps count from when the curve was drawn.
        self._ends: list[float] = []
        self._sequences: list[int] = []  # that run until then or longer
        self._held: list[float] = []  # by these, then
        self._highest_since: list[float] = []  # of held + step, up to then: what one more sequence grows along
        self._highest_from: list[float] = []  # of held, from then on

    def set_block_tokens(self, block_tokens: int) -> None:
        """The backend's KV blocks hold this many tokens."""
        self._is_drawn &= self._block_slack == block_tokens - 1
        self._block_slack = block_tokens - 1

    def add(self, reservation: Reservation) -> None:
        self._members[reservation] = None
        self._is_drawn = False

    def remove(self, reservation: Reservation) -> None:
        del self._members[reservation]
        self._is_drawn = False

    def resized(self) -> None:
        """A member is expected to need another number of tokens than before."""
        self._is_drawn = False

    def tokens(self) -> float:
        """Tokens held at the fullest moment from now on."""
        self._steps_passed()
        return self._outgrown_tokens + (self._highest_from[0] if self._highest_from else 0.0)

    def tokens_with(self, newcomer: Reservation) -> float:
        """Tokens held at the fullest moment from now on if the newcomer starts now."""
        end = self._steps_passed() + newcomer.steps_left
        ends, sequences = self._ends, newcomer.sequences
        own = newcomer.tokens + self._block_slack * sequences
        later = bisect_right(ends, end)
        most: float = own
        if later < len(ends):  # beside those who end later it ends itself, and they go on
            most += self._held[later] - self._sequences[later] * (ends[later] - end)
            most = max(most, self._highest_from[later])
        if later:  # beside those who end before it has not grown to its full length yet
            beside = (
                self._highest_since[later - 1]
                if sequences == 1
                else max(map(lambda held, at: held + sequences * at, self._held[:later], ends))
            )
            most = max(most, beside + own - sequences * end)
        return self._outgrown_tokens + most

    def _steps_passed(self) -> float:
        """Steps since the curve was drawn; it is drawn again where it does not hold any more."""
        if self._is_drawn and not any(member.produced_tokens for member in self._unstarted):
            pacemaker = self._pacemaker
            passed = self._pace - pacemaker.steps_left if pacemaker is not None else 0.0
            if not self._ends or passed <= self._ends[0]:
                return passed
        self._draw()
        return 0.0

    def _draw(self) -> None:
        """Sum up from the last end to the first: whoever ends later is there too, and has grown until then."""
        self._is_drawn = True
        self._unstarted = [member for member in self._members if not member.produced_tokens]
        self._ends, self._sequences, self._held, self._highest_from = [], [], [], []
        sequences, tokens_at_start, highest = 0, 0.0, 0.0
        for left, own_sequences, own_tokens in self._expected():
            sequences += own_sequences
            tokens_at_start += own_tokens - own_sequences * left
            held = tokens_at_start + sequences * left
            highest = max(highest, held)
            self._ends.append(left)
            self._sequences.append(sequences)
            self._held.append(held)
            self._highest_from.append(highest)
        for column in (self._ends, self._sequences, self._held, self._highest_from):
            column.reverse()
        self._highest_since = list(accumulate(map(add, self._held, self._ends), max))

    def _expected(self) -> list[tuple[float, int, float]]:
        """Steps left, sequences and tokens at the end of those whose end is expected, the last to end first."""
        rows: list[tuple[float, int, float]] = []
        self._outgrown_tokens = 0
        self._pacemaker, self._pace = None, 0.0
        for member in self._members:
            left, sequences = member.steps_left, member.sequences
            tokens = member.tokens + self._block_slack * sequences
            if left <= 0:
                self._outgrown_tokens += tokens
                continue
            rows.append((left, sequences, tokens))
            if left > self._pace and member.produced_tokens:
                self._pacemaker, self._pace = member, left
        rows.sort(reverse=True)
        return rows
