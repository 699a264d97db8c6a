"""The one table of fields and headers by which a client could get what others pay for, and what becomes of them.

A field of a body is left out, or given a value that is ours; nothing here refuses a call that the backend would have
taken. Everything that is not in the table passes as it came. Headers are the other way about: only what headers.py
lists is forwarded, so the rows of headers say what the gateway itself does with them.
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

# A stream whose chunks hold more tokens than this would be charged in lumps.
STREAM_INTERVAL_MAX: Final = 16
# What the scheduler inside an engine is told by us, and by nobody else; and what vLLM itself reads there as if one of
# its own servers had written it: a text where a connector reads an object ends the engine, with all that runs in it.
RESERVED_XARGS: Final = (
    "tenant", "tenant_id", "tier", "tier_id", "priority", "deadline",
    "kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode", "session_id",
)  # fmt: skip
RESERVED_XARGS_PREFIXES: Final = ("slo_", "fairlead_")
# Of Dynamo's extensions: urgency, place, and a prompt in place of the one that was counted.
# https://docs.nvidia.com/dynamo/latest/additional-resources/nvidia-request-extensions-nvext
RESERVED_NVEXT: Final = ("agent_hints", "session_control", "token_data", "cache_salt")
RESERVED_NVEXT_SUFFIXES: Final = ("_id", "_rank")

XARGS: Final = "vllm_xargs"

LEFT_OUT: Final = object()


@dataclass(frozen=True, slots=True)
class BodyField:
    """`rewrite` returns what is forwarded in place of a value: the value itself, another one, or LEFT_OUT."""

    rewrite: Callable[[Any], Any]
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class HeaderField:
    what: str
    why: str


def _leave_out(_value: Any) -> Any:
    return LEFT_OUT


def _stream_interval(value: Any) -> Any:
    try:
        interval = integer({"stream_interval": value}, "stream_interval")
    except BadRequest:
        return value  # the backend's to refuse
    return STREAM_INTERVAL_MAX if interval is not None and interval > STREAM_INTERVAL_MAX else value


def _xargs(value: Any, allowed: Container[str] | None = None) -> Any:
    """Without the reserved names, and with `allowed` without all that is not in it. In a form it is a string, which
    vLLM reads by Python's own json: that takes more than the standard does (NaN).
    """
    given = value
    if type(value) is str:
        try:
            given = json.loads(value)
        except RecursionError:
            return LEFT_OUT  # how deep is too deep depends on who reads
        except ValueError:
            return value  # the backend's to refuse
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
_INTERNAL = "It is between servers, and would read or write what is another request's."
_PLACE = "Where a request runs is the gateway's decision."

BODY_FIELDS: Final[Mapping[str, BodyField]] = {
    "priority": BodyField(_leave_out, "left out", _OVERTAKE),
    XARGS: BodyField(
        _xargs,
        "without the names that are ours (tenant, tenant_id, tier, tier_id, priority, deadline, slo_*, fairlead_*) or "
        "the engine's own (kv_transfer_params, ec_transfer_params, kv_cache_report_mode, session_id); with "
        "`limits.xargs_allowed` those alone that it lists",
        "A scheduler inside the engine believes them, and a wrong one ends the engine.",
    ),
    "nvext": BodyField(
        _nvext,
        "without agent_hints, session_control, token_data, cache_salt and what ends in _id or _rank",
        "Dynamo believes them: who is urgent, where a request runs, what its prompt is.",
    ),
    "stream_interval": BodyField(
        _stream_interval,
        f"at most {STREAM_INTERVAL_MAX}",
        "Tokens are charged as their chunks pass: a chunk of many would lag behind.",
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
        "Two calls of one name would collide, and a response could take the place of another's.",
    ),
    "rid": BodyField(_leave_out, "left out", "Two calls of one name would collide."),
}
CACHE_SALT: Final = "cache_salt"
CACHE_SALT_FIELD: Final = BodyField(
    _leave_out,
    "as it came; with `auth.cache_isolation` an HMAC over the tier or tenant and the client's own",
    "Who guesses the beginning of another's prompt could see in the time of the first token that it was right.",
)
HEADER_FIELDS: Final[Mapping[str, HeaderField]] = {
    "x-vllm-priority": HeaderField("0", _OVERTAKE),
    "x-data-parallel-rank": HeaderField("not forwarded", _PLACE),
    "x-request-id": HeaderField(
        "forwarded where it is usable and not in flight, else replaced", "Two calls of one name would collide."
    ),
    "x-tenant-id": HeaderField("names the tenant, from `auth.trusted_proxies` alone", "It would be another's share."),
    "x-llm-d-inference-fairness-id": HeaderField("as x-tenant-id", "It would be another's share."),
    "x-gateway-inference-fairness-id": HeaderField("as x-tenant-id", "It would be another's share."),
    "x-llm-d-slo-ttft-ms": HeaderField("tightens the tenant's envelope", "A wider one is not the client's to take."),
    "x-llm-d-slo-tpot-ms": HeaderField("tightens the tenant's envelope", "A wider one is not the client's to take."),
    "x-slo-ttft-ms": HeaderField("as x-llm-d-slo-ttft-ms", "A wider one is not the client's to take."),
    "x-slo-tpot-ms": HeaderField("as x-llm-d-slo-tpot-ms", "A wider one is not the client's to take."),
    "x-fairlead-program-id": HeaderField(
        "names the agent that the call is part of, else `x-session-id` or the field `session_id` does; not forwarded",
        "It orders the calls of one tenant, and is kept as a hash alone.",
    ),
    "authorization": HeaderField("read, not forwarded", "The backend's credentials are the gateway's."),
    "x-api-key": HeaderField("as authorization", "The backend's credentials are the gateway's."),
    "endpoint-load-metrics-format": HeaderField("not forwarded", "A backend's load is that of all tenants."),
    "connection": HeaderField(
        "not forwarded, nor what it names, nor any other hop-by-hop header", "RFC 9110, 7.6.1: it is for us alone."
    ),
}

_NAMES: Final = frozenset(BODY_FIELDS)
_NAMES_SALTED: Final = _NAMES | {CACHE_SALT}


def changes(call: Mapping[str, Any], *, salted: bool, xargs_allowed: Container[str] | None = None) -> dict[str, Any]:
    """What is forwarded in place of which field, LEFT_OUT for none; empty where the body passes as it came.

    `salted`: the client's own salt is left out, because it goes into ours. `xargs_allowed`: the arguments that a client
    may give to the engine; None: all but the reserved ones.
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
    """Whose prefixes in a backend's cache may a prompt share? Those with the same salt.

    A salt cannot be guessed without the secret, nor does the client's own make it another scope's.
    """

    def __init__(self, isolation: CacheIsolation, secret: bytes) -> None:
        self._isolation = isolation
        self.any = isolation != "none"
        self._secret = secret

    def salt(self, *, tenant_id: str, tier_id: str, own: Any) -> str | None:
        """The salt of this tenant's call, None where all share. `own` is the client's, if any."""
        if not self.any:
            return None
        scope = ["tenant", tenant_id] if self._isolation == "tenant" else ["tier", tier_id]
        digest = hmac.digest(self._secret, orjson.dumps([*scope, own]), "sha256")
        return urlsafe_b64encode(digest).rstrip(b"=").decode()
