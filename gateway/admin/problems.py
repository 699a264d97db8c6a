"""Error responses of the admin API: problem details (RFC 9457).

One problem names every wrong field with its reason, so that a client can correct all of them at once. No reason repeats
a value that was sent: it may be a secret.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.config.problems import did_you_mean, keys_of
from gateway.config.reasons import NAME_STEP, merged_reasons, path_in, reason_of

PROBLEM_TYPE = "application/problem+json"
ERRORS_MAX = 64  # in one problem

M = TypeVar("M", bound=BaseModel)


class FieldError(BaseModel):
    """The error of one field. `field` is a path like body.envelope.ttft_ms, which begins with the part of the request:
    body, query or header.
    """

    model_config = ConfigDict(extra="forbid")

    field: str
    reason: str


class ProblemDetails(BaseModel):
    """The body of an error response: problem details (RFC 9457, 3.1). `errors` is an extension (3.2)."""

    model_config = ConfigDict(extra="forbid")

    type: str = "about:blank"
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    errors: list[FieldError] = []


@dataclass
class AdminProblem(Exception):  # noqa: N818 - an answer, not an error
    """An error: the admin API answers a request with this status and detail, as ProblemDetails."""

    status: int
    detail: str
    errors: list[FieldError] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        details = ProblemDetails(
            title=HTTPStatus(self.status).phrase, status=self.status, detail=self.detail, errors=self.errors
        )
        return details.model_dump_json().encode()


def field_problem(field_path: str, reason: str, *, status: int = 422) -> AdminProblem:
    return AdminProblem(status, f"{field_path}: {reason}", [FieldError(field=field_path, reason=reason)])


def invalid_problem(
    error: ValidationError, value: Mapping[str, Any], model: type[BaseModel], part: str, *, status: int = 422
) -> AdminProblem:
    """The problem with every error that pydantic found in this value, a part of a request (body, query)."""
    errors = list(_field_errors(error, value, model, part))[:ERRORS_MAX]
    named = errors[0] if len(errors) == 1 else None
    detail = f"{named.field}: {named.reason}" if named else f"{len(errors)} fields are wrong"
    return AdminProblem(status, detail, errors)


def read_checked(model: type[M], value: Mapping[str, Any], part: str = "body") -> M:
    """Validate this part of a request as JSON, strictly: "5" is no number. Raises AdminProblem: 422 for what the
    model's JSON schema excludes, 409 for values that the schema allows, but that contradict each other or the entries
    that they name.
    """
    try:
        return model.model_validate_json(orjson.dumps(value), strict=True)
    except ValidationError as error:
        is_at_odds = all(each["type"] == "value_error" for each in error.errors(include_url=False, include_input=False))
        raise invalid_problem(error, value, model, part, status=409 if is_at_odds else 422) from None


def _field_errors(
    error: ValidationError, value: Mapping[str, Any], model: type[BaseModel], part: str
) -> Iterable[FieldError]:
    found = []
    for entry in error.errors(include_url=False):
        path = path_in(value, entry)
        reason = reason_of(entry)
        if path[-1:] == (NAME_STEP,):
            path, reason = path[:-1], f"a name {reason}"
        if entry["type"] == "extra_forbidden":
            reason = f"there is no such field{did_you_mean(str(path[-1]), keys_of(model, path[:-1]))}"
        found.append((path, reason))
    for path, reason in merged_reasons(found):
        yield FieldError(field=".".join((part, *map(str, path))), reason=reason)
