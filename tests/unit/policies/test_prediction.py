"""Predictions of output lengths: the worked examples, parameters, and the mixture of experts."""

from random import Random
from statistics import mean

import pytest

from policies.prediction import ExponentialAverage, LastFiveMean, MixtureOfExperts, NoisyOracle, TenantQuantile
from policies.prediction import mixture as mixture_file
from policies.prediction.mixture import CONTEXTS_MAX, EXPERTS, contexts
from policies.types import Request


def call(tenant_id="A", *, prompt=100, output_max=4_000, **fields) -> Request:
    return Request(fields.pop("id", "r"), tenant_id, fields.pop("model", "m"), 0.0, prompt, output_max, **fields)


def learnt(predictor, calls):
    """The predictor after these (request, output) pairs."""
    for request, output in calls:
        predictor.observed(request, output)
    return predictor


# -- averages and quantiles ----------------------------------------------------------------------------------


def test_a_call_that_may_have_no_output_teaches_nothing_of_those_that_may():
    predictor = learnt(TenantQuantile(), [(call(output_max=0), 0)])
    assert predictor.predict(call()) == TenantQuantile().predict(call())


def test_the_exponential_average_is_that_of_the_worked_example():
    predictor, predicted = ExponentialAverage(), []
    for output in (8, 3, 9):
        predicted.append(predictor.predict(call()))
        predictor.observed(call(), output)
    assert predicted == [0, 8, 7]


def test_the_mean_of_the_last_five_may_end_in_half_a_token():
    assert learnt(LastFiveMean(), [(call(), 8), (call(), 3)]).predict(call()) == 5.5
    assert learnt(LastFiveMean(), [(call(), output) for output in (900, 1, 2, 3, 4, 5)]).predict(call()) == 3


def test_the_quantile_and_its_window_can_be_chosen():
    outputs = [(call(), output) for output in range(1, 101)]
    assert learnt(TenantQuantile(), outputs).predict(call()) == 90, "the 80th percentile of 51 to 100"
    assert learnt(TenantQuantile(quantile=1.0, window_outputs=100), outputs).predict(call()) == 100
    assert learnt(TenantQuantile(quantile=0.5, window_outputs=10), outputs).predict(call()) == 95
    assert TenantQuantile(first_tokens=7.0).predict(call()) == 7


def test_a_tenant_that_always_uses_its_whole_limit_is_predicted_its_whole_limit():
    rng = Random(1)
    limits = [rng.randint(16, 1_024) for _ in range(20)]
    predictor = learnt(TenantQuantile(), [(call(output_max=limit), limit) for limit in limits])
    for limit in (16, 500, 4_000):
        assert predictor.predict(call(output_max=limit)) == limit
        assert predictor.predict(call(output_max=3 * limit, choices=3)) == 3 * limit


