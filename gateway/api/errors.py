"""Error responses: status, headers and body of every call that the gateway answers with an error, in the API's shape.

`PROBLEM_OF_REASON` maps each Reason of the scheduler to its HTTP form; the `Problem` constants are all other errors. No
message repeats what the client sent. Statuses follow vLLM, types and codes OpenAI and Anthropic.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import orjson

from policies.types import LimitKind, Reason

RETRY_AFTER_S_MAX = 3600
MONTH_S = 31 * 86_400
DROPPED_REASON_HEADER = "x-llm-d-request-dropped-reason"
LIMIT_HEADER = "x-fairlead-limit"


class Api(StrEnum):
    """The API whose error format a path uses."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    COHERE = "cohere"


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """A response that the gateway itself writes as a whole; `body` is JSON."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Problem:
    """An error response, before it is written in the format of the called API. `type` and `code` are OpenAI's terms,
    `param` is the field that is wrong, `limit` the limit that the caller exceeds.
    """

    status: int
    type: str
    code: str | None
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    limit: LimitKind | None = None


class ProblemError(Exception):
    """An error: the gateway itself answers a call with an error response, `problem`. `reason` is for the log."""

    def __init__(self, problem: Problem, reason: str | None = None) -> None:
        super().__init__(problem.message)
        self.problem = problem
        self.reason = reason or problem.code or problem.type


class BadRequest(ProblemError):  # noqa: N818 - named as HTTP names it
    """An error of the client: the body is not a valid call. The message names fields and never repeats the input."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(Problem(400, "invalid_request_error", code, message, param), "bad_request")


def _rejected(status: int, type_: str, code: str, message: str, dropped_reason: str, **more: str) -> Problem:
    """The error response for one Reason. 429: capacity exists, but is in use; 503: there is no capacity."""
    return Problem(status, type_, code, message, headers={DROPPED_REASON_HEADER: dropped_reason, **more})


PROBLEM_OF_REASON: Final[Mapping[Reason, Problem]] = {
    Reason.TENANT_QUEUE_FULL: _rejected(
        429, "rate_limit_error", "rate_limit_exceeded", "Your queue is full.", "rejected-saturated"
    ),
    Reason.QUEUE_FULL: _rejected(
        429, "overloaded_error", "rate_limit_exceeded", "All queues together are full.", "rejected-saturated"
    ),
    Reason.QUEUE_TIMEOUT: _rejected(
        429, "overloaded_error", "rate_limit_exceeded", "No capacity became free in time.", "rejected-ttl-expired"
    ),
    Reason.TOO_MANY_AT_ONCE: _rejected(
        429, "rate_limit_error", "rate_limit_exceeded", "You have too many such calls at once.", "rejected-saturated"
    ),
    Reason.RATE_LIMITED: _rejected(
        429, "rate_limit_error", "rate_limit_exceeded", "You are over your rate limit.", "rejected-saturated"
    ),
    # OpenAI's type and code: its clients tell an exhausted quota by them from a limit that resets within a minute.
    # llm-d has no value for it. It resets only after days, so client libraries, which read the last header, are told
    # not to retry.
    Reason.BUDGET_SPENT: _rejected(
        429,
        "insufficient_quota",
        "insufficient_quota",
        "You have used up your tokens of this day or month (UTC).",
        "rejected-budget-spent",
        **{"x-should-retry": "false"},
    ),
    # A retry cannot help, so the status is one that no client library retries.
    Reason.REQUEST_TOO_LARGE: _rejected(
        400,
        "invalid_request_error",
        "request_too_large",
        "The prompt alone is larger than your limit of tokens per minute.",
        "rejected-request-too-large",
    ),
    # llm-d has no value for an unknown tenant: this one is fairlead's, in llm-d's style.
    Reason.TENANT_UNKNOWN: _rejected(
        403, "authentication_error", "tenant_unknown", "Your key belongs to no known tenant.", "rejected-tenant-unknown"
    ),
    Reason.NO_BACKEND: _rejected(
        503, "overloaded_error", "service_unavailable", "No backend is available.", "rejected-no-endpoints"
    ),
    Reason.SLO_UNREACHABLE: _rejected(
        429, "overloaded_error", "rate_limit_exceeded", "Your latency target cannot be met now.", "rejected-saturated"
    ),
    Reason.SHED: _rejected(
        429, "overloaded_error", "rate_limit_exceeded", "More important work needs the capacity.", "evicted-priority"
    ),
    Reason.DRAINING: _rejected(
        503, "overloaded_error", "service_unavailable", "The gateway is shutting down.", "rejected-shutting-down"
    ),
    # A status that no client library retries, as the operator does not want the call. llm-d has no value for it.
    Reason.CANCELLED: _rejected(
        403,
        "permission_error",
        "cancelled",
        "An operator of the gateway has cancelled this call.",
        "rejected-cancelled",
    ),
}

