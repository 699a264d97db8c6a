"""What the beginning of a stream tells, and what the client gets: the same, however its bytes are written and split."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_vllm import SmallVllm

from backends.meters import events
from backends.meters.events import FirstEvent, StreamCall, payload
from backends.meters.token_ids import TokenIdMeter
from gateway.continuation.stream import ResumableStream

USAGE = {"include_usage": True, "continuous_usage_stats": True}
ASKED = {"stream": True, "return_token_ids": True, "max_tokens": 6, "stream_options": USAGE}
CALLS = {
    "/v1/chat/completions": {**ASKED, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {**ASKED, "prompt": "hi"},
}
COMMENTS = [b"", b": waiting\n\n", b":\n\n", b"retry: 10\n\n", b"\n", b": a line\n", b"data: \n\n"]
STYLES = {
    "as vLLM": lambda message: b"data: " + json.dumps(message, separators=(",", ":")).encode() + b"\n\n",
    "spaces": lambda message: b"data: " + json.dumps(message).encode() + b"\n\n",
    "no space": lambda message: b"data:" + json.dumps(message, separators=(",", ":")).encode() + b"\n\n",
    "CRLF": lambda message: b"data: " + json.dumps(message).encode() + b"\r\n\r\n",
    "lines": lambda message: b"data: " + json.dumps(message, indent=1).replace("\n", "\ndata: ").encode() + b"\n\n",
}


def written(path, style, comments):
    """The events of an answer in this style, with one of these comments before each."""
    *answer, done = [payload(each) for each in SmallVllm().stream(path, CALLS[path])]
    styled = [STYLES[style](json.loads(each)) for each in answer] + [b"data: " + done + b"\n\n"]
    return b"".join(comments[number % len(comments)] + each for number, each in enumerate(styled))


def relayed(data, cuts, *, keeps_ids):
    """What the client gets of these bytes, event by event, and what is kept of them."""
    edges = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    pieces = [data[start:end] for start, end in pairwise(edges)]
    stream, first, held = ResumableStream(None, 1 << 20), FirstEvent(), list(pieces)
    while not first.has_begun(held.pop(0)):
        pass
    stream.began(first.event, 6)
    meter = TokenIdMeter(StreamCall(keeps_usage=True), stream.ids, keeps_ids=keeps_ids)
    out = b"".join(map(meter.feed, pieces)) + meter.finish()
    *messages, done = [each for each in map(payload, out.replace(b"\r\n", b"\n").split(b"\n\n")) if each]
    kept = (stream.exclusion, json.loads(b"[%b]" % stream.ids.prompt), list(stream.ids.output), meter.usage, meter.done)
    return [json.loads(each) for each in messages], done, kept


@given(
    path=st.sampled_from(sorted(CALLS)),
    style=st.sampled_from(sorted(STYLES)),
    comments=st.lists(st.sampled_from(COMMENTS), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 9999), max_size=20),
    keeps_ids=st.booleans(),
)
def test_however_a_stream_is_written_and_split_the_client_gets_the_same(path, style, comments, cuts, keeps_ids):
    plain = relayed(written(path, "as vLLM", [b""]), [], keeps_ids=keeps_ids)
    assert plain[-1][0] is None
    assert relayed(written(path, style, comments), cuts, keeps_ids=keeps_ids) == plain


@pytest.mark.parametrize("data", [b"data: \n\n", b"data:\n\n", b": waiting\n\n"])
def test_an_event_without_data_is_not_the_first(data):
    assert not FirstEvent().has_begun(data)


@pytest.mark.parametrize("data", [b"d" * 30, b": a comment of 30 characters.\n\n"])
def test_a_stream_without_an_event_has_begun_after_the_most_bytes_of_one(monkeypatch, data):
    """What comes before the first event is held."""
    monkeypatch.setattr(events, "EVENT_BYTES_MAX", 100)
    first = FirstEvent()
    assert [first.has_begun(data) for _ in range(4)] == [False, False, False, True]
    assert first.event == b""