def test_a_tenant_that_uses_half_of_its_limit_is_predicted_half():
    rng = Random(1)
    limits = [2 * rng.randint(16, 1_024) for _ in range(20)]
    predictor = learnt(TenantQuantile(), [(call(output_max=limit), limit // 2) for limit in limits])
    assert predictor.predict(call(output_max=600)) == pytest.approx(300)


def test_limits_that_say_nothing_of_the_answers_are_not_gone_by():
    rng = Random(1)
    calls = [(call(output_max=rng.choice([2_000, 4_000, 8_000])), 200 + rng.randint(-20, 20)) for _ in range(50)]
    assert 200 <= learnt(TenantQuantile(), calls).predict(call(output_max=8_000)) <= 220


def test_a_tenant_that_ceases_to_use_its_limits_is_believed_after_a_window():
    rng = Random(1)
    limits = [rng.randint(500, 1_024) for _ in range(100)]
    predictor = learnt(TenantQuantile(), [(call(output_max=limit), limit) for limit in limits])
    learnt(predictor, [(call(output_max=limit), 100) for limit in limits[:50]])
    assert predictor.predict(call(output_max=1_000)) == 100


# -- the oracle that errs ------------------------------------------------------------------------------------


def test_the_noisy_oracle_is_uniform_around_the_truth_and_says_the_same_when_asked_again():
    oracle = NoisyOracle(rng=Random(3))
    draws = [oracle.predict(call(id=f"r{number}", output_tokens_known=1_000)) for number in range(2_000)]
    assert min(draws) >= 500
    assert max(draws) <= 1_500
    assert mean(draws) == pytest.approx(1_000, abs=20)
    assert mean((draw - 1_000) ** 2 for draw in draws) == pytest.approx(1_000**2 / 12, rel=0.05)
    assert [oracle.predict(call(id=f"r{number}", output_tokens_known=1_000)) for number in range(5)] == draws[:5]


def test_another_seed_errs_otherwise_and_no_error_is_the_truth():
    request = call(output_tokens_known=1_000)
    assert NoisyOracle(rng=Random(1)).predict(request) != NoisyOracle(rng=Random(2)).predict(request)
    assert NoisyOracle(rng=Random(1), error_ratio=0.0).predict(request) == 1_000


# -- the mixture ---------------------------------------------------------------------------------------------


def test_there_is_a_context_for_every_expert():
    alike = contexts(call(prompt=4_000, output_max=4_000), 0)
    assert len(alike) == len(set(alike)) == len(EXPERTS)


def alternating(first: Request, second: Request, outputs=(40, 900), times=60):
    return [pair for _ in range(times) for pair in ((first, outputs[0]), (second, outputs[1]))]


@pytest.mark.parametrize(
    "others",
    [
        {"tenant_id": "B"},
        {"prompt": 3_000},
        {"output_max": 16},
        {"model": "other"},
        {"endpoint": "/v1/completions"},
        {"uses_tools": True},
    ],
)
def test_whatever_tells_two_kinds_of_calls_apart_is_found(others):
    first, second = call(), call(**others)
    mixture = learnt(MixtureOfExperts(), alternating(first, second, outputs=(40, 12)))
    assert (mixture.predict(first), mixture.predict(second)) == (40, 12)


def test_each_tenant_has_the_expert_that_is_right_for_it():
    calls = []
    for number in range(400):
        # One tenant's answers follow its prompts; the other's its endpoint, whatever its prompts are.
        prompt = 100 + 900 * (number % 2)
        calls.append((call("follows-prompts", prompt=prompt), 50 if prompt == 100 else 700))
        endpoint = ("short", "long")[number // 2 % 2]
        calls.append((call("follows-calls", prompt=prompt, endpoint=endpoint), 5 if endpoint == "short" else 300))
    mixture = learnt(MixtureOfExperts(), calls)
    assert mixture.predict(call("follows-prompts", prompt=1_000)) == 700
    assert mixture.predict(call("follows-calls", prompt=1_000, endpoint="short")) == 5


def test_a_tenant_never_seen_is_told_by_what_is_known_of_such_calls():
    mixture = learnt(MixtureOfExperts(), alternating(call(), call(prompt=3_000)))
    assert mixture.predict(call("new")) == 40
    assert mixture.predict(call("new", prompt=3_000)) == 900


def test_an_expert_that_is_right_no_more_is_listened_to_no_more():
    first, second = call(endpoint="x"), call(endpoint="y")
    mixture = learnt(MixtureOfExperts(), alternating(first, second))
    # From now on the endpoint says nothing and the tools say all.
    calls = []
    for number in range(600):
        uses_tools, endpoint = bool(number % 2), "xy"[number // 2 % 2]
        calls.append((call(endpoint=endpoint, uses_tools=uses_tools, prompt=500), 20 if uses_tools else 600))
    learnt(mixture, calls)
    assert mixture.predict(call(endpoint="x", uses_tools=True, prompt=500)) == 20
    assert mixture.predict(call(endpoint="x", uses_tools=False, prompt=500)) == 600


def test_another_quantile_is_seldom_too_little():
    rng = Random(7)
    calls = [
        (call(f"t{rng.randrange(4)}", prompt=rng.randrange(1, 4_000)), rng.randrange(1, 1_000)) for _ in range(3_000)
    ]
    for quantile in (0.5, 0.8, 0.95):
        mixture, outgrown = MixtureOfExperts(quantile=quantile), 0
        for request, output in calls:
            outgrown += output > mixture.predict(request)
            mixture.observed(request, output)
        assert outgrown / len(calls) == pytest.approx(1 - quantile, abs=0.05)


def test_what_is_remembered_is_bounded_and_what_is_used_stays(monkeypatch):
    monkeypatch.setattr(mixture_file, "CONTEXTS_MAX", 200)
    mixture = MixtureOfExperts()
    for number in range(1_000):
        mixture.observed(call(f"t{number}", prompt=number), 10)
        mixture.observed(call("kept"), 77)
        assert len(mixture._contexts) <= 200
        mixture.forget(f"t{number}")
    assert mixture.predict(call("kept")) == 77
    assert set(mixture._tenants) == {"kept"}
    assert CONTEXTS_MAX == 20_000


def test_a_tenant_that_is_forgotten_leaves_no_weights_and_no_context_that_can_be_found():
    mixture = learnt(MixtureOfExperts(), alternating(call("A", prompt=10), call("B")))
    before = mixture.predict(call("never seen", prompt=10))
    mixture.forget("A")
    assert mixture.predict(call("A", prompt=10)) == before
    learnt(mixture, [(call("A", prompt=10), 500)])
    assert mixture._tenants["A"].answers[EXPERTS.index("tenant")] == 0, "it begins anew"


def test_the_same_history_gives_the_same_predictions():
    rng = Random(5)
    calls = [(call(f"t{rng.randrange(9)}", prompt=rng.randrange(1, 999)), rng.randrange(1, 999)) for _ in range(500)]
    first, second = (learnt(MixtureOfExperts(), calls) for _ in range(2))
    assert [first.predict(request) for request, _ in calls] == [second.predict(request) for request, _ in calls]
