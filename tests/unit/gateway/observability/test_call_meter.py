"""What a call counts as, once it has ended."""

import pytest

from gateway.observability.metrics.call_counts import MODELS_MAX, SERIES_MAX, UNKNOWN_TENANT, CallMeter
from gateway.observability.metrics.instruments import (
    ALIAS_CALLS,
    ALIAS_PASSED_ON,
    BACKEND_OVERSTATED,
    NOT_CONTINUED,
    TENANT_REFUSALS,
    TENANT_REQUESTS,
    TENANT_TOKENS,
    TENANT_WAITED,
    Histograms,
)
from gateway.observability.telemetry import CallTrace
from policies.types import Cause, Outcome, Reason, Request, Usage

ENDPOINT = "/v1/chat/completions"


def queued(tenant="a", *, waited_s=0.5, outcome=Outcome.COMPLETED, status=200, **fields):
    trace = CallTrace(
        ENDPOINT, tenant_id=tenant, tier_id="gold", model="m", stream=True, status=status, outcome=outcome
    )
    trace.request = Request("r", tenant, "m", 0.0, 10, 20)
    trace.queued_s = trace.started_s
    trace.dispatched_s = trace.started_s + waited_s
    trace.first_token_s = trace.started_s + waited_s + 0.25
    trace.usage = Usage(10, 4, 6)
    for name, value in fields.items():
        setattr(trace, name, value)
    return trace


@pytest.fixture
def histograms():
    return Histograms()


@pytest.fixture
def meter(histograms):
    return CallMeter(histograms, 2)


