"""One JSON line per request. A record has no field for prompts or keys."""

from typing import TypedDict

from gateway.observability.line_log import LineLog


class AccessRecord(TypedDict):
    """One finished request. `ts` is Unix time in seconds at its arrival; None is what never happened.

    `estimated`: token counts are the gateway's own, because the backend reported none.
    """

    ts: float
    request_id: str
    tenant: str | None
    model: str | None
    endpoint: str
    status: int
    reason: str | None
    backend: str | None
    stream: bool
    queue_ms: float | None
    ttft_ms: float | None
    duration_ms: float
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    estimated: bool
    outcome: str | None


AccessLog = LineLog[AccessRecord]
