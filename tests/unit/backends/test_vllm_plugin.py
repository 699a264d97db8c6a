"""The plugin's books, in plain values; tests/vllm/test_plugin.py has it inside a vLLM."""

import gc
from dataclasses import replace
from math import inf

import pytest

from backends.vllm_plugin.collector import OBJECTS_MAX, OBJECTS_MIN, Collector
from backends.vllm_plugin.engine_accounts import GATEWAYS_MAX, EngineAccounts
from backends.vllm_plugin.margin import RATIO_MAX, RATIO_MIN, Margin
from backends.vllm_plugin.options import Options, read_options
from backends.vllm_plugin.request_envelope import RequestOwner, read_envelope
from backends.vllm_plugin.step_clock import StepClock
from policies.batching.fair import Decode, Prefill
from policies.batching.pab import DueDecode
from policies.step_time import StepTimeModel

MODEL = StepTimeModel(base_s=0.002, token_s=0.0001, context_token_s=0.0000001)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def promise(extra_args=None, *, ttft_s=None, tpot_s=None):
    return read_envelope(extra_args, arrived_at=10.0, ttft_s=ttft_s, tpot_s=tpot_s)


def test_a_promise_is_read_from_what_the_gateway_sends():
    read = promise(
        {
            "tenant": "gold",
            "tier": "x",
            "fairlead_weights": [2, 0.5],
            "slo_ttft_ms": 250,
            "fairlead_ttft_ms": 500,
            "slo_tpot_ms": 12.5,
            "fairlead_dispatch": ["g", 7],
        }
    )
    assert read == (RequestOwner("gold", 2.0, "x", 0.5), 10.25, 0.0125, 0.5, ("g", 7))
    assert read.slack_s(output_tokens=0, first_token_at=None, now=10.0) == 0.25


def test_tokens_are_due_from_the_first_one_on_where_it_came_early_and_from_its_due_time_where_it_was_late():
    read = promise({"slo_ttft_ms": 250, "slo_tpot_ms": 12.5})
    assert read.slack_s(output_tokens=4, first_token_at=10.1, now=10.1) == pytest.approx(0.05)
    assert read.slack_s(output_tokens=4, first_token_at=10.4, now=10.4) == pytest.approx(-0.1)
    assert read.slack_s(output_tokens=4, first_token_at=None, now=10.2) == pytest.approx(0.1)  # it is on its way


def test_without_a_ttft_target_tokens_are_due_from_the_first_one_on():
    read = promise({"slo_tpot_ms": 100})
    assert read.slack_s(output_tokens=0, first_token_at=None, now=50.0) == inf
    assert read.slack_s(output_tokens=3, first_token_at=50.0, now=50.1) == pytest.approx(0.2)


def test_without_a_tpot_target_nothing_is_due_after_the_first_token():
    read = promise({"slo_ttft_ms": 100})
    assert read.slack_s(output_tokens=1, first_token_at=10.05, now=99.0) == inf


def test_what_the_operator_promises_stands_in_for_what_a_request_does_not_bring():
    assert promise({"slo_tpot_ms": 10}, ttft_s=1.0, tpot_s=0.5) == (RequestOwner(), 11.0, 0.01, 1.0, None)
    assert promise(None, ttft_s=1.0, tpot_s=0.5) == (RequestOwner(), 11.0, 0.5, 1.0, None)


@pytest.mark.parametrize(
    "lie",
    [
        {"slo_ttft_ms": "250", "slo_tpot_ms": [1]},
        {"slo_ttft_ms": float("nan"), "slo_tpot_ms": -5},
        {"slo_ttft_ms": 1e300, "slo_tpot_ms": 0},
        {"slo_ttft_ms": True, "tenant": 5, "fairlead_dispatch": "7"},
        {"tenant": "x" * 1000, "fairlead_dispatch": ["x", -1]},
        {"fairlead_dispatch": [1, 1]},
        {"fairlead_weights": [0, -1], "fairlead_ttft_ms": -5},
        {"fairlead_weights": [float("nan"), 1e300]},
        {"fairlead_weights": [True, "2"]},
        {"fairlead_weights": [1]},
    ],
)
def test_what_is_not_as_it_should_be_counts_as_not_said(lie):
    assert promise(lie) == (RequestOwner(), inf, inf, inf, None)


