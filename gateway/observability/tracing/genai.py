"""GenAI names: the names of OpenTelemetry's GenAI semantic conventions that spans and metrics use, as of one version.

The status of these names is Development: they may be renamed. They are from version 1.44.0 of the semantic conventions,
the last version with all of them before they moved to semantic-conventions-genai. For a newer version, only this file
and docs/reference/metrics.md change. There is no name here for prompts, completions or keys, which are never recorded.
https://github.com/open-telemetry/semantic-conventions-genai
"""

from collections.abc import Mapping
from typing import Final

# -- attributes of spans and, with underscores for dots, labels of metrics -------------------------------------

OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_CHOICE_COUNT: Final = "gen_ai.request.choice.count"
RESPONSE_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"

# General conventions (stable), for the same spans.
ERROR_TYPE: Final = "error.type"
HTTP_REQUEST_METHOD: Final = "http.request.method"
HTTP_RESPONSE_STATUS_CODE: Final = "http.response.status_code"
HTTP_ROUTE: Final = "http.route"

# -- histograms of metrics, as Prometheus spells them ----------------------------------------------------------

SERVER_REQUEST_DURATION: Final = "gen_ai_server_request_duration_seconds"
SERVER_TIME_TO_FIRST_TOKEN: Final = "gen_ai_server_time_to_first_token_seconds"  # noqa: S105 - of an answer
SERVER_TIME_PER_OUTPUT_TOKEN: Final = "gen_ai_server_time_per_output_token_seconds"  # noqa: S105

# The buckets that the conventions recommend, in seconds.
DURATION_BUCKETS_S: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
FIRST_TOKEN_BUCKETS_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
PER_TOKEN_BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)

# -- operations ------------------------------------------------------------------------------------------------

# By the end of a path. The conventions have no names for other paths: their operation is the last part of the path.
_OPERATIONS: Final[Mapping[str, str]] = {
    "/chat/completions": "chat",
    "/messages": "chat",
    "/responses": "chat",
    "/completions": "text_completion",
    "/embeddings": "embeddings",
}


def operation(path: str) -> str:
    """The operation name of an endpoint's path."""
    for end, name in _OPERATIONS.items():
        if path.endswith(end):
            return name
    return path.rsplit("/", 1)[-1]
