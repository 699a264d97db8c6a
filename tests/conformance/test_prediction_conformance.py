"""What every prediction of output lengths keeps to. It runs over the table."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.prediction import PREDICTION
from policies.types import Request

SHARING = {"mixture"}  # tenants learn from each other
UNLEARNING = {"none", "oracle", "noisy-oracle"}
MADE = {**PREDICTION, "noisy-oracle": lambda: PREDICTION["noisy-oracle"](rng=Random(1))}

every_prediction = pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())
outputs = st.lists(st.integers(0, 5_000), max_size=120)
choices = st.integers(1, 8)


def make_request(tenant_id: str = "A", output_max: int = 1_000, known: int | None = None, choices: int = 1) -> Request:
    return Request("r", tenant_id, "m", 0.0, 10, output_max, choices=choices, output_tokens_known=known)


@every_prediction
@given(history=outputs, output_max=st.integers(0, 4_000), known=st.none() | st.integers(0, 9_000), choices=choices)
def test_a_prediction_is_between_nothing_and_what_the_request_may_produce(make, history, output_max, known, choices):
    prediction = make()
    request = make_request(output_max=output_max, known=known, choices=choices)
    assert 0.0 <= prediction.predict(request) <= output_max
    for output in history:
        prediction.observed(make_request(choices=choices), output)
        assert 0.0 <= prediction.predict(request) <= output_max


@every_prediction
@given(history=outputs)
def test_asking_changes_nothing(make, history):
    asked, left_alone = make(), make()
    for output in history:
        assert asked.predict(make_request()) == asked.predict(make_request())
        asked.observed(make_request(), output)
        left_alone.observed(make_request(), output)
    assert asked.predict(make_request()) == left_alone.predict(make_request())


@pytest.mark.parametrize("name", sorted(MADE.keys() - SHARING))
@given(history=outputs)
def test_what_one_tenant_produces_says_nothing_about_another(name, history):
    prediction, untouched = MADE[name](), MADE[name]()
    for output in history:
        prediction.observed(make_request("A"), output)
    assert prediction.predict(make_request("B")) == untouched.predict(make_request("B"))


@every_prediction
@given(history=outputs)
def test_a_forgotten_tenant_is_as_one_never_seen(make, history):
    prediction = make()
    for output in history:
        prediction.observed(make_request(), output)
    prediction.forget("A")
    prediction.forget("never seen")
    assert prediction.predict(make_request()) == prediction.predict(make_request("never seen"))


@pytest.mark.parametrize("name", sorted(PREDICTION.keys() - UNLEARNING))
@pytest.mark.parametrize("choices", [1, 3])
def test_a_tenant_that_changes_its_work_for_good_is_predicted_right_after_fifty_requests(name, choices):
    prediction = PREDICTION[name]()
    for output in [1_000] * 100 + [60 * choices] * 50:
        prediction.observed(make_request(choices=choices), output)
    assert prediction.predict(make_request(choices=choices)) == pytest.approx(60 * choices, abs=1.0)


@pytest.mark.parametrize("name", sorted(PREDICTION.keys() - UNLEARNING))
def test_choices_are_predicted_each_like_a_request_of_its_own(name):
    prediction = PREDICTION[name]()
    for _ in range(50):
        prediction.observed(make_request(choices=4), 80)
    assert prediction.predict(make_request()) == pytest.approx(20)
    assert prediction.predict(make_request(choices=3)) == pytest.approx(60)