def test_options_are_read_once_and_refused_by_name():
    assert read_options({}) == Options()
    assert read_options(
        {"FAIRLEAD_TTFT_MS": "500", "FAIRLEAD_ORDER": "vtc", "FAIRLEAD_GC": "0", "VLLM_API_KEY": "k"}
    ) == Options(ttft_s=0.5, order="vtc", collects=False, token="k")
    assert read_options({"FAIRLEAD_TOKEN": "t", "VLLM_API_KEY": "k", "FAIRLEAD_OPEN": "1"}).token == "t"
    for name, value in [("TTFT_MS", "-1"), ("TPOT_MS", "nan"), ("ORDER", "lifo"), ("GC", "perhaps")]:
        with pytest.raises(ValueError, match=f"FAIRLEAD_{name}"):
            read_options({f"FAIRLEAD_{name}": value})


def begin(steps, key, at):
    steps.began(key, at, new_tokens=8, context_tokens=80, requests=2)


def test_a_step_lasts_from_the_outcome_before_it_to_its_own():
    steps = StepClock()
    begin(steps, 1, 1.0)
    assert steps.ended(1, 1.5) == (8, 80, 2, 0.5)
    begin(steps, 2, 1.75)
    assert steps.ended(2, 2.5).duration_s == 1.0


def test_a_pause_in_which_nothing_was_left_to_do_is_not_counted():
    steps = StepClock()
    begin(steps, 1, 1.0)
    steps.ended(1, 1.5)
    steps.idle()
    begin(steps, 2, 9.0)
    assert steps.ended(2, 9.25).duration_s == 0.25


def test_steps_that_overlap_last_from_outcome_to_outcome():
    steps = StepClock()
    begin(steps, 1, 1.0)
    begin(steps, 2, 1.25)
    assert steps.in_flight == 2
    steps.ended(1, 2.0)
    steps.idle()  # all requests ended with the first; the second was formed before that was known
    assert steps.ended(2, 2.5).duration_s == 0.5


def test_a_collection_is_not_the_engines_work():
    steps = StepClock()
    begin(steps, 1, 1.0)
    steps.ended(1, 2.0)
    steps.paused(0.25)
    begin(steps, 2, 2.5)
    assert steps.ended(2, 3.0).duration_s == 0.75


def test_an_outcome_that_was_not_announced_is_no_step_and_one_that_never_came_is_skipped():
    steps = StepClock()
    assert steps.ended("empty", 1.0) is None
    begin(steps, 1, 1.0)
    begin(steps, 2, 2.0)
    assert steps.ended(2, 2.5).duration_s == 0.5


def test_the_margin_is_what_all_but_a_tenth_of_the_last_steps_took_longer():
    margin = Margin()
    for number in range(200):
        margin.seen(0.010 if number % 5 else 0.013, said_s=0.010)
    assert margin.ratio == pytest.approx(0.3)
    for _ in range(200):
        margin.seen(0.008, said_s=0.010)
    assert margin.ratio == RATIO_MIN
    for _ in range(200):
        margin.seen(1.0, said_s=0.010)
    assert margin.ratio == RATIO_MAX


@pytest.fixture
def collector():
    clock = Clock()
    clock.objects = 0
    collector = Collector(clock)

    def collect():
        clock.now += 0.01
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "get_count", lambda: (clock.objects, 0, 0))
        patch.setattr(gc, "collect", collect)
        yield collector, clock


def test_garbage_is_collected_when_no_request_waits_for_it(collector):
    collector, clock = collector
    clock.objects = OBJECTS_MIN
    assert collector.collect_if_calm(slack_s=1.0, prompts_wait=True) == 0.0
    assert collector.collect_if_calm(slack_s=0.01, prompts_wait=False) == 0.0
    assert collector.collect_if_calm(slack_s=1.0, prompts_wait=False) == pytest.approx(0.01)
    clock.objects = OBJECTS_MIN - 1
    assert collector.collect_if_calm(slack_s=inf, prompts_wait=False) == 0.0