INVALID_API_KEY: Final = Problem(
    401,
    "authentication_error",
    "invalid_api_key",
    "No valid API key was given. Send it as 'Authorization: Bearer KEY'.",
    headers={"www-authenticate": "Bearer"},
)
MODEL_NOT_ALLOWED: Final = Problem(403, "authentication_error", "model_not_allowed", "Your key may not use this model.")
TOO_MANY_FAILURES: Final = Problem(
    429, "rate_limit_error", "too_many_failures", "Too many requests with wrong keys came from your address."
)
MODEL_NOT_FOUND: Final = Problem(
    404,
    "invalid_request_error",
    "model_not_found",
    "The model does not exist here. GET /v1/models lists those that your key may use.",
)
RESPONSE_NOT_FOUND: Final = Problem(
    404, "invalid_request_error", "response_not_found", "There is no such response of yours here."
)
BODY_TIMEOUT: Final = Problem(408, "invalid_request_error", "body_timeout", "The body did not arrive in time.")
BODY_TOO_LARGE: Final = Problem(413, "invalid_request_error", "body_too_large", "The body is too large.")
BODY_TOO_COMPLEX: Final = Problem(
    413, "invalid_request_error", "body_too_complex", "The body holds too many values: objects, lists, texts, numbers."
)
BODY_COMPRESSED: Final = Problem(
    415,
    "invalid_request_error",
    "body_compressed",
    "A compressed body is not read here: send it without Content-Encoding.",
    headers={"accept-encoding": "identity"},  # RFC 9110, 15.5.16
)
OUT_OF_MEMORY: Final = Problem(
    503,
    "overloaded_error",
    "service_unavailable",
    "The gateway is short of memory.",
    headers={"retry-after": "1"},
)
NO_REALTIME: Final = Problem(
    501,
    "invalid_request_error",
    "realtime_not_offered",
    "/v1/realtime is not offered here: what its sessions use could not be queued and charged.",
)
HEADER_TOO_LARGE: Final = Problem(431, "invalid_request_error", "header_too_large", "The header is too large.")
MALFORMED_HTTP: Final = Problem(400, "invalid_request_error", "malformed_http", "The request is not valid HTTP.")
INTERNAL: Final = Problem(500, "api_error", "internal_error", "The gateway failed. This is its fault, not yours.")
BACKEND_FAILED: Final = Problem(502, "api_error", "backend_failed", "The backend failed while it answered.")
BACKEND_TIMEOUT: Final = Problem(504, "api_error", "backend_timeout", "The backend did not answer in time.")

# Anthropic's error type by status; the type of every other status is "api_error".
_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "overloaded_error",
    504: "timeout_error",
}

# Unknown paths and methods get the responses that vLLM gives.
NOT_FOUND: Final = WholeAnswer(404, b'{"detail":"Not Found"}')


def method_not_allowed(allow: str) -> WholeAnswer:
    """The 405 response; `allow` lists the methods of the path."""
    return WholeAnswer(405, b'{"detail":"Method Not Allowed"}', {"allow": allow})


# More specific messages, for a Reject that names the budget.
_BUDGET_MESSAGES: Final[Mapping[LimitKind, str]] = {
    LimitKind.DAY: "You have used up your tokens of this day (UTC).",
    LimitKind.MONTH: "You have used up your tokens of this month (UTC).",
    LimitKind.COST_DAY: "You have used up your budget of this day (UTC).",
    LimitKind.COST_MONTH: "You have used up your budget of this month (UTC).",
}


def problem_of(reason: Reason, retry_after_s: float, limit: LimitKind | None = None) -> Problem:
    """The Problem of a Reject. Retry-After is in whole seconds, at least 1 (RFC 9110, 10.2.3), on 429 and 503."""
    problem = PROBLEM_OF_REASON[reason]
    headers, message = dict(problem.headers), problem.message
    if limit is not None:
        headers[LIMIT_HEADER] = limit
        is_per_minute = reason is Reason.RATE_LIMITED
        message = (
            f"You are over your limit of {limit} per minute." if is_per_minute else _BUDGET_MESSAGES.get(limit, message)
        )
    if problem.status in (429, 503):
        most_s = MONTH_S if reason is Reason.BUDGET_SPENT else RETRY_AFTER_S_MAX
        headers["retry-after"] = str(_whole_seconds(retry_after_s, most_s))
    return replace(problem, message=message, headers=headers, limit=limit)


def problem_about(problem: Problem, param: str) -> Problem:
    """A copy of the problem that names `param` as the wrong field."""
    return replace(problem, param=param)


def body_too_large(bytes_max: int) -> Problem:
    """The problem BODY_TOO_LARGE, with the limit in its message."""
    return replace(BODY_TOO_LARGE, message=f"The body has more than the {bytes_max} bytes that are taken here.")


def too_many_failures(wait_s: float) -> Problem:
    """The problem TOO_MANY_FAILURES with a Retry-After of `wait_s`, in whole seconds."""
    return replace(TOO_MANY_FAILURES, headers={"retry-after": str(max(1, math.ceil(wait_s)))})


def write_answer(problem: Problem, api: Api) -> WholeAnswer:
    """The complete response for a problem, in this API's error format."""
    body = error = error_object(problem, api)
    if api is not Api.COHERE:
        body = {"error": error} if api is Api.OPENAI else {"type": "error", "error": error}
    return WholeAnswer(problem.status, orjson.dumps(body), problem.headers)


def error_object(problem: Problem, api: Api) -> dict[str, Any]:
    """The error object in this API's shape, for a body or for an event of a stream."""
    if api is Api.OPENAI:
        payload = {
            "message": problem.message,
            "type": problem.type,
            "param": problem.param,
            # A number, as in vLLM's errors, which are forwarded unchanged: a client with typed errors can parse both.
            "code": problem.status,
            "reason": problem.code,
        }
    elif api is Api.ANTHROPIC:
        payload = {"type": _ANTHROPIC_TYPES.get(problem.status, "api_error"), "message": problem.message}
    else:
        payload = {"message": problem.message}
    # An additional field: OpenAI has the name of the exceeded limit in the message alone.
    return payload if problem.limit is None else {**payload, "limit": problem.limit}


def _whole_seconds(retry_after_s: float, most_s: int) -> int:
    return min(max(math.ceil(retry_after_s), 1), most_s) if math.isfinite(retry_after_s) else most_s


def problem_error(reason: Reason, retry_after_s: float = 1.0, limit: LimitKind | None = None) -> ProblemError:
    """The exception for a Reject, with the Problem that `problem_of` makes of it."""
    return ProblemError(problem_of(reason, retry_after_s, limit), reason)
