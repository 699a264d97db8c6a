"""Trace log: the gateway's own traffic for `fairlead simulate run`, with the arrival, size and tenant of each call.

One JSON line per admitted call, written when the call has ended (so lines are in order of ends), in the format that
gateway/simulate/trace/formats.py reads. The log has no text and no key: a prompt is a number of tokens and hashes of
its leading blocks, which show which prompts begin alike. A reader that can guess the first kilobyte of a prompt can
verify the guess by these hashes.
"""

from dataclasses import dataclass

from gateway.observability.line_log import LineLog
from policies.types import Request, Usage

RECORDS_MAX = 10_000  # that wait for the disk; each may hold some hundred hashes


@dataclass(slots=True, kw_only=True)  # not frozen: that would triple what making one costs
class TraceRecord:
    """The trace log's record of one call. `arrival_s` is Unix time in seconds. `outcome` is how the call ended, or the
    reason of its rejection. Prompt tokens are the backend's count, or an estimate where it reported none. Output tokens
    are the produced tokens; 0 for a rejected call.
    """

    arrival_s: float
    tenant: str
    model: str
    endpoint: str
    prompt_tokens: int
    output_tokens: int
    output_tokens_max: int
    choices: int
    prefix: tuple[int, ...]
    prefix_block_tokens: float
    program: str | None
    parent: str | None
    final: bool
    tools: bool
    outcome: str | None


TraceLog = LineLog[TraceRecord]


def make_trace_log(path: str) -> TraceLog:
    """Make a trace log to this file, or to standard output ("-"). Raises OSError where it cannot be opened."""
    return TraceLog(path, records_max=RECORDS_MAX)


def trace_record(
    request: Request, usage: Usage | None, *, endpoint: str, arrived_at: float, outcome: str | None
) -> TraceRecord:
    """The record of a call and its usage; `arrived_at` is Unix time in seconds."""
    estimate = max(request.prompt_tokens, 1)
    prompt_tokens = (usage.prompt_tokens if usage else 0) or estimate
    return TraceRecord(
        arrival_s=arrived_at,
        tenant=request.tenant_id,
        model=request.model,
        endpoint=endpoint,
        prompt_tokens=prompt_tokens,
        output_tokens=usage.output_tokens if usage else 0,
        output_tokens_max=request.output_tokens_max,
        choices=request.choices,
        prefix=request.prefix,
        # The size of a block was estimated with the prompt, so it has the same relative error.
        prefix_block_tokens=request.prefix_block_tokens * prompt_tokens / estimate,
        program=request.program_id,
        parent=request.parent_id,
        final=request.ends_session,
        tools=request.uses_tools,
        outcome=outcome,
    )
