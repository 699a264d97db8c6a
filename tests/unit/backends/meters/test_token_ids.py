"""The meter that keeps token ids, against streams as vLLM 0.32 writes them with `return_token_ids`."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.meters.chunks import ChunkMeter
from backends.meters.events import StreamCall, StreamMemo
from backends.meters.token_ids import ID_BYTES, TokenIdMeter, TokenIds
from policies.types import Usage

PROMPT = [1, 1516, 43]
DONE = b"data: [DONE]\n\n"
TEXTS = ["co", "", ' a "token_ids":[7]}],"usage":{', "\n\n", "é\U0001f600", "[1,2]"]
FINISHES = ["stop", "length"]


def event(message):
    return b"data: " + json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def usage(outputs, *, is_chat):
    counts = {"prompt_tokens": len(PROMPT), "total_tokens": len(PROMPT) + outputs, "completion_tokens": outputs}
    return {**counts, "completion_tokens_details": None} if is_chat else counts


def chat_stream(pieces, finish, *, ids, usages, at_end):
    """`pieces`: (text, ids) of each event. With `ids` as vLLM answers `return_token_ids`; with `usages` in chunks."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
    role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    told = {"usage": usage(0, is_chat=True)} if usages else {}
    yield {**head, "choices": [role], **told, "prompt_token_ids": PROMPT if ids else None, "prompt_text": None}
    outputs = 0
    for number, (text, tokens) in enumerate(pieces, start=1):
        outputs += len(tokens)
        is_last = number == len(pieces)
        choice = {
            "index": 0,
            "delta": {"content": text},
            "logprobs": None,
            "finish_reason": finish if is_last else None,
        }
        choice |= {"stop_reason": None} if is_last else {}
        choice |= {"token_ids": tokens if ids else None}
        told = {"usage": usage(outputs, is_chat=True)} if usages else {}
        yield {**head, "choices": [choice], **told, **({} if at_end or not is_last else {"system_fingerprint": "f"})}
    if at_end:
        yield {**head, "choices": [], "usage": usage(outputs, is_chat=False), "system_fingerprint": "f"}


def completion_stream(pieces, finish, *, ids, usages, at_end):
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "tiny"}
    outputs = 0
    for number, (text, tokens) in enumerate(pieces, start=1):
        outputs += len(tokens)
        is_last = number == len(pieces)
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish if is_last else None}
        choice |= {"stop_reason": None, "prompt_token_ids": PROMPT if ids and number == 1 else None}
        choice |= {"token_ids": tokens if ids else None}
        told = {"usage": usage(outputs, is_chat=False)} if usages else {}
        yield {**head, "choices": [choice], **told, **({} if at_end or not is_last else {"system_fingerprint": "f"})}
    if at_end:
        yield {**head, "choices": [], "usage": usage(outputs, is_chat=False), "system_fingerprint": "f"}


STREAMS = {"chat": chat_stream, "completions": completion_stream}


def written(shape, pieces, finish, **options):
    return [event(message) for message in STREAMS[shape](pieces, finish, **options)] + [DONE]


def make_meter(*, keeps=(False, False), keeps_ids=False, bytes_max=1 << 20):
    ids = TokenIds(bytes_max)
    memo = StreamMemo(fingerprint=b'"f"')
    call = StreamCall(keeps_usage=keeps[0], keeps_chunk_usage=keeps[1], memo=memo)
    return TokenIdMeter(call, ids, keeps_ids=keeps_ids), ids


def fed(meter, data, cuts=()):
    out, start = b"", 0
    for cut in (*sorted(cuts), len(data)):
        if cut > start:
            out += meter.feed(data[start:cut])
            start = cut
    return out + meter.finish()


pieces_of_a_stream = st.lists(
    st.tuples(st.sampled_from(TEXTS), st.lists(st.integers(0, 200_000), max_size=3)), min_size=1, max_size=12
)


@given(
    shape=st.sampled_from(sorted(STREAMS)),
    pieces=pieces_of_a_stream,
    finish=st.sampled_from(FINISHES),
    keeps=st.sampled_from([(False, False), (True, False), (True, True)]),
    keeps_ids=st.booleans(),
    has_usage=st.booleans(),
    cuts=st.lists(st.integers(0, 6000), max_size=5),
)
def test_the_client_gets_what_vllm_sends_to_one_that_asks_for_less(
    *, shape, pieces, finish, keeps, keeps_ids, has_usage, cuts
):
    """Whatever it asked for, wherever the bytes are cut; and all ids and counts are kept."""
    asked = b"".join(written(shape, pieces, finish, ids=True, usages=has_usage or keeps[1], at_end=True))
    wanted = b"".join(written(shape, pieces, finish, ids=keeps_ids, usages=keeps[1], at_end=keeps[0]))
    meter, ids = make_meter(keeps=keeps, keeps_ids=keeps_ids)
    assert fed(meter, asked, [cut % (len(asked) + 1) for cut in cuts]) == wanted
    assert ids.prompt == b"1,1516,43"
    assert list(ids.output) == [each for _, tokens in pieces for each in tokens]
    assert meter.usage.output_tokens == len(ids.output)
    assert (meter.done, meter.is_finished, meter.interrupted) == (True, True, None)


