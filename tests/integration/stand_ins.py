"""Servers other than vLLM, as far as their documented wire behaviour goes: small servers on this machine.

Each says of itself what the real one says (models, metrics, sizes) and streams a chat of four words in its own way.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gateway_rig import MODEL, ScriptedBackend, answer, whole
from listening import backend_listening

WORDS = ["one", " two", " three", " four"]
PROMPT_TOKENS = 9
OUTPUT_TOKENS = 5  # a word of two tokens is among them

Stream = Callable[[dict[str, Any]], Iterator[dict[str, Any]]]


def usage(output=OUTPUT_TOKENS, **details):
    counted = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS + output, "completion_tokens": output}
    return counted | details


def chunk(delta=None, finish=None, **fields):
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": choices, **fields}


def sglang_stream(asked):
    """SGLang: `usage` is null in every chunk that has none; continuous usage where it is asked for.

    python/sglang/srt/entrypoints/openai/protocol.py (StreamOptions, UsageInfo) and serving_chat.py.
    """
    options = asked.get("stream_options") or {}
    always = options.get("include_usage") and options.get("continuous_usage_stats")
    yield chunk({"role": "assistant", "content": ""}, usage=None)
    for tokens, word in zip((1, 2, 4, 5), WORDS, strict=True):
        yield chunk({"content": word}, usage=usage(tokens, prompt_tokens_details=None) if always else None)
    yield chunk({}, "stop", usage=None)
    if options.get("include_usage"):
        yield chunk(usage=usage(prompt_tokens_details=None))


def llama_cpp_stream(asked):
    """llama.cpp: a fingerprint in every chunk; usage, and timings with it, in a chunk of its own if asked for.

    tools/server/README.md, "Timings and context usage"; unknown options are ignored.
    """
    said = {"system_fingerprint": "b8681"}
    yield chunk({"role": "assistant", "content": None}, **said)
    for word in WORDS:
        yield chunk({"content": word}, **said)
    yield chunk({}, "stop", **said)
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield chunk(**said, usage=usage(), timings={"predicted_n": OUTPUT_TOKENS})


def tgi_stream(asked):
    """TGI: like OpenAI's, in a version that writes null where there is no usage whether it was asked for or not.

    docs/openapi.json: ChatCompletionChunk, StreamOptions.
    """
    said = {"system_fingerprint": "3.3.6-sha", "usage": None}
    for word in WORDS:
        yield chunk({"role": "assistant", "content": word}, **said)
    yield chunk({"role": "assistant", "content": ""}, "stop", **said)
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield chunk(**{**said, "usage": usage()})


def openai_stream(asked):
    """OpenAI's own: "All other chunks will also include a usage field, but with a null value", if asked for.

    https://platform.openai.com/docs/api-reference/chat-streaming
    """
    wanted = (asked.get("stream_options") or {}).get("include_usage")
    said = {"system_fingerprint": "fp_1", **({"usage": None} if wanted else {})}
    yield chunk({"role": "assistant", "content": ""}, **said)
    for word in WORDS:
        yield chunk({"content": word}, **said)
    yield chunk({}, "stop", **said)
    if wanted:
        yield chunk(**{**said, "usage": usage()})


def finish_usage_stream(asked):
    """A server whose usage, where it is asked for, is on its finish event, as DeepSeek's API has it.

    https://api-docs.deepseek.com/api/create-chat-completion (the last chunk before [DONE] has choices and usage)
    """
    for word in WORDS:
        yield chunk({"content": word})
    wanted = (asked.get("stream_options") or {}).get("include_usage")
    yield chunk({"content": ""}, "stop", **({"usage": usage()} if wanted else {}))


def silent_stream(asked):
    """A server that knows nothing of usage."""
    for word in WORDS:
        yield chunk({"content": word})
    yield chunk({}, "stop")


SGLANG_METRICS = """# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="tiny",tp_rank="0"} 3.0
sglang:num_running_reqs{model_name="tiny",tp_rank="1"} 3.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="tiny",tp_rank="0"} 2.0
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="tiny",tp_rank="0"} 0.25
"""
LLAMA_CPP_METRICS = """# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 1
"""
TGI_METRICS = """# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 4
# TYPE tgi_queue_size gauge
tgi_queue_size 7
"""


@dataclass
class StandIn(ScriptedBackend):
    """One such server. `pages` are what its paths answer; `refuses` is a field that makes it refuse a call."""

    stream_of: Stream = silent_stream
    owned_by: str = "somebody"
    card: dict[str, Any] = field(default_factory=dict)
    pages: dict[str, Any] = field(default_factory=dict)
    refuses: str | None = None

    def _poll(self, target: str) -> bytes:
        if target == "/v1/models":
            card = {"id": self.model, "object": "model", "created": 1, "owned_by": self.owned_by, **self.card}
            return whole({"object": "list", "data": [card]})
        page = self.pages.get(target)
        if page is None:
            return super()._poll(target)
        if isinstance(page, str):
            return b"HTTP/1.1 200 X\r\ncontent-length: %d\r\n\r\n%b" % (len(page), page.encode())
        return whole(page)

    async def chat(self, reader, writer) -> bool:
        asked = json.loads(self.calls[-1].body)
        if self.refuses in asked:
            error = {"message": f"Unknown field: {self.refuses}", "type": "invalid_request_error"}
            writer.write(whole({"error": error}, 400))
            return True
        if not asked.get("stream"):
            message = {"role": "assistant", "content": "".join(WORDS)}
            said = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
            writer.write(whole(said if self.stream_of is silent_stream else {**said, "usage": usage()}))
            return True
        events = [json.dumps(event, separators=(",", ":")) for event in self.stream_of(asked)] + ["[DONE]"]
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in events:
            piece = f"data: {event}\n\n".encode()
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        writer.write(b"0\r\n\r\n")
        return True


KINDS: dict[str, dict[str, Any]] = {
    "sglang": {
        "stream_of": sglang_stream,
        "owned_by": "sglang",
        "card": {"max_model_len": 4096},
        "pages": {
            "/metrics": SGLANG_METRICS,
            # managers/scheduler.py and http_server.py, get_server_info
            "/get_server_info": {"max_total_num_tokens": 50_000, "max_running_requests": 12, "version": "0.5"},
        },
    },
    "llama.cpp": {
        "stream_of": llama_cpp_stream,
        "owned_by": "llamacpp",
        "card": {"meta": {"n_ctx_train": 131_072}},
        "pages": {
            "/metrics": LLAMA_CPP_METRICS,
            "/props": {"total_slots": 4, "default_generation_settings": {"n_ctx": 2048}, "build_info": "b8681"},
        },
    },
    "tgi": {
        "stream_of": tgi_stream,
        "owned_by": MODEL,  # TGI puts the model's name there
        "pages": {
            "/metrics": TGI_METRICS,
            "/info": {
                "model_id": MODEL,
                "max_concurrent_requests": 128,
                "max_input_tokens": 2047,
                "max_total_tokens": 2048,
                "max_batch_total_tokens": 16_000,
            },
        },
    },
    "openai": {"stream_of": openai_stream, "owned_by": "system"},
    "openai with usage on its finish event": {"stream_of": finish_usage_stream, "owned_by": "deepseek"},
    "openai without usage": {"owned_by": "nobody"},
}


@contextlib.asynccontextmanager
async def stand_in(kind: str, **options: Any):
    backend = StandIn(answer(), **{**KINDS[kind], **options})
    backend.default = backend.chat
    async with backend_listening(backend):
        yield backend
