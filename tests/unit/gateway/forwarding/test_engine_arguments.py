import json

import pytest

from gateway.forwarding.engine_arguments import engine_arguments, with_arguments
from policies.types import Request, SloEnvelope, Tenant, Tier

JSON = "application/json"


def told(envelope=None, now=100.0):
    request = Request(
        id="r", tenant_id="t", model="m", arrived_at=100.0, prompt_tokens=5, output_tokens_max=5, envelope=envelope
    )
    tenant, tier = Tenant(id="t", weight=2.0, tier_id="gold"), Tier("gold", weight=4.0)
    return engine_arguments(request, tenant, tier, gateway="g", number=7, now=now)


def test_an_engine_is_told_whose_a_call_is_what_that_weighs_and_which_dispatch_it_was():
    assert told() == {
        "tenant": "t",
        "tier": "gold",
        "fairlead_weights": [2.0, 4.0],
        "fairlead_dispatch": ["g", 7],
    }


@pytest.mark.parametrize(("now", "left_ms"), [(100.0, 500.0), (100.2, 300.0), (100.5, 1.0), (999.0, 1.0)])
def test_of_a_ttft_target_is_told_what_the_queue_has_left(now, left_ms):
    said = told(SloEnvelope(ttft_s=0.5, tpot_s=0.05), now)
    assert (said["slo_ttft_ms"], said["fairlead_ttft_ms"], said["slo_tpot_ms"]) == (left_ms, 500.0, 50.0)


def test_a_target_that_is_not_set_is_not_told():
    assert "slo_ttft_ms" not in told(SloEnvelope(tpot_s=0.05))
    assert "slo_tpot_ms" not in told(SloEnvelope(ttft_s=0.05))


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        (b'{"model":"m"}', {"tenant": "t"}),
        (b'{"model":"m"} \n', {"tenant": "t"}),
        (b'{"model":"m","vllm_xargs":{"mine":1}}', {"mine": 1, "tenant": "t"}),
        (b'{"model":"m","vllm_xargs":null}', {"tenant": "t"}),
        (b'{"model":"m","prompt":"\\"vllm_xargs\\""}', {"tenant": "t"}),
        (b'{"model":"m","prompt":"vllm_xargs"}', {"tenant": "t"}),
    ],
)
def test_what_is_told_stands_beside_the_clients_own_arguments(body, arguments):
    sent = json.loads(with_arguments(body, JSON, {"tenant": "t"}))
    assert sent.pop("vllm_xargs") == arguments
    assert sent == {name: value for name, value in json.loads(body).items() if name != "vllm_xargs"}


def test_arguments_that_are_none_are_left_to_the_backend_to_refuse_and_forms_as_they_are():
    assert with_arguments(b'{"vllm_xargs":[1]}', JSON, {"tenant": "t"}) == b'{"vllm_xargs":[1]}'
    assert with_arguments(b"--x--", "multipart/form-data; boundary=x", {"tenant": "t"}) == b"--x--"
