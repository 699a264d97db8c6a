"""The stream meter against streams as vLLM 0.32 writes them, whole and cut at every byte."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.meters import events
from backends.meters.chunks import ChunkMeter
from backends.meters.events import EventTooLongError, StreamCall, StreamMemo
from backends.meters.usage import openai_usage
from policies.types import Usage

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "vllm-0.32.0-85068dfe"


def compact(message):
    return b"data: " + json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def usage(prompt, output):
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + output,
        "completion_tokens": output,
        "completion_tokens_details": None,
    }


def chunk(output, *, content="co", index=0, finish=None, prompt=11, fingerprint=None, with_usage=True, role=False):
    """One event of a chat stream, in vLLM's order of keys."""
    choice = {"index": index, "delta": {"content": content}, "logprobs": None, "finish_reason": finish}
    choice |= {"stop_reason": None, "token_ids": None} if finish else {"token_ids": None}
    if role:
        choice = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    message = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "tiny",
        "choices": [choice],
    }
    if with_usage:
        message["usage"] = usage(prompt, output)
    if fingerprint:
        message["system_fingerprint"] = fingerprint
    if role:
        message |= {"prompt_token_ids": None, "prompt_text": None}
    return compact(message)


def last_usage(prompt, output, cached=None):
    total = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
    if cached is not None:
        total["prompt_tokens_details"] = {"cached_tokens": cached}
    message = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny", "choices": []}
    return compact(message | {"usage": total, "system_fingerprint": FINGERPRINT})


TRICKY = (
    'a "quoted",\\"usage\\":{"prompt_tokens":9,"total_tokens":9,"completion_tokens":9}}\n\ndata: [DONE] é\U0001f600'
)


def stream(*, continuous, include):
    """What vLLM sends for the same answer to a client that asked for this."""
    keep = {"with_usage": continuous}
    finish = {"finish": "length", "fingerprint": None if include else FINGERPRINT}
    events = [chunk(0, role=True, **keep), chunk(1, **keep), chunk(4, content=TRICKY, **keep), chunk(5, **keep)]
    events += [chunk(6, **finish, **keep)]
    return [*events, *([last_usage(11, 6, cached=8)] if include else []), DONE]


BACKEND = b"".join(stream(continuous=True, include=True))
TO_CLIENT = {
    (wants_usage, wants_continuous): b"".join(stream(continuous=wants_usage and wants_continuous, include=wants_usage))
    for wants_usage in (False, True)
    for wants_continuous in (False, True)
}


def make_meter(**call):
    return ChunkMeter(StreamCall(**call))


def run(meter, data, cuts=()):
    """Feed the data in pieces, cut at these offsets; what the client gets."""
    edges = [0, *sorted(cuts), len(data)]
    return b"".join(meter.feed(data[a:b]) for a, b in pairwise(edges)) + meter.finish()


@pytest.mark.parametrize(("wants_usage", "wants_continuous"), TO_CLIENT)
def test_the_client_gets_the_bytes_vllm_would_have_sent_to_it(wants_usage, wants_continuous):
    meter = make_meter(keeps_usage=wants_usage, keeps_chunk_usage=wants_usage and wants_continuous)
    events = BACKEND.split(b"\n\n")[:-1]
    out = b"".join(meter.feed(event + b"\n\n") for event in events) + meter.finish()
    assert out == TO_CLIENT[wants_usage, wants_continuous]
    assert meter.usage == Usage(prompt_tokens=11, cached_tokens=8, output_tokens=6)
    assert meter.done
    assert not meter.error
    assert not meter.tokens_estimated


def test_usage_is_known_after_every_chunk():
    meter = make_meter()
    seen = []
    for event in stream(continuous=True, include=True)[:5]:
        meter.feed(event)
        seen.append(meter.usage)
    assert [(one.prompt_tokens, one.output_tokens) for one in seen] == [(11, 0), (11, 1), (11, 4), (11, 5), (11, 6)]


@pytest.mark.parametrize(("wants_usage", "wants_continuous"), TO_CLIENT)
def test_a_cut_at_any_byte_changes_neither_bytes_nor_counts(wants_usage, wants_continuous):
    for at in range(len(BACKEND)):
        meter = make_meter(keeps_usage=wants_usage, keeps_chunk_usage=wants_usage and wants_continuous)
        assert run(meter, BACKEND, [at]) == TO_CLIENT[wants_usage, wants_continuous]
        assert meter.usage == Usage(11, 8, 6)
        assert meter.done


