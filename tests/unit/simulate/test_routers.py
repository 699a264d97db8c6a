"""The gateways that others have, by their own rules, and the one that holds nothing back."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from policies.capacity.backend import BackendCapacity
from policies.types import BackendLoad, Dispatch, Outcome, Reason, Reject, Request, SloEnvelope
from tests.evidence.routers import REQUESTS_MAX, Kubernetes, KubernetesGateway, send_at_once

LOADS = [
    BackendLoad(name, kv_tokens_max=1_000, requests_running_max=REQUESTS_MAX, batching="fair", pab_tokens=0.0)
    for name in ("a", "b", "c")
]


def make_request(name: str = "r", *, arrived_at: float = 0.0, tenant: str = "t") -> Request:
    envelope = SloEnvelope(0.5, 0.05)
    return Request(name, tenant, "m", arrived_at, prompt_tokens=100, output_tokens_max=10, envelope=envelope)


def measured(**waiting_and_used: tuple[int, float]) -> list[BackendLoad]:
    return [
        BackendLoad(name, requests_waiting=waiting, kv_used_ratio=used, kv_tokens_max=1_000)
        for name, (waiting, used) in waiting_and_used.items()
    ]


def backends(**waiting_and_used: tuple[int, float]) -> list[BackendCapacity]:
    return [BackendCapacity(load) for load in measured(**waiting_and_used)]


def poll(gateway, now=0.0):
    actions = gateway.poll(now)
    while gateway.next_wakeup() is not None:
        more = gateway.poll(now)
        assert more, "something waits"
        actions += more
    return actions


@pytest.mark.parametrize("placement", ["least-reserved", "round-robin", "pab"])
def test_every_request_is_sent_when_it_arrives_however_many_there_are(placement):
    """More than a stock vLLM has slots for, and a hundred times what the KV caches hold."""
    gateway = send_at_once(placement, ["t", "u"])
    gateway.load_changed(LOADS, 0.0)
    for number in range(900):
        now = number / 100
        gateway.submit(make_request(f"{number}", arrived_at=now, tenant="tu"[number % 2]), now)
        assert [action.request_id for action in poll(gateway, now)] == [f"{number}"]


def test_all_that_arrive_at_one_instant_are_sent_at_that_instant():
    gateway = send_at_once("least-reserved", ["t"])
    gateway.load_changed(LOADS, 0.0)
    for number in range(900):
        gateway.submit(make_request(f"{number}"), 0.0)
    sent = poll(gateway)
    assert {type(action) for action in sent} == {Dispatch}
    assert Counter(action.backend_id for action in sent) == {"a": 300, "b": 300, "c": 300}


def test_without_memory_the_least_reserved_is_the_one_with_the_fewest_requests():
    gateway = send_at_once("least-reserved", ["t"])
    gateway.load_changed(LOADS[:2], 0.0)
    for number, tokens in enumerate((9_000, 10, 10)):
        gateway.submit(replace(make_request(f"{number}"), prompt_tokens=tokens), 0.0)
    assert [action.backend_id for action in poll(gateway)] == ["a", "b", "a"]
    for name in "02":
        gateway.finished(name, Outcome.COMPLETED, 1.0)
    gateway.submit(make_request("w"), 1.0)
    assert [action.backend_id for action in poll(gateway, 1.0)] == ["a"]


@pytest.mark.interpreted
def test_kubernetes_prefers_short_queues_and_empty_caches():
    rule = Kubernetes(Random(1))
    assert rule.place(make_request(), backends(a=(4, 0.5), b=(1, 0.5))).id == "b"
    assert rule.place(make_request(), backends(a=(1, 0.9), b=(1, 0.2))).id == "b"


@pytest.mark.interpreted
def test_kubernetes_rejects_sheddable_tiers_alone_and_only_while_its_pool_is_saturated():
    rule = Kubernetes(Random(1), lambda request: -1 if request.tenant_id == "batch" else 3)
    gateway = KubernetesGateway(rule, ["batch", "chat"])
    gateway.load_changed(measured(a=(5, 0.0), b=(0, 0.7)), 0.0)
    for name in ("batch", "chat"):
        gateway.submit(make_request(f"half, {name}", tenant=name), 0.0)
    assert {type(action) for action in poll(gateway)} == {Dispatch}
    gateway.load_changed(measured(a=(5, 0.0), b=(0, 0.8)), 1.0)
    for name in ("batch", "chat"):
        gateway.submit(make_request(f"full, {name}", tenant=name, arrived_at=1.0), 1.0)
    rejected, sent = poll(gateway, 1.0)
    assert isinstance(rejected, Reject)
    assert (rejected.request_id, rejected.reason) == ("full, batch", Reason.SHED)
    assert isinstance(sent, Dispatch)
