"""What the embedded engine refuses, in vLLM's words. The messages were recorded from vLLM 0.32.0."""

import openai
import pytest
from engine_client import CHAT, COMPLETIONS, FAST, HELLO, official_client, serving

from backends.engine.http.server import EngineOptions

INVALID = "Bad Request"
BAD = "BadRequestError"
# One field too much or too bad in an otherwise good chat, and the type, parameter and message of the answer.
CHAT_FIELDS = [
    ('"max_tokens":-1', BAD, "max_tokens", "at least 1, got -1. (parameter=max_tokens,"),
    ('"max_tokens":"a"', INVALID, "body.max_tokens", "'type': 'int_parsing'"),
    ('"max_tokens":9999', BAD, "max_tokens", "cannot be greater than max_model_len=4096."),
    ('"n":0', BAD, None, "n must be at least 1, got 0."),
    ('"n":100000', BAD, None, "n must be at most 16384, got 100000."),
    ('"temperature":-3', BAD, "temperature", "must be non-negative, got -3.0."),
    ('"stream":"maybe"', INVALID, "body.stream", "'type': 'bool_parsing'"),
    ('"top_logprobs":2', BAD, "top_logprobs", "`logprobs` must be set to true"),
    ('"min_tokens":9,"max_tokens":2', BAD, None, "less than or equal to max_tokens=2"),
    ('"temperature":NaN', BAD, "temperature", "must be a finite number, got nan."),
    ('"top_p":0', BAD, "top_p", "top_p must be in (0, 1], got 0.0."),
    ('"cache_salt":""', BAD, "cache_salt", "must be a non-empty string"),
    ('"seed":100000000000000000000', INVALID, "body.seed", "less than or equal to 9223372036854775807"),
    ('"stream_interval":0', INVALID, "body.stream_interval", "greater_than_equal"),
    ('"stream":true,"stream_options":5', INVALID, "body.stream_options", "model_attributes"),
    ('"stream_options":{"include_usage":true}', BAD, "stream_options", "when `stream=True`"),
    ('"logprobs":true,"top_logprobs":30', BAD, "logprobs", "greater than max allowed: 20"),
    ('"logprobs":true,"top_logprobs":-3', BAD, "top_logprobs", "a positive value or -1."),
]
BODIES = [
    (CHAT, '{"model":"tiny",', 400, INVALID, "body.16", "Expecting property name enclosed in double quotes"),
    (CHAT, "hello", 400, INVALID, "body.0", "'ctx': {'error': 'Expecting value'}"),
    (CHAT, "[1]", 400, INVALID, "body", "'input': '<list of 1 items>'"),
    (CHAT, "", 400, INVALID, "body", "'type': 'missing'"),
    (CHAT, '{"model":"tiny"}', 400, INVALID, "body.messages", "'msg': 'Field required', 'input': '<dict of 1 items>'"),
    (CHAT, '{"messages":"hi"}', 400, INVALID, "body.messages", "'type': 'list_type'"),
    (CHAT, '{"messages":[]}', 400, BAD, None, "Cannot apply chat template to an empty conversation."),
    (CHAT, '{"model":"nope","messages":[]}', 404, "NotFoundError", "model", "The model `nope` does not exist."),
    (COMPLETIONS, '{"model":"nope","prompt":"x"}', 404, "NotFoundError", "model", "The model `nope` does not exist."),
    (CHAT, '{"messages":[{}]}', 400, INVALID, "body.messages.0.role", "Field required"),
    (CHAT, '{"messages":[1]}', 400, INVALID, "body.messages.0", "validation error"),
    (CHAT, '{"messages":[{"role":"user","content":5}]}', 400, INVALID, "body.messages.0.content", "valid string"),
    (COMPLETIONS, '{"prompt":"x","logprobs":-2}', 400, BAD, "logprobs", "`logprobs` must be a positive value or -1."),
    (COMPLETIONS, '{"prompt":"x","logprobs":"a"}', 400, BAD, "logprobs", "`logprobs` must be an integer."),
    (COMPLETIONS, '{"prompt":"x","stop":""}', 400, BAD, None, "stop cannot contain an empty string."),
    (COMPLETIONS, '{"prompt":"x","stop":["a",""]}', 400, BAD, None, "stop cannot contain an empty string."),
    (COMPLETIONS, '{"prompt":"x","min_tokens":-5}', 400, BAD, None, "must be greater than or equal to 0, got -5."),
    (COMPLETIONS, '{"prompt":["a",""]}', 400, BAD, None, "The decoder prompt cannot be empty"),
    (COMPLETIONS, '{"prompt":[1,-5]}', 400, INVALID, "body.prompt.1", "greater than or equal to 0"),
    (COMPLETIONS, '{"prompt":"\\ud800"}', 400, BAD, None, "TextEncodeInput must be Union"),
    (COMPLETIONS, "{}", 400, BAD, "prompt", "Either prompt or prompt_embeds must be provided"),
    (COMPLETIONS, '{"prompt":""}', 400, BAD, "prompt", "Either prompt or prompt_embeds must be provided"),
    (COMPLETIONS, '{"prompt":[]}', 400, BAD, None, "You must pass at least one prompt"),
    (COMPLETIONS, '{"prompt":5}', 400, INVALID, "body.prompt", "4 validation errors:"),
    (COMPLETIONS, '{"prompt":"x","max_tokens":0}', 400, BAD, "max_tokens", "max_tokens must be at least 1, got 0."),
    (COMPLETIONS, f'{{"prompt":{[5] * 5000}}}', 400, BAD, "input_tokens", "contains 5000 input tokens"),
    (COMPLETIONS, f'{{"prompt":{[5] * 4096}}}', 400, BAD, "max_tokens", "max_tokens must be at least 1, got 0."),
    (COMPLETIONS, f'{{"prompt":"{"x" * 20_000}"}}', 400, BAD, "input_tokens", "contains at least 4097 input tokens"),
]
GOOD_CHAT = '{"messages":[{"role":"user","content":"x"}],'
CASES = [(CHAT, f"{GOOD_CHAT}{field}}}", 400, *expected) for field, *expected in CHAT_FIELDS] + BODIES


