"""The same requests to vLLM and through the gateway: the same answers, to the byte.

How many tokens share an event of a stream depends on how busy the machine is (folded.py): that alone is not compared.
A request is repeated, because which token is the last one of an event of its own differs too, until both have given
one and the same answer; where the gateway changes anything, that never happens.
"""

import cases_chat
import cases_cohere
import cases_completions
import cases_errors
import cases_fields
import cases_responses
import cases_utilities
import pytest
from exchange import Ask, exchange
from folded import folded
from normal import normal

TRIES_MAX = 20
MODULES = (cases_chat, cases_completions, cases_cohere, cases_responses, cases_utilities, cases_errors, cases_fields)
CASES = {name: case for module in MODULES for name, case in module.CASES.items()}


def play(url, case):
    answers = []
    for ask in case.asks:
        answers.append(exchange(url, ask if isinstance(ask, Ask) else ask(answers[-1])))
    return answers


def compared(got):
    """What has to be the same of an answer."""
    answer = normal(got)
    return answer.status, answer.headers, folded(answer.pieces) if got.is_stream else answer.pieces


def test_no_two_cases_have_one_name():
    assert len(CASES) == sum(len(module.CASES) for module in MODULES)


@pytest.mark.parametrize("name", CASES)
def test_the_gateway_answers_as_vllm_does(servers, name):
    case = CASES[name]
    vllm, gateway = servers[case.server]
    their_answers, our_answers = set(), set()
    for _ in range(TRIES_MAX):
        theirs, ours = play(vllm, case), play(gateway, case)
        if case.differs is not None:
            case.differs(theirs[-1], ours[-1])
            return
        their_answers.add(tuple(map(compared, theirs)))
        our_answers.add(tuple(map(compared, ours)))
        if their_answers & our_answers:
            return
    assert tuple(map(compared, ours)) == tuple(map(compared, theirs))  # shows what differs
