"""Limits per minute that several replicas share: what may this one let in without asking the others?

The replicas meet a few times a second. Each says of every tenant what it has let in within the last minute (used) and
what it means to let in before they meet again (a claim), having heard what all others said; meetings are one after
another, so no two claim the same. What is used and claimed together never exceeds the limit.

Who was asked for a tenant lately holds a claim: an equal part of what is left. Who was not holds none, and may all the
same let in what comes: one part in as many as there are replicas of what nobody has claimed; the others leave him that
much. A request that is larger than a whole claim may be let in all the same, one between two meetings, by the holder
who has let in the least, while it fits under the limit. So the limit is exceeded by such requests alone, by one or two
of each other replica that has not heard of it yet.

Cut off from the others, a replica keeps to its fair share: the limit over the number of replicas that there were.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Self

from policies.admission.rate_window import WINDOW_S, RateWindow
from policies.types import RateWindowReport

IDLE_S = 3.0  # who was not asked for a tenant for so long holds no claim
MEET_AGAIN_S = 1.0  # by then the replicas have met, and shares are others
REQUESTS, TOKENS = 0, 1

Amounts = tuple[float, float]
"""Of requests and of tokens."""

NOTHING = (0.0, 0.0)


@dataclass(slots=True)
class _Part:
    """Of one kind: what others have used, what is left for this replica until the next meeting."""

    limit: float = inf
    others: float = 0.0
    left: float = 0.0
    unclaimed: float = 0.0  # at the last meeting
    unclaimed_before: float = 0.0  # at the one before, which others may have heard of last
    proposed: float = 0.0
    proposed_unclaimed: float = 0.0
    since: float = 0.0  # booked since that was proposed
    may_exceed: bool = True  # nothing was let in since the last meeting


@dataclass(slots=True)
class _Share:
    """What this replica may take of one tenant's minute."""

    asked_at: float
    parts: tuple[_Part, _Part] = field(default_factory=lambda: (_Part(), _Part()))
    is_next: bool = True


