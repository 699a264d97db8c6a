"""Which latencies was this request promised? Its tenant's, or its tier's, or tighter ones that it asks for itself.

A client may only ask for less time than it is given: a target out of nothing, or a wider one, is not its to take.
Header names are llm-d's; the values are whole milliseconds.
"""

from collections.abc import Mapping
from typing import Final

from policies.types import SloEnvelope, Tenant

TTFT_HEADERS: Final = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TPOT_HEADERS: Final = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
_DIGITS_MAX: Final = 9


class Envelopes:
    """The configured envelopes: a tenant's own goes before its tier's, target by target."""

    def __init__(self, *, tenants: Mapping[str, SloEnvelope], tiers: Mapping[str, SloEnvelope]) -> None:
        self._tenants = tenants
        self._tiers = tiers
        self.any = bool(tenants or tiers)

    def replace(self, *, tenants: Mapping[str, SloEnvelope], tiers: Mapping[str, SloEnvelope]) -> None:
        """These are all that there are from now on."""
        self._tenants, self._tiers = tenants, tiers
        self.any = bool(self._tenants or self._tiers)

    def of(self, tenant: Tenant, headers: Mapping[str, str]) -> SloEnvelope | None:
        """The envelope of a request with these headers, None where its tenant has none."""
        own, tier = self._tenants.get(tenant.id), self._tiers.get(tenant.tier_id)
        if own is None and tier is None:
            return None
        given = _merged(own, tier)
        return SloEnvelope(
            ttft_s=_tighter(given.ttft_s, headers, TTFT_HEADERS), tpot_s=_tighter(given.tpot_s, headers, TPOT_HEADERS)
        )


def _merged(own: SloEnvelope | None, tier: SloEnvelope | None) -> SloEnvelope:
    if own is None or tier is None:
        return own or tier or SloEnvelope()
    return SloEnvelope(
        ttft_s=tier.ttft_s if own.ttft_s is None else own.ttft_s,
        tpot_s=tier.tpot_s if own.tpot_s is None else own.tpot_s,
    )


def _tighter(given_s: float | None, headers: Mapping[str, str], names: tuple[str, ...]) -> float | None:
    if given_s is None:
        return None
    asked = next((headers[name] for name in names if name in headers), "")
    if not asked.isascii() or not asked.isdigit() or len(asked) > _DIGITS_MAX or not int(asked):
        return given_s
    return min(given_s, int(asked) / 1000)
