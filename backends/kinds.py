"""Kinds of inference servers: one table, with one row per kind, of their differences.

All kinds speak OpenAI's API. They differ in whether a stream can report its usage, in the names of their metrics, in
where they publish their size, and in how they say that they are busy. A kind is configured, or found from `owned_by` in
/v1/models or from the names in /metrics. If neither identifies the kind, the server is asked at the paths that only
some kinds have. An unidentified server is treated as a strict OpenAI server.

Pure: it gets the answers and sends no request. The sources of each row are in a comment above the row.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

VLLM_BUSY: Final = (503, b"currently busy")  # the default of all kinds: vLLM may be behind another server


class UsageDetail(IntEnum):
    """How much of its usage a server reports in a stream, if asked by `stream_options`."""

    NOTHING = 0  # the server does not take stream_options
    AT_END = 1  # include_usage
    ALWAYS = 2  # vLLM's continuous_usage_stats too


@dataclass(frozen=True, slots=True)
class Sizes:
    """The limits that an inference server publishes: requests that run at once, KV tokens in all, and tokens of one
    context. None: the server does not publish this limit.
    """

    requests_running_max: int | None = None
    kv_tokens_max: int | None = None
    context_tokens_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendKind:
    """One kind of inference server, and how it differs from the others.

    To recognise a kind: `owners` are prefixes of `owned_by` in /v1/models, `metrics` is the prefix of its metrics'
    names. `busy` is the status of the answer of a busy server, and a part of its body. `nulls_usage`: the server writes
    `"usage":null` into chunks, but only if usage was asked for. `may_refuse_options`: it may reject `stream_options`.
    `has_token_ids`: it reports token ids (`return_token_ids`), and continues a prompt of token ids. `engine_died` has
    parts of the bodies of its 500 answers when its engine has failed. `stopped` is a part of a non-streamed answer that
    is incomplete because the server stops.
    """

    name: str
    usage: UsageDetail
    nulls_usage: bool = False
    may_refuse_options: bool = False
    has_token_ids: bool = False
    engine_died: tuple[bytes, ...] = ()
    stopped: bytes | None = None
    owners: tuple[str, ...] = ()
    metrics: str | None = None
    sizes_path: str | None = None
    sizes: Callable[[Mapping[str, Any]], Sizes | None] = lambda _: None
    busy: tuple[int, bytes] | None = VLLM_BUSY


def _llama_cpp_sizes(props: Mapping[str, Any]) -> Sizes | None:
    settings = props.get("default_generation_settings")
    if "total_slots" not in props or not isinstance(settings, dict):
        return None
    slots, context = _size(props["total_slots"]), _size(settings.get("n_ctx"))
    return Sizes(slots, slots * context if slots and context else None, context)


def _tgi_sizes(info: Mapping[str, Any]) -> Sizes | None:
    if "max_concurrent_requests" not in info or "max_total_tokens" not in info:
        return None
    # max_concurrent_requests limits admission, not the requests that run: those are bounded by tokens.
    return Sizes(None, _size(info.get("max_batch_total_tokens")), _size(info["max_total_tokens"]))


def _sglang_sizes(info: Mapping[str, Any]) -> Sizes | None:
    if "max_total_num_tokens" not in info and "max_running_requests" not in info:
        return None
    running = _size(info.get("max_running_requests")) or _size(
        _state(info).get("effective_max_running_requests_per_dp")
    )
    return Sizes(running, _size(info.get("max_total_num_tokens")), _size(info.get("context_length")))


def _state(info: Mapping[str, Any]) -> Mapping[str, Any]:
    states = info.get("internal_states")
    return states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}


def _size(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


BACKEND_KINDS: Final[Mapping[str, BackendKind]] = {
    kind.name: kind
    for kind in (
        BackendKind(
            name="vllm",
            usage=UsageDetail.ALWAYS,
            has_token_ids=True,
            engine_died=(
                b"EngineCore encountered an issue",  # v1/engine/exceptions.py
                b"cannot schedule new futures after shutdown",  # CPython's, of threads that end before its port does
            ),
            stopped=b'"finish_reason":"abort"',
            owners=("vllm",),
            metrics="vllm:",
        ),
        # srt/entrypoints/openai/protocol.py (StreamOptions, ModelCard), references/production_metrics,
        # managers/scheduler.py (max_queued_requests), http_server.py (/get_server_info).
        BackendKind(
            name="sglang",
            usage=UsageDetail.ALWAYS,
            owners=("sglang",),
            metrics="sglang:",
            sizes_path="/get_server_info",
            sizes=_sglang_sizes,
            busy=(503, b"request queue is full"),
        ),
        # tools/server/README.md: /props, /metrics (with --metrics), /v1/models; it queues without limit.
        BackendKind(
            name="llama.cpp",
            usage=UsageDetail.AT_END,
            owners=("llamacpp",),
            metrics="llamacpp:",
            sizes_path="/props",
            sizes=_llama_cpp_sizes,
            busy=None,
        ),
        # docs/openapi.json: Info, StreamOptions, the 429 of an overloaded router; reference/metrics.
        BackendKind(
            name="tgi",
            usage=UsageDetail.AT_END,
            metrics="tgi_",
            sizes_path="/info",
            sizes=_tgi_sizes,
            busy=(429, b"Model is overloaded"),
        ),
        # platform.openai.com/docs/api-reference/chat-streaming: "All other chunks will also include a usage
        # field, but with a null value." It rejects fields that it does not know.
        BackendKind(name="openai", usage=UsageDetail.AT_END, nulls_usage=True, may_refuse_options=True),
        BackendKind(name="openai-basic", usage=UsageDetail.NOTHING),
    )
}
VLLM: Final = BACKEND_KINDS["vllm"]
GENERIC: Final = BACKEND_KINDS["openai"]
GENERIC_WITHOUT_OPTIONS: Final = BACKEND_KINDS["openai-basic"]


def kind_by_owner(owners: Iterable[str]) -> BackendKind | None:
    """Return the kind that has one of these values of `owned_by`; None if there is none."""
    owned_by = tuple(owners)
    return next(
        (kind for kind in BACKEND_KINDS.values() if any(owner.startswith(kind.owners) for owner in owned_by)), None
    )


def kind_by_metrics(text: str) -> BackendKind | None:
    """Return the kind whose metric names occur in this text of /metrics; None if there is none."""
    return next((kind for kind in BACKEND_KINDS.values() if kind.metrics and f"\n{kind.metrics}" in text), None)
