"""SLO attainment: how many requests kept their SLO envelope, counted per tenant and tier when a request ends.

A request that was served is judged by the tokens that it produced, also after a disconnect of its client. A request
whose backend failed before the first token has kept no target. Rejected requests are counted apart. Counts run since
the start, in one small record per tenant and tier; a rate is the difference of two snapshots.
"""

from typing import NamedTuple

from policies.types import Attainment, Outcome, Request, SloEnvelope, Timing

ROUNDING_S = 1e-9


class MetTargets(NamedTuple):
    """Which latency targets one answer met; a target that is not set counts as met. `tpot` compares the time per output
    token since the first token came, `tpot_envelope` since the first token was due.
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
    """The targets that an answer with this timing has kept. A non-streamed answer has no TTFT: its targets are all
    judged by whether its tokens came in time.
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
    """The numbers of requests that met their latency targets, per tenant and per tier, since the start. Mutable."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tally] = {}
        self._tiers: dict[str, _Tally] = {}

    def ended(self, request: Request, timing: Timing | None, outcome: Outcome, *, tier_id: str) -> None:
        """Count a dispatched request that has ended. `timing` is None where no part of its answer was seen."""
        assert request.envelope is not None, "what was promised nothing is not judged"
        if timing is not None and timing.tokens:
            result = met_targets(request.envelope, timing)
        elif outcome is Outcome.BACKEND_FAILED:
            result, timing = NOTHING_KEPT, NOTHING_SEEN
        else:
            return  # without tokens nothing was late, and it is not known how long the client would have waited
        for tally in self._tallies(request.tenant_id, tier_id):
            tally.add(result, timing)

    def refused(self, request: Request, *, tier_id: str) -> None:
        """Count a request with an SLO envelope that was rejected, on arrival or in the queue."""
        for tally in self._tallies(request.tenant_id, tier_id):
            tally.refused += 1

    def of_tenant(self, tenant_id: str) -> Attainment:
        return _view(self._tenants.get(tenant_id))

    def of_tier(self, tier_id: str) -> Attainment:
        return _view(self._tiers.get(tier_id))

    def forget(self, tenant_id: str) -> None:
        """Drop the counts of a removed tenant; its tier keeps them."""
        self._tenants.pop(tenant_id, None)

    def forget_tier(self, tier_id: str) -> None:
        """Drop the counts of a removed tier."""
        self._tiers.pop(tier_id, None)

    def _tallies(self, tenant_id: str, tier_id: str) -> tuple["_Tally", "_Tally"]:
        return self._tenants.setdefault(tenant_id, _Tally()), self._tiers.setdefault(tier_id, _Tally())


class _Tally:
    """The mutable counts behind one Attainment."""

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
NO_REQUESTS = Attainment()


def _view(tally: _Tally | None) -> Attainment:
    if tally is None:
        return NO_REQUESTS
    return Attainment(**{name: getattr(tally, name) for name in Attainment.__dataclass_fields__})


def _is_within(seconds: float | None, target_s: float | None) -> bool:
    return seconds is None or target_s is None or seconds <= target_s + ROUNDING_S