@pytest.mark.parametrize("has_usage", [False, True])
@pytest.mark.parametrize("keeps_ids", [False, True])
@pytest.mark.parametrize("shape", STREAMS)
def test_one_event_at_a_time_is_recognised_without_parsing(shape, keeps_ids, has_usage, monkeypatch):
    """All but the first, the second, the finish and the end: also one with the tokens of several steps."""
    pieces = [("co", [number]) for number in range(20)] + [("more", [5, 6, 7]), ("end", [8])]
    meter, ids = make_meter(keeps_ids=keeps_ids)
    parsed = []
    monkeypatch.setattr(
        ChunkMeter, "_parsed", lambda self, *e, was=ChunkMeter._parsed: parsed.append(e) or was(self, *e)
    )
    asked = written(shape, pieces, "stop", ids=True, usages=has_usage, at_end=True)
    wanted = b"".join(written(shape, pieces, "stop", ids=keeps_ids, usages=False, at_end=False))
    assert b"".join(map(meter.feed, asked)) == wanted
    assert has_usage or len(parsed) <= 5
    assert keeps_ids or len(parsed) <= 5
    assert list(ids.output) == [*range(20), 5, 6, 7, 8]


def odd(each):
    """Events that no vLLM sends, and that are not to be taken for the common one."""
    return [
        each,
        each.removesuffix(b"]}]}\n\n") + b"\n\n",  # half an event
        each.replace(b"\n\n", b"\r\n\r\n"),
        each + b"\n",
        b": a comment\n\n" + each,
        b": a line\n" + each,
        each.replace(b"{", b"{\n", 1),
        each.replace(b'"content":"co"', b'"content":"\\n\\n"'),
        each.replace(b'"delta":{"content":"co"}', b'"delta":{}'),
    ]


@pytest.mark.parametrize(
    "limits", [(5, 6, 7, 100), pytest.param((1, 2, 3, 4, 8), marks=pytest.mark.long)], ids=["some limits", "others"]
)
@pytest.mark.parametrize("kind", range(9))
@pytest.mark.parametrize("keeps_ids", [False, True])
@pytest.mark.parametrize("shape", STREAMS)
def test_events_that_come_in_one_read_pass_as_those_that_come_alone(shape, keeps_ids, kind, limits):
    """As they do where the processor is short: the same bytes, ids and count, also beyond the limit of ids."""
    pieces = [("co", [1000 + number]) for number in range(12)]
    for has_usage, ids_max, size, at in itertools.product([False, True], limits, [2, 3, 4], range(2, 6)):
        asked = written(shape, pieces, "stop", ids=True, usages=has_usage, at_end=False)[:8]
        asked[at] = odd(asked[at])[kind]
        grouped = [b"".join(asked[start : start + size]) for start in range(2, 8, size)]
        found = []
        for reads in (asked, [*asked[:2], *grouped]):
            meter, ids = make_meter(keeps_ids=keeps_ids, bytes_max=len(b"1,1516,43") + ID_BYTES * ids_max)
            out = b"".join(map(meter.feed, reads))
            found.append((out, list(ids.output), ids.is_full, meter.last, meter.usage))
        assert found[0] == found[1]


@pytest.mark.parametrize("keeps_ids", [False, True])
@pytest.mark.parametrize("shape", STREAMS)
def test_several_events_of_one_read_are_recognised_at_once(shape, keeps_ids, monkeypatch):
    pieces = [("co", [number]) for number in range(20)]
    meter, ids = make_meter(keeps_ids=keeps_ids)
    asked = written(shape, pieces, "stop", ids=True, usages=False, at_end=False)
    wanted = b"".join(written(shape, pieces, "stop", ids=keeps_ids, usages=False, at_end=False))
    out = b"".join(map(meter.feed, asked[:3]))
    monkeypatch.setattr(TokenIdMeter, "_other", None)
    out += meter.feed(b"".join(asked[3:6])) + meter.feed(b"".join(asked[6:18]))
    monkeypatch.undo()
    assert out + b"".join(map(meter.feed, asked[18:])) == wanted
    assert list(ids.output) == list(range(20))


