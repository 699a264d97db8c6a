"""Peak KV use: the most tokens that a backend's running requests will hold at any one moment.

A running sequence holds its prompt and one more token after every step, and frees all of it when it ends. So the sum of
full lengths is never held at once: the pool is fullest just before some request ends. With the batch in order of
remaining output, longest first, k sequences run until the k-th end, and each has then grown by the k-th remainder, l_k.
So the most ever held is

    max over k of (k * l_k + sum of what the first k hold now)

(the memory rule of the S-LoRA and VTC code; there with known lengths, here with predicted ones). While all sequences
step together no term changes: the held tokens grow as the remaining ones shrink. So each end is kept as a step number,
on a clock that the tokens of one running request drive. The sums are computed again only when the peak is asked for
after a request was added, was removed or deviated from its prediction. To see that there is no room, one number is
usually enough: the tokens held at the last known peak. Each request that is added or removed changes it by its part.

Where a step is not one token each (speculative decoding, a prompt that waits for its prefill), an end is off by that
much until the request's first token, its end, or the next measurement. The headroom covers this error. A request that
has outgrown its prediction is assumed to hold its tokens forever, as its end is unknown.
"""

from bisect import bisect_left, bisect_right
from itertools import accumulate, repeat
from operator import add, mul

from policies.reservation import Reservation

MOVED_ONE_BY_ONE = 8  # to move one member costs as much as to sort this many (timed with 60 members)


class PeakOverTime:
    """A forecast of the most KV tokens that the requests of one backend will hold at once, from their predicted
    lengths. Prompt blocks that requests share are not included. A sequence holds whole blocks, so the block size minus
    one is added to its tokens. Mutable.
    """

    def __init__(self) -> None:
        self._block_slack = 0
        self._clock = 0.0  # steps
        self._pacemaker: Reservation | None = None  # drives the clock, and ends at step `_pace_end`
        self._pace_end = 0.0
        # Requests with an expected end, soonest first, in columns. `_tokens_at_0` is the tokens at the end, less the
        # growth from step 0 to it.
        self._members: list[Reservation] = []
        self._ends: list[float] = []
        self._sequences: list[int] = []
        self._tokens_at_0: list[float] = []
        self._end_of: dict[Reservation, float] = {}
        self._outgrown: dict[Reservation, int] = {}  # requests beyond their predicted end, and their tokens
        self._outgrown_tokens = 0
        # The sums. At each end: sequences that run until then or longer, and what they hold then.
        self._is_summed_up = False
        self._sequences_from: list[int] = []
        self._held: list[float] = []
        # Tokens held at the last known peak, and its step. Another moment may have become fuller since. Not valid
        # while a request has moved (`_full_holds`).
        self._full_tokens = 0.0
        self._full_at = 0.0
        self._full_holds = False
        # Changed requests, placed again at the next query: events of one instant arrive one after another.
        self._moved: dict[Reservation, None] = {}

    def add(self, reservation: Reservation) -> None:
        self._insert(reservation, self._now())

    def remove(self, reservation: Reservation) -> None:
        self._moved.pop(reservation, None)
        self._take_out(reservation)
        if reservation is self._pacemaker:
            self._set_pace()

    def moved(self, reservation: Reservation) -> None:
        """Mark a reservation as out of date: its tokens have changed or its first token has come."""
        self._moved[reservation] = None
        self._is_summed_up = self._full_holds = False

    def measured(self, block_tokens: int) -> None:
        """Mark all reservations as out of date, and set the tokens per KV block."""
        self._block_slack = block_tokens - 1
        self._moved.update(dict.fromkeys(self._members))
        self._moved.update(dict.fromkeys(self._outgrown))
        self._is_summed_up = self._full_holds = False

    def tokens(self) -> float:
        """The KV tokens that are held at the peak from now on."""
        self._sum_up()
        return self._full_tokens

    def tokens_now(self) -> float:
        """The KV tokens that are held now."""
        clock = self._sum_up()
        return self._outgrown_tokens + sum(self._tokens_at_0, 0.0) + clock * sum(self._sequences)

    def tokens_at_least(self) -> float:
        """The KV tokens at the last known peak: a lower bound of `tokens` in constant time, and usually equal to it."""
        return self._full_tokens if self._full_holds else self.tokens()

    def surely_exceeds(self, newcomer: Reservation, tokens_max: float) -> bool:
        """Whether the last known peak exceeds `tokens_max` if the newcomer starts now. Takes constant time. True is
        certain, and usual for a full pool. False does not mean that there is room.
        """
        if not self._full_holds:
            return False
        steps = self._full_at - self._now()
        missing = newcomer.output_tokens - steps * newcomer.sequences
        return missing >= 0.0 <= steps and self._full_tokens + newcomer.tokens - missing > tokens_max

    def tokens_with(self, newcomer: Reservation) -> float:
        """The KV tokens that are held at the peak from now on if the newcomer starts now."""
        end = self._sum_up() + newcomer.steps_left
        ends, sequences = self._ends, newcomer.sequences
        own = self.own_tokens(newcomer)
        later = bisect_right(ends, end)
        most = float(own)
        if later < len(ends):  # its own end, while later ones run
            most += self._held[later] - self._sequences_from[later] * (ends[later] - end)
        if later:  # at earlier ends it has not grown to its full length yet
            at_ends = ends if sequences == 1 else map(mul, ends, repeat(sequences))
            most = max(most, max(map(add, self._held[:later], at_ends)) + own - sequences * end)
        return max(self._full_tokens, self._outgrown_tokens + most)

    def own_tokens(self, reservation: Reservation) -> int:
        """The tokens of the reservation's full length, plus the most that its last blocks leave unused."""
        return reservation.tokens + self._block_slack * reservation.sequences

    # -- the clock, and the order of ends --------------------------------------------------------------------

    def _now(self) -> float:
        if self._pacemaker is not None:
            self._clock = self._pace_end - self._pacemaker.steps_left
        return self._clock

    def _set_pace(self) -> None:
        """Let the request that ends last, of those that have produced tokens, drive the clock."""
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
        """Put the moved requests into the order of ends again: one by one if they are few, else by sorting all
        requests.
        """
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
        members = [*self._members, *outgrown]
        outgrown.clear()
        for number, member in enumerate(members):
            sequences = member.sequences
            left = (member.output_tokens - member.produced_tokens) / sequences  # inlined: every report asks all
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

    # -- the sums --------------------------------------------------------------------------------------------

    def _sum_up(self) -> float:
        """Bring the sums up to date, and return the current step."""
        clock = self._now()
        if self._moved:
            self._place_again(clock)
        while self._ends and self._ends[0] < clock:  # overdue: to a later end, or to the outgrown
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
