"""The gateways that others have, by their own rules."""

from random import Random

from policies.types import BackendLoad, Dispatch, Outcome, Reason, Reject, Request
from tests.evidence.routers import Kubernetes, PrefillBudget, RoundRobinRule, RoutedBackend, Router, least_request


def make_request(name: str = "r", *, arrived_at: float = 0.0, tenant: str = "t") -> Request:
    return Request(name, tenant, "m", arrived_at, prompt_tokens=100, output_tokens_max=10)


def make_backends(**waiting_and_used: tuple[int, float]) -> dict[str, RoutedBackend]:
    return {
        name: RoutedBackend(BackendLoad(name, requests_waiting=waiting, kv_used_ratio=used))
        for name, (waiting, used) in waiting_and_used.items()
    }


def loads(*names: str) -> list[BackendLoad]:
    return [BackendLoad(name) for name in names]


def test_round_robin_takes_backends_in_turn():
    rule, backends = RoundRobinRule(), make_backends(b=(0, 0.0), a=(9, 0.9))
    assert [rule(make_request(), backends) for _ in range(3)] == ["a", "b", "a"]


def test_least_request_counts_what_was_sent_and_has_not_ended():
    router = Router(least_request)
    router.load_changed(loads("a", "b"), 0.0)
    for name in "xyz":
        router.submit(make_request(name), 0.0)
    assert [action.backend_id for action in router.poll(0.0)] == ["a", "b", "a"]
    router.finished("x", Outcome.COMPLETED, 1.0)
    router.finished("z", Outcome.COMPLETED, 1.0)
    router.submit(make_request("w"), 1.0)
    assert [action.backend_id for action in router.poll(1.0)] == ["a"]


def test_kubernetes_prefers_short_queues_and_empty_caches():
    rule = Kubernetes(Random(1))
    assert rule(make_request(), make_backends(a=(4, 0.5), b=(1, 0.5))) == "b"
    assert rule(make_request(), make_backends(a=(1, 0.9), b=(1, 0.2))) == "b"


def test_kubernetes_refuses_sheddable_tiers_alone_and_only_while_its_pool_is_saturated():
    rule = Kubernetes(Random(1), lambda request: -1 if request.tenant_id == "batch" else 3)
    full, half = make_backends(a=(5, 0.0), b=(0, 0.8)), make_backends(a=(5, 0.0), b=(0, 0.7))
    assert rule(make_request(tenant="batch"), full) is None
    assert rule(make_request(tenant="batch"), half) is not None
    assert rule(make_request(tenant="chat"), full) is not None


def test_a_budget_is_less_by_what_was_sent_in_the_same_instant():
    reported = {"a": 250.0, "b": 180.0}
    rule, backends = PrefillBudget(lambda name, _: reported[name], refuses=True), make_backends(a=(0, 0), b=(0, 0))
    assert [rule(make_request(), backends) for _ in range(4)] == ["a", "b", "a", None]
    assert rule(make_request(arrived_at=1.0), backends) == "a"


def test_without_refusals_the_largest_budget_is_taken_however_small_it_is():
    rule = PrefillBudget(lambda name, _: {"a": -500.0, "b": 5.0}[name], refuses=False)
    assert rule(make_request(), make_backends(a=(0, 0), b=(0, 0))) == "b"


def test_what_a_rule_refuses_is_rejected_and_everything_else_is_sent_at_once():
    router = Router(lambda request, _: None if request.id == "no" else "a")
    router.load_changed(loads("a"), 0.0)
    for name in ("no", "yes"):
        router.submit(make_request(name), 0.0)
    refused, sent = router.poll(0.0)
    assert isinstance(refused, Reject)
    assert refused.reason is Reason.SHED
    assert isinstance(sent, Dispatch)
    assert router.poll(0.0) == []
