"""The embedded engine at the paths beside completions: field for field what a vLLM 0.32 was seen to answer."""

import asyncio
import base64
import json
import struct

import pytest
from engine_client import HELLO, post, serving

MODEL = "tiny"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
TOO_LONG = (
    "max_completion_tokens=9999 cannot be greater than max_model_len=4096. Please request fewer output tokens."
    " (parameter=max_completion_tokens, value=9999)"
)
MESSAGE = {"model": MODEL, "max_tokens": 4, "messages": HELLO}


def named_events(body):
    """Events of a stream as (name, data)."""
    events = []
    for event in body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


async def whole(session, path, body, status=200):
    got, answer = await post(session, path, body)
    assert got == status
    return json.loads(answer)


async def test_a_response_has_the_fields_of_vllms():
    async with serving(output_tokens_mean=None) as (_, session):
        said = await whole(session, RESPONSES, {"input": "Hello", "max_output_tokens": 6, "instructions": "be brief"})
    assert list(said) == [
        "id", "created_at", "incomplete_details", "instructions", "metadata", "model", "object", "output",
        "parallel_tool_calls", "temperature", "tool_choice", "tools", "top_p", "background", "max_output_tokens",
        "max_tool_calls", "previous_response_id", "prompt", "reasoning", "service_tier", "status", "text",
        "top_logprobs", "truncation", "usage", "user", "presence_penalty", "frequency_penalty", "kv_transfer_params",
        "ec_transfer_params", "input_messages", "output_messages",
    ]  # fmt: skip
    assert (said["status"], said["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert said["usage"]["output_tokens"] == 6
    assert said["usage"]["total_tokens"] == said["usage"]["input_tokens"] + 6
    assert said["id"].startswith("resp_")
    (item,) = said["output"]
    assert list(item) == ["id", "content", "role", "status", "type", "phase"]
    assert item["content"][0]["text"]


async def test_a_streamed_response_is_told_in_vllms_events():
    async with serving(output_tokens_mean=None) as (_, session):
        body = {"input": [{"role": "user", "content": "Hello"}], "max_output_tokens": 3, "stream": True, "seed": 1}
        _, answer = await post(session, RESPONSES, body)
        told = named_events(answer)
        said = await whole(session, RESPONSES, body | {"stream": False})
    assert [name for name, _ in told] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        *["response.output_text.delta"] * 3, "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [data["sequence_number"] for _, data in told] == list(range(len(told)))
    assert all(data["type"] == name and list(data) == sorted(data) for name, data in told)
    text = "".join(data["delta"] for name, data in told if name.endswith(".delta"))
    assert told[-1][1]["response"]["output"][0]["content"][0]["text"] == text == said["output"][0]["content"][0]["text"]
    assert told[-1][1]["response"]["usage"] == said["usage"]


async def test_responses_are_forgotten_unless_the_server_stores_them():
    async with serving(output_tokens_mean=None) as (_, session):
        said = await whole(session, RESPONSES, {"input": "Hello", "max_output_tokens": 2})
        async with session.get(f"{RESPONSES}/{said['id']}") as response:
            assert response.status == 404
            assert (await response.json())["error"]["message"] == f"Response with id '{said['id']}' not found."
        refused = await whole(session, RESPONSES, {"input": "Hello", "background": True}, 400)
        assert refused["error"]["param"] == "background"


async def test_a_server_that_stores_gives_back_what_it_said_and_cancels_what_runs():
    async with serving(output_tokens_mean=None, responses_stored=True, speed=0.02) as (server, session):
        said = await whole(session, RESPONSES, {"input": "Hello", "max_output_tokens": 2})
        async with session.get(f"{RESPONSES}/{said['id']}") as response:
            assert await response.json() == said
        cancelled = await whole(session, f"{RESPONSES}/{said['id']}/cancel", {}, 400)
        assert cancelled["error"]["message"] == "Cannot cancel a synchronous response."

        long = {"input": "Hello", "max_output_tokens": 1000, "background": True, "ignore_eos": True}
        begun = await whole(session, RESPONSES, long)
        assert begun["status"] == "queued"
        async with session.get(f"{RESPONSES}/{begun['id']}") as response:
            assert (await response.json())["status"] == "in_progress"
        assert (await whole(session, f"{RESPONSES}/{begun['id']}/cancel", {}))["status"] == "cancelled"
        await asyncio.sleep(0.05)
        assert sum(now.requests_running for now in server.snapshots()) == 0


async def test_what_runs_in_the_background_is_there_when_it_has_ended():
    async with serving(output_tokens_mean=None, responses_stored=True) as (_, session):
        begun = await whole(session, RESPONSES, {"input": "Hello", "max_output_tokens": 3, "background": True})
        async with asyncio.timeout(5):
            while True:
                async with session.get(f"{RESPONSES}/{begun['id']}") as response:
                    said = await response.json()
                if said["status"] != "in_progress":
                    break
                await asyncio.sleep(0.01)
    assert said["usage"]["output_tokens"] == 3


async def test_a_message_has_the_fields_of_vllms():
    async with serving(output_tokens_mean=None) as (_, session):
        said = await whole(session, MESSAGES, MESSAGE | {"system": "be brief"})
        short = await whole(session, MESSAGES, MESSAGE)
        counted = await whole(session, f"{MESSAGES}/count_tokens", MESSAGE | {"system": "be brief"})
    assert list(said) == ["id", "type", "role", "content", "model", "stop_reason", "usage"]
    assert said["content"][0]["type"] == "text"
    assert (said["stop_reason"], said["usage"]["output_tokens"]) == ("max_tokens", 4)
    assert said["usage"]["input_tokens"] > short["usage"]["input_tokens"]
    tokens = said["usage"]["input_tokens"]
    assert counted == {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}


async def test_a_streamed_message_is_told_in_anthropics_events():
    async with serving(output_tokens_mean=None, prompt_tokens_details=True) as (_, session):
        _, answer = await post(session, MESSAGES, MESSAGE | {"stream": True})
        said = await whole(session, MESSAGES, MESSAGE)
    told = named_events(answer)
    assert [name for name, _ in told] == [
        "message_start", "content_block_start", *["content_block_delta"] * 4, "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    assert told[0][1]["message"]["usage"] == {"input_tokens": said["usage"]["input_tokens"], "output_tokens": 0}
    assert told[-2][1]["usage"] == said["usage"]
    assert told[-2][1]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert (
        "".join(data["delta"]["text"] for name, data in told if name == "content_block_delta")
        == (said["content"][0]["text"])
    )


async def test_a_message_that_met_its_stop_sequence_says_so():
    async with serving(output_tokens_mean=None) as (_, session):
        text = (await whole(session, MESSAGES, MESSAGE | {"max_tokens": 20}))["content"][0]["text"]
        stop = text.split()[2]
        said = await whole(session, MESSAGES, MESSAGE | {"max_tokens": 20, "stop_sequences": [stop]})
    assert (said["stop_reason"], said["stop_sequence"]) == ("stop_sequence", stop)
    assert stop not in said["content"][0]["text"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({**MESSAGE, "model": "nope"}, 404, "The model `nope` does not exist. Valid aliases: tiny."),
        ({**MESSAGE, "max_tokens": 9999}, 400, TOO_LONG),
    ],
)
async def test_what_is_wrong_with_a_message_is_said_as_anthropic_says_it(body, status, said):
    async with serving(output_tokens_mean=None) as (_, session):
        answer = await whole(session, MESSAGES, body, status)
    kind = "NotFoundError" if status == 404 else "BadRequestError"
    assert answer == {"type": "error", "error": {"type": kind, "message": said}}


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        (MESSAGES, {"model": MODEL, "messages": HELLO}, "body.max_tokens", "Field required"),
        (MESSAGES, MESSAGE | {"max_tokens": 0}, "body.max_tokens", "Value error, max_tokens must be positive"),
        (RESPONSES, {"model": MODEL}, "body.input", "Field required"),
        ("/tokenize", {"model": MODEL}, "body.prompt", "must be given"),
        ("/v1/embeddings", {"model": MODEL}, "body.input", "Field required"),
    ],
)
async def test_a_type_that_is_wrong_is_said_as_vllms_framework_says_it(path, body, param, said):
    async with serving(output_tokens_mean=None) as (_, session):
        error = (await whole(session, path, body, 400))["error"]
    assert (error["type"], error["param"], error["code"]) == ("Bad Request", param, 400)
    assert said in error["message"]


