"""What an edit of weights would do: to those that wait for more than they get, and to them alone."""

from types import SimpleNamespace

from gateway.live.preview import SharePreview, WeightEdit, preview


def tenant(share, *, weight=1.0, tier="default", group=None, backlogged=False):
    waited = [False, backlogged, False]
    return SimpleNamespace(weight=weight, tier=tier, group=group, share=[0.0, share, 0.0], backlogged=waited)


def pool(tiers=(("default", 1.0),), groups=(), **tenants):
    weights = (
        {name: SimpleNamespace(weight=weight, tier="default") for name, weight in named} for named in (tiers, groups)
    )
    return SimpleNamespace(tenants=tenants, **dict(zip(("tiers", "groups"), weights, strict=True)))


def shares(found):
    return {each: (share.share_now, share.share_then) for each, share in found.items()}


def test_weight_3_instead_of_1_takes_from_those_that_wait_and_from_no_other():
    busy = pool(a=tenant(0.4, backlogged=True), b=tenant(0.4, backlogged=True), light=tenant(0.2))
    found = preview(busy, {}, WeightEdit(tenant_weights={"a": 3.0}))
    assert shares(found.tenants) == {"a": (0.4, 0.6), "b": (0.4, 0.2), "light": (0.2, 0.2)}
    assert [found.tenants[each].asks_all for each in ("a", "b", "light")] == [True, True, False]
    assert found.tiers == {"default": SharePreview(1.0, 1.0, asks_all=True)}


def test_a_weight_changes_nothing_for_a_tenant_that_gets_all_it_asks_for():
    busy = pool(a=tenant(0.8, backlogged=True), light=tenant(0.2))
    found = preview(busy, {}, WeightEdit(tenant_weights={"light": 50.0}))
    assert shares(found.tenants) == {"a": (0.8, 0.8), "light": (0.2, 0.2)}


def test_one_that_was_short_of_its_due_asks_for_more():
    busy = pool(a=tenant(0.9, backlogged=True), b=tenant(0.1, backlogged=True))
    assert shares(preview(busy, {}, WeightEdit()).tenants) == {"a": (0.5, 0.5), "b": (0.5, 0.5)}


def test_a_tenant_that_moves_takes_its_demand_to_a_tier_that_the_pool_has_not_seen():
    busy = pool(a=tenant(0.5, backlogged=True), b=tenant(0.5, backlogged=True))
    found = preview(busy, {"gold": 3.0}, WeightEdit(tenant_tiers={"a": "gold"}))
    assert shares(found.tenants) == {"a": (0.5, 0.75), "b": (0.5, 0.25)}
    assert shares(found.tiers) == {"default": (1.0, 0.25), "gold": (0, 0.75)}


def test_a_tiers_weight_counts_before_its_tenants_weights():
    tiers = (("default", 1.0), ("gold", 1.0))
    busy = pool(tiers, a=tenant(0.5, backlogged=True, weight=9.0), b=tenant(0.5, backlogged=True, tier="gold"))
    found = preview(busy, {}, WeightEdit(tier_weights={"gold": 4.0}))
    assert shares(found.tenants) == {"a": (0.5, 0.2), "b": (0.5, 0.8)}


def test_a_pool_without_tenants_has_no_shares():
    assert preview(pool(), {"gold": 3.0}, WeightEdit()).tenants == {}


def test_a_group_is_due_as_much_with_one_tenant_as_with_three():
    members = {name: tenant(0.2, group="research", backlogged=True) for name in "abc"}
    busy = pool(groups=(("research", 1.0),), **members, d=tenant(0.4, backlogged=True))
    found = preview(busy, {}, WeightEdit(group_weights={"research": 3.0}))
    assert shares(found.tenants) == {**dict.fromkeys("abc", (0.1667, 0.25)), "d": (0.5, 0.25)}