class SharedRateLimits:
    """The minutes of one pool's tenants, as far as others take of them, too. Mutable."""

    def __init__(self) -> None:
        self.used: Callable[[str, int, float], float] = lambda _tenant_id, _kind, _now: 0.0
        """What was let in here of a tenant's minute, of a kind, by now; set by whoever counts."""
        self.replicas = 0
        """How many there are, this one included; 0: nobody shares anything."""
        self.is_cut_off = False
        self._shares: dict[str, _Share] = {}
        self._name = ""
        self._proposed: list[_Share] = []
        self._heard: Mapping[str, Mapping[str, RateWindowReport]] = {}  # by replica and tenant

    # -- the limiter's side --------------------------------------------------------------------------------

    def wait_s(
        self, tenant_id: str, kind: int, amount: int, *, window: RateWindow, limit: int, now: float
    ) -> float | None:
        """Seconds until the amount may be let in; None where it may now. As Window.wait_s."""
        if not self.replicas:
            return window.wait_s(amount, limit, now)
        if self.is_cut_off:
            fair = self.limit(limit)
            return window.wait_s(min(amount, fair), fair, now)
        used = window.used(now)
        share = self._share(tenant_id, now)
        part = share.parts[kind]
        if part.limit != limit:
            self._limited(tenant_id, part, kind, limit, used)
        if self.replicas == 1 and not part.others:
            return window.wait_s(amount, limit, now)
        excess = used + part.others + amount - limit
        if excess > 0:
            # What others have used leaves the minute evenly, as far as is known here.
            others_s = WINDOW_S * excess / part.others if part.others else WINDOW_S
            return min(window.wait_s(amount, limit - round(part.others), now) or 0.0, others_s, WINDOW_S)
        if amount <= part.left or (share.is_next and part.may_exceed):
            return None
        return MEET_AGAIN_S

    def booked(self, tenant_id: str, kind: int, amount: float) -> None:
        """So much was let in."""
        share = self._shares.get(tenant_id)
        if share is not None:
            part = share.parts[kind]
            part.may_exceed = False
            part.left -= amount
            part.since += amount

    def limit(self, limit: int) -> int:
        """What of this limit holds here: cut off, the fair share."""
        return max(1, limit // self.replicas) if self.is_cut_off else limit

    def others(self, tenant_id: str, kind: int) -> int:
        """What other replicas have used of the minute, beside what holds here."""
        share = None if self.is_cut_off else self._shares.get(tenant_id)
        return 0 if share is None else round(share.parts[kind].others)

    def left(self, tenant_id: str, kind: int, remaining: int) -> int:
        """Of what remains of the limit: what may be let in here before the replicas have met again."""
        share = None if self.is_cut_off or not self.replicas else self._shares.get(tenant_id)
        if share is None:
            return remaining
        part = share.parts[kind]
        if (self.replicas == 1 and not part.others) or (share.is_next and part.may_exceed) or part.limit == inf:
            return remaining
        return min(remaining, max(0, int(part.left)))

    def forget(self, tenant_id: str) -> None:
        self._shares.pop(tenant_id, None)

    # -- meetings ------------------------------------------------------------------------------------------

    def propose(
        self, name: str, heard: Mapping[str, Mapping[str, RateWindowReport]], now: float
    ) -> dict[str, RateWindowReport]:
        """What this replica, of this name, says of its tenants where the others (by name) have said so much. It holds
        when it is `agreed`; until then no more is let in than both allow.
        """
        self._name, self._heard, self._proposed = name, heard, []
        said = {}
        for tenant_id, share in list(self._shares.items()):
            requests, tokens = share.parts
            mine = (
                self.used(tenant_id, REQUESTS, now) if requests.limit < inf else 0.0,
                self.used(tenant_id, TOKENS, now) if tokens.limit < inf else 0.0,
            )
            asks = now - share.asked_at < IDLE_S
            if not asks and not any(mine):
                del self._shares[tenant_id]
                continue
            theirs = _Theirs.of(tenant_id, heard)
            for kind, part in enumerate(share.parts):
                self._divide(part, mine[kind], theirs.used[kind], theirs.claims[kind], theirs.holders, asks=asks)
            share.is_next = theirs.least is None or (*mine, name) < theirs.least
            said[tenant_id] = RateWindowReport(mine, (requests.proposed, tokens.proposed) if asks else NOTHING, asks)
            self._proposed.append(share)
        return said

    def agreed(self) -> None:
        """All have heard what was proposed."""
        for share in self._proposed:
            for part in share.parts:
                part.left, part.may_exceed = part.proposed - part.since, not part.since
                part.unclaimed_before, part.unclaimed = part.unclaimed, part.proposed_unclaimed

    # -- in parts ------------------------------------------------------------------------------------------

    def _divide(self, part: _Part, used: float, others: float, claimed: float, holders: int, *, asks: bool) -> None:
        """What is left of a limit, of which others have used and claimed so much; so many of them hold a claim."""
        part.others, part.since = others, 0.0
        if part.limit == inf:
            part.proposed = 0.0
            return
        unclaimed = part.limit - used - others - claimed
        # What others who hold no claim may have let in since they spoke, by what they had heard then.
        heard = max(0.0, part.unclaimed, part.unclaimed_before)
        free = unclaimed - (self.replicas - holders - 1) * heard / self.replicas
        if asks:
            part.proposed = max(0.0, min((free + claimed) / (holders + 1), free))
            part.proposed_unclaimed = unclaimed - part.proposed
        else:
            part.proposed = max(0.0, min(unclaimed / self.replicas, free))
            part.proposed_unclaimed = unclaimed
        part.left = min(part.left, part.proposed)

    def _share(self, tenant_id: str, now: float) -> _Share:
        share = self._shares.get(tenant_id)
        if share is None:
            share = self._shares[tenant_id] = _Share(now)
            least = _Theirs.of(tenant_id, self._heard).least
            share.is_next = least is None or least > (0.0, 0.0, self._name)
        share.asked_at = now
        return share

    def _limited(self, tenant_id: str, part: _Part, kind: int, limit: float, used: float) -> None:
        """The limit is new here: what may be let in until the next meeting."""
        theirs = _Theirs.of(tenant_id, self._heard)
        part.limit, part.others = limit, theirs.used[kind]
        part.unclaimed = limit - used - part.others - theirs.claims[kind]
        part.unclaimed_before = limit
        part.left = max(0.0, part.unclaimed) / self.replicas


class _Theirs(NamedTuple):
    """What all others together say of a tenant's minute; `least` is what is used by the holder who has used least."""

    used: Amounts
    claims: Amounts
    holders: int
    least: tuple[float, float, str] | None

    @classmethod
    def of(cls, tenant_id: str, heard: Mapping[str, Mapping[str, RateWindowReport]]) -> Self:
        requests = tokens = requests_claimed = tokens_claimed = 0.0
        holders, least = 0, None
        for other, words in heard.items():
            said = words.get(tenant_id)
            if said is None:
                continue
            used, claims, asks = said
            requests, tokens = requests + used[REQUESTS], tokens + used[TOKENS]
            requests_claimed, tokens_claimed = requests_claimed + claims[REQUESTS], tokens_claimed + claims[TOKENS]
            if asks:
                holders += 1
                least = min(least or (inf, inf, other), (*used, other))
        return cls((requests, tokens), (requests_claimed, tokens_claimed), holders, least)
