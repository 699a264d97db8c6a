"""The official `openai` package does what its documentation says, with another base_url."""

import asyncio
import contextlib
from importlib import import_module

import pytest
from processes import until

HELLO = [{"role": "user", "content": "Hello"}]
CHAT = {"model": "tiny", "messages": HELLO, "max_tokens": 8, "extra_body": {"ignore_eos": True}}
RESPONSE = {"model": "tiny", "input": "Hello", "max_output_tokens": 8, "temperature": 0}


@pytest.fixture(scope="session")
def openai_package():
    """Imported by the worker that needs it: all of them collect these tests, and it takes seconds."""
    return import_module("openai")


@pytest.fixture
def openai_client(openai_package, house):
    with openai_package.OpenAI(base_url=house.base_url, api_key=house.key, max_retries=0, timeout=30.0) as client:
        yield client


@pytest.fixture
async def async_openai_client(openai_package, house):
    async with openai_package.AsyncOpenAI(
        base_url=house.base_url, api_key=house.key, max_retries=0, timeout=30.0
    ) as client:
        yield client


def test_openai_chats(openai_client):
    answer = openai_client.chat.completions.create(**CHAT)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.completion_tokens, answer.model) == (8, "tiny")


def test_openai_streams_a_chat_with_usage(openai_client):
    options = {"include_usage": True}
    *chunks, last = openai_client.chat.completions.create(**CHAT, stream=True, stream_options=options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert (last.choices, last.usage.completion_tokens) == ([], 8)


def test_openai_streams_through_its_helper(openai_package, openai_client):
    with openai_client.chat.completions.stream(model="tiny", messages=HELLO, max_tokens=8) as stream:
        assert "".join(event.delta for event in stream if event.type == "content.delta")
        with pytest.raises(openai_package.LengthFinishReasonError):  # which is how it says that there would be more
            stream.get_final_completion()


def test_openai_completes(openai_client):
    answer = openai_client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1]
    chunks = list(openai_client.completions.create(model="tiny", prompt="a", max_tokens=4, temperature=0, stream=True))
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_openai_chats_many_at_a_time(async_openai_client):
    answers = await asyncio.gather(*(async_openai_client.chat.completions.create(**CHAT) for _ in range(16)))
    assert {answer.usage.completion_tokens for answer in answers} == {8}
    assert len({answer.id for answer in answers}) == 16


async def test_openai_streams_asynchronously(async_openai_client):
    async with await async_openai_client.chat.completions.create(**CHAT, stream=True) as stream:
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "length"


def test_openai_responds(openai_client):
    response = openai_client.responses.create(**RESPONSE, instructions="Be brief.")
    assert response.output_text
    assert response.usage.output_tokens == 8


def test_openai_streams_a_response(openai_client):
    with openai_client.responses.stream(**RESPONSE) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert events[0].type == "response.created"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == final.output_text
    assert final.usage.output_tokens == 8


def test_openai_embeds(openai_package, embedding_house):
    house = embedding_house
    with openai_package.OpenAI(base_url=house.base_url, api_key=house.key, max_retries=0, timeout=30.0) as client:
        answer = client.embeddings.create(model="tiny", input=["hello", "a b c"])  # asks for base64 by itself
        assert [len(each.embedding) > 1 for each in answer.data] == [True, True]
        assert answer.usage.prompt_tokens > 0


def test_openai_lists_models(openai_client):
    assert [model.id for model in openai_client.models.list()] == ["tiny"]


def test_openai_sees_the_request_id_and_may_choose_it(openai_client):
    raw = openai_client.chat.completions.with_raw_response.create(**CHAT, extra_headers={"X-Request-ID": "mine-1"})
    assert raw.headers["x-request-id"] == raw.parse()._request_id == "mine-1"
    assert raw.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"model": "none"}, "NotFoundError"),
        ({"messages": []}, "BadRequestError"),
        ({"temperature": -3}, "BadRequestError"),
    ],
    ids=["an unknown model", "no messages", "a temperature below 0"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_openai_raises_its_own_errors(openai_package, openai_client, fields, kind, stream):
    with pytest.raises(getattr(openai_package, kind)) as caught:
        openai_client.chat.completions.create(**{**CHAT, **fields, "stream": stream})
    assert caught.value.body["message"]
    assert caught.value.request_id


def test_openai_raises_an_authentication_error(openai_package, house):
    with openai_package.OpenAI(base_url=house.base_url, api_key="sk-wrong", max_retries=0) as client:
        for call in (
            lambda: client.chat.completions.create(**CHAT),
            lambda: client.responses.create(**RESPONSE),
        ):
            with pytest.raises(openai_package.AuthenticationError) as caught:
                call()
            assert caught.value.body["reason"] == "invalid_api_key"


def test_openai_raises_a_rate_limit_error_that_says_when_to_come_back(openai_package, house):
    with openai_package.OpenAI(base_url=house.base_url, api_key=house.limited_key, max_retries=0) as client:
        with contextlib.suppress(openai_package.RateLimitError):  # another test may have asked already
            client.chat.completions.create(**CHAT)
        with pytest.raises(openai_package.RateLimitError) as caught:
            client.chat.completions.create(**CHAT)
        headers = caught.value.response.headers
        assert 1 <= int(headers["retry-after"]) <= 60
        assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == ("1", "0")


def test_a_stream_of_openai_that_is_closed_early_ends_the_call(openai_client, house):
    stream = openai_client.chat.completions.create(**{**CHAT, "max_tokens": 3000}, stream=True)
    next(stream)
    assert house.in_flight() == 1
    stream.close()
    until(lambda: house.in_flight() == 0)


def test_openai_lists_models_and_finds_one_by_its_name(openai_package, openai_client):
    (listed,) = openai_client.models.list()
    found = openai_client.models.retrieve("tiny")
    assert (found.id, found.object, found.created) == ("tiny", "model", listed.created)
    for name in ("none", "meta-llama/none"):
        with pytest.raises(openai_package.NotFoundError) as refused:
            openai_client.models.retrieve(name)
        assert (refused.value.code, refused.value.param) == (404, "model")
