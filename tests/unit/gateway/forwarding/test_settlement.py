"""What a call is charged: reported usage as it stands, uncounted text by its size, what was not seen by the clock."""

import json
import time
from types import SimpleNamespace

import pytest

from backends.meters import AnswerKind
from gateway.api.token_counts import LearntPromptTokens, OutputTokens
from gateway.forwarding.answers.decode_pace import DecodePace
from gateway.forwarding.answers.settlement import Settlement
from gateway.observability.telemetry import CallTrace
from policies.types import Usage

QUIET_TOKENS = 50.0
PROMPT_TOKENS = 9


class Account:
    """A settlement whose lease, intake and ids only remember."""

    def __init__(
        self, *, answer=AnswerKind.CHOICES, prompts=1, choices=1, output_tokens_max=100, exact=None, elapsed_s=0.0
    ):
        request = SimpleNamespace(
            prompt_tokens=PROMPT_TOKENS, tenant_id="t", model="m", choices=choices, output_tokens_max=output_tokens_max
        )
        self.usages, self.learnt, self.ids = [], [], []
        self.pace = DecodePace()
        self.prefilled = Usage(PROMPT_TOKENS, 0, 0)
        self.trace = CallTrace("/v1/x", dispatched_s=time.perf_counter() - elapsed_s)
        call = SimpleNamespace(parsed=SimpleNamespace(prompts=prompts, choices=choices, answer=answer), request=request)
        lease = SimpleNamespace(tokens=self._tokens, prefilled=lambda: self.prefilled)
        self.settlement = Settlement(
            SimpleNamespace(call=call, lease=lease, trace=self.trace),
            request_admission=SimpleNamespace(learn=lambda _call, tokens: self.learnt.append(tokens)),
            output_tokens=OutputTokens(LearntPromptTokens(), exact),
            pace=self.pace,
            on_id=self.ids.append,
        )

    def _tokens(self, usage):
        self.usages.append(usage)
        return max(usage.output_tokens, QUIET_TOKENS) + 1

    async def whole(self, body, status=200):
        await self.settlement.whole(status, body if isinstance(body, bytes) else json.dumps(body).encode())
        (usage,) = self.usages
        return usage


class EveryWord:
    """Counts words, as an encoding counts tokens."""

    async def count(self, text):
        return len(text.split())


def test_before_the_first_token_the_first_token_is_waited_for():
    assert Account().settlement.tokens(Usage(9, 0, 0)) == 1


def test_of_one_prompt_no_more_is_told_than_the_lease_needs():
    assert Account().settlement.tokens(Usage(9, 0, 1)) == QUIET_TOKENS + 1


@pytest.mark.parametrize("output", [1, 70])
def test_of_several_prompts_every_token_is_told_because_any_may_be_the_first_of_another_prompt(output):
    assert Account(prompts=2).settlement.tokens(Usage(4, 0, output)) == output + 1


def test_a_server_that_counts_no_prompt_leaves_our_estimate_standing():
    account = Account()
    account.settlement.tokens(Usage(0, 0, 3))
    assert account.usages == [Usage(PROMPT_TOKENS, 0, 3)]


def test_of_usage_beyond_what_the_call_can_use_the_most_is_charged_and_nothing_is_learnt():
    account = Account()
    account.trace.usage_max = Usage(40, 40, 100)
    account.settlement.tokens(Usage(10**18, 10**17, 10**18))
    assert account.usages == [Usage(40, 40, 100)]
    assert account.trace.overstated
    assert account.learnt == []


async def test_of_a_sound_whose_backend_says_that_it_is_absurdly_long_the_most_is_charged():
    account = Account(answer=AnswerKind.TRANSCRIPTION)
    account.trace.usage_max = Usage(4_000, 4_000, 100)
    assert await account.whole({"text": "hm", "duration": 999_999}) == Usage(4_000, 0, 1)
    assert account.trace.overstated