@given(cuts=st.lists(st.integers(0, len(BACKEND)), max_size=40), wants_usage=st.booleans())
def test_cuts_anywhere_change_neither_bytes_nor_counts(cuts, wants_usage):
    meter = make_meter(keeps_usage=wants_usage)
    assert run(meter, BACKEND, cuts) == TO_CLIENT[wants_usage, False]
    assert meter.usage == Usage(11, 8, 6)


def test_bytes_one_by_one_are_the_same_stream():
    assert run(make_meter(), BACKEND, range(1, len(BACKEND))) == TO_CLIENT[False, False]


@given(
    content=st.text(),
    outputs=st.lists(st.integers(0, 10**6), min_size=1, max_size=6),
    prompt=st.integers(0, 10**7),
)
def test_any_content_passes_untouched_and_is_counted(content, outputs, prompt):
    meter = make_meter(keeps_usage=True)
    for output in outputs:
        out = meter.feed(chunk(output, content=content, prompt=prompt))
        assert out == chunk(output, content=content, prompt=prompt, with_usage=False)
        assert meter.usage == Usage(prompt, 0, output)


def test_an_event_like_the_one_before_is_not_parsed(monkeypatch):
    meter = make_meter()
    meter.feed(chunk(1))
    monkeypatch.setattr(ChunkMeter, "_parsed", lambda _, event: pytest.fail(f"parsed: {event}"))
    assert meter.feed(chunk(2)) == chunk(2, with_usage=False)
    assert meter.feed(chunk(3) + chunk(4)) == chunk(3, with_usage=False) + chunk(4, with_usage=False)
    assert meter.usage == Usage(11, 0, 4)


class ParsesAll(ChunkMeter):
    """The meter without its short way: it parses each event."""

    def _expect_like(self, event):
        """Expect nothing of the next event."""


def events_of(told):
    """Events like vLLM's, whose choices and usage may have anything beside the token counts."""
    output = 0
    for content, more, prompt, wrong, beside, details, finish in told:
        output = max(0, output + more)
        choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish, **beside}
        counts = {"prompt_tokens": prompt, "total_tokens": prompt + output + wrong, "completion_tokens": output}
        yield compact({"id": "1", "choices": [choice], "usage": {**counts, **details}})


def mostly(usual, *others):
    return st.sampled_from([usual] * 5 + list(others))


EVENTS_OF_A_STREAM = st.lists(
    st.tuples(
        st.text(max_size=8),
        mostly(1, 0, 2, 7, -3),
        mostly(7, 11),
        mostly(0, 2),
        mostly({}, {"token_ids": None}, {"stop_reason": "50% %d %%"}, {"token_ids": [1]}),
        mostly({}, {"completion_tokens_details": None}, {"prompt_tokens_details": {"cached_tokens": 4}}),
        mostly(None, "length"),
    ),
    max_size=12,
)


@pytest.mark.interpreted
@given(
    told=EVENTS_OF_A_STREAM,
    cuts=st.lists(st.integers(0, 4000), max_size=4),
    keeps=st.sampled_from([(False, False), (True, False), (True, True)]),
)
def test_events_that_are_not_parsed_count_and_pass_as_if_they_were(told, cuts, keeps):
    """Each event whole, several at once, or cut; with one token more, several, none or fewer."""
    call = {"keeps_usage": keeps[0], "keeps_chunk_usage": keeps[1], "memo": SHARED}
    short, parsing = ChunkMeter(StreamCall(**call)), ParsesAll(StreamCall(**call))
    for event in events_of(told):
        assert short.feed(event) == parsing.feed(event)
        assert (short.usage, short.done, short.error) == (parsing.usage, parsing.done, parsing.error)
    data = b"".join(events_of(told)) + DONE
    inside = sorted(cut for cut in cuts if cut < len(data))
    assert run(short, data, inside) == run(parsing, data, inside)
    assert (short.usage, short.done) == (parsing.usage, parsing.done)


SHARED = StreamMemo()  # what one stream remembers must not change the next


