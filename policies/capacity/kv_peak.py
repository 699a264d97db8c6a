"""When will a backend's KV pool be fullest, and how full?

A running sequence holds its prompt and one token more after every step, and gives all of it back when it ends. So
the sum of full lengths is never held at once: the pool is fullest just as some request ends. With the batch in
order of remaining output, longest first, the k-th end finds k sequences that have all grown by its remainder l_k,
so that the most ever held is

    max over k of (k * l_k + sum of what the first k hold now)

(the memory rule of the S-LoRA and VTC code; there with known lengths, here with predicted ones). While all
sequences step together no term changes: what is held grows as what remains shrinks. So ends are kept by a clock of
steps that the tokens of one running request drive, and what is held at them is summed up again only when somebody
came, went or turned out otherwise, and somebody asks who may have room. Mostly one number is enough to say that it has
none: what is held at the moment that was found to be the fullest. Who comes or goes adds to it or takes from it.

Where a step is not one token each (speculative decoding, a prompt that waits for its prefill) an end is off by that
much until the request's first token, its end, or the next measurement: what the headroom is for. Who has outgrown
its prediction is taken to hold what it has for ever: nobody knows until when.
"""

from bisect import bisect_left, bisect_right
from itertools import accumulate, repeat
from operator import add, mul

from policies.reservation import Reservation

MOVED_ONE_BY_ONE = 8  # to put one in its place costs as much as to rank so many (timed with 60 members)


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
        # What that comes to. At each end: sequences that run until then or longer, and what they hold then.
        self._is_summed_up = False
        self._sequences_from: list[int] = []
        self._held: list[float] = []
        # What is held at the moment that was the fullest when it was last summed up: of all moments another may be
        # fuller since. Not known of those who have moved.
        self._full_tokens = 0.0
        self._full_at = 0.0
        self._full_holds = False
        # Told, and looked at when it is asked what that comes to: facts of one instant arrive one after another.
        self._moved: dict[Reservation, None] = {}

    def add(self, reservation: Reservation) -> None:
        self._insert(reservation, self._now())

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
        self._moved.update(dict.fromkeys(self._members))
        self._moved.update(dict.fromkeys(self._outgrown))
        self._is_summed_up = self._full_holds = False

    def tokens(self) -> float:
        """Tokens held at the fullest moment from now on."""
        self._sum_up()
        return self._full_tokens

    def tokens_at_least(self) -> float:
        """Tokens held at what was found to be the fullest moment: at the price of a look, and mostly the same."""
        return self._full_tokens if self._full_holds else self.tokens()

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
            at_ends = ends if sequences == 1 else map(mul, ends, repeat(sequences))
            most = max(most, max(map(add, self._held[:later], at_ends)) + own - sequences * end)
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
        self._is_summed_up = False
        if left <= 0:
            self._outgrown[reservation] = tokens
            self._outgrown_tokens += tokens
            self._full_tokens += tokens
            return
        end = clock + left
        if self._full_at <= end:
            self._full_tokens += tokens - sequences * (end - self._full_at)
        place = bisect_right(self._ends, end)
        self._end_of[reservation] = end
        self._members.insert(place, reservation)
        self._ends.insert(place, end)
        self._sequences.insert(place, sequences)
        self._tokens_at_0.insert(place, tokens - sequences * end)

    def _take_out(self, reservation: Reservation) -> None:
        self._is_summed_up = False
        end = self._end_of.pop(reservation, None)
        if end is None:
            tokens = self._outgrown.pop(reservation)
            self._outgrown_tokens -= tokens
            self._full_tokens -= tokens
            return
        place = self._members.index(reservation, bisect_left(self._ends, end))
        if self._full_at <= end:
            self._full_tokens -= self._tokens_at_0[place] + self._sequences[place] * self._full_at
        for column in (self._members, self._ends, self._sequences, self._tokens_at_0):
            del column[place]

    def _place_again(self, clock: float) -> None:
        """Those who have moved are looked at; where it is most of them, all are, and put in order at once."""
        if len(self._moved) > len(self._members) // MOVED_ONE_BY_ONE:
            self._set_columns(clock)
        else:
            for member in self._moved:
                self._take_out(member)
                self._insert(member, clock)
        self._moved.clear()
        self._set_pace()

    def _set_columns(self, clock: float) -> None:
        slack, outgrown = self._block_slack, self._outgrown
        ranked: list[tuple[float, int, Reservation]] = []
        everybody = [*self._members, *outgrown]
        outgrown.clear()
        for number, member in enumerate(everybody):
            sequences = member.sequences
            left = (member.output_tokens - member.produced_tokens) / sequences  # written out: every report asks all
            if left > 0:
                ranked.append((clock + left, number, member))
            else:
                outgrown[member] = member.tokens + slack * sequences
        ranked.sort()
        self._outgrown_tokens = sum(outgrown.values())
        self._ends = [end for end, _, _ in ranked]
        self._members = [member for _, _, member in ranked]
        self._sequences = [member.sequences for member in self._members]
        self._tokens_at_0 = [
            member.tokens + (slack - end) * member.sequences
            for end, member in zip(self._ends, self._members, strict=True)
        ]
        self._end_of = dict(zip(self._members, self._ends, strict=True))

    # -- what it comes to ------------------------------------------------------------------------------------

    def _sum_up(self) -> float:
        """Bring the sums up to date; the step that it is."""
        clock = self._now()
        if self._moved:
            self._place_again(clock)
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
        most = max(held, default=0.0)
        self._full_tokens = self._outgrown_tokens + most
        self._full_at = self._ends[held.index(most)] if held else clock
        self._is_summed_up = self._full_holds = True
        return clock
