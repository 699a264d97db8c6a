"""Fair shares: all is parted, no member gets more than it asks for, and no weighted share is larger at the cost of a
smaller one that wants more.
"""

from math import fsum, inf, isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.fairness.fair_shares import Claim, TenantClaim, fair_shares, tiered_shares

AMOUNTS = st.floats(0, 1e9) | st.sampled_from([0.0, 1.0, inf])
WEIGHTS = st.floats(0.1, 100)
IDS = st.text("abcdefgh", min_size=1, max_size=3)
CLAIMS = st.dictionaries(IDS, st.builds(Claim, WEIGHTS, AMOUNTS), min_size=1, max_size=12)
TIERS = ("gold", "silver", "bronze")
TIER_WEIGHTS = st.fixed_dictionaries(dict.fromkeys(TIERS, WEIGHTS))
TENANTS = st.dictionaries(
    IDS, st.builds(TenantClaim, WEIGHTS, AMOUNTS, st.sampled_from(TIERS)), min_size=1, max_size=12
)
SERVICE = st.floats(0, 1e9)


def assert_max_min(service, claims, shares):
    """Sums to all there is or all that is wanted; within demands; a member that wants more has the largest level."""
    assert fsum(shares.values()) == pytest.approx(min(service, fsum(each.demand for each in claims.values())), abs=1e-6)
    rounding = 1e-9 * (1 + service)
    levels = {each: shares[each] / claim.weight for each, claim in claims.items()}
    for member, claim in claims.items():
        assert 0 <= shares[member] <= claim.demand
        if not isclose(shares[member], claim.demand, abs_tol=rounding):
            assert levels[member] >= max(levels.values()) - 100 * rounding


@given(SERVICE, CLAIMS)
def test_one_level_is_parted_max_min(service, claims):
    assert_max_min(service, claims, fair_shares(service, claims))


@given(SERVICE, TIER_WEIGHTS, TENANTS)
def test_tiers_are_parted_max_min_and_so_is_each_tier(service, tier_weights, tenants):
    shares = tiered_shares(service, tier_weights=tier_weights, tenants=tenants)
    assert set(shares) == set(tenants)
    in_tier = {}
    for tenant, claim in tenants.items():
        in_tier.setdefault(claim.tier, {})[tenant] = claim
    got = {tier: fsum(shares[tenant] for tenant in members) for tier, members in in_tier.items()}
    wants = {
        tier: Claim(tier_weights[tier], fsum(each.demand for each in members.values()))
        for tier, members in in_tier.items()
    }
    assert_max_min(service, wants, got)
    for tier, members in in_tier.items():
        assert_max_min(got[tier], members, {tenant: shares[tenant] for tenant in members})


@given(SERVICE, CLAIMS)
def test_the_order_of_the_claims_changes_nothing(service, claims):
    assert fair_shares(service, claims) == fair_shares(service, dict(reversed(claims.items())))


def test_a_light_member_gets_what_it_asks_for_and_the_others_part_the_rest_by_weight():
    claims = {"light": Claim(1, 10), "one": Claim(1), "three": Claim(3)}
    assert fair_shares(110, claims) == {"light": 10, "one": 25, "three": 75}


def test_a_tier_parts_what_it_gets_among_its_own_tenants_alone():
    tenants = {
        "a": TenantClaim(1, inf, "gold"),
        "b": TenantClaim(1, inf, "gold"),
        "c": TenantClaim(5, inf, "bronze"),
    }
    assert tiered_shares(80, tier_weights={"gold": 3, "bronze": 1}, tenants=tenants) == {"a": 30, "b": 30, "c": 20}


def test_without_tenants_there_are_no_shares():
    assert tiered_shares(80, tier_weights={"gold": 3}, tenants={}) == {}


GROUPED = st.dictionaries(
    IDS,
    st.builds(TenantClaim, WEIGHTS, AMOUNTS, st.just("gold"), st.sampled_from([None, "a", "b"])),
    min_size=1,
    max_size=12,
)


@given(SERVICE, GROUPED, st.fixed_dictionaries({"a": WEIGHTS, "b": WEIGHTS}))
def test_in_a_tier_with_groups_each_level_is_parted_by_max_min(service, tenants, group_weights):
    shares = tiered_shares(service, tier_weights={"gold": 1.0}, tenants=tenants, group_weights=group_weights)
    parties, got = {}, {}
    for group, weight in group_weights.items():
        members = {each: claim for each, claim in tenants.items() if claim.group == group}
        if members:
            due = fsum(shares[each] for each in members)
            assert_max_min(due, members, {each: shares[each] for each in members})
            parties["group", group] = Claim(weight, fsum(claim.demand for claim in members.values()))
            got["group", group] = due
    alone = {each: claim for each, claim in tenants.items() if claim.group is None}
    assert_max_min(service, parties | alone, got | {each: shares[each] for each in alone})


def test_a_groups_due_share_does_not_grow_with_its_tenants():
    claims = {name: TenantClaim(1.0, tier="t", group="g") for name in "abc"} | {"g": TenantClaim(1.0, tier="t")}
    shares = tiered_shares(6.0, tier_weights={"t": 1.0}, tenants=claims, group_weights={"g": 1.0})
    assert shares == pytest.approx({"a": 1.0, "b": 1.0, "c": 1.0, "g": 3.0}), "a tenant may be named as a group is"