def test_a_multi_token_event_is_not_parsed(monkeypatch):
    meter = make_meter()
    meter.feed(chunk(1))
    monkeypatch.setattr(ChunkMeter, "_parsed", lambda _, event: pytest.fail(f"parsed: {event}"))
    for output in (4, 5, 9):
        assert meter.feed(chunk(output)) == chunk(output, with_usage=False)
        assert meter.usage == Usage(11, 0, output)
    for first, second in ((9, 10), (11, 13), (13, 13)):  # the last of several in one read is not all of it
        assert meter.feed(chunk(first) + chunk(second)) == b"".join(chunk(n, with_usage=False) for n in (first, second))


def test_choices_are_counted_each_and_summed():
    meter = make_meter(choices=2)
    fed = [(0, 1), (1, 2), (0, 3), (1, 5)]
    totals = []
    for index, output in fed:
        assert meter.feed(chunk(output, index=index)) == chunk(output, index=index, with_usage=False)
        totals.append(meter.usage.output_tokens)
    assert totals == [1, 3, 5, 8]
    assert meter.usage.prompt_tokens == 11


def test_prompts_are_counted_each_and_summed():
    meter = make_meter(choices=4, prompts=2)
    for index, prompt in [(0, 10), (1, 10), (2, 7), (3, 7), (2, 7)]:
        meter.feed(chunk(3, index=index, prompt=prompt))
    assert meter.usage == Usage(prompt_tokens=17, cached_tokens=0, output_tokens=12)


def test_the_last_usage_is_of_all_choices():
    meter = make_meter(choices=2)
    run(meter, chunk(3, index=0) + chunk(4, index=1) + last_usage(11, 8, cached=5) + DONE)
    assert meter.usage == Usage(prompt_tokens=11, cached_tokens=5, output_tokens=8)


def test_of_several_choices_each_finish_event_carries_the_fingerprint():
    data = chunk(3, index=1, finish="stop") + chunk(4, index=0) + chunk(5, index=0, finish="stop") + last_usage(11, 8)
    memo = StreamMemo(json.dumps(FINGERPRINT).encode())
    expected = (
        chunk(3, index=1, finish="stop", fingerprint=FINGERPRINT, with_usage=False)
        + chunk(4, index=0, with_usage=False)
        + chunk(5, index=0, finish="stop", fingerprint=FINGERPRINT, with_usage=False)
    )
    assert run(make_meter(choices=2, memo=memo), data + DONE) == expected + DONE


def test_the_fingerprint_is_learnt_for_the_next_stream():
    memo = StreamMemo()
    run(make_meter(memo=memo), BACKEND)
    assert memo.fingerprint == json.dumps(FINGERPRINT).encode()


def test_a_finish_event_is_not_lost_when_no_usage_follows():
    finish = chunk(5, finish="stop")
    assert run(make_meter(), finish + DONE) == chunk(5, finish="stop", with_usage=False) + DONE


@pytest.mark.parametrize(("wants_usage", "wants_continuous"), TO_CLIENT)
@pytest.mark.parametrize("choices", [1, 2])
def test_an_answer_that_is_whole_gets_its_end_where_the_connection_is_lost_before_it(
    wants_usage, wants_continuous, choices
):
    """After the finish of its last choice, and not before."""
    ends = b"".join(chunk(5, finish="stop", index=index) for index in range(choices))
    asked = {"choices": choices, "memo": StreamMemo(json.dumps(FINGERPRINT).encode())}
    asked |= {"keeps_usage": wants_usage, "keeps_chunk_usage": wants_continuous}
    whole, cut = ChunkMeter(StreamCall(**asked)), ChunkMeter(StreamCall(**asked))
    assert run(cut, ends) == run(whole, ends + last_usage(11, 5 * choices) + DONE)
    assert cut.done
    if choices > 1:
        half = ChunkMeter(StreamCall(**asked))
        assert DONE not in run(half, chunk(5, finish="stop"))
        assert not half.done


def test_an_error_event_is_never_followed_by_done():
    error = b'data: {"error": {"message": "EngineCore encountered an issue.", "code": 500}}\n\n'
    meter = make_meter()
    assert run(meter, chunk(1) + error + DONE) == chunk(1, with_usage=False) + error
    assert meter.error
    assert not meter.done


