"""The same little answer in every stream grammar, as servers write it."""

import json


def named(kind, **fields):
    body = {"type": kind, **fields}
    return f"event: {kind}\ndata: {json.dumps(body, separators=(',', ':'), ensure_ascii=False)}\n\n".encode()


def data(body):
    return b"data: " + json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


PIECES = ["Once", " upon", ' a "time"\n\ndata: [DONE]', " é\U0001f600"]
OUTPUT_TOKENS = 9  # what the server says at the end: two deltas held several tokens

_RESPONSE_USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 8},
    "output_tokens": OUTPUT_TOKENS,
    "output_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 20,
}
_ITEM = {"item_id": "msg_1", "output_index": 1, "content_index": 0}


def response(status, usage=None):
    return {"id": "resp_1", "object": "response", "status": status, "output": [], "usage": usage, "model": "tiny"}


def responses(end="response.completed", status="completed"):
    events = [
        named("response.created", sequence_number=0, response=response("in_progress")),
        named("response.in_progress", sequence_number=1, response=response("in_progress")),
        named("response.reasoning_text.delta", sequence_number=2, delta="hm", item_id="rs_1"),
        named("response.output_item.added", sequence_number=3, output_index=1, item={"type": "message"}),
    ]
    for number, piece in enumerate(PIECES, start=4):
        events.append(named("response.output_text.delta", sequence_number=number, delta=piece, logprobs=[], **_ITEM))
    events += [
        named("response.output_text.done", sequence_number=8, text="".join(PIECES), **_ITEM),
        named("response.function_call_arguments.delta", sequence_number=9, delta='{"a":', item_id="fc_1"),
        named("response.custom_tool_call_input.delta", sequence_number=10, delta="7", item_id="ctc_1"),
        named(end, sequence_number=11, response=response(status, _RESPONSE_USAGE)),
    ]
    return events


def messages(stop_reason="end_turn"):
    start = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "tiny",
        "stop_reason": None,
        "usage": {
            "input_tokens": 2,
            "cache_read_input_tokens": 8,
            "cache_creation_input_tokens": 1,
            "output_tokens": 0,
        },
    }
    events = [
        named("message_start", message=start),
        named("ping"),
        named("content_block_start", index=0, content_block={"type": "thinking", "thinking": ""}),
        named("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"}),
        named("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "f00f" * 20}),
        named("content_block_stop", index=0),
        named("content_block_start", index=1, content_block={"type": "text", "text": ""}),
    ]
    events += [named("content_block_delta", index=1, delta={"type": "text_delta", "text": piece}) for piece in PIECES]
    usage = {"input_tokens": 2, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 1}
    return [
        *events,
        named("content_block_stop", index=1),
        named("content_block_start", index=2, content_block={"type": "tool_use", "id": "t1", "name": "f", "input": {}}),
        named("content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": '{"a":'}),
        named("content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": "7}"}),
        named("content_block_stop", index=2),
        named(
            "message_delta",
            delta={"stop_reason": stop_reason, "stop_sequence": None},
            usage={**usage, "output_tokens": OUTPUT_TOKENS},
        ),
        named("message_stop"),
    ]


def cohere(reason="COMPLETE", *, usage=True):
    """As vLLM streams /cohere/v2/chat."""

    def delta(kind, index, **message):
        return data({"type": kind, "index": index, "delta": {"message": message}})

    counts = {"tokens": {"input_tokens": 11.0, "output_tokens": float(OUTPUT_TOKENS)}, "cached_tokens": 8.0}
    end = {"finish_reason": reason, **({"usage": counts} if usage else {})}
    return [
        data({"type": "message-start", "id": "chat-1", "delta": {"message": {"role": "assistant", "content": []}}}),
        delta("content-delta", 0, content={"thinking": "hm"}),
        delta("content-start", 1, content={"type": "text", "text": ""}),
        *(delta("content-delta", 1, content={"text": piece}) for piece in PIECES),
        data({"type": "content-end", "index": 1}),
        delta("tool-call-delta", 0, tool_calls={"function": {"arguments": '{"a":'}}),
        delta("tool-call-delta", 0, tool_calls={"function": {"arguments": "7"}}),
        data({"type": "message-end", "id": "chat-1", "delta": end}),
        b"data: [DONE]\n\n",
    ]


def transcript():
    """As OpenAI's own API streams one."""
    usage = {"type": "tokens", "input_tokens": 11, "output_tokens": OUTPUT_TOKENS, "total_tokens": 20}
    return [
        *(data({"type": "transcript.text.delta", "delta": piece}) for piece in PIECES),
        data({"type": "transcript.text.done", "text": "".join(PIECES), "usage": usage}),
    ]


def transcription_chunks():
    """As vLLM streams one that was asked for continuous usage."""
    head = {"id": "trsc-1", "object": "transcription.chunk", "created": 1, "model": "tiny"}
    events = []
    for tokens, piece in zip((1, 2, 6, 9), PIECES, strict=True):
        usage = {"prompt_tokens": 11, "total_tokens": 11 + tokens, "completion_tokens": tokens}
        choice = {"delta": {"content": piece}, "finish_reason": "stop" if tokens == 9 else None, "stop_reason": None}
        events.append(data({**head, "choices": [choice], "usage": usage}))
    usage = {"prompt_tokens": 11, "total_tokens": 20, "completion_tokens": OUTPUT_TOKENS}
    return [*events, data({**head, "choices": [], "usage": usage}), b"data: [DONE]\n\n"]
