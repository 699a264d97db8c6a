"""What refusals and faults look like from outside."""

import json
import math

import pytest

from gateway.api import errors
from gateway.api.errors import (
    DROPPED_REASON_HEADER,
    INVALID_API_KEY,
    MODEL_NOT_FOUND,
    PROBLEM_OF_REASON,
    RETRY_AFTER_S_MAX,
    Api,
    BadRequest,
    problem_about,
    problem_of,
    write_answer,
)
from policies.types import Reason

PROBLEMS = [each for each in vars(errors).values() if isinstance(each, errors.Problem)]
ANTHROPIC_TYPES = {
    "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large",
    "rate_limit_error", "api_error", "overloaded_error", "timeout_error",
}  # fmt: skip


def error_of(problem) -> dict[str, object]:
    error = json.loads(write_answer(problem, Api.OPENAI).body)["error"]
    assert set(error) == {"message", "type", "param", "code", "reason"}
    assert error["code"] == problem.status, "as vLLM has it, whose errors pass as they are"
    assert all(isinstance(error[name], str) and error[name] for name in ("message", "type"))
    return error


def test_every_reason_has_its_row():
    assert set(PROBLEM_OF_REASON) == set(Reason)


@pytest.mark.parametrize("reason", Reason)
def test_every_refusal_is_an_openai_error_with_a_dropped_reason(reason):
    refusal = problem_of(reason, 2.0)
    assert error_of(refusal)["reason"]
    assert write_answer(refusal, Api.OPENAI).headers[DROPPED_REASON_HEADER].startswith(("rejected-", "evicted-"))


@pytest.mark.parametrize("problem", [*PROBLEMS, *(problem_of(reason, 2.0) for reason in Reason)])
def test_every_problem_is_an_anthropic_error_to_a_client_of_that_api(problem):
    whole = write_answer(problem, Api.ANTHROPIC)
    body = json.loads(whole.body)
    assert (whole.status, whole.headers) == (problem.status, problem.headers)
    assert set(body) == {"type", "error"}
    assert body["type"] == "error"
    assert body["error"]["type"] in ANTHROPIC_TYPES
    assert body["error"]["message"] == problem.message


@pytest.mark.parametrize(
    ("reason", "status", "dropped"),
    [
        (Reason.TENANT_QUEUE_FULL, 429, "rejected-saturated"),
        (Reason.QUEUE_FULL, 429, "rejected-saturated"),
        (Reason.QUEUE_TIMEOUT, 429, "rejected-ttl-expired"),
        (Reason.RATE_LIMITED, 429, "rejected-saturated"),
        (Reason.REQUEST_TOO_LARGE, 400, "rejected-request-too-large"),
        (Reason.TENANT_UNKNOWN, 403, "rejected-tenant-unknown"),
        (Reason.NO_BACKEND, 503, "rejected-no-endpoints"),
        (Reason.SLO_UNREACHABLE, 429, "rejected-saturated"),
        (Reason.SHED, 429, "evicted-priority"),
        (Reason.DRAINING, 503, "rejected-shutting-down"),
    ],
)
def test_contention_is_429_and_no_capacity_is_503(reason, status, dropped):
    refusal = problem_of(reason, 2.0)
    assert (refusal.status, refusal.headers[DROPPED_REASON_HEADER]) == (status, dropped)


@pytest.mark.parametrize(
    ("retry_after_s", "header"),
    [
        (-1.0, 1),
        (0.0, 1),
        (0.2, 1),
        (1.01, 2),
        (59.5, 60),
        *((s, RETRY_AFTER_S_MAX) for s in (1e9, math.inf, math.nan)),
    ],
)
def test_retry_after_is_whole_seconds_never_too_early_and_bounded(retry_after_s, header):
    assert problem_of(Reason.QUEUE_FULL, retry_after_s).headers["retry-after"] == str(header)


def test_who_can_never_be_served_is_not_told_to_retry():
    assert "retry-after" not in problem_of(Reason.TENANT_UNKNOWN, 5.0).headers


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_problem_is_an_openai_error(problem):
    assert error_of(problem)["reason"] == problem.code
    assert 400 <= problem.status < 600


def test_a_missing_key_is_answered_with_the_scheme_to_use():
    assert write_answer(INVALID_API_KEY, Api.OPENAI).headers == {"www-authenticate": "Bearer"}


def test_an_unknown_model_names_the_field():
    assert error_of(problem_about(MODEL_NOT_FOUND, "model"))["param"] == "model"


def test_a_bad_request_keeps_its_param_and_code():
    problem = BadRequest("no", param="n", code="c").problem
    assert problem.status == 400
    said = {"message": "no", "type": "invalid_request_error", "param": "n", "code": 400, "reason": "c"}
    assert error_of(problem) == said
