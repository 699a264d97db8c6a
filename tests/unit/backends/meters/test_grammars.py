"""Every stream grammar but the chunks of completions: what passes, what is counted, how an answer ends."""

import json
from itertools import pairwise

import pytest
import streams
from hypothesis import given
from hypothesis import strategies as st

from backends.meters import ANSWERS, AnswerKind
from backends.meters.chunks import ChunkMeter, TranscriptionMeter
from backends.meters.cohere import CohereMeter
from backends.meters.events import StreamCall
from backends.meters.messages import MessagesMeter
from backends.meters.responses import ResponsesMeter
from policies.types import Usage

# meter, the backend's events, tokens counted before the server says how many there are
GRAMMARS = {
    "responses": (ResponsesMeter, streams.responses(), 1 + 3 + 6 + 2, Usage(11, 8, 9)),
    "messages": (MessagesMeter, streams.messages(), 1 + 3 + 6 + 2, Usage(11, 8, 9)),
    "cohere": (CohereMeter, streams.cohere(), 1 + 3 + 6 + 2, Usage(11, 8, 9)),
    "transcript": (TranscriptionMeter, streams.transcript(), 3 + 6, Usage(11, 0, 9)),
    "transcription chunks": (TranscriptionMeter, streams.transcription_chunks(), None, Usage(11, 0, 9)),
}
grammars = pytest.mark.parametrize(("meter_of", "events", "counted", "usage"), GRAMMARS.values(), ids=GRAMMARS)
PASSING = StreamCall(keeps_usage=True, keeps_chunk_usage=True)


def run(meter, data, cuts=()):
    edges = [0, *sorted(cuts), len(data)]
    return b"".join(meter.feed(data[a:b]) for a, b in pairwise(edges)) + meter.finish()


@grammars
def test_what_passes_is_what_came_and_the_servers_count_is_the_last_word(meter_of, events, counted, usage):
    meter = meter_of(PASSING)
    assert b"".join(map(meter.feed, events)) + meter.finish() == b"".join(events)
    assert meter.usage == usage
    assert meter.done
    assert not meter.error
    assert not meter.tokens_estimated


@grammars
def test_a_cut_at_any_byte_changes_neither_bytes_nor_counts(meter_of, events, counted, usage):
    data = b"".join(events)
    for at in range(len(data)):
        meter = meter_of(PASSING)
        assert run(meter, data, [at]) == data
        assert (meter.usage, meter.done) == (usage, True)


@grammars
@given(cut_at=st.data())
def test_cuts_anywhere_change_neither_bytes_nor_counts(meter_of, events, counted, usage, cut_at):
    data = b"".join(events)
    meter = meter_of(PASSING)
    assert run(meter, data, cut_at.draw(st.lists(st.integers(0, len(data)), max_size=30))) == data
    assert (meter.usage, meter.done) == (usage, True)


@grammars
def test_bytes_one_by_one_are_the_same_stream_and_so_are_other_line_ends(meter_of, events, counted, usage):
    data = b"".join(events).replace(b"\n", b"\r\n")
    meter = meter_of(PASSING)
    assert run(meter, data, range(1, len(data))) == data
    assert (meter.usage, meter.done) == (usage, True)


@grammars
def test_what_has_passed_is_counted_before_the_server_says_so(meter_of, events, counted, usage):
    meter = meter_of(PASSING)
    totals = []
    for event in events:
        meter.feed(event)
        totals.append(meter.output_tokens)
    assert totals[-1] == usage.output_tokens
    assert sorted(totals[:-3]) == totals[:-3]
    if counted is not None:
        assert max(totals) == counted
    assert sum(later > earlier for earlier, later in pairwise(totals)) >= len(streams.PIECES) - 1


@grammars
@given(at=st.data())
def test_a_stream_that_is_cut_off_is_not_whole_and_leaves_whole_events(meter_of, events, counted, usage, at):
    data = b"".join(events)
    meter = meter_of(PASSING)
    last = len(b"".join(events[:-2])) + 1
    out = run(meter, data[: at.draw(st.integers(0, last))])
    assert data.startswith(out)
    assert out == b"" or out.endswith(b"\n\n")
    assert not meter.done


@pytest.mark.parametrize(
    ("kind", "events"),
    [
        ("responses", streams.responses()[:-1]),
        ("messages", streams.messages()[:-2]),
        ("cohere", streams.cohere()[:-2]),
    ],
)
def test_where_the_server_says_nothing_at_the_end_the_count_stands_and_is_marked(kind, events):
    meter = ANSWERS[AnswerKind(kind)].meter(StreamCall())
    run(meter, b"".join(events))
    assert meter.usage.output_tokens == 12
    assert meter.tokens_estimated


def test_many_bytes_in_one_delta_are_many_tokens():
    meter = ResponsesMeter(StreamCall(tokens_per_byte=0.25))
    meter.feed(streams.named("response.output_text.delta", delta="x" * 400))
    assert meter.usage == Usage(0, 0, 100)


