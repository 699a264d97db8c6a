"""Prices are functions of totals, and the profiled one is the published fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cost import LinearPrice, ProfiledQuadraticPrice


@pytest.mark.parametrize(
    ("prompt", "output", "milliseconds"),
    [(256, 0, 54.9109), (256, 256, 554.7998), (0, 0, 1.14601)],
)
def test_the_profiled_price_has_the_published_values(prompt, output, milliseconds):
    assert ProfiledQuadraticPrice().service(prompt, 0, output) == pytest.approx(milliseconds, abs=5e-5)


def test_one_more_token_costs_the_published_increment():
    price = ProfiledQuadraticPrice()
    assert price.service(256, 0, 100) - price.service(256, 0, 99) == pytest.approx(1.76759, abs=5e-6)


def test_cached_prompt_tokens_have_their_own_linear_price():
    assert LinearPrice(prompt=1.0, cached_prompt=0.1, output=2.0).service(100, 60, 5) == pytest.approx(40 + 6 + 10)


@given(prompt=st.integers(0, 5000), outputs=st.lists(st.integers(1, 50), max_size=30))
def test_charges_telescope_to_the_price_of_the_whole_however_tokens_arrive(prompt, outputs):
    price = ProfiledQuadraticPrice()
    charged, emitted, before = 0.0, 0, 0.0
    for arrived in [0, *outputs]:
        emitted += arrived
        now = price.service(prompt, 0, emitted)
        charged += now - before
        before = now
    assert charged == pytest.approx(price.service(prompt, 0, sum(outputs)))
