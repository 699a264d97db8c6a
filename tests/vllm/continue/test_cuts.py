"""Streams of two real vLLMs that are cut after random tokens equal those that are not: text, token ids, counts, end."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from answers import ask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire import CHAT, COMPLETIONS

STREAMS_AT_ONCE = 8
BATCH, BATCHES = 20, 10  # 200 streams
USAGE = {"stream_options": {"include_usage": True}}
PROMPTS = ["Once upon", "def f(x):", "\N{GRINNING FACE} h\N{LATIN SMALL LETTER O WITH DIAERESIS}", "1 2 3", "The", "zz"]
NUMBERS = itertools.count()

streams = st.fixed_dictionaries(
    {
        "path": st.sampled_from([CHAT, COMPLETIONS]),
        "prompt": st.sampled_from(PROMPTS),
        "tokens": st.integers(2, 60),
        "cuts": st.lists(st.integers(1, 40), min_size=1, max_size=2),
        "ids": st.booleans(),
        "ignore_eos": st.booleans(),
        "stop_at": st.none() | st.tuples(st.integers(0, 150), st.integers(1, 8)),
        "stop_is_kept": st.booleans(),
    }
)


def body_of(case, stop=None):
    prompt = {"messages": [{"role": "user", "content": case["prompt"]}]} if case["path"] == CHAT else {}
    body = {**(prompt or {"prompt": case["prompt"]}), **USAGE, "max_tokens": case["tokens"]}
    body |= {"ignore_eos": case["ignore_eos"], "return_token_ids": case["ids"]}
    return body | ({"stop": [stop, "never this"], "include_stop_str_in_output": case["stop_is_kept"]} if stop else {})


def both(vllm_url, gateway, plan, case):
    """The answer of vLLM alone, and that of the gateway whose backends are cut off."""
    whole = ask(vllm_url, case["path"], body_of(case))
    stop = None
    if case["stop_at"] is not None and whole.text:
        at, length = case["stop_at"]
        stop = whole.text[at % len(whole.text) :][:length]  # one that will be met
        whole = ask(vllm_url, case["path"], body_of(case, stop))
    request_id = f"cut-{next(NUMBERS)}"
    plan.cut(request_id, case["cuts"])
    return whole.compared, ask(gateway.url, case["path"], body_of(case, stop), request_id).compared


@settings(max_examples=BATCHES, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(cases=st.lists(streams, min_size=BATCH, max_size=BATCH))
def test_streams_that_were_cut_equal_those_that_were_not(twins, cut_gateway, plan, cases):
    with ThreadPoolExecutor(STREAMS_AT_ONCE) as threads:
        answers = list(threads.map(lambda case: both(twins[0].url, cut_gateway, plan, case), cases))
    for case, (whole, cut) in zip(cases, answers, strict=True):
        assert cut == whole, case


def test_as_many_streams_were_cut_as_is_said(plan):
    """After the test above, in the order of this file."""
    assert plan.made >= BATCH * BATCHES / 2


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("tokens", range(1, 13))
def test_a_cut_after_each_token(twins, cut_gateway, plan, path, tokens):
    """Also after the last one, when only the end of the stream is missing."""
    case = {"path": path, "prompt": "Once", "tokens": 12, "cuts": [tokens], "ids": True, "ignore_eos": True}
    whole, cut = both(twins[0].url, cut_gateway, plan, {**case, "stop_at": None, "stop_is_kept": False})
    assert cut == whole


def test_log_probabilities_go_on(twins, cut_gateway, plan):
    body = {"prompt": "Once", "max_tokens": 12, "logprobs": 1, **USAGE}
    whole = ask(twins[0].url, COMPLETIONS, body)
    plan.cut("with-logprobs", [5])
    cut = ask(cut_gateway.url, COMPLETIONS, body, "with-logprobs")
    assert cut.compared == whole.compared


@pytest.mark.parametrize(
    "ends_with",
    [b'data: {"error": {"message": "EngineCore encountered an issue.", "code": 500}}\n\ndata: [DONE]\n\n'],
)
def test_an_error_event_of_the_engine_is_a_cut(twins, cut_gateway, plan, ends_with):
    body = {"prompt": "Once", "max_tokens": 12, **USAGE}
    plan.ends_with = ends_with
    plan.cut("engine-error", [5])
    try:
        cut = ask(cut_gateway.url, COMPLETIONS, body, "engine-error")
    finally:
        plan.ends_with = b""
    assert cut.compared == ask(twins[0].url, COMPLETIONS, body).compared