@pytest.mark.parametrize(("path", "body", "status", "expected"), [(*case[:3], case[3:]) for case in CASES])
async def test_bad_input_is_refused_as_vllm_refuses_it(path, body, status, expected):
    kind, param, message = expected
    async with serving() as (server, session):
        headers = {"Content-Type": "application/json"}
        async with session.post(path, data=body.encode(), headers=headers) as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"], error["type"], error["param"]) == (status, status, kind, param)
            assert message in error["message"]
        assert server.snapshots()[0].steps_total == 0


@pytest.mark.parametrize("body", [b'{"model":"t\xff"}', b'{"messages":' + b"[" * 100_000])
async def test_a_body_that_is_no_text_or_has_no_end_gets_the_frameworks_answer(body):
    headers = {"Content-Type": "application/json"}
    async with serving() as (_, session), session.post(CHAT, data=body, headers=headers) as response:
        assert (response.status, await response.json()) == (400, {"detail": "There was an error parsing the body"})


async def test_a_body_of_another_content_type_is_refused():
    async with serving() as (_, session), session.post(CHAT, data=b"{}") as response:
        assert response.status == 400
        assert "Only 'application/json' is allowed" in (await response.json())["error"]["message"]


async def test_unknown_paths_and_methods_get_fastapis_bodies():
    async with serving() as (_, session):
        for method, path, status, detail in [
            ("GET", "/nope", 404, "Not Found"),
            ("POST", "/v1/audio/transcriptions", 404, "Not Found"),
            ("GET", CHAT, 405, "Method Not Allowed"),
            ("DELETE", "/health", 405, "Method Not Allowed"),
        ]:
            async with session.request(method, path) as response:
                assert (response.status, await response.json()) == (status, {"detail": detail})


async def test_a_key_guards_the_api_and_leaves_health_and_metrics_open():
    async with serving(api_key="sekret") as (_, session):
        for headers, status in [
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "Basic sekret"}, 401),
            ({"Authorization": "bearer sekret"}, 200),
        ]:
            async with session.get("/v1/models", headers=headers) as response:
                assert response.status == status
                if status == 401:
                    assert await response.json() == {"error": "Unauthorized"}
        for path in ("/health", "/ping", "/metrics", "/version"):
            async with session.get(path) as response:
                assert response.status == 200


async def test_the_official_client_sees_vllms_errors():
    async with official_client(api_key="other") as (_, client):
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="tiny", messages=HELLO)
    async with official_client() as (_, client):
        with pytest.raises(openai.NotFoundError, match=r"The model `nope` does not exist\. Valid aliases: tiny\."):
            await client.chat.completions.create(model="nope", messages=HELLO)
        with pytest.raises(openai.BadRequestError, match=r"max_tokens must be at least 1, got 0\."):
            await client.completions.create(model="tiny", prompt="x", max_tokens=0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"coefficients": "abacus"}, "no coefficients 'abacus'"),
        ({"batching": "none"}, "no batching 'none'; there are chunked-prefill, sarathi, separate-prefill"),
        ({"engines": 0}, "engines must be at least 1, got 0"),
        ({"stream_interval": 0}, "stream_interval must be at least 1, got 0"),
        ({"output_tokens_mean": 0}, "output_tokens_mean must be at least 1, got 0"),
        ({"engines": 3, "requests_running_max": 2}, "at least one slot"),
        ({"speed": 0}, "speed must be positive"),
        ({"kv_tokens_max": 4000}, "must hold one request of max_model_len=4096"),
    ],
)
def test_options_that_no_server_could_start_with_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        EngineOptions(**{**FAST, **options})
