"""Envelopes: the SLO envelope of a request, from its tenant or else its tier, with tighter targets from its headers.

A header can only tighten a configured target; it cannot create or widen one. A TPOT target has a lower bound, because
an engine sizes its steps for the tightest request that runs, at the expense of all others' throughput. A TTFT target
has no lower bound: other requests give way only to the configured TTFT.

Header names are llm-d's; the values are whole milliseconds.
"""

import logging
from collections.abc import Mapping
from typing import Final

from policies.types import SloEnvelope, Tenant

TTFT_HEADERS: Final = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TPOT_HEADERS: Final = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
HEADER_TPOT_RATIO_MIN: Final = 0.5  # of the configured TPOT target, which a header can ask for
_DIGITS_MAX: Final = 9
_TENANTS_WARNED_MAX: Final = 1000  # tenants with a warning in the log: a wrong header is usually in every call

log = logging.getLogger(__name__)


class Envelopes:
    """The SLO envelopes of tenants and tiers, as configured. A tenant's own envelope overrides its tier's, target by
    target. Mutable.
    """

    def __init__(self) -> None:
        self._tenants: Mapping[str, SloEnvelope] = {}
        self._tiers: Mapping[str, SloEnvelope] = {}
        self.any = False
        self._warned: set[str] = set()

    def replace(self, *, tenants: Mapping[str, SloEnvelope], tiers: Mapping[str, SloEnvelope]) -> None:
        self._tenants, self._tiers = tenants, tiers
        self.any = bool(self._tenants or self._tiers)

    def of(self, tenant: Tenant, headers: Mapping[str, str]) -> SloEnvelope | None:
        """The envelope of a request with these headers; None where neither its tenant nor its tier has one."""
        own, tier = self._tenants.get(tenant.id), self._tiers.get(tenant.tier_id)
        if own is None and tier is None:
            return None
        given = _merged(own, tier)
        return SloEnvelope(
            ttft_s=self._tighter(tenant, given.ttft_s, headers, TTFT_HEADERS),
            tpot_s=self._tighter(tenant, given.tpot_s, headers, TPOT_HEADERS, ratio_min=HEADER_TPOT_RATIO_MIN),
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
        """The configured target, or the header's if that is less, but at least `ratio_min` of the configured one."""
        if given_s is None:
            return None
        name = next((name for name in names if name in headers), None)
        if name is None:
            return given_s
        asked = headers[name]
        if not asked.isascii() or not asked.isdigit() or len(asked) > _DIGITS_MAX or not int(asked):
            self._warn(tenant, name)
            return given_s
        return min(given_s, max(int(asked) / 1000, ratio_min * given_s))

    def _warn(self, tenant: Tenant, name: str) -> None:
        """Warn, once for each tenant, that a target is invalid; the configured one applies."""
        if tenant.id not in self._warned and len(self._warned) < _TENANTS_WARNED_MAX:
            self._warned.add(tenant.id)
            log.warning("tenant %s: %s is no number of milliseconds, and is ignored", tenant.id, name)


def _merged(own: SloEnvelope | None, tier: SloEnvelope | None) -> SloEnvelope:
    if own is None or tier is None:
        return own or tier or SloEnvelope()
    return SloEnvelope(
        ttft_s=tier.ttft_s if own.ttft_s is None else own.ttft_s,
        tpot_s=tier.tpot_s if own.tpot_s is None else own.tpot_s,
    )
