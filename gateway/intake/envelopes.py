"""Which latencies was this request promised? Its tenant's, or its tier's, or tighter ones that it asks for itself.

A client may only ask for less time than it is given: a target out of nothing, or a wider one, is not its to take. Nor
is any time per token: an engine keeps its steps to the tightest of what runs, so all others pay for it with their
throughput. A first token may be asked for as soon as one likes: nobody gives way to more than what was given.

Header names are llm-d's; the values are whole milliseconds.
"""

import logging
from collections.abc import Mapping
from typing import Final

from policies.types import SloEnvelope, Tenant

TTFT_HEADERS: Final = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TPOT_HEADERS: Final = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
HEADER_TPOT_RATIO_MIN: Final = 0.5
_DIGITS_MAX: Final = 9
_TENANTS_TOLD_MAX: Final = 1000  # that are in the log: a header that is wrong is wrong in every call

log = logging.getLogger(__name__)


class Envelopes:
    """The configured envelopes: a tenant's own goes before its tier's, target by target."""

    def __init__(
        self,
        *,
        tenants: Mapping[str, SloEnvelope],
        tiers: Mapping[str, SloEnvelope],
        header_tpot_ratio_min: float = HEADER_TPOT_RATIO_MIN,
    ) -> None:
        """No header asks for less time per token than `header_tpot_ratio_min` of what was given."""
        self._tpot_ratio_min = header_tpot_ratio_min
        self._tenants = tenants
        self._tiers = tiers
        self.any = bool(tenants or tiers)
        self._told: set[str] = set()

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
            ttft_s=self._tighter(tenant, given.ttft_s, headers, TTFT_HEADERS),
            tpot_s=self._tighter(tenant, given.tpot_s, headers, TPOT_HEADERS, ratio_min=self._tpot_ratio_min),
            ttft_s_given=given.ttft_s,
        )

    def _tighter(
        self,
        tenant: Tenant,
        given_s: float | None,
        headers: Mapping[str, str],
        names: tuple[str, ...],
        *,
        ratio_min: float = 0.0,
    ) -> float | None:
        """The target that was given, or the one that is asked for where that is less, but not less than this part."""
        if given_s is None:
            return None
        name = next((name for name in names if name in headers), None)
        if name is None:
            return given_s
        asked = headers[name]
        if not asked.isascii() or not asked.isdigit() or len(asked) > _DIGITS_MAX or not int(asked):
            self._tell(tenant, name)
            return given_s
        return min(given_s, max(int(asked) / 1000, ratio_min * given_s))

    def _tell(self, tenant: Tenant, name: str) -> None:
        """Once for each tenant: a call whose target cannot be read is served by the one it was given."""
        if tenant.id not in self._told and len(self._told) < _TENANTS_TOLD_MAX:
            self._told.add(tenant.id)
            log.warning("tenant %s: %s is no number of milliseconds, and is ignored", tenant.id, name)


def _merged(own: SloEnvelope | None, tier: SloEnvelope | None) -> SloEnvelope:
    if own is None or tier is None:
        return own or tier or SloEnvelope()
    return SloEnvelope(
        ttft_s=tier.ttft_s if own.ttft_s is None else own.ttft_s,
        tpot_s=tier.tpot_s if own.tpot_s is None else own.tpot_s,
    )
