"""Prices are functions of totals, and the profiled one is the published fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.accounts.cost import PRICES, ExtendPrice, FlopsPrice, LinearPrice, ProfiledQuadraticPrice


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


def test_extend_tokens_are_what_the_cache_does_not_hold():
    assert ExtendPrice().service(100, 60, 5) == 40 + 10
    assert ExtendPrice(extend=3.0, output=1.0).service(100, 0, 5) == 305


def test_a_short_request_costs_two_operations_per_parameter_and_token():
    price = FlopsPrice(parameter_count=1e9, layers=1, hidden=1)
    assert price.service(10, 0, 5) == pytest.approx(2 * 15)


def test_every_token_attends_to_all_before_it_whether_it_is_prefilled_or_decoded():
    price = FlopsPrice(parameter_count=0, layers=2, hidden=1_000)
    per_context_token = 4 * 2 * 1_000 / 1e9
    assert price.service(1, 0, 0) == pytest.approx(per_context_token)
    assert price.service(100, 0, 1) - price.service(100, 0, 0) == pytest.approx(101 * per_context_token)
    assert price.service(60, 0, 40) == price.service(100, 0, 0)


def test_a_cached_prefix_was_computed_already_and_is_attended_to_still():
    price = FlopsPrice()
    assert price.service(100, 60, 5) == pytest.approx(price.service(105, 0, 0) - price.service(60, 0, 0))
    assert price.service(1_060, 1_000, 0) > price.service(60, 0, 0)


def test_a_7b_model_costs_what_its_size_says():
    assert FlopsPrice().service(1, 0, 0) == pytest.approx(13.48, rel=1e-3)


@pytest.mark.parametrize("make", PRICES.values(), ids=PRICES.keys())
@given(prompt=st.integers(1, 5_000), cached=st.floats(0, 1), outputs=st.lists(st.integers(1, 50), max_size=30))
def test_every_price_grows_with_every_token_and_telescopes(make, prompt, cached, outputs):
    price, cached_tokens = make(), int(prompt * cached)
    charged, emitted, before = 0.0, 0, 0.0
    for arrived in [0, *outputs]:
        emitted += arrived
        now = price.service(prompt, cached_tokens, emitted)
        assert now > before or (not emitted and now >= before)
        charged, before = charged + now - before, now
    assert charged == pytest.approx(price.service(prompt, cached_tokens, sum(outputs)))
    assert price.service(prompt, cached_tokens, 0) <= price.service(prompt, 0, 0), "a cached token costs no more"
