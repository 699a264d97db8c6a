"""Who was served in the time that was promised? Counted per tenant and tier when a request ends.

A request that was served is judged by what came of it, also where its client left; one that its backend failed before
the first token, or that was refused, kept nothing. Counts since start, one small record per tenant and tier: whoever
wants a rate takes the difference of two snapshots.
"""

from typing import NamedTuple

from policies.types import Attainment, Outcome, Request, SloEnvelope, Timing

ROUNDING_S = 1e-9


class MetTargets(NamedTuple):
    """Which targets an answer kept; a target that was not set is kept. `tpot` is by the time per output token since
    the first token came, `tpot_envelope` since it was due.
    """

    ttft: bool
    tpot: bool
    tpot_envelope: bool

    @property
    def all(self) -> bool:
        """Whether every token came by arrival + TTFT + j * TPOT."""
        return self.ttft and self.tpot_envelope


NOTHING_KEPT = MetTargets(ttft=False, tpot=False, tpot_envelope=False)


def met_targets(envelope: SloEnvelope, timing: Timing) -> MetTargets:
    """What an answer that came like this has kept. Of one that came whole, when its first token would have come is not
    known: it is judged by the time that all of it was due.
    """
    in_time = timing.tokens_in_time == timing.tokens
    if timing.ttft_s is None:
        return MetTargets(ttft=in_time, tpot=in_time, tpot_envelope=in_time)
    return MetTargets(
        ttft=_is_within(timing.ttft_s, envelope.ttft_s),
        tpot=_is_within(timing.tpot_s, envelope.tpot_s),
        tpot_envelope=_is_within(timing.tpot_envelope_s, envelope.tpot_s),
    )


class AttainmentCounts:
    """How many of whose requests kept which of their targets. Mutable."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tally] = {}
        self._tiers: dict[str, _Tally] = {}

    def ended(self, request: Request, timing: Timing | None, outcome: Outcome, *, tier_id: str) -> None:
        """A request that was dispatched is over. `timing` is None where nothing of its answer was seen."""
        assert request.envelope is not None, "what was promised nothing is not judged"
        if timing is not None and timing.tokens:
            result = met_targets(request.envelope, timing)
        elif outcome is Outcome.BACKEND_FAILED:
            result, timing = NOTHING_KEPT, NOTHING_SEEN
        else:
            return  # an answer without tokens is late for nobody; nobody knows how long its client would have waited
        for tally in self._tallies(request.tenant_id, tier_id):
            tally.add(result, timing)

    def refused(self, request: Request, *, tier_id: str) -> None:
        """A request with an envelope was refused, on arrival or in the queue."""
        for tally in self._tallies(request.tenant_id, tier_id):
            tally.refused += 1

    def of_tenant(self, tenant_id: str) -> Attainment:
        return _view(self._tenants.get(tenant_id))

    def of_tier(self, tier_id: str) -> Attainment:
        return _view(self._tiers.get(tier_id))

    def forget(self, tenant_id: str) -> None:
        """The tenant is gone; its tier remembers."""
        self._tenants.pop(tenant_id, None)

    def forget_tier(self, tier_id: str) -> None:
        """The tier is gone."""
        self._tiers.pop(tier_id, None)

    def _tallies(self, tenant_id: str, tier_id: str) -> tuple["_Tally", "_Tally"]:
        return self._tenants.setdefault(tenant_id, _Tally()), self._tiers.setdefault(tier_id, _Tally())


class _Tally:
    """The counts of Attainment, counting."""

    __slots__ = (
        "met", "refused", "requests", "tokens", "tokens_in_time", "tpot_envelope_met", "tpot_met", "ttft_met",
    )  # fmt: skip

    def __init__(self) -> None:
        self.requests = self.ttft_met = self.tpot_met = self.tpot_envelope_met = self.met = 0
        self.tokens = self.tokens_in_time = self.refused = 0

    def add(self, met_targets: MetTargets, timing: Timing) -> None:
        self.requests += 1
        self.ttft_met += met_targets.ttft
        self.tpot_met += met_targets.tpot
        self.tpot_envelope_met += met_targets.tpot_envelope
        self.met += met_targets.all
        self.tokens += timing.tokens
        self.tokens_in_time += timing.tokens_in_time


NOTHING_SEEN = Timing(None, None, None, 0, 0)
NOBODY = Attainment()


def _view(tally: _Tally | None) -> Attainment:
    if tally is None:
        return NOBODY
    return Attainment(**{name: getattr(tally, name) for name in Attainment.__dataclass_fields__})


def _is_within(seconds: float | None, target_s: float | None) -> bool:
    return seconds is None or target_s is None or seconds <= target_s + ROUNDING_S
