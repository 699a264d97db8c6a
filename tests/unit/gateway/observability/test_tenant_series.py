"""Which tenants have series of their own: bounded, those with the most traffic, and none that is gone."""

from gateway.observability.metrics.tenant_series import CHANGES_MAX, OTHER, TenantSeries


def series(tenants_max):
    gone = []
    return TenantSeries(tenants_max, gone.append), gone


def look(shown, now, received):
    """These are all tenants there are, and what they have received since the last look."""
    for tenant_id, service in received.items():
        shown.saw(tenant_id, service)
    shown.looked(now)


def test_all_tenants_are_shown_while_there_is_room_and_the_rest_is_other():
    shown, _ = series(2)
    assert [shown.label(each, is_known=True) for each in ("a", "b", "c", "a")] == ["a", "b", OTHER, "a"]


def test_names_that_no_scheduler_knows_take_no_room():
    shown, _ = series(2)
    assert {shown.label(f"made-up-{number}", is_known=False) for number in range(1000)} == {OTHER}
    assert shown.label("a", is_known=True) == "a"


def test_a_tenant_that_is_gone_is_dropped_and_makes_room():
    shown, gone = series(1)
    look(shown, 1.0, {"a": 5.0})
    look(shown, 2.0, {"b": 5.0})
    assert gone == ["a"]
    assert shown.label("b", is_known=True) == "b"


def test_a_tenant_that_came_during_a_look_is_given_another():
    shown, gone = series(2)
    look(shown, 1.0, {"a": 5.0})
    shown.label("new", is_known=True)
    look(shown, 2.0, {"a": 5.0})
    assert gone == []
    look(shown, 3.0, {"a": 5.0})
    assert gone == ["new"]


def test_a_tenant_that_came_during_a_look_gives_its_place_to_no_other():
    shown, gone = series(1)
    shown.label("new", is_known=True)
    look(shown, 1.0, {"hidden": 5.0})
    assert gone == []
    assert shown.shows("new")


def test_a_tenant_with_clearly_more_traffic_takes_the_place_of_the_one_with_the_least():
    shown, gone = series(2)
    look(shown, 1.0, {"a": 10.0, "b": 20.0})
    look(shown, 2.0, {"a": 0.0, "b": 0.0, "c": 100.0})
    assert gone == ["a"]
    assert [shown.label(each, is_known=True) for each in "abc"] == [OTHER, "b", "c"]


def test_traffic_in_two_pools_is_one_tenants():
    shown, gone = series(1)
    look(shown, 1.0, {"a": 10.0})
    shown.saw("a", 0.0)
    shown.saw("b", 15.0)
    shown.saw("b", 15.0)
    shown.looked(2.0)
    assert gone == ["a"]


def test_tenants_with_about_the_same_traffic_do_not_take_turns():
    shown, gone = series(1)
    for second in range(1, 50):
        look(shown, float(second), {"a": 10.0, "b": 11.0})
    assert gone == []


def test_traffic_of_long_ago_does_not_hold_a_place():
    shown, gone = series(1)
    look(shown, 0.0, {"a": 10_000.0, "b": 0.0})
    look(shown, 4000.0, {"a": 0.0, "b": 0.0})
    look(shown, 4001.0, {"a": 0.0, "b": 50.0})
    assert gone == ["a"]


def test_the_scale_of_traffic_begins_again_before_it_is_too_large_for_a_number():
    shown, gone = series(1)
    for day in range(20):
        look(shown, day * 86_400.0, {"a": 10.0, "b": 11.0})
        look(shown, day * 86_400.0 + 1.0, {"a": 10.0, "b": 11.0})
    assert gone == []
    look(shown, 20 * 86_400.0, {"a": 0.0, "b": 11.0})
    assert gone == ["a"]


def test_only_some_places_change_at_once():
    shown, gone = series(100)
    look(shown, 1.0, {f"old-{number}": 1.0 for number in range(100)})
    look(shown, 2.0, {f"old-{number}": 0.0 for number in range(100)} | {f"new-{n}": 99.0 for n in range(100)})
    assert len(gone) == CHANGES_MAX
    assert shown.shown == 100


def test_a_tenant_that_is_called_other_is_one_of_the_others():
    shown, gone = series(5)
    assert shown.label(OTHER, is_known=True) == OTHER
    look(shown, 1.0, {OTHER: 10.0})
    assert (shown.shown, gone) == (0, [])
