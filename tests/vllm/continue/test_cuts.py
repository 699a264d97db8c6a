"""Streams of two real vLLMs that are cut after random tokens equal those that are not: text, token ids, counts, end."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from answers import ask
from cases import BROKEN, PROMPTS, USAGE, answered, body_of, case, streams
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire import CHAT, COMPLETIONS, Call

STREAMS_AT_ONCE = 8
pytestmark = pytest.mark.timeout(900)  # on a machine that is busy with something else, too
BATCH, BATCHES = 20, 16  # 320 streams
NUMBERS = itertools.count()
NORMAL_MAX = 3.09  # the 0.1 % point of a normal distribution: a test that is right fails once in a thousand runs


def both(vllm_url, gateway, plan, case):
    """The answer of vLLM alone, and that of the gateway whose backends are cut off."""
    body, whole = answered(vllm_url, case)
    request_id = f"cut-{next(NUMBERS)}"
    plan.cut(request_id, case["cuts"])
    return whole.compared, ask(gateway.url, case["path"], body, request_id).compared


@settings(max_examples=BATCHES, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(cases=st.lists(streams, min_size=BATCH, max_size=BATCH))
def test_streams_that_were_cut_equal_those_that_were_not(twins, cut_gateway, plan, cases):
    with ThreadPoolExecutor(STREAMS_AT_ONCE) as threads:
        answers = list(threads.map(lambda case: both(twins[0].url, cut_gateway, plan, case), cases))
    for asked, (whole, cut) in zip(cases, answers, strict=True):
        assert cut == whole, asked


def test_as_many_streams_were_cut_as_is_said(plan):
    """After the test above, in the order of this file."""
    assert plan.made >= 200


CONTROLS, CONTROLS_AT_ONCE, CONTROL_TOKENS = 72, 6, 400


def test_no_more_answers_differ_than_without_a_gateway(twins, cut_gateway, plan, capsys):
    """The control: where others run beside it, the last bits of a model's numbers are others, and of two tokens that
    are nearly as likely the other one may come. The same calls one by one, at once, and at once with a cut each.
    """

    def body(number):
        return {"prompt": f"{PROMPTS[number % 6]} {number}", "max_tokens": CONTROL_TOKENS, "ignore_eos": True}

    def beside(number):
        return ask(twins[0].url, COMPLETIONS, body(number)).text

    def cut(number):
        request_id = f"control-{number}"
        plan.cut(request_id, [5 * number + 1])
        return ask(cut_gateway.url, COMPLETIONS, body(number), request_id).text

    alone, made = [beside(number) for number in range(CONTROLS)], plan.made
    with ThreadPoolExecutor(CONTROLS_AT_ONCE) as threads:
        control, continued = (
            sum(one != other for one, other in zip(alone, threads.map(each, range(CONTROLS)), strict=True))
            for each in (beside, cut)
        )
    with capsys.disabled():
        print(f"\nof {CONTROLS} answers differ at once: {control} without a gateway, {continued} that were cut")  # noqa: T201
    assert plan.made - made == CONTROLS
    assert continued - control <= NORMAL_MAX * (continued + control) ** 0.5


@pytest.mark.parametrize("begins", range(8))
@pytest.mark.parametrize("length", [1, 2])
def test_a_stop_string_beside_bytes_that_are_no_text(twins, cut_gateway, plan, begins, length):
    """Events have four tokens, so that the gateway has to tell which of them has which text."""
    broken = {**BROKEN, "stream_interval": 4}
    asked = case(path=COMPLETIONS, prompt="def f(x):", tokens=16, cuts=[1], stop_at=(begins, length), options=broken)
    whole, cut = both(twins[0].url, cut_gateway, plan, asked)
    assert cut == whole


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("tokens", range(1, 13))
def test_a_cut_after_each_token(twins, cut_gateway, plan, path, tokens):
    """Also after the last one, when only the end of the stream is missing."""
    whole, cut = both(twins[0].url, cut_gateway, plan, case(path=path, cuts=[tokens], ignore_eos=True))
    assert cut == whole


ASKED = [{"role": "user", "content": "Once"}]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "Once", "logprobs": 1},
        {"prompt": "Once", "logprobs": 0, "stop": "never this"},
        {"messages": ASKED, "logprobs": True},
        {"messages": ASKED, "logprobs": True, "return_token_ids": True},
    ],
)
@pytest.mark.parametrize("tokens", [1, 5, 8])
def test_log_probabilities_go_on(twins, cut_gateway, plan, fields, tokens):
    """Tokens, their bytes and offsets are the same, and the numbers up to their last bits."""
    path, body = CHAT if "messages" in fields else COMPLETIONS, {**fields, "max_tokens": 12, **USAGE}
    whole = ask(twins[0].url, path, body)
    request_id = f"logprobs-{next(NUMBERS)}"
    plan.cut(request_id, [tokens])
    cut = ask(cut_gateway.url, path, body, request_id)
    assert len(whole.logprobs) == 12
    assert cut.compared == whole.compared
    assert cut.logprobs == pytest.approx(whole.logprobs, abs=0.1)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_the_share_of_a_prompt_that_was_cached_is_left_out(twins, cut_gateway, plan, path):
    """Only the backend that was lost knew it."""
    body = body_of(case(path=path))
    ask(twins[0].url, path, body)
    usage = ask(twins[0].url, path, body).usage
    assert "prompt_tokens_details" in usage
    plan.cut("details", [5])
    cut = ask(cut_gateway.url, path, body, "details")
    assert cut.usage == {name: count for name, count in usage.items() if not name.endswith("details")}


@settings(max_examples=5, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(cases=st.lists(streams, min_size=BATCH, max_size=BATCH))
def test_whole_answers_whose_backend_breaks_equal_those_that_were_not_broken(twins, cut_gateway, plan, cases):
    """The backend is gone when the answer is due; the next one gives it from the start."""

    def whole(url, case, request_id):
        _, body = case["path"], {"model": "tiny", "temperature": 0, **body_of(case)}
        del body["stream_options"]
        with Call(url, case["path"], body, headers={"x-request-id": request_id}) as call:
            answer = json.loads(call.response.read())
        (choice,), usage = answer["choices"], answer["usage"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        counts = (usage["prompt_tokens"], usage["completion_tokens"])
        return text, choice.get("token_ids"), choice["finish_reason"], choice["stop_reason"], counts

    def either(case):
        request_id = f"whole-{next(NUMBERS)}"
        plan.cut(request_id, [1])
        return whole(twins[0].url, case, "reference"), whole(cut_gateway.url, case, request_id)

    made = plan.made
    with ThreadPoolExecutor(STREAMS_AT_ONCE) as threads:
        answers = list(threads.map(either, cases))
    assert plan.made - made == BATCH
    for asked, (undisturbed, broken) in zip(cases, answers, strict=True):
        assert broken == undisturbed, asked


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
