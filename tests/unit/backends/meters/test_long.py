"""Members of a long answer, found from its end: always what a parser finds, in slices that are short."""

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.meters import long
from tests.examples import examples

USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 2}}
LOGPROBS = [{"token": f'"{number}\\', "logprob": -0.5, "bytes": [1, 2]} for number in range(20_000)]

# What a search could stumble over: the name itself as a name, a text and in a text, quotes, backslashes, brackets.
TEXTS = st.one_of(
    st.sampled_from(['"usage"', '\\"usage\\":', "usage", "\\", '"', '\\\\"', "{", "}]", '{"usage":{', "a" * 50]),
    st.text(max_size=5),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(-5, 5), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.one_of(TEXTS, st.just("usage")), inner)),
    max_leaves=12,
)


def outcome(steps):
    """What the steps come to, and how many they were."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


@given(
    body=st.dictionaries(st.one_of(TEXTS, st.just("usage")), VALUES),
    indent=st.sampled_from([None, 1]),
    ascii_=st.booleans(),
    slice_bytes=st.integers(1, 40),
)
@settings(max_examples=examples(100), deadline=None)
def test_a_member_is_what_a_parser_finds(body, indent, ascii_, slice_bytes):
    data = json.dumps(body, indent=indent, ensure_ascii=ascii_).encode(errors="surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long, "SLICE_BYTES", slice_bytes)
        patch.setattr(long, "SEARCH_BYTES", slice_bytes + len('"usage"'))
        assert outcome(long.member(data, "usage"))[0] == body.get("usage")
        assert outcome(long.is_whole(data))[0]
        assert not outcome(long.is_whole(data[:-1]))[0]


def test_of_two_members_of_a_name_the_last_counts():
    assert outcome(long.member(b'{"usage": {"a": 1}, "usage": {"a": 2}, "x": {"usage": 3}}', "usage"))[0] == {"a": 2}


@pytest.mark.parametrize("behind", [{}, {"prompt_logprobs": LOGPROBS}], ids=["at the end", "before much else"])
def test_a_long_answer_is_searched_in_slices(behind):
    body = {"tools": [{"usage": {"prompt_tokens": 1}}], "choices": [{"logprobs": LOGPROBS}], "usage": USAGE, **behind}
    data = bytearray(orjson.dumps(body))
    found, slices = outcome(long.member(data, "usage"))
    assert found == USAGE
    searched = len(data) - data.index(b'"usage":{"prompt_tokens":5')
    assert searched / long.SLICE_BYTES <= slices <= 1 + searched / long.SLICE_BYTES + searched / long.SEARCH_BYTES + 1


@pytest.mark.parametrize("before", ["", "x"])
def test_an_escape_is_not_cut(before):
    text = before + "\\" * (2 * long.SLICE_BYTES + 1) + '"usage":'
    body = {"choices": [text], "usage": USAGE, "x": text}
    assert outcome(long.member(orjson.dumps(body), "usage"))[0] == USAGE
    whole, slices = outcome(long.is_whole(orjson.dumps(body)))
    assert whole
    assert slices >= len(orjson.dumps(body)) // (long.SLICE_BYTES + 1)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'"usage"', b'{"usage"', b'{"usage":', b'{"usage":{', b"\0" * 99])
def test_what_is_no_answer_has_no_members(data):
    assert outcome(long.member(data, "usage"))[0] is None
