"""What a body means to the gateway, and that nothing but BadRequest comes of a bad one."""

import contextlib
import json
import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backends.meters import AnswerKind
from gateway.api.bodies import NESTING_MAX, read_body, read_json
from gateway.api.calls import MODEL_CHARS_MAX, STRING_LISTS, STRINGS_MAX, CallLimits, ParsedCall, model_of, prompt_text
from gateway.api.calls import parse_call as parse
from gateway.api.endpoints import (
    BATCH,
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    ENDPOINTS,
    MESSAGES,
    RESPONSES,
    ChargeRule,
    Endpoint,
)
from gateway.api.errors import BadRequest

LIMITS = CallLimits(choices_max=4, prompts_max=3, inputs_max=5, output_tokens_max=1000, logprobs_max=20)
QUEUED = [endpoint for endpoint in ENDPOINTS if endpoint.queued]
CHAT_CALL = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
COMPLETION_CALL = {"model": "m", "prompt": "hello"}


def parse_call(endpoint: Endpoint, body: bytes, limits: CallLimits) -> ParsedCall:
    read = read_body("application/json", body, multipart=False)
    model_of(read.values)
    return parse(endpoint, read, limits)


def sent(call: ParsedCall) -> bytes:
    """As a vLLM gets it."""
    return call.body.asking(usage=True, continuous=True)


def chat(**fields: Any) -> ParsedCall:
    return parse_call(CHAT, orjson.dumps(CHAT_CALL | fields), LIMITS)


def completion(**fields: Any) -> ParsedCall:
    return parse_call(COMPLETIONS, orjson.dumps(COMPLETION_CALL | fields), LIMITS)


def refusal(endpoint: Endpoint, body: bytes) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse_call(endpoint, body, LIMITS)
    return caught.value


def chat_refusal(**fields: Any) -> BadRequest:
    return refusal(CHAT, json.dumps(CHAT_CALL | fields).encode())


def completion_refusal(**fields: Any) -> BadRequest:
    return refusal(COMPLETIONS, json.dumps(COMPLETION_CALL | fields).encode())


def test_a_plain_chat_is_one_choice_without_a_limit_and_passes_byte_for_byte():
    body = b' {"messages": [{"role":"user","content":"hello"}],\n "temperature": 0.70 } '
    call = parse_call(CHAT, body, LIMITS)
    assert (call.stream, call.choices, call.output_tokens_max) == (False, 1, None)
    assert sent(call) is body


def test_output_tokens_count_all_choices():
    call = chat(n=3, max_tokens=50)
    assert (call.choices, call.output_tokens_max) == (3, 150)
    call = completion(prompt=["a", "b"], n=2, max_tokens=10)
    assert (call.choices, call.output_tokens_max) == (4, 40)


def test_best_of_occupies_as_many_sequences_as_n_would():
    assert completion(n=1, best_of=3).choices == 3
    assert completion(n=3, best_of=2).choices == 3


def test_of_the_two_chat_limits_the_newer_one_wins_as_in_vllm():
    assert chat(max_tokens=5, max_completion_tokens=7).output_tokens_max == 7
    assert chat(max_tokens=5, max_completion_tokens=None).output_tokens_max == 5


def test_completions_without_a_limit_decode_16_tokens():
    assert completion().output_tokens_max == 16
    assert completion(max_tokens=None).output_tokens_max == 16


def test_max_tokens_zero_is_for_scoring_a_prompt_with_echo_and_decodes_one():
    assert completion(echo=True, max_tokens=0).output_tokens_max == 1


@pytest.mark.parametrize("value", [16, 16.0, "16", " 16 ", "16.0", "1_6"])
def test_a_number_may_be_written_as_vllm_reads_it(value):
    call = chat(max_tokens=value)
    assert call.output_tokens_max == 16
    assert sent(call) == orjson.dumps(CHAT_CALL | {"max_tokens": value})


@pytest.mark.parametrize("value", [True, 1, 1.0, "true", "YES", "on", "1"])
def test_a_flag_may_be_written_as_vllm_reads_it(value):
    assert chat(stream=value).stream


