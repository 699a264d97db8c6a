"""How backends compare, which one limits a pool, what a missing service gap means, what weights alone would give."""

from types import SimpleNamespace

from msgspec import to_builtins

from gateway.live.bottleneck import BackendsSeen
from gateway.live.gaps import KEPT_S, LiveGaps
from gateway.live.shares import shares_of
from gateway.live.windows import NOTHING, SERVICE, WAITED_S
from gateway.observability.metrics.scheduler_metrics import TierGap
from policies.types import Attainment, Tenant, TenantView


def shown(token_s, bound_by, step_s=None):
    return SimpleNamespace(step_measured_s=token_s, step_s=step_s, bound_by=bound_by)


def seen(*looks, waits=True):
    """The comparison and the bottleneck after these looks, one a second."""
    backends = BackendsSeen()
    for second, look in enumerate(looks):
        backends.saw(look, waits=waits, now=float(second))
    compared = backends.compared()
    return compared, to_builtins(backends.bottleneck(compared))


def test_the_slow_one_of_two_full_backends_is_the_bottleneck_and_is_named_slow():
    look = {"a": shown(0.013, "reserved", 0.015), "b": shown(0.003, "slots", 0.0045)}
    compared, bottleneck = seen(*[look] * 3)
    assert bottleneck == {"backend": "a", "bound_by": "reserved", "slow_ratio": 4.33, "full": ["a", "b"]}
    assert (compared["b"]["slow_ratio"], compared["b"]["step_error_ratio"]) == (1.0, 1.5)
    assert (compared["a"]["token_s"], compared["a"]["full_ratio"]) == (0.013, 1.0)


def test_backends_alike_are_not_slow():
    _, bottleneck = seen({"a": shown(0.010, "kv"), "b": shown(0.012, "slots")})
    assert (bottleneck["backend"], bottleneck["bound_by"], bottleneck["slow_ratio"]) == ("b", "slots", None)


def test_a_single_look_does_not_change_what_a_minute_shows():
    usual, odd = (
        {"a": shown(0.01, None), "b": shown(0.03, "slots")},
        {"a": shown(0.09, "slots"), "b": shown(0.001, None)},
    )
    compared, bottleneck = seen(*[usual] * 9, odd)
    assert bottleneck["backend"] == "b"
    assert compared["a"]["token_s"] == 0.01


def test_one_that_is_down_is_the_bottleneck_before_all_that_are_full():
    _, bottleneck = seen({"a": shown(0.003, "slots"), "b": shown(0.013, "slots"), "c": shown(None, "unhealthy")})
    assert (bottleneck["backend"], bottleneck["bound_by"]) == ("c", "unhealthy")


def test_nothing_limits_a_pool_where_no_request_waits_for_a_backend():
    assert seen({"a": shown(0.003, "slots")}, waits=False)[1] is None


def test_a_backend_that_drains_as_its_operator_wants_is_no_bottleneck():
    assert seen({"a": shown(0.003, None), "b": shown(0.013, "draining")})[1] is None


def states(*looks):
    gaps = LiveGaps()
    found = []
    for now, gap, waiting in looks:
        gaps.saw({} if gap is None else {"t": TierGap(gap, 100.0, 1.0)}, {"t": waiting}, now)
        found.append(gaps.shown("t", now)["gap_state"])
    return found


def test_a_missing_gap_says_whether_two_waited_without_waiting_throughout():
    assert states((0.0, None, 0)) == ["none_waits"]
    assert states((0.0, None, 1)) == ["one_waits"]
    assert states((0.0, None, 2)) == ["not_throughout"]
    assert states((0.0, 7.0, 2)) == ["measured"]


def test_what_is_said_of_a_gap_does_not_change_with_each_look():
    alternating = [(float(second), 5.0 if second % 20 == 0 else None, 1 + second % 2) for second in range(60)]
    assert set(states(*alternating)) == {"measured"}
    without = [(float(second), None, 1 + second % 2) for second in range(1, 60)]
    assert set(states((0.0, None, 2), *without)) == {"not_throughout"}
    assert states((0.0, 5.0, 2), (KEPT_S + 1.0, None, 0)) == ["measured", "none_waits"]


class Window:
    readings, covered_s = 1, 60.0

    def __init__(self, **services):
        self.amounts = {}
        for tenant, (service, waited_s) in services.items():
            self.amounts[tenant] = amounts = NOTHING[:]
            amounts[SERVICE], amounts[WAITED_S] = service, waited_s


def of(*tenants):
    view = TenantView(0, 0, 0, 0, 0.0, 0.0, 0.0, Attainment())
    return {each.id: (each, view) for each in tenants}


def test_a_due_says_what_weights_alone_would_give_and_why_it_is_due():
    tenants = of(
        Tenant("chat", tier_id="gold"),
        Tenant("flood", tier_id="batch"),
        Tenant("x", tier_id="batch", group_id="g", weight=3.0),
        Tenant("y", tier_id="batch", group_id="g"),
    )
    window = Window(chat=(9.0, 0.0), flood=(60.0, 60.0), x=(15.0, 0.0), y=(16.0, 60.0))
    found = shares_of(window, tenants, {"gold": 3.0, "batch": 1.0}, {"g": 2.0})
    assert found.tiers.by_weight == {"gold": 0.75, "batch": 0.25}
    assert (found.tiers.asks, found.groups.asks) == ({"gold": 0.09, "batch": None}, {"g": None})
    assert [found.tiers.due_by(each) for each in ("gold", "batch")] == ["asks", "weight"]
    assert found.groups.by_weight == {"g": round(0.25 * 2 / 3, 4)}
    assert found.tenants.by_weight["flood"] == round(0.25 / 3, 4)
    assert found.tenants.by_weight["x"] == round(0.25 * 2 / 3 * 3 / 4, 4)
    assert {each: found.tenants.due_by(each) for each in found.tenants.got} == {
        "chat": "asks", "flood": "weight", "x": "asks", "y": "weight",
    }  # fmt: skip
    assert abs(sum(found.tenants.by_weight.values()) - 1.0) < 0.001
