"""Fields: the table of body fields by which a client could gain priority, choose its engine, or avoid charges.

The gateway removes such a body field or replaces its value; it rejects no call for it that the backend would accept.
Fields outside the table pass unchanged. Headers work the other way round: only those that headers.py lists are
forwarded.
"""

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Container, Mapping
from typing import Any, Final, Literal

import orjson

from gateway.api.errors import BadRequest
from gateway.api.values import integer

# With more tokens per chunk, a stream would be charged in large steps.
STREAM_INTERVAL_MAX: Final = 16
# Arguments that only the gateway may give to the scheduler inside an engine. The last four are vLLM's own: it reads
# them as if one of its servers had written them, and a string where a connector expects an object stops the engine and
# all requests in it.
RESERVED_XARGS: Final = (
    "tenant", "tenant_id", "tier", "tier_id", "priority", "deadline",
    "kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode", "session_id",
)  # fmt: skip
RESERVED_XARGS_PREFIXES: Final = ("slo_", "fairlead_")
# Dynamo's extensions that set urgency or placement, or replace the prompt that was counted.
# https://docs.nvidia.com/dynamo/latest/additional-resources/nvidia-request-extensions-nvext
RESERVED_NVEXT: Final = ("agent_hints", "session_control", "token_data", "cache_salt")
RESERVED_NVEXT_SUFFIXES: Final = ("_id", "_rank")

XARGS: Final = "vllm_xargs"

LEFT_OUT: Final = object()


def _leave_out(_value: Any) -> Any:
    return LEFT_OUT


def _stream_interval(value: Any) -> Any:
    try:
        interval = integer({"stream_interval": value}, "stream_interval")
    except BadRequest:
        return value  # the backend rejects it
    return STREAM_INTERVAL_MAX if interval is not None and interval > STREAM_INTERVAL_MAX else value


def _xargs(value: Any, allowed: Container[str] | None = None) -> Any:
    """Remove the reserved names and, where `allowed` is given, every name that is not in it. In a form the value is a
    string, which vLLM parses by Python's json module: that accepts more than the standard does (NaN).
    """
    given = value
    if type(value) is str:
        try:
            given = json.loads(value)
        except RecursionError:
            return LEFT_OUT  # parsers differ in the depth that they accept
        except ValueError:
            return value  # the backend rejects it
    if type(given) is not dict:
        return value
    kept = {
        name: each for name, each in given.items() if not _is_reserved(name) and (allowed is None or name in allowed)
    }
    if len(kept) == len(given):
        return value
    if not kept:
        return LEFT_OUT
    return json.dumps(kept, separators=(",", ":")) if type(value) is str else kept


def _nvext(value: Any) -> Any:
    if type(value) is not dict:
        return value
    kept = {
        name: each
        for name, each in value.items()
        if name not in RESERVED_NVEXT and not name.endswith(RESERVED_NVEXT_SUFFIXES)
    }
    return value if len(kept) == len(value) else kept or LEFT_OUT


def _is_reserved(name: str) -> bool:
    return name in RESERVED_XARGS or name.startswith(RESERVED_XARGS_PREFIXES)


# docs/api.md says of each what is forwarded, and why.
BODY_FIELDS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "priority": _leave_out,
    XARGS: _xargs,
    "nvext": _nvext,
    "stream_interval": _stream_interval,
    # They would reach another request's data.
    "kv_transfer_params": _leave_out,
    "ec_transfer_params": _leave_out,
    "bootstrap_host": _leave_out,
    "bootstrap_port": _leave_out,
    "bootstrap_room": _leave_out,
    # The gateway decides where a request runs.
    "data_parallel_rank": _leave_out,
    "routed_dp_rank": _leave_out,
    "disagg_prefill_dp_rank": _leave_out,
    "id_slot": _leave_out,
    # Two calls of one name would collide.
    "request_id": _leave_out,
    "rid": _leave_out,
}
"""The forwarded value of a body field, by its name: the same one, another one, or LEFT_OUT."""
CACHE_SALT: Final = "cache_salt"

_NAMES: Final = frozenset(BODY_FIELDS)
NAMES_SALTED: Final = _NAMES | {CACHE_SALT}


def changes(call: Mapping[str, Any], *, salted: bool, xargs_allowed: Container[str] | None = None) -> dict[str, Any]:
    """The forwarded value of each field that changes, LEFT_OUT for removal; empty where the body passes unchanged.
    `salted`: the client's own salt is removed, because it becomes part of the gateway's salt. `xargs_allowed`: the
    engine arguments that a client may give; None: all but the reserved ones.
    """
    names = NAMES_SALTED if salted else _NAMES
    if names.isdisjoint(call):
        return {}
    found = {}
    for name in names.intersection(call):
        value = call[name]
        if name == XARGS and xargs_allowed is not None:
            forwarded = _xargs(value, xargs_allowed)
        else:
            forwarded = BODY_FIELDS.get(name, _leave_out)(value)
        if forwarded is not value:
            found[name] = forwarded
    return found


CacheIsolation = Literal["none", "tier", "tenant"]


class CacheSalts:
    """The maker of `cache_salt` values for calls: a backend shares cached prefixes only among prompts with one salt. A
    salt cannot be guessed without the secret, and a client's own salt never leads to the salt of another tenant or
    tier.
    """

    def __init__(self, isolation: CacheIsolation, secret: bytes) -> None:
        self._isolation = isolation
        self.any = isolation != "none"
        self._secret = secret

    def salt(self, *, tenant_id: str, tier_id: str, own: Any) -> str | None:
        """The salt for a call of this tenant; None if all tenants share prefixes. `own` is the client's, if any."""
        if not self.any:
            return None
        scope = ["tenant", tenant_id] if self._isolation == "tenant" else ["tier", tier_id]
        digest = hmac.digest(self._secret, orjson.dumps([*scope, own]), "sha256")
        return urlsafe_b64encode(digest).rstrip(b"=").decode()
