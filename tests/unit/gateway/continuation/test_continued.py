"""A stream that is cut after any token and continued equals one that was not: in text, ids, counts and its end."""

import json
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from small_vllm import BOX, BROKEN, FINGERPRINT, UNKNOWN, SmallVllm, decode

from backends.meters.events import StreamCall, StreamMemo
from backends.meters.token_ids import ID_BYTES, TokenIdMeter
from backends.upstream import UpstreamProtocolError
from gateway.continuation.continued import AnswerComplete, ContinuedMeter
from gateway.continuation.prepare import prepare
from gateway.continuation.seam import INCOMPLETE_TOKENS_MAX
from gateway.continuation.stream import ResumableStream
from tests.examples import examples

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NEVER = 10_000  # events, of which no stream here has so many
PATIENT = {"max_tokens": 40, "ignore_eos": True}
ASKED = {"stream": True, "return_token_ids": True}
ASKED |= {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
PROMPTS = {CHAT: {"messages": [{"role": "user", "content": "hi"}]}, COMPLETIONS: {"prompt": "hi"}}


def read(data: bytes) -> dict[str, Any]:
    """What a client makes of a stream, however its tokens are spread over events."""
    *events, done = [each for each in data.split(b"\n\n") if each]
    assert done == b"data: [DONE]"
    messages = [json.loads(each.removeprefix(b"data: ")) for each in events]
    choices = [choice for message in messages for choice in message["choices"]]
    texts = [choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices]
    ids = [each for choice in choices for each in choice.get("token_ids") or ()]
    finishes = [(choice["finish_reason"], choice["stop_reason"]) for choice in choices if choice["finish_reason"]]
    usages = [tuple(message["usage"].values()) for message in messages if message.get("usage")]
    offsets = [each for choice in choices if choice["logprobs"] for each in choice["logprobs"]["text_offset"]]
    names = [each for choice in choices if choice["logprobs"] for each in choice["logprobs"]["tokens"]]
    heads = {(message["id"], message["object"], message["created"], message["model"]) for message in messages}
    keys = [tuple(message) for message in messages[-2:]]
    roles = [choice["delta"]["role"] for choice in choices if "role" in choice.get("delta", {})]
    return {
        "text": "".join(texts), "ids": ids, "finishes": finishes, "last usage": usages[-1:], "heads": heads,
        "offsets": offsets, "names": names, "last keys": keys, "roles": roles, "usage grows": usages == sorted(usages),
        "usages in chunks": len(usages) > 1,
    }  # fmt: skip


def prompt_of(path: str, text: str) -> dict[str, Any]:
    """What distinguishes one answer of this server from another."""
    return {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": f"p{text}"}


class Client:
    """One call through the meters of a gateway. It is cut after so many tokens, as often as told."""

    def __init__(self, path: str, fields: Mapping[str, Any], *, usage: bool, each: bool, merges: int) -> None:
        options = {"stream_options": {"include_usage": True, "continuous_usage_stats": each}} if usage else {}
        self.path, self.merges = path, merges
        self.body = {"model": "small", "stream": True, **PROMPTS[path], **fields, **options}
        memo = StreamMemo(orjson.dumps(FINGERPRINT))  # of an earlier stream
        self.keeps = StreamCall(keeps_usage=usage, keeps_chunk_usage=usage and each, memo=memo)
        self.server = SmallVllm()
        self.bytes_max = 1 << 20

    def uninterrupted(self) -> bytes:
        return b"".join(self.server.stream(self.path, self.body, self.merges))

    async def interrupted(self, cuts: list[int]) -> bytes:
        self.stream = stream = ResumableStream(None, self.bytes_max)
        meter: Any = TokenIdMeter(self.keeps, stream.ids, keeps_ids=bool(self.body.get("return_token_ids")))
        path, body, out = self.path, {**self.body, **ASKED}, b""
        for cut in [*cuts, NEVER]:
            events = 0
            for event in self.server.stream(path, body, self.merges):
                events += b'"token_ids":[' in event
                if events > cut:
                    break
                try:
                    out += meter.feed(event)
                except AnswerComplete:
                    break
            if meter.is_finished and not meter.done:
                out += meter.complete()
            if meter.done:
                return out
            stream.passed(meter)
            assert stream.may_continue(), "cut before the first event"
            continuing = await prepare(
                self.server.ask,
                json.dumps(self.body).encode(),
                stream,
                is_chat=self.path == CHAT,
                context_tokens_max=None,
            )
            meter, path, body = continuing.meter(self.keeps, stream), COMPLETIONS, json.loads(continuing.body)
        raise AssertionError("the answer has no end")


@given(
    path=st.sampled_from([CHAT, COMPLETIONS]),
    stop=st.sampled_from([None, "e", "sto", ["stop", "in,", "\N{GRINNING FACE}a", "zzzzzzzz"], ["tst", "est"]]),
    cuts=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    ask=st.fixed_dictionaries({"usage": st.booleans(), "each": st.booleans(), "merges": st.integers(1, 3)}),
    fields=st.fixed_dictionaries(
        {"user": st.text(max_size=3)},
        optional={
            "return_token_ids": st.just(value=True),
            "include_stop_str_in_output": st.just(value=True),
            "min_tokens": st.integers(0, 20),
            "max_tokens": st.integers(1, 40),
            "ignore_eos": st.booleans(),
            "logit_bias": st.just({str(BOX): 100}),
            "skip_special_tokens": st.booleans(),
        },
    ),
)
async def test_a_stream_that_was_cut_equals_one_that_was_not(path, stop, cuts, ask, fields):
    fields = {"max_tokens": 40, **fields} | ({} if stop is None else {"stop": stop})
    if stop is not None and fields.get("skip_special_tokens", True):  # tokens without text end such a stream: see below
        fields = {name: value for name, value in fields.items() if name not in {"ignore_eos", "logit_bias"}}
    client = Client(path, {**prompt_of(path, fields["user"]), **fields}, **ask)
    assert read(await client.interrupted(cuts)) == read(client.uninterrupted())


@settings(max_examples=examples(300))
@given(
    asked=st.tuples(st.sampled_from([CHAT, COMPLETIONS]), st.text(max_size=3)),
    cuts=st.lists(st.integers(1, 6), min_size=1, max_size=2),
    merges=st.integers(1, 8),
    stop_at=st.tuples(st.integers(0, 15), st.integers(1, 4)),
    fields=st.fixed_dictionaries(
        {"include_stop_str_in_output": st.booleans(), "min_tokens": st.integers(0, 10)},
        optional={"stop_token_ids": st.just(list(b"aest"))},
    ),
)
async def test_a_stop_string_is_found_after_as_many_tokens_beside_bytes_that_are_no_text(
    asked, cuts, merges, stop_at, fields
):
    """A decoder holds such bytes back until the next whole character, also where one event has the tokens of both."""
    path, (begins, length) = asked[0], stop_at
    fields = {**prompt_of(*asked), **fields, "max_tokens": INCOMPLETE_TOKENS_MAX, "logit_bias": BROKEN}
    client = Client(path, fields, usage=True, each=False, merges=merges)
    text = read(client.uninterrupted())["text"]
    assume(text[begins:])
    client.body["stop"] = text[begins:][:length]
    assert read(await client.interrupted(cuts)) == read(client.uninterrupted())


async def test_a_token_that_ends_the_answer_has_no_text_of_the_event_that_it_shares():
    """A prompt with which it has the name of the token before it, and a broken character is in the same event."""
    fields = {"prompt": "p207", "max_tokens": 16, "logit_bias": BROKEN, "stop_token_ids": list(b"aest")}
    client = Client(COMPLETIONS, fields, usage=True, each=False, merges=4)
    client.body["stop"] = read(client.uninterrupted())["text"][6]
    assert read(await client.interrupted([1])) == read(client.uninterrupted())


@pytest.mark.parametrize("tokens", range(1, 12))
async def test_a_cut_inside_a_character_loses_and_repeats_nothing(tokens):
    """Each of these cuts is inside of one for some prompt."""
    for number in range(20):
        client = Client(COMPLETIONS, {**PATIENT, "prompt": f"{number}"}, usage=True, each=False, merges=1)
        assert read(await client.interrupted([tokens])) == read(client.uninterrupted())


@pytest.mark.parametrize("each", [False, True])
async def test_a_chat_that_is_cut_before_its_first_token_has_one_role(each):
    client = Client(CHAT, PATIENT, usage=True, each=each, merges=1)
    assert read(await client.interrupted([0])) == read(client.uninterrupted())


async def test_most_cuts_ask_the_next_backend_nothing():
    client = Client(CHAT, {**PATIENT, "messages": []}, usage=False, each=False, merges=1)
    await client.interrupted([1])
    assert client.server.asked == []


async def test_a_question_about_the_prompt_has_the_salt_of_its_call():
    """Or the prompt would be in a cache where others can find it."""
    probes = []
    for number in range(20):
        fields = {**PATIENT, "prompt": f"{number}", "cache_salt": "s"}
        client = Client(COMPLETIONS, fields, usage=False, each=False, merges=1)
        await client.interrupted([3])
        probes += [body for path, body in client.server.asked if path == COMPLETIONS]
    assert probes
    assert all(body["cache_salt"] == "s" for body in probes)


async def test_special_tokens_before_the_seam_end_a_stream_that_searches_for_stop_strings():
    """It is not known which text they have, so no text is made up."""
    boxes, given_up = {**PATIENT, "logit_bias": {str(BOX): 100}, "stop": "zz", "prompt": "a"}, 0
    for tokens in range(1, 30):
        client = Client(COMPLETIONS, boxes, usage=False, each=False, merges=1)
        try:
            out = await client.interrupted([tokens])
        except UpstreamProtocolError:
            given_up += 1
        else:
            assert read(out) == read(client.uninterrupted())
    assert 0 < given_up < 29
    shown = Client(COMPLETIONS, {**boxes, "skip_special_tokens": False}, usage=False, each=False, merges=1)
    for tokens in range(1, 30):
        assert read(await shown.interrupted([tokens])) == read(shown.uninterrupted())


async def test_an_event_that_is_no_completions_is_an_interruption():
    client = Client(COMPLETIONS, PATIENT, usage=False, each=False, merges=1)
    stream = ResumableStream(None, 1 << 20)
    first = TokenIdMeter(client.keeps, stream.ids, keeps_ids=False)
    for event in list(client.server.stream(COMPLETIONS, {**client.body, **ASKED}))[:3]:
        first.feed(event)
    stream.passed(first)
    body = json.dumps(client.body).encode()
    continuing = await prepare(client.server.ask, body, stream, is_chat=False, context_tokens_max=None)
    meter = continuing.meter(client.keeps, stream)
    assert meter.feed(b'data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[7]}]}\n\n') == b""
    assert meter.interrupted


async def test_a_stream_that_goes_on_ends_with_the_fingerprint_of_its_backend():
    client = Client(COMPLETIONS, PATIENT, usage=False, each=False, merges=1)
    client.keeps.memo.fingerprint = orjson.dumps("of an earlier stream")
    assert f'"system_fingerprint":"{FINGERPRINT}"'.encode() in await client.interrupted([3])


@pytest.mark.parametrize(("room", "is_full"), [(39, True), (40, False)])
async def test_ids_of_what_goes_on_have_their_limit_too(room, is_full):
    client = Client(COMPLETIONS, {**PATIENT, "prompt": "p"}, usage=False, each=False, merges=1)
    client.bytes_max = len(b"112") + room * ID_BYTES
    assert read(await client.interrupted([3])) == read(client.uninterrupted())
    assert client.stream.ids.is_full is is_full
    assert client.stream.may_continue() is not is_full


async def test_a_backend_is_left_whose_answer_a_stop_string_has_ended():
    """It was told none, so it would go on to its limit."""
    plain = Client(COMPLETIONS, PATIENT, usage=False, each=False, merges=1)
    text = read(plain.uninterrupted())["text"]
    client = Client(COMPLETIONS, {**PATIENT, "stop": text[8:12]}, usage=False, each=False, merges=1)
    del client.body["ignore_eos"]
    feeds = 0

    def fed(self, data, was=ContinuedMeter.feed):
        nonlocal feeds
        feeds += 1
        return was(self, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ContinuedMeter, "feed", fed)
        assert read(await client.interrupted([2])) == read(client.uninterrupted())
    assert feeds < PATIENT["max_tokens"] / 2


@given(
    prompt=st.text(max_size=3),
    cuts=st.lists(st.integers(1, 12), min_size=1, max_size=2),
    merges=st.integers(1, 3),
    bias=st.booleans(),
)
@example(prompt="", cuts=[2, 6], merges=3, bias=False)  # the character ends in the next answer, which does not name it
@example(prompt="{-", cuts=[2], merges=1, bias=True)  # a special token stands between the seam and the character's end
@example(prompt="{-", cuts=[2], merges=2, bias=True)  # the character ends after the special token, before the seam
@example(prompt="\x01\x83", cuts=[3], merges=3, bias=True)  # and that event has a text, too
async def test_log_probabilities_after_a_seam_inside_a_character_are_right(prompt, cuts, merges, bias):
    """The token that ends it has its name, and the offsets count that."""
    fields = {**PATIENT, "max_tokens": INCOMPLETE_TOKENS_MAX, "logprobs": 1, "prompt": f"p{prompt}"}
    fields |= {"logit_bias": BROKEN} if bias else {}
    client = Client(COMPLETIONS, fields, usage=False, each=False, merges=merges)
    whole = read(client.uninterrupted())
    try:
        assert read(await client.interrupted(cuts)) == whole
    except UpstreamProtocolError:
        assert "<|>" in whole["names"], "only a special token, which is skipped, hides what is incomplete before it"


async def test_a_stream_is_given_up_where_a_special_token_stands_inside_a_character():
    """Its text is whole by `/detokenize`; the decoder of the next backend begins with the prompt."""
    fields = {**PATIENT, "max_tokens": INCOMPLETE_TOKENS_MAX, "prompt": "p\U00032e44", "logit_bias": BROKEN}
    client = Client(COMPLETIONS, {**fields, "logprobs": 1}, usage=False, each=False, merges=1)
    assert read(client.uninterrupted())["names"][:3] == ["", "", "<|>"]
    with pytest.raises(UpstreamProtocolError):
        await client.interrupted([3])


@given(
    seed=st.integers(0, 9999),
    cuts=st.lists(st.integers(1, 12), min_size=1, max_size=2),
    merges=st.integers(1, 3),
    stop=st.sampled_from([None, "sto", ["stop", "in,"], "zzzzzzzz", ["tst", "est"]]),
    included=st.booleans(),
)
async def test_what_a_client_has_seen_of_tokens_that_were_drawn_stays_true(seed, cuts, merges, stop, included):
    """The text is that of the ids: no token that a part was shown of is drawn again."""
    fields = {"temperature": 1, "seed": seed, "max_tokens": 40, "return_token_ids": True}
    fields |= {} if stop is None else {"stop": stop, "include_stop_str_in_output": included}
    client = Client(COMPLETIONS, {**fields, "prompt": "p"}, usage=True, each=False, merges=merges)
    got = read(await client.interrupted(cuts))
    whole, ((_, reason),) = decode(got["ids"]).rstrip(UNKNOWN), got["finishes"]
    if reason is not None:
        whole = whole[: whole.index(reason) + included * len(reason)]
    assert got["text"].rstrip(UNKNOWN) == whole
    assert got["last usage"][0][2] == len(got["ids"])


async def test_a_chat_whose_server_names_tokens_by_their_ids_goes_on_with_such_names():
    """The continuation of a stream with stop strings asks for names that are texts."""
    named = {"token": "token_id:97", "logprob": -0.5, "bytes": None, "top_logprobs": []}
    choice = {"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [named]}, "token_ids": [97]}
    stream = ResumableStream(None, 1 << 20)
    stream.ids.prompt, stream.last = (
        b"104",
        b"data: " + orjson.dumps({"object": "chat.completion.chunk", "choices": [choice]}),
    )
    body = {"model": "small", **PROMPTS[CHAT], "max_tokens": 5, "logprobs": True, "stop": "zz"}
    stream.ids.output.append(97)
    server = SmallVllm()
    continuing = await prepare(server.ask, json.dumps(body).encode(), stream, is_chat=True, context_tokens_max=None)
    meter = continuing.meter(StreamCall(), stream)
    out = b"".join(map(meter.feed, server.stream(COMPLETIONS, json.loads(continuing.body))))
    tokens = [
        each
        for message in out.split(b"\n\n")[:-2]
        for each in json.loads(message[6:])["choices"][0]["logprobs"]["content"]
    ]
    assert [each["token"] for each in tokens] == [f"token_id:{each}" for each in stream.ids.output[1:]]


async def test_text_offsets_go_on():
    client = Client(COMPLETIONS, {**PATIENT, "logprobs": 1, "prompt": "abcd"}, usage=False, each=False, merges=2)
    whole = read(client.uninterrupted())
    assert len(set(whole["offsets"])) > 20
    assert read(await client.interrupted([1, 1])) == whole