async def test_text_that_is_counted_here_is_charged_within_what_was_asked_and_is_no_evidence():
    account = Account()
    account.trace.usage_max = Usage(40, 40, 60)
    assert await account.whole(TEXTS[AnswerKind.CHOICES]) == Usage(PROMPT_TOKENS, 0, 60)
    assert not account.trace.overstated


USAGES = {
    AnswerKind.CHOICES: (
        {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
        Usage(7, 4, 3),
    ),
    AnswerKind.RESPONSES: (
        {"input_tokens": 7, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}},
        Usage(7, 4, 3),
    ),
    AnswerKind.MESSAGES: (
        {"input_tokens": 2, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 1, "output_tokens": 3},
        Usage(7, 4, 3),
    ),
    AnswerKind.TRANSCRIPTION: ({"prompt_tokens": 7, "completion_tokens": 3}, Usage(7, 0, 3)),
    AnswerKind.POOLING: ({"prompt_tokens": 7, "total_tokens": 7, "completion_tokens": 0}, Usage(7, 0, 0)),
}


@pytest.mark.parametrize("kind", USAGES)
async def test_each_api_says_in_its_own_words_what_was_used(kind):
    said, usage = USAGES[kind]
    account = Account(answer=kind)
    assert await account.whole({"id": "x", "usage": said}) == usage
    assert account.learnt == [7]
    assert not account.trace.estimated


BEYOND = {
    AnswerKind.CHOICES: {"prompt_tokens": 2**64, "completion_tokens": 10**30},
    AnswerKind.RESPONSES: {"input_tokens": 2**64, "output_tokens": 10**30},
    AnswerKind.MESSAGES: {"input_tokens": 2**64, "output_tokens": 10**30},
    AnswerKind.COHERE: {"tokens": {"input_tokens": 2**64, "output_tokens": 10**30}},
    AnswerKind.POOLING: {"prompt_tokens": 2**64},
}


@pytest.mark.parametrize("kind", BEYOND)
async def test_usage_beyond_64_bits_is_no_free_call(kind):
    """The JSON parser makes a floating-point number of it."""
    account = Account(answer=kind)
    account.trace.usage_max = Usage(40, 40, 0 if kind is AnswerKind.POOLING else 100)
    assert await account.whole({"usage": BEYOND[kind]}) == account.trace.usage_max._replace(cached_tokens=0)
    assert account.trace.overstated


async def test_a_rank_may_count_all_tokens_alone():
    assert await Account(answer=AnswerKind.POOLING).whole({"usage": {"total_tokens": 12}}) == Usage(12, 0, 0)


async def test_the_usage_of_a_long_embedding_is_found_without_reading_its_numbers():
    body = b'{"data":[' + b"0.5," * 1000 + b'], "usage": {"prompt_tokens": 7, "details": {"a": 1}}}'
    assert await Account(answer=AnswerKind.POOLING).whole(body) == Usage(7, 0, 0)


async def test_a_document_that_talks_of_usage_does_not_change_the_price():
    document = {"usage": {"prompt_tokens": 1}}
    body = {"usage": {"total_tokens": 12}, "results": [{"document": document}]}
    assert await Account(answer=AnswerKind.POOLING).whole(body) == Usage(12, 0, 0)


TEXT = "x" * 300  # 100 tokens at a third of a token per byte
TEXTS = {
    AnswerKind.CHOICES: {"choices": [{"message": {"role": "assistant", "content": TEXT}}]},
    AnswerKind.RESPONSES: {"id": "resp_1", "output": [{"type": "message", "content": [{"text": TEXT}]}]},
    AnswerKind.MESSAGES: {"content": [{"type": "text", "text": TEXT}]},
    AnswerKind.TRANSCRIPTION: {"text": TEXT},
}