def test_a_limit_of_zero_is_the_backends_to_refuse_and_counts_as_none_until_it_has():
    assert completion(max_tokens=0).output_tokens_max is None
    assert chat(n=0).choices == 1


@pytest.mark.parametrize("name", ["n", "best_of", "max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [10**6, 10**30, 1.5, "2.5", "many", "", [2], {}, 1e300, -1, -(2**62), "-1"])
def test_a_count_that_is_no_count_or_over_its_limit_is_refused_by_name(name, value):
    assert chat_refusal(**{name: value}).problem.param == name


@pytest.mark.parametrize("name", ["logprobs", "top_logprobs", "prompt_logprobs"])
def test_more_alternatives_for_a_token_than_the_limit_are_refused_by_name(name):
    for value in (LIMITS.logprobs_max + 1, 10**30, "10_000", -1, 1.5, [2]):
        assert chat_refusal(**{name: value}).problem.param == name
    for value in (LIMITS.logprobs_max, 0, True, "true", None):
        chat(**{name: value})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 7}, "model"),
        ({"model": "m" * (MODEL_CHARS_MAX + 1)}, "model"),
        ({"stream": "please"}, "stream"),
        ({"stream": 2}, "stream"),
        ({"stream": 0.5}, "stream"),
        ({"stream": []}, "stream"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages"),
        ({"messages": [{"role": 1, "content": "hi"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages"),
        ({"messages": [{"role": "user", "content": [7]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
        ({"tools": {}}, "tools"),
        ({"stream": True, "stream_options": [1]}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "please"}}, "include_usage"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": 7}}, "continuous_usage_stats"),
    ],
)
def test_a_mistyped_chat_field_is_refused_by_name(fields, param):
    assert chat_refusal(**fields).problem.param == param


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        "",
        [],
        {},
        7,
        ["a", 1],
        [1, True],
        [1, -1],
        [1, 2**32],
        [[1], "a"],
        [[1], [True]],
        [["a"]],
        [1.5],
        list("abcd"),
    ],
)
def test_a_prompt_that_is_none_of_its_four_forms_or_too_many_is_refused(prompt):
    assert completion_refusal(prompt=prompt).problem.param == "prompt"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'"x"',
        b"{",
        b'{"messages": NaN}',
        b'{"messages": [{"role":"user","content":"\xff"}]}',
        b'{"messages":[{"role":"user","content":"x"}]} {}',
        b'{"a":' * 100_000,
    ],
)
def test_what_is_not_one_json_object_is_refused(body):
    assert refusal(CHAT, body).problem.code == "invalid_json"


def test_nesting_is_limited_wherever_it_is():
    def nested(levels: int) -> bytes:
        value = b"[" * levels + b"]" * levels
        return b'{"messages":[{"role":"user","content":"x"}],"extra":' + value + b"}"

    # The object itself is one level.
    assert parse_call(CHAT, nested(NESTING_MAX - 1), LIMITS).choices == 1
    assert refusal(CHAT, nested(NESTING_MAX)).problem.code == "invalid_json"


def test_brackets_in_a_text_are_no_nesting():
    assert chat(messages=[{"role": "user", "content": "[" * 1000}]).choices == 1


def test_messages_never_repeat_what_was_sent():
    for fields in ({"n": "SENTINEL"}, {"model": ["SENTINEL"]}, {"messages": "SENTINEL"}, {"stream": "SENTINEL"}):
        assert "SENTINEL" not in chat_refusal(**fields).problem.message
    assert "SENTINEL" not in refusal(CHAT, b'{"SENTINEL"}').problem.message


def test_of_duplicate_keys_the_last_one_counts_as_in_the_backend():
    body = b'{"n":1,"stream":true,"messages":[{"role":"user","content":"x"}],"n":3,"stream":false}'
    call = parse_call(CHAT, body, LIMITS)
    assert (call.choices, call.stream) == (3, False)
    assert json.loads(sent(call))["n"] == 3


def test_duplicate_stream_options_cannot_hide_the_usage_that_we_ask_for():
    body = (
        b'{"stream":true,"stream_options":{"include_usage":true},"prompt":"x","stream_options":{"include_usage":false}}'
    )
    call = parse_call(COMPLETIONS, body, LIMITS)
    assert json.loads(sent(call))["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert not call.client_wants_usage


def test_a_body_that_is_kept_while_its_stream_goes_on_takes_no_more_memory_than_its_bytes():
    body = b'{"stream":true,"stream_options":{"include_usage":true},"prompt":"%b"}' % (b"x" * 900)
    tracemalloc.start()
    try:
        kept = [parse_call(COMPLETIONS, body, LIMITS).body.data for _ in range(50)]
        allocated = sum(stat.size for stat in tracemalloc.take_snapshot().statistics("lineno") if stat.size > 50 * 900)
    finally:
        tracemalloc.stop()
    assert sum(map(len, kept)) < allocated < 1.2 * sum(map(len, kept))


def test_a_stream_is_made_to_report_usage_and_is_otherwise_left_alone():
    body = b'{"messages":[{"role":"user","content":"x"}], "stream":true, "seed":12345678901234567890123 }\n'
    call = parse_call(CHAT, body, LIMITS)
    forwarded = json.loads(sent(call))
    assert forwarded.pop("stream_options") == {"include_usage": True, "continuous_usage_stats": True}
    assert forwarded == json.loads(body)
    assert (call.client_wants_usage, call.client_wants_continuous_usage) == (False, False)


@pytest.mark.parametrize(
    ("options", "wants"),
    [
        (None, (False, False)),
        ({}, (False, False)),
        ({"include_usage": True}, (True, False)),
        ({"include_usage": None}, (False, False)),
        ({"include_usage": False, "continuous_usage_stats": True}, (False, False)),
        ({"include_usage": True, "continuous_usage_stats": True}, (True, True)),
    ],
)
def test_stream_options_are_completed_and_what_the_client_asked_for_is_remembered(options, wants):
    call = chat(stream=True, stream_options=options)
    forwarded = json.loads(sent(call))["stream_options"]
    assert forwarded == {"include_usage": True, "continuous_usage_stats": True}
    assert (call.client_wants_usage, call.client_wants_continuous_usage) == wants


def test_other_stream_options_are_kept():
    call = chat(stream=True, stream_options={"include_obfuscation": False})
    assert json.loads(sent(call))["stream_options"]["include_obfuscation"] is False


@pytest.mark.parametrize("options", [{}, {"include_usage": True}, [1]])
def test_stream_options_without_a_stream_are_the_backends_to_judge(options):
    assert sent(chat(stream_options=options)) == orjson.dumps(CHAT_CALL | {"stream_options": options})


def test_token_ids_are_counted_exactly():
    assert completion(prompt=[1, 2, 3]).prompt_token_ids == 3
    call = completion(prompt=[[1, 2], [3]])
    assert (call.prompt_token_ids, call.choices) == (3, 2)
    assert completion().prompt_token_ids is None


def test_a_batch_has_a_choice_for_each_conversation():
    conversation = [{"role": "user", "content": "hello"}]
    call = parse_call(BATCH, orjson.dumps({"messages": [conversation] * 3, "max_tokens": 7}), LIMITS)
    assert (call.prompts, call.choices, call.output_tokens_max) == (3, 3, 21)


def test_responses_and_messages_have_their_own_limit_and_way_of_counting():
    call = parse_call(RESPONSES, orjson.dumps({"input": "hello", "max_output_tokens": 9, "stream": True}), LIMITS)
    assert (call.output_tokens_max, call.answer, call.stream) == (9, AnswerKind.RESPONSES, True)
    body = orjson.dumps({"messages": CHAT_CALL["messages"], "max_tokens": 5, "tools": [{"name": "f"}]})
    call = parse_call(MESSAGES, body, LIMITS)
    assert (call.output_tokens_max, call.answer, call.uses_tools) == (5, AnswerKind.MESSAGES, True)
    assert sent(call) is body


def test_what_generates_nothing_has_no_output_and_a_limit_of_its_own():
    call = parse_call(EMBEDDINGS, orjson.dumps({"input": ["a", "bc", "d"], "n": 4, "max_tokens": 9}), LIMITS)
    assert (call.prompts, call.choices, call.output_tokens_max) == (3, 3, 0)
    assert refusal(EMBEDDINGS, orjson.dumps({"input": ["a"] * 6})).problem.param == "input"


def test_the_prompt_of_a_passed_body_can_be_read_again_as_text():
    text = prompt_text(CHAT, read_json(orjson.dumps(CHAT_CALL)))
    assert text == "user\nhello"
    assert len(text) == chat().prompt_bytes


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = ["model", "messages", "prompt", "stream", "stream_options", "n", "best_of", "max_tokens", "tools"]
FIELDS += ["max_output_tokens", "input", "instructions", "system", "query", "documents", "text_1", "text_2"]
FIELDS += ["max_completion_tokens", "prompt_embeds", "echo", "cache_salt", "documents", "chat_template_kwargs"]
MESSAGE_LISTS = st.lists(
    st.fixed_dictionaries(
        {"role": st.text(max_size=4) | JSON}, optional={"content": JSON, "tool_calls": JSON, "name": JSON}
    ),
    max_size=3,
)
STREAM_OPTIONS = st.dictionaries(st.sampled_from(["include_usage", "continuous_usage_stats", "x"]), JSON)
CALLS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(FIELDS, JSON) | {"messages": MESSAGE_LISTS | JSON, "stream_options": STREAM_OPTIONS | JSON},
)


@given(st.sampled_from(QUEUED), CALLS)
@example(COMPLETIONS, {"prompt": [[]], "prompt_embeds": [[]]})
@example(COMPLETIONS, {"prompt": [[1], [2]], "prompt_embeds": ["AA=="], "stream": True})
def test_any_json_object_is_a_call_within_limits_or_a_bad_request(endpoint, call):
    body = json.dumps(call).encode()
    try:
        parsed = parse_call(endpoint, body, LIMITS)
    except BadRequest:
        return
    if endpoint.charge is ChargeRule.PROMPT:
        assert 1 <= parsed.choices <= LIMITS.inputs_max
        assert parsed.output_tokens_max == 0
    else:
        assert 1 <= parsed.choices <= LIMITS.choices_max * LIMITS.prompts_max
        assert parsed.output_tokens_max is None or 1 <= parsed.output_tokens_max <= 1000 * parsed.choices
    forwarded = json.loads(sent(parsed))
    if parsed.stream and endpoint.shape.usage_options:
        assert forwarded["stream_options"]["include_usage"] is True
        assert forwarded["stream_options"]["continuous_usage_stats"] is True
    else:
        assert sent(parsed) == body


@given(st.sampled_from(QUEUED), st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_call_or_a_bad_request(endpoint, body):
    with contextlib.suppress(BadRequest):
        parse_call(endpoint, body, LIMITS)


# -- JSON that is not plain UTF-8 --------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_json_in_another_encoding_is_read_as_vllm_reads_it_and_forwarded_in_utf_8(encoding):
    body = json.dumps(CHAT_CALL | {"user": "h\u00e4\u00df \u6f22"}, ensure_ascii=False)
    assert sent(parse_call(CHAT, body.encode(encoding), LIMITS)) == body.encode()


@pytest.mark.parametrize(
    "body", [b"\xff\xfe", b"\xff\xfe\0", b"\0\0\0\0", b"{\0}", b"\xef\xbb\xbf", b"\xef\xbb\xbf\xff{}"]
)
def test_what_only_begins_like_another_encoding_is_no_json(body):
    assert refusal(CHAT, body).problem.code == "invalid_json"


# -- what costs more than it says --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [True, 1, "yes"])
def test_beam_search_is_refused_because_its_work_is_not_counted(value):
    assert chat_refusal(use_beam_search=value, n=2).problem.param == "use_beam_search"
    assert chat(use_beam_search=False).choices == 1


@pytest.mark.parametrize("name", STRING_LISTS)
def test_a_token_is_looked_through_for_so_many_strings_and_no_more(name):
    assert chat_refusal(**{name: ["a"] * (STRINGS_MAX + 1)}).problem.param == name
    assert sent(chat(**{name: ["a"] * STRINGS_MAX}))
