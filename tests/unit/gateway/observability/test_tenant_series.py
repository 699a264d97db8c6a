"""Who has series of his own: bounded, those with the most traffic, and nobody who is gone."""

from gateway.observability.tenant_series import CHANGES_MAX, OTHER, TenantSeries


def series(tenants_max):
    gone = []
    return TenantSeries(tenants_max, gone.append), gone


def test_everybody_is_shown_while_there_is_room_and_the_rest_is_other():
    shown, _ = series(2)
    assert [shown.label(each, is_known=True) for each in ("a", "b", "c", "a")] == ["a", "b", OTHER, "a"]


def test_names_that_no_scheduler_knows_take_no_room():
    shown, _ = series(2)
    assert {shown.label(f"made-up-{number}", is_known=False) for number in range(1000)} == {OTHER}
    assert shown.label("a", is_known=True) == "a"


def test_a_tenant_that_is_gone_is_dropped_and_makes_room():
    shown, gone = series(1)
    shown.label("a", is_known=True)
    shown.observe(1.0, {"b": 5.0})
    assert gone == ["a"]
    assert shown.label("b", is_known=True) == "b"


def test_a_tenant_with_clearly_more_traffic_takes_the_place_of_the_one_with_the_least():
    shown, gone = series(2)
    shown.observe(1.0, {"a": 10.0, "b": 20.0})
    shown.observe(2.0, {"a": 10.0, "b": 20.0, "c": 100.0})
    assert gone == ["a"]
    assert [shown.label(each, is_known=True) for each in "abc"] == [OTHER, "b", "c"]


def test_tenants_with_about_the_same_traffic_do_not_take_turns():
    shown, gone = series(1)
    shown.observe(1.0, {"a": 10.0})
    for second in range(2, 50):
        shown.observe(float(second), {"a": 10.0 * second, "b": 11.0 * second})
    assert gone == []


def test_traffic_of_long_ago_does_not_hold_a_place():
    shown, gone = series(1)
    shown.observe(1.0, {"a": 10_000.0, "b": 0.0})
    shown.observe(4000.0, {"a": 10_000.0, "b": 50.0})
    assert gone == ["a"]


def test_only_some_places_change_at_once():
    shown, gone = series(100)
    shown.observe(1.0, {f"old-{number}": 1.0 for number in range(100)})
    shown.observe(2.0, {f"old-{number}": 1.0 for number in range(100)} | {f"new-{n}": 99.0 for n in range(100)})
    assert len(gone) == CHANGES_MAX
    assert shown.shown == 100


def test_a_tenant_that_is_called_other_is_one_of_the_others():
    shown, gone = series(5)
    assert shown.label(OTHER, is_known=True) == OTHER
    shown.observe(1.0, {OTHER: 10.0})
    assert (shown.shown, gone) == (0, [])