@pytest.mark.parametrize("kind", TEXTS)
async def test_without_usage_the_text_of_an_answer_is_counted_and_marked(kind):
    account = Account(answer=kind)
    assert await account.whole(TEXTS[kind]) == Usage(PROMPT_TOKENS, 0, 100)
    assert account.trace.estimated
    assert account.learnt == []


@pytest.mark.parametrize(
    ("said", "prompt_tokens"),
    [
        ({"usage": {"type": "duration", "seconds": 3600}}, 180_000),
        ({"duration": 3599.99}, 180_000),
        ({"duration": "3600"}, 180_000),
        *(({"duration": odd}, PROMPT_TOKENS) for odd in (0, -1, None, "long", "nan", 1e300, [3600], {})),
    ],
)
async def test_a_sound_costs_as_long_as_it_is_however_few_bytes_it_has(said, prompt_tokens):
    account = Account(answer=AnswerKind.TRANSCRIPTION)
    assert await account.whole({"text": TEXT, **said}) == Usage(prompt_tokens, 0, 100)


async def test_without_usage_text_is_counted_exactly_where_there_is_an_encoding():
    account = Account(exact=EveryWord())
    assert await account.whole({"choices": [{"text": "one two three"}]}) == Usage(PROMPT_TOKENS, 0, 3)


async def test_thinking_arguments_and_plain_text_are_text():
    message = {"reasoning": "x" * 30, "tool_calls": [{"function": {"name": "f", "arguments": "x" * 60}}]}
    assert (await Account().whole({"choices": [{"message": message}]})).output_tokens == 30
    content = [{"type": "thinking", "thinking": "x" * 30}, {"type": "tool_use", "input": {"a": "x" * 22}}]
    assert (await Account(answer=AnswerKind.MESSAGES).whole({"content": content})).output_tokens == 20
    assert (await Account(answer=AnswerKind.TRANSCRIPTION).whole(b"x" * 30)).output_tokens == 10


@pytest.mark.parametrize("status", [400, 429, 500])
async def test_a_refusal_costs_nothing_whatever_it_says(status):
    assert await Account().whole({"usage": {"prompt_tokens": 5, "completion_tokens": 5}}, status) == Usage(0, 0, 0)


@pytest.mark.parametrize("body", [b"", b"[1]", b"7", b"{", b'{"usage": 3, "choices": 4}'], ids=repr)
async def test_an_answer_that_makes_no_sense_still_costs_its_prompt(body):
    assert (await Account().whole(body)).prompt_tokens == PROMPT_TOKENS


async def test_the_id_of_a_response_is_told():
    account = Account(answer=AnswerKind.RESPONSES)
    await account.whole(TEXTS[AnswerKind.RESPONSES])
    assert account.ids == ["resp_1"]


@pytest.mark.parametrize(("choices", "tokens"), [(1, 51), (2, 100)])
def test_an_answer_that_its_client_left_is_charged_by_the_clock_up_to_its_limit(choices, tokens):
    account = Account(elapsed_s=1.0, choices=choices)
    account.pace.streamed(tokens=101, first_s=0.0, duration_s=2.0)  # 20 ms a token
    account.settlement.disconnected()
    (usage,) = account.usages
    assert usage.prompt_tokens == PROMPT_TOKENS
    assert usage.output_tokens == pytest.approx(tokens, abs=2)
    assert account.trace.estimated


def test_an_answer_that_its_client_left_at_once_is_charged_one_token():
    account = Account()
    account.pace.streamed(tokens=11, first_s=5.0, duration_s=6.0)
    account.settlement.disconnected()
    assert account.usages == [Usage(PROMPT_TOKENS, 0, 1)]


@pytest.mark.parametrize(("choices", "tokens"), [(1, 40), (2, 80), (3, 100)])
def test_where_the_backend_counts_what_it_decoded_that_is_charged(choices, tokens):
    account = Account(elapsed_s=1.0, choices=choices)
    asked = []
    account.pace.counted = lambda begun_s, ended_s: asked.append((begun_s, ended_s)) or 40.0
    account.settlement.disconnected(0.2)
    assert account.usages == [Usage(PROMPT_TOKENS, 0, tokens)]
    assert asked == [(pytest.approx(1.0, abs=0.1), 0.2)]


