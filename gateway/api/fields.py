"""Fields: the table of body fields and headers by which a client could gain priority, choose its engine, or avoid
charges.

The gateway removes such a body field or replaces its value; it rejects no call for it that the backend would accept.
Fields outside the table pass unchanged. Headers work the other way round: only those that headers.py lists are
forwarded, so their rows here explain how the gateway itself uses them.
"""

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class BodyField:
    """A rule for a body field. `rewrite` returns the forwarded value: the same one, another one, or LEFT_OUT. `what`
    and `why` are shown in the documentation.
    """

    rewrite: Callable[[Any], Any]
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class HeaderField:
    """A rule for a header. `what` and `why` are shown in the documentation."""

    what: str
    why: str


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


_OVERTAKE = "It would overtake others inside the engine."
_INTERNAL = "It would reach another request's data."
_PLACE = "The gateway decides where a request runs."

BODY_FIELDS: Final[Mapping[str, BodyField]] = {
    "priority": BodyField(_leave_out, "left out", _OVERTAKE),
    XARGS: BodyField(
        _xargs,
        "without the names that are ours (tenant, tenant_id, tier, tier_id, priority, deadline, slo_*, fairlead_*) or "
        "the engine's own (kv_transfer_params, ec_transfer_params, kv_cache_report_mode, session_id); with "
        "`limits.xargs_allowed` those alone that it lists",
        "The engine believes them, and a wrong one ends it.",
    ),
    "nvext": BodyField(
        _nvext,
        "without agent_hints, session_control, token_data, cache_salt and what ends in _id or _rank",
        "Dynamo would act on them.",
    ),
    "stream_interval": BodyField(
        _stream_interval,
        f"at most {STREAM_INTERVAL_MAX}",
        "Tokens are charged as their chunks pass: many at once would be late.",
    ),
    "kv_transfer_params": BodyField(_leave_out, "left out", _INTERNAL),
    "ec_transfer_params": BodyField(_leave_out, "left out", _INTERNAL),
    "bootstrap_host": BodyField(_leave_out, "left out", _INTERNAL),
    "bootstrap_port": BodyField(_leave_out, "left out", _INTERNAL),
    "bootstrap_room": BodyField(_leave_out, "left out", _INTERNAL),
    "data_parallel_rank": BodyField(_leave_out, "left out", _PLACE),
    "routed_dp_rank": BodyField(_leave_out, "left out", _PLACE),
    "disagg_prefill_dp_rank": BodyField(_leave_out, "left out", _PLACE),
    "id_slot": BodyField(_leave_out, "left out", _PLACE),
    "request_id": BodyField(
        _leave_out,
        "left out; it names the call where no header does and no call in flight has it",
        "A response could take the place of another's.",
    ),
    "rid": BodyField(_leave_out, "left out", "Two calls of one name would collide."),
}
CACHE_SALT: Final = "cache_salt"
CACHE_SALT_FIELD: Final = BodyField(
    _leave_out,
    "as it came; with `auth.cache_isolation` an HMAC over the tier or tenant and the client's own",
    "The TTFT would tell that a guess of another's prompt was right.",
)
HEADER_FIELDS: Final[Mapping[str, HeaderField]] = {
    "x-vllm-priority": HeaderField("0", _OVERTAKE),
    "x-data-parallel-rank": HeaderField("not forwarded", _PLACE),
    "x-request-id": HeaderField(
        "forwarded where it is usable and not in flight, else replaced", "Two calls of one name would collide."
    ),
    "x-tenant-id": HeaderField(
        "names the tenant, from `auth.trusted_proxies` alone", "A client would take another's share."
    ),
    "x-llm-d-inference-fairness-id": HeaderField("as x-tenant-id", "A client would take another's share."),
    "x-gateway-inference-fairness-id": HeaderField("as x-tenant-id", "A client would take another's share."),
    "x-llm-d-slo-ttft-ms": HeaderField("tightens the tenant's envelope", "A client cannot widen an envelope."),
    "x-llm-d-slo-tpot-ms": HeaderField("tightens the tenant's envelope", "A client cannot widen an envelope."),
    "x-slo-ttft-ms": HeaderField("as x-llm-d-slo-ttft-ms", "A client cannot widen an envelope."),
    "x-slo-tpot-ms": HeaderField("as x-llm-d-slo-tpot-ms", "A client cannot widen an envelope."),
    "x-fairlead-program-id": HeaderField(
        "names the call's [session](aliases.md#a-split); not forwarded",
        "It is kept as a hash.",
    ),
    "authorization": HeaderField("read, not forwarded", "A backend gets the gateway's credentials."),
    "x-api-key": HeaderField("as authorization", "A backend gets the gateway's credentials."),
    "endpoint-load-metrics-format": HeaderField("not forwarded", "A backend's load is that of all tenants."),
    "connection": HeaderField(
        "not forwarded, as all hop-by-hop headers and what it names", "It is for the gateway (RFC 9110, 7.6.1)."
    ),
}

_NAMES: Final = frozenset(BODY_FIELDS)
_NAMES_SALTED: Final = _NAMES | {CACHE_SALT}


def changes(call: Mapping[str, Any], *, salted: bool, xargs_allowed: Container[str] | None = None) -> dict[str, Any]:
    """The forwarded value of each field that changes, LEFT_OUT for removal; empty where the body passes unchanged.
    `salted`: the client's own salt is removed, because it becomes part of the gateway's. `xargs_allowed`: the engine
    arguments that a client may give; None: all but the reserved ones.
    """
    names = _NAMES_SALTED if salted else _NAMES
    if names.isdisjoint(call):
        return {}
    found = {}
    for name in names.intersection(call):
        value = call[name]
        if name == XARGS and xargs_allowed is not None:
            forwarded = _xargs(value, xargs_allowed)
        else:
            forwarded = BODY_FIELDS.get(name, CACHE_SALT_FIELD).rewrite(value)
        if forwarded is not value:
            found[name] = forwarded
    return found


CacheIsolation = Literal["none", "tier", "tenant"]


class CacheSalts:
    """The salts for the prefix caches of backends: only prompts with the same salt share cached prefixes. A salt cannot
    be guessed without the secret, and no salt of a client yields the salt of another tenant or tier.
    """

    def __init__(self, isolation: CacheIsolation, secret: bytes) -> None:
        self._isolation = isolation
        self.any = isolation != "none"
        self._secret = secret

    def salt(self, *, tenant_id: str, tier_id: str, own: Any) -> str | None:
        """The salt for a call of this tenant; None where all tenants share. `own` is the client's salt, if any."""
        if not self.any:
            return None
        scope = ["tenant", tenant_id] if self._isolation == "tenant" else ["tier", tier_id]
        digest = hmac.digest(self._secret, orjson.dumps([*scope, own]), "sha256")
        return urlsafe_b64encode(digest).rstrip(b"=").decode()