def test_garbage_is_collected_before_too_much_of_it_is_there(collector):
    collector, clock = collector
    clock.objects = OBJECTS_MAX
    assert collector.collect_if_calm(slack_s=-1.0, prompts_wait=True) > 0.0


class Engine:
    """Drives a clerk through steps that last as MODEL says."""

    def __init__(self, **options):
        self.clock = Clock()
        self.accounts = EngineAccounts(Options(collects=False, **options), self.clock)
        self.steps = 0

    def step(self, *, new_tokens, context_tokens, requests):
        self.steps += 1
        starts_at = self.accounts.begin_step()
        work = {"new_tokens": new_tokens, "context_tokens": context_tokens, "requests": requests}
        self.accounts.scheduled(self.steps, starts_at, **work)
        self.clock.now += MODEL.step_s(**work)
        self.accounts.ended(self.steps)
        self.accounts.rest(is_idle=False, prompts_wait=False, slack_s=inf)

    def learn(self):
        for number in range(400):
            prompt = 40 * (number % 5)
            self.step(
                new_tokens=1 + number % 7 + prompt, context_tokens=50 * (number % 11) + prompt, requests=1 + number % 7
            )


def test_a_step_is_divided_by_targets_once_the_model_is_sure():
    engine = Engine()
    decodes = [Decode("a", 0.01, 0.02, 100), Decode("b", inf, inf, 100)]
    prefills = [Prefill("long", inf, 0, 5000), Prefill("due", 1.0, 0, 300)]
    at_first = engine.accounts.divide(decodes, prefills, tokens_max=2048)
    assert at_first == {"a": 1, "b": 1, "due": 300, "long": 2048 - 302}, "prompts by their slack, as many as may be"
    engine.learn()
    granted = engine.accounts.divide(decodes, prefills, tokens_max=2048)
    assert granted["a"] == granted["b"] == 1
    assert granted["due"] == pytest.approx(174, rel=0.05)  # 20 ms less 2.04 and two decodes, at 0.1021
    assert "long" not in granted


def test_without_decodes_that_are_due_a_prompt_that_is_due_goes_before_one_that_was_begun():
    engine = Engine()
    engine.learn()
    granted = engine.accounts.divide([], [Prefill("begun", inf, 500, 1500), Prefill("due", 0.1, 0, 60)], tokens_max=256)
    assert granted == {"due": 60, "begun": 196}


