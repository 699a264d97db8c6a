"""The official `anthropic` package does what its documentation says, with another base_url."""

import asyncio
import contextlib
from importlib import import_module

import pytest
from processes import until

HELLO = [{"role": "user", "content": "Hello"}]
MESSAGE = {"model": "tiny", "messages": HELLO, "max_tokens": 8, "extra_body": {"temperature": 0}}


@pytest.fixture(scope="session")
def anthropic_package():
    """Imported by the worker that needs it: all of them collect these tests, and it takes seconds."""
    return import_module("anthropic")


@pytest.fixture
def anthropic_client(anthropic_package, house):
    with anthropic_package.Anthropic(base_url=house.url, api_key=house.key, max_retries=0, timeout=30.0) as client:
        yield client


@pytest.fixture
async def async_anthropic_client(anthropic_package, house):
    async with anthropic_package.AsyncAnthropic(
        base_url=house.url, api_key=house.key, max_retries=0, timeout=30.0
    ) as client:
        yield client


def test_anthropic_writes_a_message(anthropic_client):
    message = anthropic_client.messages.create(**MESSAGE, system="Be brief.")
    assert (message.type, message.role, message.stop_reason) == ("message", "assistant", "max_tokens")
    assert message.content[0].text
    assert message.usage.output_tokens == 8


def test_anthropic_streams_a_message(anthropic_client):
    with anthropic_client.messages.stream(**MESSAGE) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].text == text
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 8)


def test_anthropic_streams_events(anthropic_client):
    events = [event.type for event in anthropic_client.messages.create(**MESSAGE, stream=True)]
    assert (events[0], events[1], events[-1]) == ("message_start", "content_block_start", "message_stop")
    assert "content_block_delta" in events


async def test_anthropic_writes_many_messages_at_a_time(async_anthropic_client):
    messages = await asyncio.gather(*(async_anthropic_client.messages.create(**MESSAGE) for _ in range(8)))
    assert {message.usage.output_tokens for message in messages} == {8}


async def test_anthropic_streams_asynchronously(async_anthropic_client):
    async with async_anthropic_client.messages.stream(**MESSAGE) as stream:
        pieces = [piece async for piece in stream.text_stream]
    assert "".join(pieces)


def test_anthropic_counts_tokens(anthropic_client):
    few, more = (
        anthropic_client.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": text}]).input_tokens
        for text in ("Hello", "Hello, how are you today?")
    )
    assert 0 < few < more


def test_anthropic_counts_what_it_is_charged_for(anthropic_client):
    counted = anthropic_client.messages.count_tokens(model="tiny", messages=HELLO).input_tokens
    assert anthropic_client.messages.create(**MESSAGE).usage.input_tokens == counted


@pytest.mark.parametrize(
    ("fields", "kind"),
    [({"model": "none"}, "NotFoundError"), ({"messages": "Hello"}, "BadRequestError")],
    ids=["an unknown model", "messages that are text"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_anthropic_raises_its_own_errors(anthropic_package, anthropic_client, fields, kind, stream):
    with pytest.raises(getattr(anthropic_package, kind)) as caught:
        anthropic_client.messages.create(**{**MESSAGE, **fields}, stream=stream)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["message"]


def test_anthropic_raises_an_authentication_error(anthropic_package, house):
    with anthropic_package.Anthropic(base_url=house.url, api_key="sk-wrong", max_retries=0) as client:
        for call in (
            client.messages.create,
            lambda **_: client.messages.count_tokens(model="tiny", messages=HELLO),
        ):
            with pytest.raises(anthropic_package.AuthenticationError) as caught:
                call(**MESSAGE)
            assert caught.value.body["error"]["type"] == "authentication_error"


def test_anthropic_may_send_its_key_as_a_bearer(anthropic_package, house):
    with anthropic_package.Anthropic(base_url=house.url, auth_token=house.key, api_key=None, max_retries=0) as client:
        assert client.messages.create(**MESSAGE).usage.output_tokens == 8


def test_anthropic_raises_a_rate_limit_error_that_says_when_to_come_back(anthropic_package, house):
    with anthropic_package.Anthropic(base_url=house.url, api_key=house.limited_key, max_retries=0) as client:
        with contextlib.suppress(anthropic_package.RateLimitError):  # another test may have asked already
            client.messages.create(**MESSAGE)
        with pytest.raises(anthropic_package.RateLimitError) as caught:
            client.messages.create(**MESSAGE)
        assert caught.value.body["error"]["type"] == "rate_limit_error"
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60


def test_a_stream_of_anthropic_that_is_closed_early_ends_the_call(anthropic_client, house):
    stream = anthropic_client.messages.create(**{**MESSAGE, "max_tokens": 3000}, stream=True)
    next(iter(stream))
    assert house.in_flight() == 1
    stream.close()
    until(lambda: house.in_flight() == 0)