async def test_text_becomes_tokens_and_tokens_text():
    async with serving(output_tokens_mean=None) as (_, session):
        said = await whole(session, "/tokenize", {"prompt": "Hello there"})
        assert said == {"count": 3, "max_model_len": 4096, "tokens": said["tokens"], "token_strs": None}
        chat = await whole(session, "/tokenize", {"messages": HELLO, "return_token_strs": True})
        answer = await whole(session, "/v1/chat/completions", {"messages": HELLO, "max_tokens": 1})
        assert chat["count"] == len(chat["token_strs"]) == answer["usage"]["prompt_tokens"]
        words = await whole(session, "/v1/completions", {"prompt": "x", "max_tokens": 4, "return_token_ids": True})
        back = await whole(session, "/detokenize", {"tokens": words["choices"][0]["token_ids"]})
        assert back == {"prompt": words["choices"][0]["text"]}


async def test_equal_inputs_have_equal_vectors_of_length_one_in_either_encoding():
    async with serving(output_tokens_mean=None) as (server, session):
        said = await whole(session, "/v1/embeddings", {"input": ["one", "two two", "one"], "dimensions": 80})
        packed = await whole(session, "/v1/embeddings", {"input": "one", "dimensions": 80, "encoding_format": "base64"})
        assert sum(now.emitted_tokens_total for now in server.snapshots()) == 4
    vectors = [entry["embedding"] for entry in said["data"]]
    assert [entry["index"] for entry in said["data"]] == [0, 1, 2]
    assert vectors[0] == vectors[2] != vectors[1]
    assert sum(value * value for value in vectors[0]) == pytest.approx(1)
    unpacked = struct.unpack("<80f", base64.b64decode(packed["data"][0]["embedding"]))
    assert list(unpacked) == pytest.approx(vectors[0], rel=1e-6)
    assert said["usage"] == {
        "prompt_tokens": 4, "total_tokens": 4, "completion_tokens": 0, "prompt_tokens_details": None,
    }  # fmt: skip


