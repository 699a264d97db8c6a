"""What a pooling model reads: how many sequences, and how large."""

import pytest

from gateway.api.errors import BadRequest
from gateway.api.inputs import inputs_prompt, pairs_prompt
from gateway.api.prompts import MEDIA_PART_BYTES

read = inputs_prompt("input", "messages", "data")
MESSAGE = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    ("given", "prompts", "size"),
    [
        ("hello", 1, 5),
        (["hello", "you"], 2, 9),
        ([MESSAGE, MESSAGE], 1, 11),
        ([[MESSAGE], [MESSAGE, MESSAGE]], 2, 17),
        ([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], 1, 2),
        ([], 1, 0),
        ({"odd": 1}, 1, 9),
        (["a", 7, None], 3, 8),
    ],
)
def test_an_input_is_one_sequence_and_a_list_is_as_many(given, prompts, size):
    prompt = read({"input": given})
    assert (prompt.prompts, len(prompt.text), prompt.token_ids) == (prompts, size, None)


@pytest.mark.parametrize(("given", "prompts", "tokens"), [([1, 2, 3], 1, 3), ([[1, 2], [3]], 2, 3)])
def test_token_ids_are_counted_exactly(given, prompts, tokens):
    prompt = read({"input": given})
    assert (prompt.prompts, prompt.token_ids) == (prompts, tokens)


def test_the_first_name_that_is_there_counts():
    assert read({"messages": [MESSAGE], "input": "a"}).text == b"a"
    assert read({"messages": [MESSAGE]}).text == b"hello"
    with pytest.raises(BadRequest) as caught:
        read({"inputs": "a"})
    assert caught.value.problem.param == "input"


def test_an_image_is_a_digest():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    assert len(read({"messages": [{"role": "user", "content": [image]}]}).text) == MEDIA_PART_BYTES


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"), ("query", "documents")])
def test_a_query_is_read_before_each_document(names):
    prompt = pairs_prompt({names[0]: "query", names[1]: ["a", "b", "c"]})
    assert (prompt.prompts, len(prompt.text), prompt.repeated_bytes) == (3, 11, 10)


def test_queries_and_documents_side_by_side_are_read_once():
    prompt = pairs_prompt({"text_1": ["a", "b"], "text_2": ["c", "d"]})
    assert (prompt.prompts, prompt.repeated_bytes) == (2, 0)


def test_a_long_query_before_many_documents_costs_no_memory():
    prompt = pairs_prompt({"query": "q" * 1_000_000, "documents": ["d"] * 10_000})
    assert prompt.repeated_bytes == 1_000_000 * 9_999
    assert len(prompt.text) < 2_000_000


@pytest.mark.parametrize(
    ("call", "param"), [({"query": "a"}, "documents"), ({"documents": ["a"]}, "query"), ({}, "query")]
)
def test_a_side_that_is_missing_is_refused_by_name(call, param):
    with pytest.raises(BadRequest) as caught:
        pairs_prompt(call)
    assert caught.value.problem.param == param
