"""What refusals and faults look like from outside."""

import json
import math

import pytest

from gateway.openai import (
    DROPPED_REASON_HEADER,
    FAULTS,
    INVALID_API_KEY,
    MODEL_NOT_FOUND,
    NOT_FOUND,
    REFUSALS,
    RETRY_AFTER_S_MAX,
    bad_request,
    failed,
    method_not_allowed,
    refused,
)
from gateway.prompts import BadRequest
from policies.types import Reason


def error_of(body: bytes) -> dict[str, object]:
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert all(isinstance(error[name], str) and error[name] for name in ("message", "type"))
    return error


def test_every_reason_has_its_row():
    assert set(REFUSALS) == set(Reason)


@pytest.mark.parametrize("reason", Reason)
def test_every_refusal_is_an_openai_error_with_a_dropped_reason(reason):
    answer = refused(reason, 2.0)
    assert error_of(answer.body)["code"]
    assert answer.headers[DROPPED_REASON_HEADER].startswith("rejected-")


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
        (Reason.DRAINING, 503, "rejected-shutting-down"),
    ],
)
def test_contention_is_429_and_no_capacity_is_503(reason, status, dropped):
    answer = refused(reason, 2.0)
    assert (answer.status, answer.headers[DROPPED_REASON_HEADER]) == (status, dropped)


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
    assert refused(Reason.QUEUE_FULL, retry_after_s).headers["retry-after"] == str(header)


def test_who_can_never_be_served_is_not_told_to_retry():
    assert "retry-after" not in refused(Reason.TENANT_UNKNOWN, 5.0).headers


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_an_openai_error(fault):
    answer = failed(fault)
    assert error_of(answer.body)["code"] == fault.code
    assert 400 <= answer.status < 600


def test_a_missing_key_is_answered_with_the_scheme_to_use():
    assert failed(INVALID_API_KEY).headers == {"www-authenticate": "Bearer"}


def test_an_unknown_model_names_the_field():
    assert error_of(failed(MODEL_NOT_FOUND, param="model").body)["param"] == "model"


def test_a_bad_request_keeps_its_param_and_code():
    answer = bad_request(BadRequest("no", param="n", code="c"))
    assert answer.status == 400
    assert error_of(answer.body) == {"message": "no", "type": "invalid_request_error", "param": "n", "code": "c"}


def test_unknown_paths_and_methods_are_answered_as_vllm_does():
    assert json.loads(NOT_FOUND.body) == {"detail": "Not Found"}
    answer = method_not_allowed("POST")
    assert (answer.status, answer.headers) == (405, {"allow": "POST"})
