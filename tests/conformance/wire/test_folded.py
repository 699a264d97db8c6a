"""Folding takes away how tokens fall into events, and hides nothing else."""

import pytest
from folded import folded


def chunk(text, finish="null", more=""):
    choice = f'{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":{finish}}}'
    return f'data: {{"choices":[{choice}]{more}}}\n\n'.encode()


def delta(text, number):
    data = f'{{"delta":"{text}","logprobs":[],"sequence_number":{number},"type":"x"}}'
    return f"event: x.delta\ndata: {data}\n\n".encode()


END = b"data: [DONE]\n\n"
ONE = (chunk("a"), chunk("b"), chunk("c"), chunk("d", '"length"'), END)


@pytest.mark.parametrize(
    "same",
    [
        (chunk("abc"), chunk("d", '"length"'), END),
        (chunk("a"), chunk("bc"), chunk("d", '"length"'), END),
        (chunk(""), chunk("abc"), chunk("d", '"length"'), END),
    ],
)
def test_how_tokens_fall_into_events_makes_no_difference(same):
    assert folded(same) == folded(ONE)


@pytest.mark.parametrize(
    "other",
    [
        ONE[1:],
        ONE[:-1],
        (*ONE, END),
        (ONE[0], *ONE),
        (ONE[1], ONE[0], *ONE[2:]),
        (chunk("a", more=',"usage":null'), *ONE[1:]),
        (*ONE[:2], ONE[2].replace(b":", b": ", 2), *ONE[3:]),
        (*ONE[:2], ONE[2].replace(b"\n\n", b"\r\n\r\n"), *ONE[3:]),
        (*ONE[:2], b": comment\n\n", *ONE[2:]),
        (*ONE[:3], chunk("d", '"stop"'), END),
        (*ONE[:3], chunk("e", '"length"'), END),
    ],
)
def test_anything_else_is_a_difference(other):
    assert folded(other) != folded(ONE)


def test_counts_are_those_of_the_last_event_and_lists_are_joined():
    def told(text, tokens):
        usage = f',"usage":{{"prompt_tokens":3,"total_tokens":{3 + tokens},"completion_tokens":{tokens}}}'
        return chunk(text, more=usage)

    assert folded((told("a", 1), told("b", 2))) == folded((told("ab", 2),))
    assert folded((told("a", 1), told("b", 1))) != folded((told("ab", 2),))
    listed = [b'data: {"text":"%b","tokens":[%b]}\n\n' % pair for pair in ((b"a", b"1"), (b"b", b"2"), (b"ab", b"1,2"))]
    assert folded(tuple(listed[:2])) == folded(tuple(listed[2:]))


def test_events_are_counted_and_a_gap_is_seen():
    assert folded((delta("a", 0), delta("b", 1))) == folded((delta("ab", 0),))
    with pytest.raises(AssertionError, match="event 2 comes behind event 0"):
        folded((delta("a", 0), delta("b", 2)))


def test_what_is_within_a_list_has_to_be_written_alike():
    listed = [b'data: {"content":[%b]}\n\n' % each for each in (b'{"a":1.0}', b'{"a": 1.0}', b'{"a":1.00}')]
    assert len({folded((each,)) for each in listed}) == 3


def test_an_answer_that_is_no_stream_is_itself():
    assert folded((b'{"a": 1}',)) != folded((b'{"a":1}',))
    assert len(folded((b"Not Found",))) == 1
