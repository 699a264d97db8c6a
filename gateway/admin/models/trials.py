"""Models of trials in the admin API."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from gateway.admin.models.resources import Fields, ModelName
from gateway.config.value_types import TenantName, whole

PROMPT_CHARS_MAX = 10_000  # of four bytes each at most, it fits into a body
OUTPUT_TOKENS_MAX = 4_096  # some minutes of reading


class TrialAsked(Fields):
    """A trial: the `prompt` to this model or alias as this tenant, with at most `max_tokens` of an answer."""

    tenant: TenantName
    model: ModelName
    prompt: Annotated[str, Field(min_length=1, max_length=PROMPT_CHARS_MAX)]
    max_tokens: Annotated[int, Field(ge=1, le=OUTPUT_TOKENS_MAX), BeforeValidator(whole)] = 256
