"""The same requests to vLLM and by an alias through the gateway: but for the name of the model, the same answers."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

import cases_chat
import cases_cohere
import cases_completions
import cases_responses
import cases_utilities
import pytest
from exchange import Ask, Got, exchange
from processes import Gateway
from test_wire import TRIES_MAX, compared

MODEL, ALIAS = "tiny", "nick"  # as long as each other: a body has the same length
MODULES = (cases_chat, cases_completions, cases_cohere, cases_responses, cases_utilities)


def names_the_model(ask):
    """Whether the request may be sent by an alias; those that are made of an answer name the model as it does."""
    return not isinstance(ask, Ask) or (isinstance(ask.body, Mapping) and ask.body.get("model") == MODEL)


CASES = {
    name: case
    for module in MODULES
    for name, case in module.CASES.items()
    if case.differs is None and all(map(names_the_model, case.asks))
}


@pytest.fixture(scope="module")
def aliased(vllms, tmp_path_factory):
    """By name, the URL of a vLLM and that of a gateway with an alias of its model."""
    with ExitStack() as stack:
        urls = {}
        for name, vllm in vllms.items():
            config = {"aliases": {ALIAS: {"models": [MODEL]}}}
            gateway = Gateway(tmp_path_factory.mktemp(name), vllm, config=config)
            stack.callback(gateway.stop)
            urls[name] = (vllm.url, gateway.start().url)
        yield urls


def by_alias(ask):
    if isinstance(ask.body, Mapping) and ask.body.get("model") == MODEL:
        return replace(ask, body={**ask.body, "model": ALIAS})
    return ask


def renamed(got: Got) -> Got:
    """The answer with the model's own name, which has to stand where vLLM has it."""
    pairs = ((f'"model":"{ALIAS}"', f'"model":"{MODEL}"'), (f'"model": "{ALIAS}"', f'"model": "{MODEL}"'))
    body = got.body
    for ours, theirs in pairs:
        assert theirs.encode() not in body, "the alias's own name is what the client asked for"
        body = body.replace(ours.encode(), theirs.encode())
    return replace(got, body=body)


def play(url, case, *, is_aliased):
    answers = []
    for each in case.asks:
        ask = each if isinstance(each, Ask) else each(answers[-1])
        got = exchange(url, by_alias(ask) if is_aliased else ask)
        answers.append(renamed(got) if is_aliased else got)
    return answers


@pytest.mark.parametrize("name", CASES)
def test_only_the_name_of_the_model_differs(aliased, name):
    case = CASES[name]
    vllm, gateway = aliased[case.server]
    their_answers, our_answers = set(), set()
    for _ in range(TRIES_MAX):
        theirs, ours = play(vllm, case, is_aliased=False), play(gateway, case, is_aliased=True)
        their_answers.add(tuple(map(compared, theirs)))
        our_answers.add(tuple(map(compared, ours)))
        if their_answers & our_answers:
            return
    assert tuple(map(compared, ours)) == tuple(map(compared, theirs))  # shows what differs
