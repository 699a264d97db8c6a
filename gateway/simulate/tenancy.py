"""Whose call is it, where a trace does not say? A rule given by the operator, seeded where it draws lots.

    column[:NAME]          the field of that name; without one, the format's own (client, tenant)
    block:K[:N]            the K-th block of the prompt, so that calls which share it are of one tenant (of N)
    random:N[:zipf]        one of N by lot, all alike or the k-th 1/k as often as the first

The rule stands in the report: a figure about tenants says little without it.
"""

from bisect import bisect
from collections.abc import Callable
from hashlib import blake2b
from itertools import accumulate
from random import Random

from gateway.simulate.formats import Call, Fields, name
from gateway.simulate.traces import Namer

TENANTS_MAX = 100_000

USAGE = "column[:NAME], block:K[:N] or random:N[:zipf]"


def tenant_rule(text: str, *, seed: int) -> Namer:
    """The rule that `text` names. Raises ValueError, which lists the rules."""
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

    def named(fields: Fields, _call: Call) -> str:
        tenant = name(fields, field)
        assert tenant is not None, "it is not optional"
        return tenant

    return named


def _own(_fields: Fields, call: Call) -> str:
    if call.tenant is None:
        raise ValueError(f"the line names no tenant: give a rule with --tenants ({USAGE})")
    return call.tenant


def _block(parameters: list[str], _rng: Random) -> Namer:
    place = _whole(parameters[0])
    tenants = _whole(parameters[1]) if len(parameters) > 1 else None
    _end(parameters, 2)

    def named(_fields: Fields, call: Call) -> str:
        if not call.prefix:
            return "block-none"
        block = call.prefix[min(place, len(call.prefix)) - 1]
        return f"block-{block if tenants is None else _spread(block, tenants)}"

    return named


def _random(parameters: list[str], rng: Random) -> Namer:
    tenants = _whole(parameters[0])
    if parameters[1:] not in ([], ["zipf"]):
        raise ValueError
    odds = list(accumulate(1 / rank if parameters[1:] else 1.0 for rank in range(1, tenants + 1)))

    def named(_fields: Fields, _call: Call) -> str:
        return f"random-{bisect(odds, rng.random() * odds[-1], hi=tenants - 1) + 1}"

    return named


RULES: dict[str, Callable[[list[str], Random], Namer]] = {"column": _column, "block": _block, "random": _random}


def _spread(block: int, tenants: int) -> int:
    """One of so many, alike for equal blocks and even over different ones, whatever their numbers look like."""
    return int.from_bytes(blake2b(block.to_bytes(8, "big"), digest_size=8).digest(), "big") % tenants + 1


def _whole(text: str) -> int:
    number = int(text)
    if not 1 <= number <= TENANTS_MAX:
        raise ValueError
    return number


def _end(parameters: list[str], length: int) -> None:
    if len(parameters) > length:
        raise ValueError
