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
from itertools import accumulate, repeat
from operator import add, itemgetter, mul

from policies.reservation import Reservation

_steps_left = itemgetter(0)


class PeakOverTime:
    """What the requests of one backend hold at the fullest moment, by what is predicted of each.

    Shared prompt blocks are not in it. Sequences hold whole blocks: each up to one token less than a block more
    than it has tokens.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_slack = block_tokens - 1
        self._members: dict[Reservation, None] = {}
        self._is_drawn = False
        self._unstarted: list[Reservation] = []  # had no token when the curve was drawn
        self._pacemaker: Reservation | None = None  # whose tokens count the steps since
        self._pace_from = 0.0
        self._outgrown_tokens = 0.0
        # By the step (since the curve was drawn) at which somebody is expected to end, ascending:
        self._ends: list[float] = []
        self._sequences: list[int] = []  # that then run, the one that ends included
        self._held: list[float] = []  # by all of them
        self._rising: list[float] = []  # the most so far of held + step, to which a newcomer adds the same each time
        self._peaks: list[float] = []  # the most held at that step or later

    def add(self, reservation: Reservation) -> None:
        self._members[reservation] = None
        self._is_drawn = False

    def remove(self, reservation: Reservation) -> None:
        del self._members[reservation]
        self._is_drawn = False

    def changed(self) -> None:
        """A member's tokens are others than they were."""
        self._is_drawn = False

    def tokens(self) -> float:
        """Tokens held at the fullest moment from now on."""
        now = self._now()
        place = bisect_right(self._ends, now - 1.0)
        return self._outgrown_tokens + (self._peaks[place] if place < len(self._peaks) else 0.0)

    def tokens_beside(self, newcomer: Reservation) -> float:
        """Tokens held at the fullest moment if the newcomer starts now."""
        now = self._now()
        sequences = newcomer.sequences
        full = newcomer.tokens + self._block_slack * sequences
        end = now + newcomer.steps_left
        after = bisect_right(self._ends, end)
        # As it ends itself, beside all who end later and have grown so far:
        most = full + (self._held[after] - self._sequences[after] * (self._ends[after] - end) if after < len(self._ends) else 0.0)
