"""A long object, read in slices: what a parser gives, or its refusal, wherever the slices end."""

import contextlib
import json
import tracemalloc
from types import SimpleNamespace

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.bodies import NESTING_MAX, read_json
from gateway.api.errors import BadRequest, ProblemError
from gateway.intake import long_json
from gateway.intake.long_json import read_object
from tests.examples import examples

VALUES_MAX = 100_000
TEXTS = st.one_of(
    st.sampled_from(
        ['"', "\\", '\\"', "\\\\", "{", "}],", ",", "é" * 40, "中" * 40, "😀" * 40, "a" * 50, "\\" * 41, "\n" * 30]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    st.one_of(SCALARS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(TEXTS, inner, max_size=5)),
    max_leaves=20,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=6)
SLICES = st.integers(17, 80)


def outcome(body, values_max=VALUES_MAX):
    """The object, and the number of slices."""
    steps, count = read_object(body, values_max), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def outcome_or_none(body):
    try:
        return outcome(body)[0]
    except BadRequest:
        return None


def parsed_or_none(body):
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if type(value) is dict else None


@contextlib.contextmanager
def in_slices_of(size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_json, "SLICE_BYTES", size)
        patch.setattr(long_json, "DESCENTS_PER_SLICE", 1_000)
        yield


@given(body=OBJECTS, indent=st.sampled_from([None, 1]), ascii_=st.booleans(), size=SLICES)
@settings(max_examples=examples(60), deadline=None)
def test_it_is_what_a_parser_gives(body, indent, ascii_, size):
    data = json.dumps(body, indent=indent, ensure_ascii=ascii_).encode()
    with in_slices_of(size):
        found = outcome(data)[0]
        assert found == orjson.loads(data)
        assert list(found) == list(body)


@given(body=OBJECTS, ascii_=st.booleans(), size=SLICES, data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_what_is_no_json_is_refused_as_by_a_parser(body, ascii_, size, data):
    written = bytearray(json.dumps(body, ensure_ascii=ascii_).encode())
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(written) - 1))
        kind = data.draw(st.sampled_from(["drop", "put", "cut"]))
        if kind == "drop":
            del written[at]
        elif kind == "put":
            written[at:at] = data.draw(
                st.sampled_from(
                    [b",", b"]", b"}", b"{", b"[", b'"', b"\\", b"\x80", b"\xe4", b":", b"1", b"\x01", b"\\ud83d"]
                )
            )
        else:
            del written[at:]
        if not written:
            break
    with in_slices_of(size):
        assert outcome_or_none(bytes(written)) == parsed_or_none(bytes(written))


@pytest.mark.parametrize("filler", ["a", "é", "中", "😀"])
@pytest.mark.parametrize(
    "end",
    [
        '"z":x}',
        '"z":[1,,2]}',
        '"z":[1 2]}',
        '"z" 1}',
        "1}",
        '"z":"',
        '"z":[',
        '"z":1',
        '"z":1}}',
        '"z":"\\x"}',
        '"z":"%s",x}' % ("é" * 9),
    ],
)
def test_the_character_that_is_wrong_is_the_parsers(filler, end):
    text = '{"a":"' + filler * 200_000 + '",' + end
    with pytest.raises(BadRequest) as whole:
        read_json(text.encode())
    with pytest.raises(BadRequest) as sliced:
        outcome(text.encode())
    assert str(sliced.value.problem.message) == str(whole.value.problem.message)


@pytest.mark.parametrize(
    ("levels", "inner", "searches_max"), [(90_000, "", 2), (NESTING_MAX - 2, "[]," * 2_000 + "1", NESTING_MAX + 20)]
)
def test_a_slice_is_searched_at_most_once_a_step_however_deep_it_is(monkeypatch, levels, inner, searches_max):
    """Each search takes milliseconds, and all levels of one slice are searched from their own beginning."""
    monkeypatch.setattr(long_json, "SLICE_BYTES", 4096)
    searched_at, search = [], long_json._Reader._batch
    monkeypatch.setattr(long_json._Reader, "_batch", lambda *given: searched_at.append(step) or search(*given))
    steps = read_object(f'{{"x":{"[" * levels}{inner}{"]" * levels}}}'.encode(), VALUES_MAX)
    step = 0
    with contextlib.suppress(StopIteration, BadRequest):
        while True:
            next(steps)
            step += 1
    assert len(searched_at) == len(set(searched_at))
    assert 1 <= len(searched_at) <= searches_max


