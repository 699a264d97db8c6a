"""What must not be continued, each with its reason; and that all else is not excluded."""

import json

import pytest

from gateway.api.endpoints import BATCH, CHAT, COHERE_CHAT, COMPLETIONS, MESSAGES, RESPONSES, TRANSCRIPTIONS
from gateway.continuation.exclusions import Exclusion, exclusion
from gateway.continuation.stream import ResumableStream

HELLO = [{"role": "user", "content": "hello"}]
PICTURE = {"type": "image_url", "image_url": {"url": "data:,"}}
TOOL = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"use_beam_search": True}, Exclusion.CHOICES),
        ({"response_format": {"type": "json_object"}}, Exclusion.GRAMMAR),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, Exclusion.GRAMMAR),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Exclusion.GRAMMAR),
        ({"guided_json": {}}, Exclusion.GRAMMAR),
        ({"guided_regex": "a"}, Exclusion.GRAMMAR),
        ({"guided_choice": ["a"]}, Exclusion.GRAMMAR),
        ({"guided_grammar": "a"}, Exclusion.GRAMMAR),
        ({"structural_tag": "a"}, Exclusion.GRAMMAR),
        ({"tools": TOOL}, Exclusion.TOOLS),
        ({"tools": TOOL, "tool_choice": "auto"}, Exclusion.TOOLS),
        ({"functions": [{"name": "f"}]}, Exclusion.TOOLS),
        ({"thinking_token_budget": 10}, Exclusion.REASONING),
        ({"include_reasoning": False}, Exclusion.REASONING),
        ({"prompt_embeds": "abc"}, Exclusion.MEDIA),
        ({"prompt_logprobs": 0}, Exclusion.PROMPT_LOGPROBS),
        ({"echo": True}, Exclusion.ECHO),
        ({"top_logprobs": 2}, Exclusion.TOP_LOGPROBS),
        ({"logprob_token_ids": [7]}, Exclusion.TOP_LOGPROBS),
        ({"presence_penalty": 0.5}, Exclusion.PENALTIES),
        ({"frequency_penalty": -0.5}, Exclusion.PENALTIES),
        ({"bad_words": ["a"]}, Exclusion.GENERATED),
        ({"repetition_detection": {}}, Exclusion.GENERATED),
        ({"watermarking": True}, Exclusion.GENERATED),
        ({"logits_processors": ["a"]}, Exclusion.GENERATED),
        ({"vllm_xargs": {"mine": 1}}, Exclusion.ARGUMENTS),
        ({"spaces_between_special_tokens": False}, Exclusion.SPACING),
        ({"spaces_between_special_tokens": "no"}, Exclusion.SPACING),
        ({"include_reasoning": 0}, Exclusion.REASONING),
        ({"return_tokens_as_token_ids": True}, Exclusion.NAMES),
        ({"a_field_of_a_later_vllm": 0}, Exclusion.UNKNOWN),
        ({"ignore_eos": True, "stop": "a"}, Exclusion.SPECIAL),
        ({"ignore_eos": True, "stop": ["a"], "skip_special_tokens": True}, Exclusion.SPECIAL),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else str(value),
)
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS], ids=["chat", "completions"])
def test_a_field_excludes(endpoint, fields, reason):
    assert exclusion(endpoint, {"messages": HELLO, **fields}, choices=1) is reason


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"response_format": None, "structured_outputs": None, "tools": None, "echo": None},
        {"tools": TOOL, "tool_choice": "none"},
        {"tools": [], "functions": [], "bad_words": []},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.2},
        {"logprobs": True, "top_logprobs": 0},
        {"seed": 7, "temperature": 1, "stop": ["a"], "stop_token_ids": [7], "min_tokens": 3},
        {"ignore_eos": True, "stop": []},
        {"a_field_of_a_later_vllm": None},
        {"priority": 1, "request_id": "a", "data_parallel_rank": 0, "metadata": {"mine": "yes"}, "store": True},
        {"ignore_eos": True, "stop": "a", "skip_special_tokens": False},
        {"return_tokens_as_token_ids": False, "logprobs": True},
        {"include_reasoning": True, "spaces_between_special_tokens": True, "skip_special_tokens": False},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}, "hello"]}]},
    ],
)
def test_other_fields_exclude_nothing(fields):
    assert exclusion(CHAT, {"messages": HELLO, **fields}, choices=1) is None


def test_pictures_exclude():
    content = [{"type": "text", "text": "what is this?"}, PICTURE]
    assert exclusion(CHAT, {"messages": [{"role": "user", "content": content}]}, choices=1) is Exclusion.MEDIA


def test_more_than_one_sequence_excludes():
    """n, best_of or several prompts."""
    assert exclusion(COMPLETIONS, {"prompt": ["a", "b"]}, choices=2) is Exclusion.CHOICES


@pytest.mark.parametrize(
    "endpoint", [RESPONSES, MESSAGES, COHERE_CHAT, BATCH, TRANSCRIPTIONS], ids=lambda each: each.path
)
def test_other_apis_are_excluded(endpoint):
    assert exclusion(endpoint, {}, choices=1) is Exclusion.API


def begun(first, last=b"", prompt=b"1", output_tokens_max=1):
    stream = ResumableStream(None, 1000)
    stream.began(first, output_tokens_max)
    stream.last, stream.ids.prompt = last, prompt
    return stream


EVENT = b'data: {"choices":[],"prompt_token_ids":[1]}\n\n'


def test_a_stream_with_token_ids_may_continue():
    assert begun(EVENT, EVENT).may_continue()


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (begun(b'data: {"choices":[]}\n\n', EVENT), Exclusion.BACKEND),
        (begun(EVENT.replace(b"}", b',"usage":{"reasoning_tokens":0}}'), EVENT), Exclusion.REASONING),
        (begun(EVENT.replace(b"[]", b'[{"logprobs":{"tokens":["token_id:7"]}}]'), EVENT), Exclusion.NAMES),
        (begun(EVENT, EVENT, output_tokens_max=300), Exclusion.BYTES),
    ],
)
def test_the_first_event_excludes(stream, reason):
    assert stream.exclusion is reason
    assert not stream.may_continue()


def test_a_delta_of_reasoning_excludes():
    """Of a server that does not count reasoning in its first event."""
    assert not begun(EVENT, b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n').may_continue()


@pytest.mark.parametrize("text", ['"reasoning', '"reasoning":', '{"reasoning_content": "hm"}'])
def test_a_text_about_reasoning_excludes_nothing(text):
    last = b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"
    assert begun(EVENT, last).may_continue()
    assert begun(EVENT.replace(b"[1]", b"[1]," + last[7:-3]), EVENT).may_continue()


def test_a_server_without_reasoning_excludes_nothing():
    """One that writes nulls, as routers do that write events anew."""
    assert begun(EVENT, b'data: {"choices": [{"delta": {"content": "a", "reasoning": null}}]}\n\n').may_continue()


def test_ids_that_do_not_fit_exclude():
    """Of a backend that sends more tokens than it was asked for."""
    stream = begun(EVENT, EVENT)
    stream.ids.drop()
    assert not stream.may_continue()
    assert stream.exclusion is Exclusion.BYTES


def test_nothing_to_continue_from_excludes():
    assert not begun(EVENT).may_continue()
    assert not begun(EVENT, EVENT, prompt=b"").may_continue()
