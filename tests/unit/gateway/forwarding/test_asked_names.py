"""The asked name in an answer: it stands where the backend's was, and every other byte is the backend's."""

import asyncio
import json

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backends.meters import ANSWERS, AnswerKind, long
from backends.meters.events import StreamCall
from gateway.forwarding.answers.asked_names import EventRenamer, rename_whole, renaming
from tests.examples import examples

ASKED = 'my "chat" \\ µ'
NAMES = st.sampled_from(["tiny", 'a "b" \\', "model", "µ", "", "x" * 200])
# What a search could stumble over: the name itself as a name, as a text and in a text.
TEXTS = st.one_of(
    st.sampled_from(
        ['"model"', '\\"model\\": \\"', "model", "\\", '"', '{"model":"x"}', 'data: {"model":"x"}', "\n\n"]
    ),
    st.text(max_size=6),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(-5, 5), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.one_of(TEXTS, st.just("model")), inner)),
    max_leaves=8,
)
OTHERS = st.dictionaries(TEXTS, VALUES, max_size=4)
MARK = "\0mark\0"


def written(value, *, ascii_=False, spaced=False):
    separators = None if spaced else (",", ":")
    return json.dumps(value, ensure_ascii=ascii_, separators=separators).encode(errors="surrogatepass")


def with_names(before, name, after, **style):
    """An object with a model of this name, as a server writes it, and as its client is to see it."""
    body = {**before, "model": MARK, **{key: value for key, value in after.items() if key != "model"}}
    text, mark = written(body, **style), written(MARK, **style)
    return text.replace(mark, written(name, **style)), text.replace(mark, orjson.dumps(ASKED))


STYLES = st.fixed_dictionaries({"ascii_": st.booleans(), "spaced": st.booleans()})


@given(before=OTHERS, name=NAMES, after=OTHERS, style=STYLES)
@settings(max_examples=examples(150), deadline=None)
def test_a_whole_answer_has_the_asked_name_and_the_backends_bytes(before, name, after, style):
    before.pop("model", None)
    body, wanted = with_names(before, name, after, **style)
    assert asyncio.run(rename_whole(body, ASKED)) == wanted


@pytest.mark.parametrize("body", [b"", b"plain text", b'{"a":1}', b'{"a":{"model":"x"}}', b'{"model":null}', b"\xff{"])
def test_a_body_that_names_no_model_stays_as_it_is(body):
    assert asyncio.run(rename_whole(body, ASKED)) == body


def test_a_long_answer_is_searched_in_slices():
    body = b'{"model":"tiny","data":[' + b",".join([b"0.125"] * 60_000) + b"]}"
    assert len(body) > long.LONG_BYTES
    assert asyncio.run(rename_whole(bytearray(body), "chat")) == body.replace(b"tiny", b"chat")


def chat_events(name, texts, *, name_first, eol=b"\n"):
    """A stream of chunks, and what its client is to see."""
    given_, wanted = [], []
    for text in texts:
        head, choice = {"id": "chatcmpl-1", "created": 7}, {"choices": [{"index": 0, "delta": {"content": text}}]}
        pair = with_names(head, name, choice) if name_first else with_names({**choice, **head}, name, {})
        for of, body in zip((given_, wanted), pair, strict=True):
            of.append(b"data: " + body + eol * 2)
    return b"".join(given_) + b"data: [DONE]\n\n", b"".join(wanted) + b"data: [DONE]\n\n"


def cut(data, at):
    places = sorted({min(each, len(data)) for each in at})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True) if start < end]


@given(
    name=NAMES,
    texts=st.lists(TEXTS, min_size=1, max_size=5),
    name_first=st.booleans(),
    eol=st.sampled_from([b"\n", b"\r\n"]),
    at=st.lists(st.integers(0, 900), max_size=12),
)
@example(name="tiny", texts=["a", "b"], name_first=True, eol=b"\n", at=[])
@settings(max_examples=examples(150), deadline=None)
def test_however_a_stream_is_split_its_client_sees_the_asked_name_and_the_backends_bytes(
    name, texts, name_first, eol, at
):
    data, wanted = chat_events(name, texts, name_first=name_first, eol=eol)
    meter = renaming(ANSWERS[AnswerKind.CHOICES].meter(StreamCall(keeps_usage=True)), ASKED, AnswerKind.CHOICES)
    out = b"".join(meter.feed(piece) for piece in cut(data, at)) + meter.finish()
    assert out == wanted
    assert meter.done


EVENTS = [
    (AnswerKind.RESPONSES, "response", "response.created"),
    (AnswerKind.RESPONSES, "response", "response.completed"),
    (AnswerKind.MESSAGES, "message", "message_start"),
]


@pytest.mark.parametrize("of", EVENTS)
@given(before=OTHERS, name=NAMES, after=OTHERS, at=st.lists(st.integers(0, 400), max_size=6))
@settings(max_examples=examples(60), deadline=None)
def test_events_that_hold_the_answer_have_the_asked_name_in_it(of, before, name, after, at):
    kind, holder, type_ = of
    before.pop("model", None)
    head = b'event: %b\ndata: {"type":"%b","%b":' % (type_.encode(), type_.encode(), holder.encode())
    data, wanted = (head + body + b"}\n\n" for body in with_names(before, name, after))
    renamer, meter = EventRenamer(ASKED, kind), ANSWERS[kind].meter(StreamCall())
    assert renamer(data) == wanted
    out = b"".join(renamer(meter.feed(piece)) for piece in cut(data, at) if piece)
    assert out == wanted


@pytest.mark.parametrize(
    "event",
    [
        b'event: response.output_item.done\ndata: {"type":"response.output_item.done","item":{"model":"x"}}\n\n',
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"\\"model\\":"}\n\n',
        b'data: {"type":"response.created","response":{"metadata":{"model":"x"}}}\n\n',
        b': a comment about a "model"\n\n',
    ],
)
def test_other_members_of_that_name_in_events_stay_as_they_are(event):
    assert EventRenamer(ASKED, AnswerKind.RESPONSES)(event) == event


def test_a_chunk_that_begins_otherwise_is_searched_again():
    renamer = EventRenamer("chat", AnswerKind.CHOICES)
    for created in (1, 1, 2, 2, 1):
        event = b'data: {"created":%d,"model":"tiny","choices":[{"delta":{"content":"tiny"}}]}\n\n' % created
        assert renamer(event) == event.replace(b'"model":"tiny"', b'"model":"chat"')
    two = b'data: {"created":1,"model":"tiny"}\n\ndata: {"created":3,"model":"tiny"}\n\n'
    assert renamer(two) == two.replace(b"tiny", b"chat")