@given(
    places=st.lists(st.sampled_from([None, "co"]), min_size=2, max_size=8),
    tokens=st.integers(1, 3),
    keeps=st.sampled_from([(False, False), (True, False), (True, True)]),
    keeps_ids=st.booleans(),
    has_usage=st.booleans(),
    at_once=st.booleans(),
)
def test_an_event_that_is_there_for_its_ids_alone_is_not_passed_on(
    *, places, tokens, keeps, keeps_ids, has_usage, at_once
):
    """vLLM with a parser of tool calls sends one where that has no text, and none to a client that asks for no ids."""
    silent, finish = b'"delta":{"content":null}', b'"finish_reason":null'
    pieces = [(text, list(range(tokens))) for text in places] + [("end", [9])]

    def events(*, ids, usages, at_end):
        for each in written("chat", pieces, "stop", ids=ids, usages=usages, at_end=at_end):
            if silent not in each or ids:
                yield each.replace(silent, b'"delta":{}')
            else:
                assert finish in each

    wanted = b"".join(events(ids=keeps_ids, usages=keeps[1], at_end=keeps[0]))
    meter, ids = make_meter(keeps=keeps, keeps_ids=keeps_ids)
    asked = list(events(ids=True, usages=has_usage or keeps[1], at_end=True))
    assert b"".join(map(meter.feed, [b"".join(asked)] if at_once else asked)) + meter.finish() == wanted
    assert len(ids.output) == tokens * len(places) + 1


@pytest.mark.parametrize(
    "end",
    [
        b'data: {"error": {"message": "EngineCore encountered an issue.", "param": null, "code": 500}}\n\n',
        event({"choices": [{"index": 0, "text": "held", "finish_reason": "abort", "token_ids": [9]}]}),
    ],
    ids=["error", "abort"],
)
def test_the_end_of_a_backend_is_not_told_to_the_client(end):
    """Nor are tokens and text of that event, which the client would get twice."""
    begun = written("completions", [("co", [7]), ("de", [8]), ("end", [9])], "stop", ids=True, usages=True, at_end=True)
    meter, ids = make_meter()
    for each in begun[:2]:
        assert meter.feed(each)
    assert meter.feed(end + DONE) + meter.finish() == b""
    assert meter.interrupted is not None
    assert not meter.done
    assert list(ids.output) == [7, 8]


def test_a_call_that_the_backend_rejects_in_its_stream_is_not_interrupted():
    meter, _ = make_meter()
    error = b'data: {"error": {"message": "too long", "type": "BadRequestError", "param": null, "code": 400}}\n\n'
    assert meter.feed(error) == error
    assert (meter.interrupted, meter.rejected) == (None, True)


def test_ids_beyond_the_limit_are_dropped_and_the_stream_goes_on():
    pieces = [("co", [number]) for number in range(10)]
    meter, ids = make_meter(bytes_max=len(b"1,1516,43") + 4 * ID_BYTES)
    asked = written("chat", pieces, "stop", ids=True, usages=True, at_end=True)
    out = b"".join(map(meter.feed, asked))
    assert out == b"".join(written("chat", pieces, "stop", ids=False, usages=False, at_end=False))
    assert ids.is_full
    assert (ids.prompt, list(ids.output)) == (b"", [])
    assert meter.usage.output_tokens == 10


@pytest.mark.parametrize("shape", STREAMS)
@pytest.mark.parametrize("at", range(1, 30))
def test_ids_that_are_forgotten_in_the_middle_are_not_kept_again_and_still_taken_out(shape, at):
    pieces = [("a", [number]) for number in range(25)]
    events = written(shape, pieces, "stop", ids=True, usages=False, at_end=True)
    meter, ids = make_meter()
    out = b"".join(map(meter.feed, events[:at]))
    meter.forget()
    out += b"".join(map(meter.feed, events[at:])) + meter.finish()
    assert out == b"".join(written(shape, pieces, "stop", ids=False, usages=False, at_end=False))
    assert (ids.prompt, len(ids.output), ids.is_full) == (b"", 0, True)
    assert meter._append.__self__ is ids.output, "nothing else is held"
    assert meter.usage == Usage(len(PROMPT), 0, len(pieces))


@pytest.mark.parametrize("shape", [chat_stream, completion_stream])
def test_what_a_stream_without_ids_and_usage_has_is_estimated(shape):
    """As of a router that passes neither on: its tokens are charged while they come."""
    meter = TokenIdMeter(StreamCall(), TokenIds(1 << 20), keeps_ids=False, is_resumable=False)
    for message in shape([("one", [1]), (" two", [2])], "stop", ids=False, usages=False, at_end=False):
        meter.feed(event(message))
    assert meter.tokens_estimated
    assert meter.output_tokens == 2
