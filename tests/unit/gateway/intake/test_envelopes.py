"""A client may tighten what its tenant was promised, and nothing else."""

import pytest
from multidict import CIMultiDict

from gateway.intake.envelopes import Envelopes
from policies.types import SloEnvelope, Tenant

TENANT = Tenant(id="alice", tier_id="gold")


def envelopes_of(*, tenants, tiers):
    envelopes = Envelopes()
    envelopes.replace(tenants=tenants, tiers=tiers)
    return envelopes


def envelope(headers=(), *, own=None, tier=None, tenant=TENANT):
    envelopes = envelopes_of(tenants={"alice": own} if own else {}, tiers={"gold": tier} if tier else {})
    return envelopes.of(tenant, CIMultiDict(headers))


def test_a_tenants_own_targets_go_before_its_tiers_one_by_one():
    own, tier = SloEnvelope(ttft_s=0.5), SloEnvelope(ttft_s=2.0, tpot_s=0.05)
    assert envelope(own=own, tier=tier) == SloEnvelope(0.5, 0.05)
    assert envelope(tier=tier) == tier
    assert envelope(own=own) == own


@pytest.mark.parametrize("prefix", ["x-llm-d-slo", "x-slo", "X-LLM-D-SLO"])
def test_a_header_tightens_an_envelope(prefix):
    headers = {f"{prefix}-ttft-ms": "250", f"{prefix}-tpot-ms": "30"}
    assert envelope(headers, own=SloEnvelope(1.0, 0.05)) == SloEnvelope(0.25, 0.03)


def test_a_header_asks_for_no_less_time_per_token_than_half_of_what_was_given():
    asked = envelope({"x-slo-ttft-ms": "1", "x-slo-tpot-ms": "1"}, tier=SloEnvelope(1.0, 0.05))
    assert asked == SloEnvelope(0.001, 0.025), "a first token may be asked for at once"


def test_what_was_given_is_known_beside_what_is_asked_for():
    tightened = envelope({"x-slo-ttft-ms": "250"}, own=SloEnvelope(1.0))
    assert (tightened.ttft_s, tightened.ttft_s_given) == (0.25, 1.0)


def test_a_header_widens_nothing():
    headers = {"x-llm-d-slo-ttft-ms": "5000", "x-slo-tpot-ms": "999999999"}
    assert envelope(headers, own=SloEnvelope(1.0, 0.05)) == SloEnvelope(1.0, 0.05)


def test_a_header_makes_no_target_out_of_nothing():
    headers = {"x-llm-d-slo-ttft-ms": "1", "x-llm-d-slo-tpot-ms": "1"}
    assert envelope(headers) is None
    assert envelope(headers, own=SloEnvelope(ttft_s=1.0)) == SloEnvelope(ttft_s=0.001)
    assert envelope(headers, tier=SloEnvelope(1.0), tenant=Tenant(id="bob")) is None


def test_a_header_that_cannot_be_read_is_in_the_log_once(caplog):
    envelopes = envelopes_of(tenants={}, tiers={"gold": SloEnvelope(1.0)})
    for _ in range(3):
        envelopes.of(TENANT, CIMultiDict({"x-slo-ttft-ms": "secret"}))
    (line,) = caplog.messages
    assert "alice" in line
    assert "x-slo-ttft-ms" in line
    assert "secret" not in line


@pytest.mark.parametrize("value", ["", "0", "-5", "1.5", "abc", "9" * 40, "\u00b2", "\u0661", " 5", "1e3", "nan"])
def test_a_header_that_is_no_number_of_milliseconds_is_ignored(value):
    assert envelope({"x-llm-d-slo-ttft-ms": value}, own=SloEnvelope(1.0)) == SloEnvelope(1.0)