def test_an_abort_of_the_backend_ends_with_an_error_event_instead_of_done():
    meter = make_meter()
    out = run(meter, chunk(1) + chunk(2, finish="abort") + last_usage(11, 2) + DONE)
    finish = chunk(2, finish="abort", fingerprint=FINGERPRINT, with_usage=False)
    assert out.startswith(chunk(1, with_usage=False) + finish + b'data: {"error":{')
    assert b"[DONE]" not in out
    assert meter.aborted
    assert meter.error
    assert not meter.done


def test_without_usage_every_event_with_content_is_one_token():
    meter = make_meter()
    bare = {"with_usage": False}
    data = (
        chunk(0, role=True, **bare) + chunk(1, **bare) + chunk(2, **bare) + chunk(2, content="", finish="stop", **bare)
    )
    assert run(meter, data + DONE) == data + DONE
    assert meter.tokens_estimated
    assert meter.usage == Usage(0, 0, 2)


def test_completions_text_is_content_too():
    meter = make_meter()
    meter.feed(compact({"choices": [{"index": 0, "text": "regist", "finish_reason": None}]}))
    assert meter.usage.output_tokens == 1


def test_the_last_usage_trues_an_estimate_up():
    meter = make_meter()
    run(meter, chunk(1, with_usage=False) + last_usage(11, 7) + DONE)
    assert meter.usage == Usage(11, 0, 7)
    assert not meter.tokens_estimated


def test_an_estimate_goes_on_from_the_usage_before_it():
    meter = make_meter()
    run(meter, chunk(4) + chunk(5) + chunk(6, with_usage=False))
    assert meter.usage == Usage(11, 0, 6)
    assert meter.tokens_estimated
    meter.feed(chunk(9))
    assert meter.usage == Usage(11, 0, 9)
    assert not meter.tokens_estimated