async def test_a_batch_of_chats_has_a_choice_for_each():
    async with serving(output_tokens_mean=None) as (_, session):
        conversations = [HELLO, [{"role": "user", "content": "Bye"}]]
        path = "/v1/chat/completions/batch"
        said = await whole(session, path, {"messages": conversations, "max_tokens": 3})
        assert [choice["index"] for choice in said["choices"]] == [0, 1]
        assert said["usage"]["completion_tokens"] == 6
        assert (await post(session, path, {"messages": conversations, "stream": True}))[0] == 400
        assert (await post(session, path, {"messages": [HELLO, []]}))[0] == 400


async def test_adapters_are_models_with_a_parent():
    async with serving(adapters=("sql", "poems")) as (_, session):
        async with session.get("/v1/models") as response:
            cards = (await response.json())["data"]
        assert [(card["id"], card["parent"]) for card in cards] == [(MODEL, None), ("sql", MODEL), ("poems", MODEL)]
        said = await whole(session, "/v1/chat/completions", {"model": "sql", "messages": HELLO, "max_tokens": 1})
        assert said["model"] == "sql"


async def test_an_answer_that_could_have_no_token_is_refused():
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
    async with serving() as (_, session):
        counted = await whole(session, f"{MESSAGES}/count_tokens", asked)
    async with serving(max_model_len=counted["input_tokens"]) as (_, session):
        for body in ({"input": "Hello", "max_output_tokens": 0}, {"input": "Hello"}):
            refused = await whole(session, RESPONSES, body, 400)
            assert "max_tokens must be at least 1, got 0." in refused["error"]["message"]
        refused = await whole(session, MESSAGES, asked | {"max_tokens": 1}, 400)
        assert "at least 1, got 0." in refused["error"]["message"]
