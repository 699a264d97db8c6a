"""What the scheduler inside an engine is told of a call: whose it is, what that weighs, and when its tokens are due.

Sent to backends that have the plugin (backends/vllm_plugin), and to no other: in `vllm_xargs`, where no client can
have put these names (gateway/api/fields.py). Of a TTFT target is told what the call's time in our queue has left, and
how much it was: what the engine can take on in time is reckoned for targets as they are given.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.api.bodies import JSON_TYPE
from policies.types import Request, Tenant, Tier

ARGUMENTS: Final = "vllm_xargs"
LEAST_MS: Final = 1.0  # a target that has passed: the call is as urgent as can be


def engine_arguments(
    request: Request, tenant: Tenant, tier: Tier, *, gateway: str, number: int, now: float
) -> dict[str, Any]:
    """Return what to tell. The call is the `number`-th that this backend is sent by the gateway of this name."""
    told: dict[str, Any] = {
        "tenant": tenant.id,
        "tier": tier.id,
        "fairlead_weights": [tenant.weight, tier.weight],
        "fairlead_dispatch": [gateway, number],
    }
    envelope = request.envelope
    if envelope is not None and envelope.ttft_s is not None:
        left_s = request.arrived_at + envelope.ttft_s - now
        told["slo_ttft_ms"] = max(LEAST_MS, round(left_s * 1000, 3))
        told["fairlead_ttft_ms"] = round(envelope.ttft_s * 1000, 3)
    if envelope is not None and envelope.tpot_s is not None:
        told["slo_tpot_ms"] = round(envelope.tpot_s * 1000, 3)
    return told


def with_arguments(body: bytes, content_type: str, told: Mapping[str, Any]) -> bytes:
    """Add to a body what is told, beside the client's own arguments. A form has no place for it, and stays."""
    if content_type != JSON_TYPE:
        return body
    if b'"vllm_xargs"' not in body:
        return body.rstrip()[:-1] + b',"vllm_xargs":' + orjson.dumps(told) + b"}"
    call = orjson.loads(body)
    own = call.get(ARGUMENTS)
    if own is not None and not isinstance(own, dict):
        return body  # the backend's to refuse
    return orjson.dumps({**call, ARGUMENTS: {**(own or {}), **told}})
