"""One JSON line per request. A record has no field for prompts or keys."""

from typing import TypedDict

from gateway.observability.line_log import LineLog


class AccessRecord(TypedDict):
    """One finished request. `ts` is Unix time in seconds at its arrival; None is what never happened.

    Of a request with an envelope, and an answer: which targets it kept (TPOT counted from its first token; one that is
    not set is kept), whether it kept the envelope, in which every token has its time, and how many tokens did.
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
    ttft_met: bool | None
    tpot_met: bool | None
    envelope_met: bool | None
    tokens_in_time: int | None
    estimated: bool
    outcome: str | None


AccessLog = LineLog[AccessRecord]
