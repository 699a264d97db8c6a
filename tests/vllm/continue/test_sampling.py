"""With sampling, tokens after a cut are distributed as they are without one (chi-square, two samples)."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from answers import ask
from wire import COMPLETIONS

ANSWERS = 160  # of each kind; with 4 choices for each of two tokens, 10 in a cell on average
TOP = 4
NORMAL_MAX = 3.09  # the 0.1 % point of a normal distribution: a test that is right fails once in a thousand runs
BODY = {
    "prompt": "Once",
    "max_tokens": 2,
    "temperature": 1.0,
    "top_k": TOP,
    "ignore_eos": True,
    "return_token_ids": True,
}


def pairs(url, name, plan=None):
    def one(number):
        request_id = f"{name}-{number}"
        if plan is not None:
            plan.cut(request_id, [1])
        return tuple(ask(url, COMPLETIONS, BODY, request_id).ids)

    with ThreadPoolExecutor(8) as threads:
        return Counter(threads.map(one, range(ANSWERS)))


def test_the_token_after_a_cut_is_drawn_as_in_a_whole_answer(twins, cut_gateway, plan):
    whole, made = pairs(twins[0].url, "whole"), plan.made
    cut = pairs(cut_gateway.url, "cut-sample", plan)
    assert plan.made - made > ANSWERS / 2, "too few were cut"  # one event may hold both tokens
    assert {len(pair) for pair in cut} == {2}
    cells = whole.keys() | cut.keys()
    assert len(cells) < 2 * TOP * TOP  # equal ones at the fourth place are all allowed
    chi_square = sum((whole[cell] - cut[cell]) ** 2 / (whole[cell] + cut[cell]) for cell in cells)
    freedom = len(cells) - 1
    # Wilson and Hilferty: the cube root of chi-square over its degrees of freedom is nearly normal.
    limit = freedom * (1 - 2 / (9 * freedom) + NORMAL_MAX * (2 / (9 * freedom)) ** 0.5) ** 3
    assert chi_square < limit, (whole, cut)
