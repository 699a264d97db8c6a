"""What was promised to a request inside the engine, and to whom it belongs: read from its `vllm_xargs`.

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


class Promise(NamedTuple):
    """The first token is due at `first_due_at`, the others `tpot_s` apart; infinite: it was not promised any time.

    `dispatch` is by which gateway it was sent, and the number that it has there; None: nobody said.
    """

    tenant: str
    first_due_at: float
    tpot_s: float
    dispatch: tuple[str, int] | None

    def slack_s(self, *, output_tokens: int, first_token_at: float | None, now: float) -> float:
        """Seconds until the next token is due after so many.

        Without a TTFT target the due times begin with the first token, whenever it came.
        """
        began_at = self.first_due_at if self.first_due_at != inf else first_token_at
        if output_tokens == 0 or began_at is None:
            return self.first_due_at - now
        return inf if self.tpot_s == inf else began_at + output_tokens * self.tpot_s - now


def read_promise(
    extra_args: Mapping[str, Any] | None, *, arrived_at: float, ttft_s: float | None, tpot_s: float | None
) -> Promise:
    """Read a promise; `ttft_s` and `tpot_s` stand in for targets that the request does not bring."""
    given = extra_args or {}
    ttft_s = _seconds(given.get("slo_ttft_ms"), least=-MILLISECONDS_MAX) or ttft_s
    tpot_s = _seconds(given.get("slo_tpot_ms"), least=0.0) or tpot_s
    tenant = given.get("tenant")
    return Promise(
        tenant=tenant if type(tenant) is str and len(tenant) <= NAME_CHARACTERS_MAX else "",
        first_due_at=inf if ttft_s is None else arrived_at + ttft_s,
        tpot_s=inf if tpot_s is None else tpot_s,
        dispatch=_dispatch(given.get("fairlead_dispatch")),
    )


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
