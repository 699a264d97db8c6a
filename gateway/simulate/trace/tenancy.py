"""Tenant rules: assign a tenant to each call of a trace that does not name one; random rules are seeded.

    column[:NAME]          the field of that name; without one, the format's own (client, tenant)
    block:K[:N[:zipf]]     the K-th block of the prompt, so that calls which share it are of one tenant (of N)
    random:N[:zipf]        one of N by lot

Of N tenants all are drawn alike, or the k-th 1/k as often as the first.

The report states the rule, because figures about tenants mean little without it.
"""

from bisect import bisect
from collections.abc import Callable
from hashlib import blake2b
from itertools import accumulate
from random import Random

from gateway.simulate.trace.formats import Fields, TraceCall, name
from gateway.simulate.trace.traces import TENANTS_MAX, Namer

USAGE = "column[:NAME], block:K[:N[:zipf]] or random:N[:zipf]"


def tenant_rule(text: str, *, seed: int) -> Namer:
    """The rule that `text` names. Raises ValueError, listing the rules."""
    kind, *parameters = text.split(":")
    make = RULES.get(kind)
    if make is None:
        raise ValueError(f"there is no rule '{kind}' for tenants (there are: {USAGE})")
    try:
        return make(parameters, Random(f"tenants {seed}"))  # noqa: S311 - a simulation draws lots, not secrets
    except (IndexError, ValueError):
        raise ValueError(f"'{text}' is no rule for tenants (there are: {USAGE})") from None


def _column(parameters: list[str], _rng: Random) -> Namer:
    if not parameters:
        return _own
    (field,) = parameters

    def named(fields: Fields, _call: TraceCall) -> str:
        return name(fields, field)

    return named


def _own(_fields: Fields, call: TraceCall) -> str:
    if call.tenant is None:
        raise ValueError(f"the line names no tenant: give a rule with --tenants ({USAGE})")
    return call.tenant


def _block(parameters: list[str], _rng: Random) -> Namer:
    place = _whole(parameters[0])
    odds = _odds(parameters[1:]) if len(parameters) > 1 else None

    def named(_fields: Fields, call: TraceCall) -> str:
        if not call.prefix:
            return "block-none"
        block = call.prefix[min(place, len(call.prefix)) - 1]
        return f"block-{block if odds is None else _drawn(odds, _spread(block))}"

    return named


def _random(parameters: list[str], rng: Random) -> Namer:
    odds = _odds(parameters)

    def named(_fields: Fields, _call: TraceCall) -> str:
        return f"random-{_drawn(odds, rng.random())}"

    return named


RULES: dict[str, Callable[[list[str], Random], Namer]] = {"column": _column, "block": _block, "random": _random}


def _odds(parameters: list[str]) -> list[float]:
    """The odds of N tenants from N or N:zipf, as running sums."""
    tenants = _whole(parameters[0])
    if parameters[1:] not in ([], ["zipf"]):
        raise ValueError
    return list(accumulate(1 / rank if parameters[1:] else 1.0 for rank in range(1, tenants + 1)))


def _drawn(odds: list[float], lot: float) -> int:
    """The number, from 1, of the tenant that a lot in [0, 1) falls on."""
    return bisect(odds, lot * odds[-1], hi=len(odds) - 1) + 1


def _spread(block: int) -> float:
    """A lot in [0, 1), the same for equal blocks and evenly distributed over different ones."""
    return int.from_bytes(blake2b(block.to_bytes(8, "big"), digest_size=6).digest(), "big") / (1 << 48)


def _whole(text: str) -> int:
    number = int(text)
    if not 1 <= number <= TENANTS_MAX:
        raise ValueError
    return number