def test_a_model_that_was_sure_once_is_kept_to_when_it_is_not_any_more():
    engine = Engine()
    engine.learn()
    for number in range(1600):
        engine.clock.now += 0.003 * (number // 16 % 3)  # the machine is elsewhere
        engine.step(new_tokens=8, context_tokens=100, requests=1)
    assert not engine.accounts.step_time.is_sure
    granted = engine.accounts.divide([Decode("a", 0.01, 0.02, 100)], [Prefill("p", 1.0, 0, 5000)], tokens_max=2048)
    assert granted["p"] < 200


def test_every_step_is_reported_in_time_and_at_once_when_the_engine_rests():
    engine = Engine()
    engine.step(new_tokens=8, context_tokens=80, requests=2)
    assert engine.accounts.untold(is_idle=False) == [(8, 80, 2, pytest.approx(0.002808))]
    engine.step(new_tokens=2, context_tokens=82, requests=2)
    assert engine.accounts.untold(is_idle=False) == []
    engine.step(new_tokens=2, context_tokens=84, requests=2)
    assert len(engine.accounts.untold(is_idle=True)) == 2


def test_the_budget_is_for_the_tightest_targets_that_came_lately():
    engine = Engine()
    assert engine.accounts.budget([], owed_tokens=0) is None
    engine.learn()
    for name, left_ms, ttft_ms, tpot_ms in [("a", 1, 500, 50), ("b", 900, 1000, 20)]:  # whatever a queue has left of it
        targets = {"slo_ttft_ms": left_ms, "fairlead_ttft_ms": ttft_ms, "slo_tpot_ms": tpot_ms}
        engine.accounts.arrived(name, targets, arrived_s_ago=0.0, prompt_tokens=1)
    tokens, ttft_s, tpot_s = engine.accounts.budget([DueDecode(0.1, 200)], owed_tokens=100)
    assert (ttft_s, tpot_s) == (pytest.approx(0.5), pytest.approx(0.02))
    assert tokens == pytest.approx((0.5 - 21 * 0.002 - 21 * 0.00012) / 0.0001001 - 100, rel=0.1)


def test_there_is_no_budget_by_a_model_that_says_that_prompts_cost_nothing():
    engine = Engine()
    targets = {"slo_ttft_ms": 5, "slo_tpot_ms": 5}
    engine.accounts.arrived("a", targets, arrived_s_ago=0.0, prompt_tokens=1)
    engine.learn()
    assert engine.accounts.budget([], owed_tokens=0) is not None
    free = replace(engine.accounts.step_time, model=StepTimeModel(base_s=0.01, token_s=0.0))
    engine.accounts._step_time = free
    assert engine.accounts.budget([], owed_tokens=0) is None


def test_it_is_known_whether_any_request_has_an_envelope():
    accounts = Engine().accounts
    for name, targets in [("a", {}), ("b", {"slo_ttft_ms": 5}), ("c", {"slo_tpot_ms": 5})]:
        accounts.arrived(name, targets, arrived_s_ago=0.0, prompt_tokens=1)
    assert accounts.promised == 2
    for name in ("a", "b", "b", "c"):
        accounts.forget(name)
    assert accounts.promised == 0


def test_the_highest_dispatch_of_each_gateway_is_known_and_of_few_gateways():
    accounts = Engine().accounts
    for gateway, number in [("g", 3), ("h", 9), ("g", 2)]:
        accounts.arrived(
            f"{gateway}{number}", {"fairlead_dispatch": [gateway, number]}, arrived_s_ago=0.0, prompt_tokens=1
        )
    assert accounts.dispatches == {"h": 9, "g": 3}
    for number in range(2 * GATEWAYS_MAX):
        accounts.arrived(
            f"{number}", {"fairlead_dispatch": [f"gateway {number}", 1]}, arrived_s_ago=0.0, prompt_tokens=1
        )
    assert len(accounts.dispatches) == GATEWAYS_MAX


def test_a_request_that_is_over_is_forgotten_however_it_ended():
    accounts = Engine(order="vtc").accounts
    for name in ("a", "b"):
        accounts.arrived(name, {"tenant": "t"}, arrived_s_ago=0.5, prompt_tokens=1)
    accounts.begun("a", 1)
    entry = accounts.entries["a"]
    accounts.produced("a", entry, 1, 101.0)
    accounts.produced("a", entry, 3, 102.0)
    assert (entry.output_tokens, entry.first_token_at) == (3, 101.0)
    assert accounts.tenants.rank(RequestOwner("t")) == 1 + 3 * 2
    for name in ("a", "a", "b"):
        accounts.forget(name)
    assert accounts.entries == {}
    assert list(accounts.tenants.choices()) == []


def test_the_next_step_starts_when_those_in_flight_are_through():
    engine = Engine()
    engine.learn()
    now = engine.accounts.begin_step()
    assert now == engine.clock.now
    engine.accounts.scheduled("x", now, new_tokens=100, context_tokens=100, requests=1)
    assert engine.accounts.begin_step() - now == pytest.approx(0.01201, rel=0.1)


def test_of_many_short_and_few_long_steps_the_mean_is_learnt():
    engine = Engine()
    for number in range(1600):
        if number % 8 == 0:
            engine.clock.now += 0.008  # the machine is elsewhere
        engine.step(new_tokens=1 + number % 5 + 40 * (number % 3), context_tokens=100, requests=1 + number % 5)
    mean = MODEL.step_s(new_tokens=43, context_tokens=100, requests=3) + 0.001
    assert engine.accounts.step_time.model.step_s(new_tokens=43, context_tokens=100, requests=3) == pytest.approx(
        mean, rel=0.03
    )
