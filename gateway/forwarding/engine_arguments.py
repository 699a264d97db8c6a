"""Arguments for the scheduler inside an engine: the tenant and tier of a call, their weights, and its SLO targets.

They are sent in `vllm_xargs`, only to backends that have the plugin (backends/vllm_plugin). Clients cannot set these
names (gateway/api/fields.py). A TTFT target is sent twice: the rest of it after the gateway's queue, and the full
target, from which the engine computes its prefill admission budget.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.api.bodies import JSON_TYPE, without_brace
from policies.types import Request, Tenant, Tier

ARGUMENTS: Final = "vllm_xargs"
LEAST_MS: Final = 1.0  # for a target that has passed: the highest urgency


def engine_arguments(
    request: Request, tenant: Tenant, tier: Tier, *, gateway: str, number: int, now: float
) -> dict[str, Any]:
    """The arguments of one call, times in milliseconds. The call is the `number`-th that the gateway of this name sends
    to this backend. `now` is on the clock of `request.arrived_at`.
    """
    arguments: dict[str, Any] = {
        "tenant": tenant.id,
        "tier": tier.id,
        "fairlead_weights": [tenant.weight, tier.weight],
        "fairlead_dispatch": [gateway, number],
    }
    envelope = request.envelope
    if envelope is not None and envelope.ttft_s is not None:
        left_s = request.arrived_at + envelope.ttft_s - now
        arguments["slo_ttft_ms"] = max(LEAST_MS, round(left_s * 1000, 3))
        arguments["fairlead_ttft_ms"] = round(envelope.ttft_s * 1000, 3)
    if envelope is not None and envelope.tpot_s is not None:
        arguments["slo_tpot_ms"] = round(envelope.tpot_s * 1000, 3)
    return arguments


def with_arguments(body: bytes | bytearray, content_type: str, arguments: Mapping[str, Any]) -> bytes | bytearray:
    """The body with these arguments beside the client's own. A body that is not JSON (a form) is returned unchanged."""
    if content_type != JSON_TYPE:
        return body
    if b'"vllm_xargs"' not in body:
        return b"".join((without_brace(body), b',"vllm_xargs":', orjson.dumps(arguments), b"}"))
    call = orjson.loads(body)
    own = call.get(ARGUMENTS)
    if own is not None and not isinstance(own, dict):
        return body  # invalid: the backend rejects it
    return orjson.dumps({**call, ARGUMENTS: {**(own or {}), **arguments}})