def test_other_spacing_is_understood_and_usage_removed():
    message = {"id": "x", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
    spaced = b"data: " + json.dumps(message | {"usage": usage(11, 3)}).encode() + b"\n\n"
    meter = make_meter()
    assert meter.feed(spaced) == b"data: " + json.dumps(message).encode() + b"\n\n"
    assert meter.usage == Usage(11, 0, 3)


def test_usage_that_comes_first_is_removed():
    message = {"id": "x", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
    assert make_meter().feed(compact({"usage": usage(11, 3)} | message)) == compact(message)


def test_nested_usage_details_are_matched_to_their_brace():
    event = chunk(3).replace(b'"completion_tokens_details":null', b'"completion_tokens_details":{"reasoning_tokens":2}')
    meter = make_meter()
    for _ in range(2):
        assert meter.feed(event) == chunk(3, with_usage=False)
    assert meter.usage == Usage(11, 0, 3)


def test_crlf_line_ends_pass_at_any_cut():
    data = BACKEND.replace(b"\n\n", b"\r\n\r\n")
    expected = TO_CLIENT[False, False].replace(b"\n\n", b"\r\n\r\n")
    for at in range(len(data)):
        meter = make_meter()
        assert run(meter, data, [at]) == expected
        assert meter.usage == Usage(11, 8, 6)
        assert meter.done


def test_comments_and_other_fields_pass():
    data = b": keep-alive\n\nevent: ping\nid: 7\ndata: {}\n\nretry: 10\n\n"
    assert run(make_meter(), data) == data


def test_what_is_not_json_passes():
    data = b'data: {"broken\n\ndata: 7\n\ndata: [1]\n\n'
    assert run(make_meter(), data) == data


def test_json_over_several_data_lines_is_read():
    meter = make_meter()
    meter.feed(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],\ndata: "usage":{"completion_tokens":3}}\n\n')
    assert meter.usage == Usage(0, 0, 3)


def test_half_an_event_is_dropped_at_the_end():
    meter = make_meter()
    assert meter.feed(chunk(1) + chunk(2)[:40]) == chunk(1, with_usage=False)
    assert meter.finish() == b""
    assert not meter.done


def test_done_without_its_blank_line_is_done():
    meter = make_meter()
    assert run(meter, chunk(1) + b"data: [DONE]") == chunk(1, with_usage=False) + DONE
    assert meter.done


def test_an_event_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(events, "EVENT_BYTES_MAX", 1000)
    meter = make_meter()
    meter.feed(b"data: " + b"x" * 900)
    with pytest.raises(EventTooLongError):
        meter.feed(b"x" * 200)


@given(data=st.binary(max_size=200), at=st.integers(0, 200))
def test_any_bytes_are_taken(data, at):
    whole, cut = make_meter(), make_meter()
    assert run(whole, data) == run(cut, data, [min(at, len(data))])


@pytest.mark.parametrize("value", [None, [], {}, {"usage": None}, {"usage": []}, "usage", 3], ids=json.dumps)
def test_a_body_without_usage_has_none(value):
    assert openai_usage(value) is None


def test_counts_that_make_no_sense_are_zero():
    body = {"usage": {"prompt_tokens": -4, "completion_tokens": "7", "prompt_tokens_details": {"cached_tokens": True}}}
    assert openai_usage(body) == Usage(0, 0, 0)


def test_a_cut_is_one_event_with_an_error_object():
    event = make_meter().cut('lost "x"\n')
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert error == {"message": 'lost "x"\n', "type": "api_error", "param": None, "code": 502}


def finish_with_usage(output=5):
    return chunk(output, content="", finish="stop")


def test_a_server_whose_only_usage_is_on_the_finish_event_leaves_it_to_a_client_that_asked():
    data = chunk(1, with_usage=False) + finish_with_usage() + DONE
    assert run(make_meter(keeps_usage=True), data) == data
    assert (
        run(make_meter(), data)
        == chunk(1, with_usage=False)
        + finish_with_usage().replace(b',"usage":' + json.dumps(usage(11, 5), separators=(",", ":")).encode(), b"")
        + DONE
    )


def test_usage_on_the_finish_event_is_not_the_clients_where_the_usage_event_follows():
    finish = chunk(6, finish="length", with_usage=False)
    out = run(make_meter(keeps_usage=True), chunk(6, finish="length") + last_usage(11, 6) + DONE)
    assert out == finish + last_usage(11, 6) + DONE


def test_usage_on_the_finish_event_trues_an_estimate_up():
    meter = make_meter()
    run(meter, chunk(1, with_usage=False) * 3 + finish_with_usage(7) + DONE)
    assert meter.usage == Usage(11, 0, 7)
    assert not meter.tokens_estimated


def null_usage(event):
    return event.replace(b"\n\n", b"")[:-1] + b',"usage":null}\n\n'


def test_null_usage_that_only_our_question_brought_is_removed():
    bare = [chunk(1, with_usage=False), chunk(2, with_usage=False), chunk(2, finish="stop", with_usage=False)]
    data = b"".join(map(null_usage, bare)) + last_usage(11, 2) + DONE
    fingerprinted = chunk(2, finish="stop", with_usage=False, fingerprint=FINGERPRINT)
    assert run(make_meter(nulls_usage=True), data) == b"".join(bare[:2]) + fingerprinted + DONE
    assert run(make_meter(nulls_usage=True, keeps_usage=True), data) == data


def test_a_server_that_always_writes_null_gets_its_null_back_where_its_usage_is_not_the_clients():
    role = null_usage(chunk(0, role=True, with_usage=False))
    out = run(make_meter(), role + chunk(1) + chunk(2) + chunk(3))
    assert out == role + b"".join(chunk(n, with_usage=False)[:-3] + b',"usage":null}\n\n' for n in (1, 2, 3))


def test_several_tokens_that_no_server_counted_are_counted_by_their_text():
    meter = make_meter(tokens_per_byte=0.25)
    run(meter, chunk(1, with_usage=False, content="x" * 100) + chunk(1, with_usage=False, content="y"))
    assert meter.usage == Usage(0, 0, 26)


def test_reasoning_and_arguments_of_tools_are_tokens_too():
    pieces = [
        {"reasoning": "hm"},
        {"reasoning_content": "hm"},
        {"tool_calls": [{"index": 0, "id": "call-1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "7"}}]},
        {"role": "assistant", "content": ""},
        {},
    ]
    data = b"".join(compact({"choices": [{"index": 0, "delta": piece}]}) for piece in pieces)
    meter = make_meter()
    assert run(meter, data) == data
    assert meter.usage == Usage(0, 0, 3)


def test_uncounted_text_is_handed_on_to_be_counted_exactly():
    text = []
    meter = make_meter(on_text=text.append)
    run(meter, chunk(1, content="one ", with_usage=False) + chunk(2, content="two", with_usage=False))
    assert "".join(text) == "one two"
