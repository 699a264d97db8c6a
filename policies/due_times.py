"""Due times of tokens and slack: token j (0-based) of a request is due at arrival + TTFT + j * TPOT.

Slack is the time until the next token is due (FairBatching, arXiv 2510.14392, 3.1). A token that comes early makes no
later token due sooner, so slack says how long a request can go without service. An envelope without a TTFT target
begins with the first token, whenever that comes; one without a TPOT target ends with it.
"""

from math import inf

from policies.types import Request

TTFT_S_UNSET = 60.0  # for ordering only: a request without a TTFT target sorts as due this long after it arrived


def first_token_due_at(request: Request) -> float | None:
    """When the first token is due; None without a TTFT target."""
    envelope = request.envelope
    return None if envelope is None or envelope.ttft_s is None else request.arrived_at + envelope.ttft_s


def due_no_later(request: Request) -> float:
    """When the first token is due; infinite without a TTFT target, so that requests with one come first."""
    due_at = first_token_due_at(request)
    return inf if due_at is None else due_at


def urgency_at(request: Request) -> float:
    """The sort key of urgency: when the first token is due; without a TTFT target, TTFT_S_UNSET after arrival."""
    due_at = first_token_due_at(request)
    return request.arrived_at + TTFT_S_UNSET if due_at is None else due_at


def slack_s(request: Request, *, output_tokens: int, first_token_at: float | None, now: float) -> float:
    """Seconds until the next token after `output_tokens` is due; negative: it is late, infinite: it has no due time."""
    envelope = request.envelope
    if envelope is None:
        return inf
    began_at = first_token_due_at(request)
    if began_at is None:
        began_at = first_token_at
    if began_at is None or (output_tokens and envelope.tpot_s is None):
        return inf
    # The choices of a request are produced in parallel.
    return began_at + (envelope.tpot_s or 0.0) * (output_tokens // request.choices) - now
