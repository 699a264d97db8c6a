"""What a client sees: the official `openai` package against vLLM itself and through the gateway, alike."""

import json

import openai
import pytest
from wire import CHAT, fetch

HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"model": "tiny", "temperature": 0.0, "extra_body": {"ignore_eos": True}}
SAMPLED = {"model": "tiny", "seed": 1, "extra_body": {"ignore_eos": True}}  # vLLM: no n > 1 where greedy


def test_a_chat_streams_its_deltas_and_says_how_it_ended(client):
    whole = client.chat.completions.create(messages=HELLO, max_tokens=24, **GREEDY)
    chunks = list(client.chat.completions.create(messages=HELLO, max_tokens=24, stream=True, **GREEDY))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, "length"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert len(chunks) > 3, "a stream comes in pieces"


def test_a_completion_streams_its_text(client):
    whole = client.completions.create(prompt="import os", max_tokens=24, **GREEDY)
    chunks = list(client.completions.create(prompt="import os", max_tokens=24, stream=True, **GREEDY))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len(chunks) > 3


def test_a_stream_has_no_usage_unless_it_is_asked_for(client):
    for stream in (
        client.chat.completions.create(messages=HELLO, max_tokens=8, stream=True, **GREEDY),
        client.completions.create(prompt="a", max_tokens=8, stream=True, **GREEDY),
    ):
        chunks = list(stream)
        assert all(chunk.usage is None and chunk.choices for chunk in chunks)
        assert "usage" not in {field for chunk in chunks for field in chunk.model_fields_set}


def test_usage_that_is_asked_for_comes_once_at_the_end(client):
    for stream in (
        client.chat.completions.create(
            messages=HELLO, max_tokens=8, stream=True, stream_options={"include_usage": True}, **GREEDY
        ),
        client.completions.create(
            prompt="a", max_tokens=8, stream=True, stream_options={"include_usage": True}, **GREEDY
        ),
    ):
        *chunks, last = stream
        assert all(chunk.usage is None for chunk in chunks)
        assert last.choices == []
        assert last.usage.completion_tokens == 8
        assert last.usage.total_tokens == last.usage.prompt_tokens + 8


def test_continuous_usage_that_is_asked_for_is_in_every_chunk(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        client.chat.completions.create(messages=HELLO, max_tokens=8, stream=True, stream_options=options, **GREEDY)
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 8)


def test_two_choices_stream_side_by_side(client):
    chunks = list(
        client.chat.completions.create(
            messages=HELLO,
            max_tokens=12,
            n=2,
            stream=True,
            stream_options={"include_usage": True},
            **SAMPLED,
        )
    )
    *chunks, last = chunks
    ends = {c.choices[0].index: c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason}
    assert ends == {0: "length", 1: "length"}
    assert {c.choices[0].index for c in chunks} == {0, 1}
    assert last.usage.completion_tokens == 24


def test_two_choices_come_in_one_body(client):
    answer = client.chat.completions.create(**SAMPLED, messages=HELLO, max_tokens=12, n=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.completion_tokens == 24


def test_log_probabilities_of_a_chat(client):
    options = {"messages": HELLO, "max_tokens": 6, "logprobs": True, "top_logprobs": 2, **GREEDY}
    whole = client.chat.completions.create(**options).choices[0].logprobs.content
    chunks = client.chat.completions.create(stream=True, **options)
    streamed = [token for chunk in chunks if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content]
    assert [token.token for token in streamed] == [token.token for token in whole]
    assert len(whole) == 6
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in streamed)


def test_log_probabilities_of_a_completion(client):
    answer = client.completions.create(prompt="def f", max_tokens=6, logprobs=2, **GREEDY)
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 6


def test_a_whole_answer_has_its_usage(client):
    answer = client.completions.create(prompt="def f", max_tokens=9, **GREEDY)
    assert answer.object == "text_completion"
    assert answer.usage.completion_tokens == 9
    assert answer.choices[0].finish_reason == "length"


def test_a_prompt_may_be_token_ids(client):
    answer = client.completions.create(prompt=[5, 6, 7, 8], max_tokens=4, **GREEDY)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 4)


@pytest.mark.parametrize("prompts", [["one", "two two"], [[5, 6, 7], [8, 9]]])
def test_a_list_of_prompts_gives_a_choice_each(client, prompts):
    answer = client.completions.create(prompt=prompts, max_tokens=4, **GREEDY)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.completion_tokens == 8
    chunks = list(client.completions.create(prompt=prompts, max_tokens=4, stream=True, **GREEDY))
    for choice in answer.choices:
        assert "".join(c.choices[0].text for c in chunks if c.choices[0].index == choice.index) == choice.text


def test_the_models_are_listed(client):
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "vllm")
    assert model.max_model_len == 4096


def test_a_prompt_of_many_bytes_arrives_whole(client):
    text = "naïve ✓ 測試 " * 150
    answer = client.completions.create(prompt=text, max_tokens=1, extra_body={"echo": True}, model="tiny")
    assert answer.choices[0].text.startswith(text)


ERRORS = [
    ("unknown model", {"model": "nope"}, openai.NotFoundError, "model"),
    ("no tokens wanted", {"max_tokens": 0}, openai.BadRequestError, None),
    ("more tokens than the model has room for", {"max_tokens": 9999}, openai.BadRequestError, "max_tokens"),
    (
        "longer than the context",
        {"messages": [{"role": "user", "content": "word " * 5000}]},
        openai.BadRequestError,
        None,
    ),
    ("parameter out of range", {"temperature": -3}, openai.BadRequestError, None),
    ("mistyped parameter", {"max_tokens": "many"}, openai.BadRequestError, None),
    ("no messages", {"messages": "Hello"}, openai.BadRequestError, None),
    ("options of a stream that is none", {"stream_options": {"include_usage": True}}, openai.BadRequestError, None),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", ERRORS, ids=lambda case: case[0])
def test_a_bad_call_is_an_error_object_and_never_a_stream(client, case, stream):
    _, wrong, expected, param = case
    if stream and "stream_options" in wrong:
        return
    with pytest.raises(expected) as caught:
        client.chat.completions.create(
            **{"model": "tiny", "messages": HELLO, "max_tokens": 4, "stream": stream} | wrong
        )
    error = caught.value
    assert isinstance(error.body["message"], str)
    assert isinstance(error.body["type"], str)
    assert error.body.keys() >= {"message", "type", "param", "code"}
    assert error.response.headers["content-type"].startswith("application/json")
    if param is not None:
        assert error.body["param"] == param


@pytest.mark.parametrize("body", [b'{"model": "tiny", ', b"", b"[]", b'"x"'])
def test_a_body_that_is_no_json_object_is_refused(endpoint, body):
    status, answer = fetch(endpoint, CHAT, body)
    assert status == 400
    assert json.loads(answer)["error"].keys() >= {"message", "type", "param", "code"}


def test_unknown_paths_are_not_found(endpoint):
    assert fetch(endpoint, "/v1/nothing")[0] == 404
