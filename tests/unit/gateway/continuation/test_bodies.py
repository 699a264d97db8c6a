"""The body of a continuation: limits are what is left, sampling stays, and what is done is left out."""

import json
from array import array

import pytest

from backends.meters.token_ids import TokenIds
from backends.upstream import UpstreamProtocolError
from gateway.continuation.body import continuation_body, stop_strings

PROMPT, OUTPUT = [1, 2, 3], [7, 8]


def continued(call, *, is_chat=False, context=100):
    ids = TokenIds(1000, b"1,2,3", array("I", OUTPUT))
    return json.loads(continuation_body(call, ids, is_chat=is_chat, context_tokens_max=context))


ASKED = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}


def test_a_completion_of_all_token_ids_so_far_is_asked_for():
    assert continued({"model": "m", "prompt": "hi", "stream": True}) == {
        "model": "m", "prompt": PROMPT + OUTPUT, "max_tokens": 16 - len(OUTPUT), **ASKED,
    }  # fmt: skip


def test_what_only_a_chat_has_is_left_out():
    chat = {
        "messages": [], "max_completion_tokens": 10, "max_tokens": 50, "chat_template": "t", "reasoning_effort": "low",
        "tools": [], "tool_choice": "none", "logprobs": True, "response_format": {"type": "text"},
    }  # fmt: skip
    assert continued(chat, is_chat=True) == {"prompt": PROMPT + OUTPUT, "max_tokens": 8, "logprobs": 0, **ASKED}


def test_sampling_stays_and_so_does_what_is_not_known():
    kept = {
        "temperature": 0.7, "top_p": 0.9, "top_k": 5, "repetition_penalty": 1.1, "logit_bias": {"7": 1}, "user": "u",
        "stop_token_ids": [9], "ignore_eos": True, "cache_salt": "s", "stream_interval": 4, "logprobs": 2, "novelty": 1,
    }  # fmt: skip
    assert continued({**kept, "prompt": "hi", "max_tokens": 5}).items() >= kept.items()


@pytest.mark.parametrize(("fields", "wanted"), [({"max_tokens": 5}, 3), ({}, 14), ({"max_tokens": None}, 14)])
def test_a_completion_may_generate_what_is_left(fields, wanted):
    assert continued({"prompt": "hi", **fields})["max_tokens"] == wanted


def test_a_chat_without_a_limit_may_fill_the_context():
    assert continued({"messages": []}, is_chat=True, context=100)["max_tokens"] == 100 - len(PROMPT) - len(OUTPUT)
    with pytest.raises(UpstreamProtocolError):
        continued({"messages": []}, is_chat=True, context=None)


@pytest.mark.parametrize(("tokens_min", "wanted"), [(1, 0), (5, 3)])
def test_the_least_tokens_are_what_is_left_of_them(tokens_min, wanted):
    assert continued({"prompt": "hi", "min_tokens": tokens_min})["min_tokens"] == wanted


def test_a_seed_moves_on_so_that_no_random_number_comes_twice():
    assert continued({"prompt": "hi", "seed": 7})["seed"] == 7 + len(OUTPUT)
    for seed in (2**63 - 1, 2**63 - len(OUTPUT)):
        assert -(2**63) <= continued({"prompt": "hi", "seed": seed})["seed"] < 2**63


@pytest.mark.parametrize("value", [5, 5.0, "5", " 5.0 "])
def test_numbers_are_read_as_vllm_reads_them(value):
    body = continued({"prompt": "hi", "max_tokens": value, "min_tokens": value, "seed": value})
    assert (body["max_tokens"], body["min_tokens"], body["seed"]) == (3, 3, 7)


@pytest.mark.parametrize(("value", "wanted"), [("no", None), (0, None), ("true", 0), (1, 0)])
def test_flags_are_read_as_vllm_reads_them(value, wanted):
    assert continued({"messages": [], "logprobs": value}, is_chat=True).get("logprobs") == wanted


def test_stop_strings_are_searched_for_here():
    body = continued({"prompt": "hi", "stop": ["a", "b"]})
    assert "stop" not in body
    assert body["logprobs"] == 0  # the text of each token
    assert body["return_tokens_as_token_ids"] is False  # also where the server's default is another
    assert continued({"prompt": "hi", "stop": "a", "logprobs": None})["logprobs"] == 0
    assert continued({"prompt": "hi", "stop": "a", "logprobs": 3})["logprobs"] == 3


@pytest.mark.parametrize(("stop", "wanted"), [(None, ()), ("a", ("a",)), (["a", "b"], ("a", "b")), ([], ())])
def test_stop_strings_may_be_one(stop, wanted):
    assert stop_strings({"stop": stop}) == wanted
