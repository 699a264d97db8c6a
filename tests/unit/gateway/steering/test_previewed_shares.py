"""What an edit of weights would do: to those that wait for more than they get, and to them alone."""

from gateway.steering.preview import PreviewedShare, WeightEdit, preview


def tenant(share, *, due=None, weight=1.0, tier="default", queued=0):
    shares, dues = [0.0, share, 0.0], [0.0, share if due is None else due, 0.0]
    return {"weight": weight, "tier": tier, "queued": queued, "share": shares, "due": dues}


def pool(tiers=(("default", 1.0),), **tenants):
    return {"tenants": tenants, "tiers": {tier: {"weight": weight} for tier, weight in tiers}}


def shares(found):
    return {each: (share.now, share.then) for each, share in found.items()}


def test_weight_3_instead_of_1_takes_from_those_that_wait_and_from_no_other():
    busy = pool(a=tenant(0.4, queued=9), b=tenant(0.4, queued=9), light=tenant(0.2))
    found = preview(busy, {}, WeightEdit(tenant_weights={"a": 3.0}))
    assert shares(found.tenants) == {"a": (0.4, 0.6), "b": (0.4, 0.2), "light": (0.2, 0.2)}
    assert [found.tenants[each].asks_all for each in ("a", "b", "light")] == [True, True, False]
    assert found.tiers == {"default": PreviewedShare(1.0, 1.0, asks_all=True)}


def test_a_weight_changes_nothing_for_a_tenant_that_gets_all_it_asks_for():
    busy = pool(a=tenant(0.8, queued=9), light=tenant(0.2))
    found = preview(busy, {}, WeightEdit(tenant_weights={"light": 50.0}))
    assert shares(found.tenants) == {"a": (0.8, 0.8), "light": (0.2, 0.2)}


def test_one_that_was_short_of_its_due_asks_for_more_although_nothing_of_it_waits_now():
    busy = pool(a=tenant(0.9, queued=9), b=tenant(0.1, due=0.5))
    assert shares(preview(busy, {}, WeightEdit()).tenants) == {"a": (0.5, 0.5), "b": (0.5, 0.5)}


def test_a_tenant_that_moves_takes_its_demand_to_a_tier_that_the_pool_has_not_seen():
    busy = pool(a=tenant(0.5, queued=9), b=tenant(0.5, queued=9))
    found = preview(busy, {"gold": 3.0}, WeightEdit(tenant_tiers={"a": "gold"}))
    assert shares(found.tenants) == {"a": (0.5, 0.75), "b": (0.5, 0.25)}
    assert shares(found.tiers) == {"default": (1.0, 0.25), "gold": (0, 0.75)}


def test_a_tiers_weight_counts_before_its_tenants_weights():
    tiers = (("default", 1.0), ("gold", 1.0))
    busy = pool(tiers, a=tenant(0.5, queued=9, weight=9.0), b=tenant(0.5, queued=9, tier="gold"))
    found = preview(busy, {}, WeightEdit(tier_weights={"gold": 4.0}))
    assert shares(found.tenants) == {"a": (0.5, 0.2), "b": (0.5, 0.8)}


def test_a_pool_without_tenants_has_no_shares():
    assert preview(pool(), {"gold": 3.0}, WeightEdit()).tenants == {}
