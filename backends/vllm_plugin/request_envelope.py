"""What was promised to a request inside the engine, and whose it is: read from its `vllm_xargs`.

They are the client's word where vLLM is asked directly, so whatever is not as it should be counts as not said.
Times run on the engine's clock from the request's arrival; the gateway sends what is left of a TTFT target when it
sends the request.
"""

from collections.abc import Mapping
from math import inf, isfinite
from typing import Any, Final, NamedTuple

NAME_CHARACTERS_MAX: Final = 256
MILLISECONDS_MAX: Final = 1e9
DISPATCH_MAX: Final = 2**53
WEIGHT_MIN, WEIGHT_MAX = 1e-6, 1e6


class RequestOwner(NamedTuple):
    """A tenant and its tier, with the weights that the gateway gives them. Without a name: nobody said."""

    tenant: str = ""
    weight: float = 1.0
    tier: str = ""
    tier_weight: float = 1.0


class RequestEnvelope(NamedTuple):
    """The first token is due at `first_due_at`, the others `tpot_s` apart; infinite: it was not promised any time.

    `ttft_s` is the target for the first token as it was when the request came to the gateway.
    `dispatch` is by which gateway it was sent, and the number that it has there; None: nobody said.
    """

    owner: RequestOwner
    first_due_at: float
    tpot_s: float
    ttft_s: float
    dispatch: tuple[str, int] | None

    @property
    def is_any(self) -> bool:
        """Whether it was promised any time."""
        return min(self.first_due_at, self.tpot_s) < inf

    def slack_s(self, *, output_tokens: int, first_token_at: float | None, now: float) -> float:
        """Seconds until the next token is due after so many.

        The envelope has all due times from the arrival on. Whoever reads an answer measures its pace from its first
        token, so where that came early the others are due from then on: both readings of the target are kept.
        """
        if output_tokens == 0:
            return self.first_due_at - now
        began_at = self.first_due_at if first_token_at is None else min(self.first_due_at, first_token_at)
        return began_at + output_tokens * self.tpot_s - now


def read_envelope(
    extra_args: Mapping[str, Any] | None, *, arrived_at: float, ttft_s: float | None, tpot_s: float | None
) -> RequestEnvelope:
    """Read a promise; `ttft_s` and `tpot_s` stand in for targets that the request does not bring."""
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
    """Of the tenant and of its tier."""
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
    """None for what is no time; zero too, which no promise can be."""
    if type(value) not in (int, float) or not isfinite(value) or not least <= value <= MILLISECONDS_MAX:
        return None
    return float(value) / 1000 or None
