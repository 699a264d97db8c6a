"""When will a backend's KV pool be fullest, and how full?

A running sequence holds its prompt and one token more after every step, and gives all of it back when it ends. So
the sum of full lengths is never held at once: the pool is fullest just as some request ends. With the batch in
order of remaining output, longest first, the k-th end finds k sequences that have all grown by its remainder l_k,
so that the most ever held is

    max over k of (k * l_k + sum of what the first k hold now)

(the memory rule of the S-LoRA and VTC code; there with known lengths, here with predicted ones). While all
sequences step together no term changes: what is held grows as what remains shrinks. So ends are kept by a clock of
steps that the tokens of one running request drive, and what is held at them is summed up again only when somebody
came, went or turned out otherwise. Then a newcomer costs a binary search, and mostly not even that.

Where a step is not one token each (speculative decoding, a prompt that waits for its prefill) an end is off by that
much until the request's first token, its end, or the next measurement: what the headroom is for. Who has outgrown
its prediction is taken to hold what it has for ever: nobody knows until when.
"""

from bisect import bisect_left, bisect_right
from itertools import accumulate
from operator import add, mul

from policies.reservation import Reservation


class PeakOverTime:
    """What the requests of one backend hold at the fullest moment, by what is predicted of each.

    Shared prompt blocks are not in it. A sequence holds whole blocks: up to a block less one token more than it
    has tokens.
    """

    def __init__(self) -> None:
        self._block_slack = 0
        self._clock = 0.0  # steps
        self._pacemaker: Reservation | None = None  # drives the clock, and ends at step `_pace_end`
        self._pace_end = 0.0
        # Those whose end is expected, soonest first, in columns. The tokens are those at its end, less what it
        # would have grown by since step 0.
        self._members: list[Reservation] = []
        self._ends: list[float] = []
        self._sequences: list[int] = []
        self._tokens_at_0: list[float] = []
        self._end_of: dict[Reservation, float] = {}
        self._outgrown: dict[Reservation, int] = {}  # those who should have ended, and their tokens
        self._outgrown_tokens = 0
        # What that comes to. At each end: sequences that run until then or longer, what they hold then, and the
        # most of held + step up to then, which is what one more sequence grows along.
        self._is_summed_up = False
        self._sequences_from: list[int] = []
        self._held: list[float] = []
        self._highest_since: list[float] = []
        # The fullest moment: a lower bound from one summing-up to the next, also while others come.
        self._full_tokens = 0.0
        self._full_at = 0.0
        self._full_holds = False
        # Told, and looked at when it is asked what that comes to: facts of one instant arrive one after another.
        self._moved: dict[Reservation, None] = {}

    def add(self, reservation: Reservation) -> None:
        self._insert(reservation, self._now())
        self._is_summed_up = False

    def remove(self, reservation: Reservation) -> None:
        self._moved.pop(reservation, None)
        self._take_out(reservation)
        if reservation is self._pacemaker:
            self._set_pace()

    def moved(self, reservation: Reservation) -> None:
        """The reservation's tokens are others than they were, or its first token is there."""
        self._moved[reservation] = None
        self._is_summed_up = self._full_holds = False

    def measured(self, block_tokens: int) -> None:
        """A time to believe what everybody has produced by now; the backend's blocks hold this many tokens."""
        self._block_slack = block_tokens - 1
        self._moved.update(dict.fromkeys([*self._members, *self._outgrown]))
        self._is_summed_up = self._full_holds = False

    def tokens(self) -> float:
        """Tokens held at the fullest moment from now on."""
        self._sum_up()
        return self._full_tokens

    def surely_exceeds(self, newcomer: Reservation, tokens_max: float) -> bool:
        """Whether more than so many tokens are held at what was found to be the fullest moment, if the newcomer
        starts now. That it is False says nothing; but it costs little, and mostly it is True of a full pool.
        """
        if not self._full_holds:
            return False
        steps = self._full_at - self._now()
        missing = newcomer.output_tokens - steps * newcomer.sequences
        return missing >= 0.0 <= steps and self._full_tokens + newcomer.tokens - missing > tokens_max

    def tokens_with(self, newcomer: Reservation) -> float:
        """Tokens held at the fullest moment from now on if the newcomer starts now."""
        end = self._sum_up() + newcomer.steps_left
        ends, sequences = self._ends, newcomer.sequences
        own = self.own_tokens(newcomer)
        later = bisect_right(ends, end)
        most: float = own
        if later < len(ends):  # beside those who end later it ends itself
            most += self._held[later] - self._sequences_from[later] * (ends[later] - end)
        if later:  # beside those who end before it has not grown to its full length yet
            beside = (
                self._highest_since[later - 1]
                if sequences == 1
                else max(map(lambda held, at: held + sequences * at, self._held[:later], ends))
            )
            most = max(most, beside + own - sequences * end)
        return max(self._full_tokens, self._outgrown_tokens + most)

    def own_tokens(self, reservation: Reservation) -> int:
        """Tokens of its full length, in blocks wherever they end."""
        return reservation.tokens + self._block_slack * reservation.sequences

    # -- the clock, and who is when --------------------------------------------------------------------------

    def _now(self) -> float:
        if self._pacemaker is not None:
            self._clock = self._pace_end - self._pacemaker.steps_left
        return self._clock

    def _set_pace(self) -> None:
        """Let the last to end of those that have begun drive the clock."""
        begun = (member for member in reversed(self._members) if member.produced_tokens)
        self._pacemaker = next(begun, None)
        if self._pacemaker is not None:
            self._pace_end = self._end_of[self._pacemaker]

    def _insert(self, reservation: Reservation, clock: float) -> None:
        left, sequences, tokens = reservation.steps_left, reservation.sequences, self.own_tokens(reservation)
        if left <= 0:
            self._outgrown[reservation] = tokens
            self._outgrown_tokens += tokens
            return
        end = clock + left
        place = bisect_right(self._ends, end)
        self._end_of[reservation] = end
        self._members.insert(place, reservation)
        self._ends.insert(place, end)
        self._sequences.insert(place, sequences)
        self._tokens_at_0.insert(place, tokens - sequences * end)

    def _take_out(self, reservation: Reservation) -> None:
        self._is_summed_up = self._full_holds = False
        end = self._end_of.pop(reservation, None)
        if end is None:
            self._outgrown_tokens -= self._outgrown.pop(reservation)
            return
        place = self._members.index(reservation, bisect_left(self._ends, end))
        for column in (self._members, self._ends, self._sequences, self._tokens_at_0):
            del column[place]

    # -- what it comes to ------------------------------------------------------------------------------------

    def _sum_up(self) -> float:
        """Bring the sums up to date; the step that it is."""
        clock = self._now()
        if self._moved:
            for member in self._moved:
                self._take_out(member)
                self._insert(member, clock)
            self._moved.clear()
            self._set_pace()
        while self._ends and self._ends[0] < clock:  # it should have ended: later, then, or nobody knows when
            overdue = self._members[0]
            self._take_out(overdue)
            self._insert(overdue, clock)
            if overdue is self._pacemaker:
                self._set_pace()
        if self._is_summed_up:
            return clock
        sequences = list(accumulate(reversed(self._sequences)))
        at_0 = accumulate(reversed(self._tokens_at_0))
        held = list(map(add, at_0, map(mul, sequences, reversed(self._ends))))
        sequences.reverse()
        held.reverse()
        self._sequences_from, self._held = sequences, held
        self._highest_since = list(accumulate(map(add, held, self._ends), max))
        most = max(held, default=0.0)
        self._full_tokens = self._outgrown_tokens + most
        self._full_at = self._ends[held.index(most)] if held else clock
        self._is_summed_up = self._full_holds = True
        return clock
