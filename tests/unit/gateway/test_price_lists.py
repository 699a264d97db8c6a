"""Amounts are exact and costs are sums: what a configuration says of money is what is computed with."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.budgets.money.pricing import PriceBook
from gateway.config import Config
from gateway.config.amounts import PICOS, to_decimal, to_picos, to_text
from gateway.config.prices import PriceSection

EUR = {"currency": "EUR", "periods": [{"prompt": 0.6, "cached_prompt": "0.15", "output": 2.4}]}
LARGEST = Decimal("999999999.999999")
amounts = st.decimals(min_value=0, max_value=LARGEST, places=6, allow_nan=False)
tokens = st.integers(0, 10**12)


def book(**models):
    made = PriceBook()
    made.replace({name: PriceSection.model_validate(section) for name, section in models.items()})
    return made


@given(amounts)
def test_an_amount_survives_a_reader_that_makes_a_floating_point_number_of_it(amount):
    for written in (str(amount), f"{amount:f}", float(amount), amount, f"{float(amount):.14e}"):
        period = {"prompt": written, "output": 0}
        section = PriceSection.model_validate({"currency": "EUR", "periods": [period]})
        assert section.periods[0].prompt == amount
        assert PriceSection.model_validate_json(section.model_dump_json()) == section


@given(st.integers(-(10**40), 10**40))
def test_picos_as_text_and_as_a_decimal_are_exact(picos):
    assert Decimal(to_text(picos)) == to_decimal(picos)
    assert int(to_text(picos).replace(".", "").ljust(1)) * 10 ** (12 - len(to_text(picos).partition(".")[2])) == picos


@pytest.mark.parametrize(
    ("picos", "text"),
    [(0, "0.00"), (PICOS, "1.00"), (1, "0.000000000001"), (-PICOS // 2, "-0.50"), (1_230_000_000_000, "1.23")],
)
def test_an_amount_has_at_least_two_decimals_and_no_zeros_behind(picos, text):
    assert to_text(picos) == text


@given(st.lists(st.tuples(tokens, tokens, tokens), min_size=1, max_size=20), amounts, amounts, amounts)
def test_the_cost_of_a_sum_is_the_sum_of_the_costs(calls, prompt, cached, output):
    period = {"prompt": prompt, "cached_prompt": cached, "output": output}
    prices = book(m={"currency": "EUR", "periods": [period]}).prices("m", "2026-11-20")
    counts = [(fresh + from_cache, from_cache, written) for fresh, from_cache, written in calls]
    total = prices.cost(*map(sum, zip(*counts, strict=True)))
    assert total == sum(prices.cost(*each) for each in counts)
    fresh, from_cache, written = (sum(column) for column in zip(*calls, strict=True))
    exact = [(prompt, fresh), (cached, from_cache), (output, written)]
    assert total == sum(to_picos(price) * count for price, count in exact) // 10**6


def test_each_day_has_the_price_of_the_latest_period_that_has_begun():
    periods = [
        {"valid_from": "2027-01-01", "prompt": 3, "output": 3},
        {"valid_from": "2026-11-20", "prompt": 1, "output": 1},
    ]
    prices = book(m={"currency": "EUR", "periods": periods})
    assert prices.prices("m", "2026-11-19") is None
    assert prices.prices("other", "2026-11-20") is None
    found = [prices.prices("m", day).prompt for day in ("2026-11-20", "2026-12-31", "2027-01-01", "2030-01-01")]
    assert found == [10**6, 10**6, 3 * 10**6, 3 * 10**6]


def test_cached_tokens_cost_as_others_where_they_have_no_price():
    prices = book(m={"currency": "EUR", "periods": [{"prompt": 2, "output": 0}]}).prices("m", "2026-11-20")
    assert prices.cost(10, 4, 0) == 10 * 2 * 10**6


def test_a_list_in_another_currency_than_most_has_no_effect_and_is_logged(caplog):
    prices = book(a=EUR, b=EUR | {"currency": "USD"}, c=EUR)
    assert prices.currency == "EUR"
    assert prices.prices("b", "2026-11-20") is None
    assert "price list of b" in caplog.text


def test_books_with_other_prices_have_other_versions():
    dearer = {"currency": "EUR", "periods": [{"prompt": 0.61, "cached_prompt": "0.15", "output": 2.4}]}
    versions = [book().version, book(a=EUR).version, book(b=EUR).version, book(a=dearer).version]
    assert len(set(versions)) == 4
    assert book(a=EUR, b=EUR).version == book(b=EUR, a=EUR).version


def test_currencies_are_not_mixed():
    with pytest.raises(ValidationError, match=r"prices\.a\.currency.*EUR, USD"):
        Config(prices={"a": EUR, "b": EUR | {"currency": "USD"}})


@pytest.mark.parametrize(
    "amount", [True, -1, "-0", "1e9", "1e-7", "1_0", " 1", "+1", "NaN", "1.5.0", 1e9, 0.1234567, None, []]
)
def test_what_is_no_exact_amount_is_refused(amount):
    with pytest.raises(ValidationError, match="prompt"):
        PriceSection.model_validate({"currency": "EUR", "periods": [{"prompt": amount, "output": 0}]})


@pytest.mark.parametrize(
    "wrong",
    [
        {"currency": "eur"},
        {"currency": "EUX"},
        {"periods": []},
        {"periods": [{"prompt": 1, "output": 1}, {"prompt": 2, "output": 2}]},
        {"periods": [{"prompt": 1}]},
        {"periods": [{"prompt": 1, "output": 1, "valid_from": "soon"}]},
    ],
)
def test_what_is_no_price_list_is_refused(wrong):
    with pytest.raises(ValidationError):
        PriceSection.model_validate(EUR | wrong)


@pytest.mark.parametrize(
    ("settings", "keeps"),
    [
        ({"tenants": {"anonymous": {}}}, False),
        ({"prices": {"m": EUR}, "budgets": {"thresholds": [90]}}, False),
        ({"tenants": {"anonymous": {"cost_per_day_max": 0}}}, True),
        ({"tenants": {"anonymous": {"cost_per_month_max": "0.50"}}}, True),
        ({"tenants": {"anonymous": {"tokens_per_day_max": 1}}}, True),
    ],
)
def test_state_is_kept_for_budgets_in_money_as_for_others_and_not_for_prices_alone(settings, keeps):
    assert Config(**settings).keeps_state is keeps
