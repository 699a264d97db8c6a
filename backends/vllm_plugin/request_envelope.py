"""Request envelope: the SLO envelope and the owner of a request inside the engine, read from its `vllm_xargs`.

Clients that call vLLM directly set these values themselves, so an invalid one counts as absent. Times run on the
engine's clock from the request's arrival; the gateway sends the rest of a TTFT target when it dispatches.
"""

from collections.abc import Mapping
from math import inf, isfinite
from typing import Any, Final, NamedTuple

NAME_CHARACTERS_MAX: Final = 256
MILLISECONDS_MAX: Final = 1e9
DISPATCH_MAX: Final = 2**53
WEIGHT_MIN, WEIGHT_MAX = 1e-6, 1e6


class RequestOwner(NamedTuple):
    """The tenant and the tier of a request, with the weights that the gateway sends. An empty name: not given."""

    tenant: str = ""
    weight: float = 1.0
    tier: str = ""
    tier_weight: float = 1.0


class RequestEnvelope(NamedTuple):
    """The SLO envelope (the times at which tokens are due) and the owner of one request inside the engine. `owner` has
    its tenant and its tier. The first token is due at `first_due_at` on the engine's clock, each later one `tpot_s`
    seconds after the one before; infinite: no target. `ttft_s` is the whole TTFT target (time to first token), from the
    request's arrival at the gateway. `dispatch` is the gateway's name and its number for the dispatch; None: not given.
    """

    owner: RequestOwner
    first_due_at: float
    tpot_s: float
    ttft_s: float
    dispatch: tuple[str, int] | None

    @property
    def is_any(self) -> bool:
        """Whether the request has any target."""
        return min(self.first_due_at, self.tpot_s) < inf

    def slack_s(self, *, output_tokens: int, first_token_at: float | None, now: float) -> float:
        """Return the seconds until the token after `output_tokens` is due. The envelope sets all due times from the
        arrival on. A client measures the pace from the first token: if the first token came early, the later tokens are
        due from that time on. So both readings of the target are kept.
        """
        if output_tokens == 0:
            return self.first_due_at - now
        began_at = self.first_due_at if first_token_at is None else min(self.first_due_at, first_token_at)
        return began_at + output_tokens * self.tpot_s - now


def read_envelope(
    extra_args: Mapping[str, Any] | None, *, arrived_at: float, ttft_s: float | None, tpot_s: float | None
) -> RequestEnvelope:
    """Read an envelope; `ttft_s` and `tpot_s` replace targets that the request does not bring."""
    given = extra_args or {}
    ttft_s = _seconds(given.get("slo_ttft_ms"), least=-MILLISECONDS_MAX) or ttft_s
    tpot_s = _seconds(given.get("slo_tpot_ms"), least=0.0) or tpot_s
    whole_ttft_s = _seconds(given.get("fairlead_ttft_ms"), least=0.0) or ttft_s
    weight, tier_weight = _weights(given.get("fairlead_weights"))
    return RequestEnvelope(
        owner=RequestOwner(_name(given.get("tenant")), weight, _name(given.get("tier")), tier_weight),
        first_due_at=inf if ttft_s is None else arrived_at + ttft_s,
        tpot_s=inf if tpot_s is None else tpot_s,
        ttft_s=inf if whole_ttft_s is None or whole_ttft_s <= 0.0 else whole_ttft_s,
        dispatch=_dispatch(given.get("fairlead_dispatch")),
    )


def _name(value: Any) -> str:
    return value if type(value) is str and len(value) <= NAME_CHARACTERS_MAX else ""


def _weights(value: Any) -> tuple[float, float]:
    """Read the weights of the tenant and of its tier; 1.0 for invalid ones."""
    if type(value) is not list or len(value) != 2 or any(type(each) not in (int, float) for each in value):
        return 1.0, 1.0
    weight, tier_weight = (float(each) if WEIGHT_MIN <= each <= WEIGHT_MAX else 1.0 for each in value)
    return weight, tier_weight


def _dispatch(value: Any) -> tuple[str, int] | None:
    if type(value) is not list or len(value) != 2:
        return None
    gateway, number = value
    is_one = type(gateway) is str and len(gateway) <= NAME_CHARACTERS_MAX and type(number) is int
    return (gateway, number) if is_one and 0 <= number <= DISPATCH_MAX else None


def _seconds(value: Any, *, least: float) -> float | None:
    """Convert milliseconds to seconds; None for an invalid value, and for zero, which is no target."""
    if type(value) not in (int, float) or not isfinite(value) or not least <= value <= MILLISECONDS_MAX:
        return None
    return float(value) / 1000 or None