def samples(histograms):
    """All samples, by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in histograms.families()
        for sample in family.metric(family.series()).samples
    }


def value(histograms, name, **labels):
    return samples(histograms)[name, frozenset(labels.items())]


def test_tokens_and_time_in_the_queue_are_its_tenants(meter):
    for _ in range(3):
        meter.ended(queued())
    seen = meter.seen()
    assert seen[TENANT_TOKENS] == {("a", "input"): 30, ("a", "cached_input"): 12, ("a", "output"): 18}
    assert seen[TENANT_WAITED][("a",)] == pytest.approx(1.5)
    assert seen[TENANT_REQUESTS] == {("a", "completed"): 3}


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"outcome": Outcome.CLIENT_DISCONNECTED, "status": 499}, "client_gone"),
        ({"outcome": Outcome.BACKEND_FAILED, "status": 502, "reason": "the backend said: hello"}, "backend_failed"),
        ({"outcome": None, "status": 429, "reason": Reason.RATE_LIMITED}, "refused"),
        ({"outcome": None, "status": 503, "reason": Reason.NO_BACKEND}, "refused"),
        ({"outcome": None, "status": 404, "reason": "model_not_found", "request": None}, "refused"),
        ({"outcome": None, "status": 502, "reason": "free text", "request": None}, "backend_failed"),
        ({"outcome": None, "status": 200, "request": None}, "answered"),
    ],
)
def test_how_it_ended_is_one_of_few_words(meter, fields, outcome):
    meter.ended(queued("a"))
    meter.ended(queued("a", **fields))
    assert ("a", outcome) in meter.seen()[TENANT_REQUESTS]


def test_only_refusals_have_reasons_and_no_free_text_becomes_a_label(meter):
    meter.ended(queued(outcome=Outcome.BACKEND_FAILED, status=502, reason="10.0.0.7 broke"))
    meter.ended(queued(outcome=None, status=429, reason=Reason.QUEUE_TIMEOUT, dispatched_s=None, usage=None))
    assert meter.seen()[TENANT_REFUSALS] == {("a", "queue_timeout"): 1}


def test_a_call_without_a_tenant_is_of_none(meter):
    meter.ended(CallTrace(ENDPOINT, status=401, reason="invalid_api_key"))
    assert meter.seen()[TENANT_REFUSALS] == {(UNKNOWN_TENANT, "invalid_api_key"): 1}


def test_a_hundred_thousand_made_up_tenants_are_one_series(meter):
    for number in range(100_000):
        meter.ended(CallTrace(ENDPOINT, status=404, tenant_id=f"key-{number}", reason="model_not_found"))
    assert meter.seen()[TENANT_REFUSALS] == {("other", "model_not_found"): 100_000}


def test_the_series_of_a_tenant_that_is_gone_are_gone(meter):
    meter.ended(queued("a"))
    meter.ended(queued("b"))
    for now, tenants in enumerate(("ab", "b")):
        for tenant_id in tenants:
            meter.series.saw(tenant_id, 1.0)
        meter.series.looked(float(now))
    assert {labels[0] for family in meter.seen().values() for labels in family} == {"b"}


def test_times_go_by_model_and_tier_as_the_conventions_name_them(meter, histograms):
    meter.ended(queued(waited_s=0.0))
    labels = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "m", "tier": "gold"}
    assert value(histograms, "gen_ai_server_time_to_first_token_seconds_sum", **labels) == pytest.approx(0.25)
    assert value(histograms, "gen_ai_server_time_per_output_token_seconds_count", **labels) == 1
    assert value(histograms, "gen_ai_server_request_duration_seconds_count", **labels, error_type="") == 1
    assert value(histograms, "fairlead_queue_wait_seconds_count", tier="gold", outcome="dispatched") == 1


def test_each_pause_of_an_interrupted_stream_counts_by_its_cause(meter, histograms):
    pauses = ((Cause.FAILED, 0.2), (Cause.FAILED, 0.4), (Cause.DRAINED, 0.05))
    meter.ended(queued(pauses=pauses))
    assert value(histograms, "fairlead_interruption_pause_seconds_count", tier="gold", cause="failed") == 2
    assert value(histograms, "fairlead_interruption_pause_seconds_sum", tier="gold", cause="failed") == pytest.approx(
        0.6
    )
    assert value(histograms, "fairlead_interruption_pause_seconds_sum", tier="gold", cause="drained") == 0.05


def test_a_pause_lasts_from_the_first_interruption_to_the_next_bytes(monkeypatch):
    times = iter([1.0, 3.5, 4.0, 4.25])
    trace = CallTrace(ENDPOINT)
    trace.continued()
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    trace.interrupted(Cause.FAILED)
    trace.interrupted(Cause.PREEMPTED)  # before anything came
    trace.continued()
    trace.continued()
    trace.interrupted(Cause.DRAINED)
    trace.continued()
    assert trace.pauses == ((Cause.FAILED, 2.5), (Cause.DRAINED, 0.25))


def test_a_call_that_was_never_sent_has_a_wait_but_no_duration(meter, histograms):
    meter.ended(queued(outcome=None, status=429, reason=Reason.QUEUE_TIMEOUT, dispatched_s=None, usage=None))
    assert value(histograms, "fairlead_queue_wait_seconds_count", tier="gold", outcome="refused") == 1
    assert histograms.duration.series() == []


def test_a_response_in_the_background_counts_once_when_it_has_ended(meter):
    meter.ended(queued(outcome=None, status=200))  # its client was told that it is being made
    assert meter.seen()[TENANT_REQUESTS] == {}
    meter.ended(queued(reason="background"))
    assert meter.seen()[TENANT_REQUESTS] == {("a", "completed"): 1}


def test_there_are_only_so_many_models(meter, histograms):
    for number in range(3 * MODELS_MAX):
        meter.ended(queued(model=f"adapter-{number}"))
    assert len(histograms.first_token.series()) == MODELS_MAX + 1


def test_a_call_adds_one_to_each_counter_that_it_names(meter):
    for difference in ("root", "revision", "root"):
        meter.ended(queued(counted=((NOT_CONTINUED, (difference,)),)))
    assert meter.seen()[NOT_CONTINUED] == {("root",): 2, ("revision",): 1}


def test_names_beyond_so_many_series_share_one_which_keeps_what_is_of_few_words(meter):
    for number in range(SERIES_MAX + 2):
        passed_on = ((f"m{number}", Reason.NO_BACKEND),)
        meter.ended(queued(alias=f"alias-{number}", passed_on=passed_on, overstated=True, backend_id=f"b{number}"))
    seen = meter.seen()
    assert seen[ALIAS_CALLS]["other", "other", "served", "completed"] == 2
    assert seen[ALIAS_PASSED_ON]["other", "other", "no_backend"] == 2
    assert seen[BACKEND_OVERSTATED]["other",] == 2
    assert {len(seen[family]) for family in (ALIAS_CALLS, ALIAS_PASSED_ON, BACKEND_OVERSTATED)} == {SERIES_MAX + 1}
