"""Made-up text: countable prompts, and answers that depend on nothing but their seed and their prompt."""

import json

import orjson
from hypothesis import given
from hypothesis import strategies as st

from backends.engine.http.requests import EngineCall, parse_chat, parse_completion
from backends.engine.http.wire import EngineLimits, WireError
from backends.engine.text import WORDS, make_answer, render_chat, text_prompt, token_prompt

LIMITS = EngineLimits(models=("tiny",), max_model_len=100, block_tokens=4)


def answer_of(text: str, **kwargs):
    defaults = {"seed": "0", "tokens_max": 50, "tokens_min": 0, "tokens_mean": None}
    return make_answer(text_prompt(text, block_tokens=4), **{**defaults, **kwargs})


def test_a_token_is_four_bytes_and_even_nothing_is_one():
    sizes = {"": 1, "a": 1, "abcd": 1, "abcde": 2, "é" * 4: 2}
    assert {text: text_prompt(text, block_tokens=4).tokens for text in sizes} == sizes


def test_token_ids_count_as_many_as_they_are():
    prompt = token_prompt([5, 6, 7], block_tokens=2)
    assert (prompt.tokens, prompt.ids(), len(prompt.prefix)) == (3, [5, 6, 7], 1)


def test_made_up_ids_of_a_text_are_as_many_as_its_tokens():
    prompt = text_prompt("one two three", block_tokens=4)
    assert len(prompt.ids()) == prompt.tokens


def test_prompts_share_hashes_up_to_the_block_in_which_they_part():
    first = text_prompt("a" * 32 + "b" * 16, block_tokens=4).prefix
    second = text_prompt("a" * 32 + "c" * 16, block_tokens=4).prefix
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert first[0] != first[1], "a hash says where its block is, not only what is in it"
    assert text_prompt("a" * 32, block_tokens=4, salt="x").prefix[0] != first[0]


def test_a_longer_conversation_begins_with_the_shorter_one():
    turns = [("system", "be brief"), ("user", [{"type": "text", "text": "hi"}, {"type": "image_url"}])]
    shorter = render_chat(turns)
    longer = render_chat([*turns, ("assistant", "hello"), ("user", "bye")])
    assert longer.startswith(shorter)
    assert render_chat(turns, [{"type": "function"}]).endswith(shorter)


def test_an_answer_is_the_same_again_and_another_for_another_seed_or_prompt():
    assert answer_of("x") == answer_of("x")
    assert answer_of("x") != answer_of("x", seed="1")
    assert answer_of("x") != answer_of("y")


def test_pieces_of_an_answer_make_up_its_text():
    answer = answer_of("x", tokens_max=9)
    assert answer.text(0, 9) == answer.text(0, 1) + answer.text(1, 5) + answer.text(5, 9)
    assert answer.finish_reason == "length"
    assert len(answer.ids(2, 6)) == 4


def test_the_length_of_an_answer_stays_between_its_bounds_and_says_why_it_ended():
    answers = [answer_of(f"{number}", tokens_mean=20, tokens_min=5) for number in range(300)]
    assert all(5 <= answer.tokens <= 50 for answer in answers)
    assert {answer.finish_reason for answer in answers if answer.tokens == 50} >= {"length"}
    assert {answer.finish_reason for answer in answers if answer.tokens < 50} == {"stop"}
    assert 15 < sum(answer.tokens for answer in answers) / 300 < 25


def test_a_stop_string_may_span_words_and_the_first_one_wins():
    plain = answer_of("x")
    text = plain.text(0, 50)
    stop = WORDS[plain.words[3]][-1] + WORDS[plain.words[4]]
    stopped = answer_of("x", stops=("never there", stop))
    assert stopped.text(0, stopped.tokens) == text[: text.index(stop)]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
    assert answer_of("x", stops=("never there",)) == plain


def test_a_stop_string_before_the_least_length_does_not_end_the_answer():
    first_word = WORDS[answer_of("x").words[0]]
    stopped = answer_of("x", stops=(first_word,), tokens_min=10)
    assert stopped.tokens >= 10


field_names = st.sampled_from([
    *("model", "messages", "prompt", "max_tokens", "n", "stream", "stream_options", "stop", "logprobs", "top_logprobs"),
    *("temperature", "top_p", "seed", "min_tokens", "echo", "cache_salt", "request_id", "stream_interval", "priority"),
    *("role", "content", "include_usage", "tools", "ignore_eos", "return_token_ids", "max_completion_tokens"),
])  # fmt: skip
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 200),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(["tiny", "user", "\ud800"]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(field_names, inner, max_size=4),
    max_leaves=12,
)
good_fields = st.fixed_dictionaries(
    {"messages": st.just([{"role": "user", "content": "hi"}]), "prompt": st.just("hi")}
)  # so that other fields are reached


def outcome(parse, data: bytes, limits: EngineLimits = LIMITS) -> EngineCall | WireError:
    try:
        return parse(data, "application/json", limits)
    except WireError as error:
        return error


@given(st.dictionaries(field_names, values, max_size=6), good_fields, st.booleans())
def test_whatever_the_body_it_is_a_call_within_limits_or_an_error_that_can_be_sent(fields, good, override):
    body = {**fields, **good} if override else {**good, **fields}
    for parse in (parse_chat, parse_completion):
        result = outcome(parse, json.dumps(body).encode())
        if isinstance(result, EngineCall):
            assert_within_limits(result)
        else:
            assert 400 <= result.status < 500
            assert orjson.dumps(result.body)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_json_are_refused_in_words(data):
    for parse in (parse_chat, parse_completion):
        result = outcome(parse, data)
        assert isinstance(result, WireError), "no 60 bytes of noise are a request"
        assert result.status == 400
        assert orjson.dumps(result.body)


def assert_within_limits(call: EngineCall) -> None:
    assert len(call.prompts) == len(call.tokens_max) >= 1
    for prompt, tokens_max in zip(call.prompts, call.tokens_max, strict=True):
        assert tokens_max >= 1
        assert prompt.tokens + tokens_max <= LIMITS.max_model_len
        answer = make_answer(
            prompt,
            seed=f"{call.seed}",
            tokens_max=tokens_max,
            tokens_min=call.tokens_min,
            tokens_mean=8,
            stops=call.stops,
        )
        assert 1 <= answer.tokens <= tokens_max
        assert orjson.dumps([answer.text(0, answer.tokens), prompt.text, prompt.ids(), call.request_id])


def test_a_busy_server_turns_away_before_it_counts_tokens():
    limits = EngineLimits(models=("tiny",), max_model_len=100, block_tokens=4, choices_free=1)
    body = json.dumps({"prompt": "x" * 9999, "n": 2}).encode()
    result = outcome(parse_completion, body, limits)
    assert isinstance(result, WireError)
    assert result.status == 503
