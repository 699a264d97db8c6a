"""Access log: one JSON line per request. A record has no field for prompts or keys."""

from typing import TypedDict

from gateway.observability.line_log import LineLog


class AccessRecord(TypedDict):
    """The access log's record of one finished request. `ts` is the Unix time in seconds of its arrival.

    A time is None where its event never happened. `client` is the client's address, also behind trusted proxies.
    `model` is the model that serves the call, `alias` the alias that the client used, if any. A `shadow` is a copy of a
    call, made for an alias: no tenant is charged for it. For an answered request with an SLO envelope: `ttft_met` and
    `tpot_met`, whether it met these targets (TPOT counted from the first token; a target that is not set is met);
    `envelope_met`, whether every token was in time; `tokens_in_time`, how many tokens were. `cost` is by the price list
    of the model, as exact decimal text; None where there is no price. `estimated`: the gateway estimated token counts
    that the backend did not report. `overstated`: the backend reported more than the call can use, and only the most
    that it can use is counted.
    """

    ts: float
    request_id: str
    client: str | None
    tenant: str | None
    model: str | None
    alias: str | None
    shadow: bool
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
    cost: str | None
    currency: str | None
    ttft_met: bool | None
    tpot_met: bool | None
    envelope_met: bool | None
    tokens_in_time: int | None
    estimated: bool
    overstated: bool
    outcome: str | None


AccessLog = LineLog[AccessRecord]