@pytest.mark.parametrize("is_stream", [False, True])
def test_before_the_first_token_is_charged_as_much_of_the_prompt_as_was_computed(is_stream):
    account = Account(elapsed_s=9.0)
    account.prefilled = Usage(4, 1, 0)
    if is_stream:
        account.settlement.disconnected_stream(None)
    else:
        account.settlement.disconnected()
    assert account.usages == [Usage(4, 1, 0)]
    assert account.trace.usage == Usage(4, 1, 0)
    assert account.trace.estimated


def a_meter(usage, *, is_estimated, pieces=0):
    return SimpleNamespace(usage=usage, tokens_estimated=is_estimated, pieces=pieces)


@pytest.mark.parametrize(("is_estimated", "tokens"), [(True, 31), (False, None)])
def test_what_passed_and_was_not_reported_is_what_the_backend_counted(is_estimated, tokens):
    account = Account()
    account.trace.first_token_s = time.perf_counter()
    account.pace.counted = lambda _begun_s, _ended_s: 30.0
    account.settlement.disconnected_stream(a_meter(Usage(7, 3, 50), is_estimated=is_estimated))
    assert account.usages == ([] if tokens is None else [Usage(7, 3, tokens)])


@pytest.mark.parametrize(("counted", "charged"), [(2.0, 10), (9.0, 20)])
def test_what_has_passed_was_decoded_however_little_the_backend_has_counted_by_then(counted, charged):
    account = Account(choices=2)
    account.trace.first_token_s = time.perf_counter()
    account.pace.counted = lambda _begun_s, _ended_s: counted
    account.settlement.disconnected_stream(a_meter(Usage(7, 3, 17), is_estimated=True, pieces=10))
    assert account.usages == [Usage(7, 3, charged)]


@pytest.mark.parametrize(("passed", "seconds", "charged"), [(10, 0.4, 50), (90, 4.0, 100)])
def test_what_a_backend_decoded_while_its_client_took_nothing_is_charged_on_top_of_what_passed(
    passed, seconds, charged
):
    account = Account(choices=2)
    account.pace.streamed(tokens=101, first_s=0.0, duration_s=2.0)  # 20 ms a token
    account.settlement.unread(seconds)
    account.settlement.disconnected_stream(a_meter(Usage(7, 3, passed), is_estimated=False))
    assert account.usages == [Usage(7, 3, charged)]
    assert account.trace.estimated


def test_leaving_what_generates_nothing_costs_its_prompt():
    account = Account(answer=AnswerKind.POOLING, output_tokens_max=0, elapsed_s=9.0)
    account.settlement.disconnected()
    assert account.usages == [Usage(PROMPT_TOKENS, 0, 0)]


async def test_a_stream_that_ends_without_a_word_costs_its_prompt():
    account = Account()
    await account.settlement.streamed(None, None)
    assert account.usages == [Usage(PROMPT_TOKENS, 0, 0)]
    assert account.trace.estimated


async def test_a_stream_that_no_server_counted_is_counted_exactly_at_its_end():
    account = Account(exact=EveryWord())
    await account.settlement.streamed(Usage(0, 0, 20), "one two three")
    assert account.usages == [Usage(PROMPT_TOKENS, 0, 3)]


def test_a_stream_that_ended_teaches_its_backends_pace():
    account = Account(elapsed_s=1.0)
    account.trace.first_token_s = account.trace.dispatched_s + 0.5
    account.settlement.paced(Usage(9, 0, 51))
    assert account.pace.tokens_after(0.5 + 0.1) == pytest.approx(11, rel=0.1)
    assert account.usages == []
