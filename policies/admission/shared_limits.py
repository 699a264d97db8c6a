"""Shared rate limits: how much a replica may admit of a tenant's limit per minute without asking the other replicas.

The replicas exchange messages a few times a second. For every tenant, each publishes what it has admitted within the
last minute (used) and what it may admit until the next exchange (a claim), after receiving the messages of all others.
Exchanges are one after another, so no two replicas claim the same. The sum of used and claimed never exceeds the limit.

A replica that recently got requests of a tenant holds a claim: an equal part of what is left. One that did not holds no
claim, but may still admit an arrival: with n replicas, up to 1/n of what is unclaimed; the others leave that much to
it. A request larger than a whole claim may still be admitted, one between two exchanges, by the holder that has
admitted the least, if it fits under the limit. Only such requests can exceed the limit: by one or two for each other
replica that has not received the news yet.

A replica that is cut off from the others keeps to its fair share: the limit over the last known number of replicas.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Self

from policies.admission.rate_window import WINDOW_S, RateWindow
from policies.types import RateWindowReport

IDLE_S = 3.0  # a replica without a request of a tenant for this long holds no claim
MEET_AGAIN_S = 1.0  # by then there was another exchange, and claims are new
REQUESTS, TOKENS = 0, 1

Amounts = tuple[float, float]
"""Of requests and of tokens."""

NOTHING = (0.0, 0.0)


@dataclass(slots=True)
class _Part:
    """One limit of one tenant: what others have used, and what is left for this replica until the next exchange."""

    limit: float = inf
    others: float = 0.0
    left: float = 0.0
    unclaimed: float = 0.0  # at the last exchange
    unclaimed_before: float = 0.0  # at the one before, which may be the latest that others know
    proposed: float = 0.0
    proposed_unclaimed: float = 0.0
    since: float = 0.0  # booked since the proposal
    may_exceed: bool = True  # nothing was admitted since the last exchange


@dataclass(slots=True)
class _Share:
    """What this replica may use of one tenant's limits per minute."""

    asked_at: float
    parts: tuple[_Part, _Part] = field(default_factory=lambda: (_Part(), _Part()))
    is_next: bool = True


class SharedRateLimits:
    """The rate limits of one pool's tenants, as far as other replicas use them, too. Mutable."""

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
        """Seconds until the amount may be admitted; None where it may be now. As RateWindow.wait_s."""
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
            # The use of others is assumed to leave the minute evenly.
            others_s = WINDOW_S * excess / part.others if part.others else WINDOW_S
            return min(window.wait_s(amount, limit - round(part.others), now) or 0.0, others_s, WINDOW_S)
        if amount <= part.left or (share.is_next and part.may_exceed):
            return None
        return MEET_AGAIN_S

    def booked(self, tenant_id: str, kind: int, amount: float) -> None:
        """Record an admitted amount."""
        share = self._shares.get(tenant_id)
        if share is not None:
            part = share.parts[kind]
            part.may_exceed = False
            part.left -= amount
            part.since += amount

    def limit(self, limit: int) -> int:
        """The limit to enforce here: the whole limit, or the fair share of a replica that is cut off."""
        return max(1, limit // self.replicas) if self.is_cut_off else limit

    def others(self, tenant_id: str, kind: int) -> int:
        """What other replicas have used of the minute, as last received; 0 when cut off."""
        share = None if self.is_cut_off else self._shares.get(tenant_id)
        return 0 if share is None else round(share.parts[kind].others)

    def left(self, tenant_id: str, kind: int, remaining: int) -> int:
        """The part of `remaining` that may be admitted here before the next exchange."""
        share = None if self.is_cut_off or not self.replicas else self._shares.get(tenant_id)
        if share is None:
            return remaining
        part = share.parts[kind]
        if (self.replicas == 1 and not part.others) or (share.is_next and part.may_exceed) or part.limit == inf:
            return remaining
        return min(remaining, max(0, int(part.left)))

    def forget(self, tenant_id: str) -> None:
        self._shares.pop(tenant_id, None)

    # -- exchanges -----------------------------------------------------------------------------------------

    def propose(
        self, name: str, heard: Mapping[str, Mapping[str, RateWindowReport]], now: float
    ) -> dict[str, RateWindowReport]:
        """Make the message of this replica, called `name`: its use and its new claims by tenant. `heard` holds the
        messages of the others by name. Claims take effect with `agreed`; until then the smaller of old and new applies.
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
        """Apply the proposed claims: all replicas have received them."""
        for share in self._proposed:
            for part in share.parts:
                part.left, part.may_exceed = part.proposed - part.since, not part.since
                part.unclaimed_before, part.unclaimed = part.unclaimed, part.proposed_unclaimed

    # -- helpers -------------------------------------------------------------------------------------------

    def _divide(self, part: _Part, used: float, others: float, claimed: float, holders: int, *, asks: bool) -> None:
        """Compute the new claim on a limit, of which others have used `others` and `holders` of them hold `claimed`."""
        part.others, part.since = others, 0.0
        if part.limit == inf:
            part.proposed = 0.0
            return
        unclaimed = part.limit - used - others - claimed
        # What others without a claim may have admitted since their message, by what they had received before it.
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
        """Start on a new limit: what may be admitted until the next exchange."""
        theirs = _Theirs.of(tenant_id, self._heard)
        part.limit, part.others = limit, theirs.used[kind]
        part.unclaimed = limit - used - part.others - theirs.claims[kind]
        part.unclaimed_before = limit
        part.left = max(0.0, part.unclaimed) / self.replicas


class _Theirs(NamedTuple):
    """The sum of the others' messages on one tenant; `least` is the use of the holder that has used least."""

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