@pytest.mark.parametrize("text", ["a", "é", "中", "😀", "\\", '"', "\n", 'x"\\,[{'])
@pytest.mark.parametrize("ascii_", [True, False])
def test_a_long_text_is_read_in_slices(text, ascii_):
    body = {"model": "tiny", "messages": [{"role": "user", "content": text * 300_000}], "n": 1}
    data = json.dumps(body, ensure_ascii=ascii_).encode()
    found, slices = outcome(bytearray(data))
    assert found == body
    assert slices >= len(data) // long_json.SLICE_BYTES


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":[%b1]}' % (b"1," * 70_000),
        b'{"a":[%b{}]}' % (b'{"b":["c"]},' * 20_000),
        b'{"a":[%b""]}' % (b'"%b",' % (b"word " * 200) * 300),
        b'{%b"z":1}' % b"".join(b'"%d":1,' % number for number in range(20_000)),
    ],
    ids=["numbers", "objects", "texts", "members"],
)
def test_no_step_is_longer_than_a_slice(body, monkeypatch):
    parsed = []
    real = orjson.loads
    monkeypatch.setattr(orjson, "loads", lambda data: parsed.append(len(data)) or real(data))
    found, _ = outcome(body)
    assert max(parsed) <= long_json.SLICE_BYTES + 2
    assert found == real(body)


def test_of_two_members_of_a_name_the_last_counts():
    filler = b'"x":"%b",' % (b"a" * 200_000)
    assert outcome(b'{"n":1,' + filler + b'"n":2}')[0]["n"] == 2


@pytest.mark.parametrize("levels", [NESTING_MAX, NESTING_MAX + 1])
@pytest.mark.parametrize("filler", [0, 200_000])
def test_nesting_is_bounded(levels, filler):
    body = b'{"a":' + b"[" * (levels - 1) + b'"' + b"a" * filler + b'"' + b"]" * (levels - 1) + b"}"
    if levels <= NESTING_MAX:
        assert outcome(body)[0] == orjson.loads(body)
    else:
        with pytest.raises(BadRequest, match="nested"):
            outcome(body)


def test_deep_elements_that_are_each_longer_than_a_slice_are_too_complex():
    deep = b"[" * 100 + b'"' + b"a" * (long_json.SLICE_BYTES + 1) + b'"' + b"]" * 100
    with pytest.raises(ProblemError, match="too many values"):
        outcome(b'{"a":[' + b",".join([deep] * 20) + b"]}")


@pytest.mark.parametrize("white", [b" " * 300_000, b"\n\t" * 150_000])
def test_white_space_is_skipped_in_slices(white):
    found, slices = outcome(white + b'{"a"' + white + b":" + white + b"[1," + white + b"2]" + white + b"}" + white)
    assert found == {"a": [1, 2]}
    assert slices >= 6 * len(white) // long_json.SLICE_BYTES - 6


@pytest.mark.parametrize("one", [b"123456", b"1.5", b"{}", b'""', b"[]", b'{"a":1}'])
def test_a_body_of_too_many_values_is_refused_before_any_is_parsed(one):
    number = 4_000_000 // len(one + b",")
    body = b'{"a":[%b1]}' % ((one + b",") * number)
    values = number // (long_json.NUMBERS_TO_A_VALUE if one[:1] == b"1" else 1)
    with traced() as memory:
        with pytest.raises(ProblemError, match="too many values"):
            outcome(body, values // 2)
        assert memory.peak() < 0.8 * len(body)  # a number that is parsed takes 40 bytes


@contextlib.contextmanager
def traced():
    tracemalloc.start()
    try:
        yield SimpleNamespace(peak=lambda: tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def test_a_long_text_is_held_once():
    body = b'{"a":"%b"}' % (b"word " * 1_600_000)
    with traced() as memory:
        outcome(body)
        assert memory.peak() < 1.3 * len(body)
