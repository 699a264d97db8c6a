"""What the head of an answer says beside what its backend said."""

import math

import pytest

from gateway.http.answer_headers import AnswerHeaders, rate_limit_headers
from gateway.observability.telemetry import CallTrace
from policies.types import RateLimit, RateLimits


def trace(**fields):
    return CallTrace("/v1/completions", request_id="r-1", **fields)


def test_an_answer_has_a_name_and_a_server():
    assert AnswerHeaders().of(trace()) == {"x-request-id": "r-1", "Server": "fairlead"}


def test_limits_are_told_where_there_are_any():
    limits = RateLimits(requests=RateLimit(limit=60, remaining=59, reset_s=1.0))
    assert rate_limit_headers(limits) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
    }
    both = RateLimits(requests=limits.requests, tokens=RateLimit(limit=1000, remaining=0, reset_s=60.0))
    assert rate_limit_headers(both)["x-ratelimit-reset-tokens"] == "1m0s"
    assert rate_limit_headers(RateLimits()) == {}
    assert AnswerHeaders().of(trace(rate_limits=lambda: limits))["x-ratelimit-remaining-requests"] == "59"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0, "0s"),
        (-1.0, "0s"),
        (0.0001, "1ms"),
        (0.25, "250ms"),
        (1.0, "1s"),
        (6.5, "6.5s"),
        (59.9991, "60s"),
        (60.0, "1m0s"),
        (89.2, "1m30s"),
        (3600.0, "1h0m0s"),
        (1e9, "24h0m0s"),
        (math.inf, "24h0m0s"),
        (math.nan, "24h0m0s"),
    ],
)
def test_a_reset_is_a_duration_that_is_never_too_short(seconds, told):
    limits = RateLimits(requests=RateLimit(limit=1, remaining=0, reset_s=seconds))
    assert rate_limit_headers(limits)["x-ratelimit-reset-requests"] == told


def test_the_operators_house_is_shown_where_the_operator_says_so():
    waited = trace(queued_s=1.0, dispatched_s=1.0256, backend_id="b0")
    shown = AnswerHeaders(show_queue_ms=True, show_backend=True).of(waited)
    assert (shown["x-fairlead-queue-ms"], shown["x-fairlead-backend"]) == ("26", "b0")
    assert not any(name.startswith("x-fairlead") for name in AnswerHeaders().of(waited))
    refused = AnswerHeaders(show_queue_ms=True, show_backend=True).of(trace(queued_s=1.0))
    assert not any(name.startswith("x-fairlead") for name in refused)