def test_the_id_of_a_response_is_told_as_soon_as_it_passes():
    ids = []
    meter = ResponsesMeter(StreamCall(on_id=ids.append))
    meter.feed(streams.responses()[0])
    assert ids == ["resp_1"]


def test_the_prompt_of_a_message_is_known_from_its_start():
    meter = MessagesMeter(StreamCall())
    meter.feed(streams.messages()[0])
    assert meter.usage == Usage(11, 8, 0)


@pytest.mark.parametrize(
    ("end", "status", "error"),
    [
        ("response.completed", "incomplete", False),
        ("response.incomplete", "incomplete", False),
        ("response.failed", "failed", True),
    ],
)
def test_a_response_that_ends_otherwise_has_ended_and_is_counted(end, status, error):
    meter = ResponsesMeter(StreamCall())
    events = streams.responses(end, status)
    assert run(meter, b"".join(events)) == b"".join(events)
    assert meter.usage == Usage(11, 8, 9)
    assert (meter.done, meter.error) == (True, error)


def test_a_chat_of_cohere_whose_server_was_stopped_ends_with_its_error():
    events = streams.cohere(usage=False)
    meter = CohereMeter(StreamCall())
    out = run(meter, b"".join(events))
    head = b"".join(events[:-2])
    assert out.startswith(head)
    end, done = out.removeprefix(head).split(b"\n\n", 1)
    assert json.loads(end.removeprefix(b"data: "))["delta"]["finish_reason"] == "ERROR"
    assert done == b"data: [DONE]\n\n"
    assert (meter.done, meter.error, meter.aborted) == (False, True, True)


def test_an_error_at_the_end_of_coheres_stream_passes_and_is_told():
    events = streams.cohere(reason="ERROR")
    meter = CohereMeter(StreamCall())
    assert run(meter, b"".join(events)) == b"".join(events)
    assert (meter.done, meter.error, meter.aborted) == (False, True, False)


def test_a_message_whose_server_was_stopped_ends_with_an_error_and_not_with_its_stop():
    events = streams.messages(stop_reason=None)
    meter = MessagesMeter(StreamCall())
    out = run(meter, b"".join(events))
    assert out.startswith(b"".join(events[:-1]) + b"event: error\ndata: ")
    assert b"message_stop" not in out
    assert (meter.done, meter.error, meter.aborted) == (False, True, True)
    assert meter.usage == Usage(11, 8, 9)


@pytest.mark.parametrize("meter_of", [MessagesMeter, ResponsesMeter])
def test_an_error_event_of_the_server_passes_and_is_told(meter_of):
    event = streams.named("error", error={"type": "internal_error", "message": "it broke"})
    meter = meter_of(StreamCall())
    assert run(meter, event) == event
    assert meter.error
    assert not meter.done


def test_each_grammar_ends_a_cut_stream_in_its_own_words():
    name, _, data = MessagesMeter(StreamCall()).cut("lost").partition(b"\ndata: ")
    assert name == b"event: error"
    assert json.loads(data) == {"type": "error", "error": {"type": "api_error", "message": "lost"}}

    meter = ResponsesMeter(StreamCall())
    for event in streams.responses()[:6]:
        meter.feed(event)
    name, _, data = meter.cut("lost").partition(b"\ndata: ")
    assert name == b"event: error"
    body = {"type": "error", "code": "server_error", "message": "lost", "param": None, "sequence_number": 6}
    assert json.loads(data) == body


def test_each_grammar_says_of_an_error_what_its_api_has_words_for():
    error = {"message": "late", "type": "rate_limit_error", "param": None, "code": 429, "reason": "rate_limit_exceeded"}
    _, _, data = ChunkMeter(StreamCall()).cut("late", error).partition(b"data: ")
    assert json.loads(data) == {"error": error}
    _, _, data = ResponsesMeter(StreamCall()).cut("late", error).partition(b"\ndata: ")
    assert json.loads(data)["code"] == "rate_limit_exceeded"
    _, _, data = MessagesMeter(StreamCall()).cut("late", {"type": "overloaded_error"}).partition(b"\ndata: ")
    assert json.loads(data)["error"] == {"type": "overloaded_error", "message": "late"}


@grammars
@given(data=st.binary(max_size=200))
def test_any_bytes_are_taken(meter_of, events, counted, usage, data):
    whole, cut = meter_of(StreamCall()), meter_of(StreamCall())
    assert run(whole, data) == run(cut, data, range(1, len(data), 3))


@grammars
@given(value=st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=2)))
def test_fields_of_any_type_are_taken(meter_of, events, counted, usage, value):
    kinds = [
        "response.created",
        "response.completed",
        "x.delta",
        "message_start",
        "message_delta",
        "content_block_delta",
    ]
    kinds += ["transcript.text.delta", "transcript.text.done"]
    for kind in kinds:
        body = {"response": value, "message": value, "delta": value, "usage": value, "choices": value}
        meter = meter_of(PASSING)
        event = streams.named(kind, **body)
        assert run(meter, event) == event


def test_there_is_a_row_for_every_api():
    assert set(ANSWERS) == set(AnswerKind)
