"""The gateway's own traffic as a trace, for `fairlead simulate run`: when each call came, how long, whose.

One JSON line per call that could have been queued, written when it has ended (so lines are in order of ends), in the
format that gateway/simulate/formats.py reads. There is no text in it and no key: a prompt is a number of tokens
and hashes of its leading blocks, which say which calls began alike. Whoever can guess the first kilobyte of a prompt
can check the guess against them.
"""

from dataclasses import dataclass

from gateway.observability.line_log import LineLog
from policies.types import Request, Usage

RECORDS_MAX = 10_000  # that wait for the disk; each may hold some hundred hashes


@dataclass(slots=True, kw_only=True)  # not frozen: that would triple what making one costs
class TraceRecord:
    """One call. `arrival_s` is Unix time, in seconds; `outcome` says how it ended, or why it was refused.

    The prompt is as the backend counted it, or as it was estimated where none did. The output is what was produced: 0
    for a call that was refused.
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
    tools: bool
    outcome: str | None


TraceLog = LineLog[TraceRecord]


def make_trace_log(path: str) -> TraceLog:
    """A log to this file, or to standard output ("-"). Raises OSError where it cannot be opened."""
    return TraceLog(path, records_max=RECORDS_MAX)


def trace_record(
    request: Request, usage: Usage | None, *, endpoint: str, arrived_at: float, outcome: str | None
) -> TraceRecord:
    """The call as it came and what it used; `arrived_at` is Unix time in seconds."""
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
        # The size of a block was estimated with the prompt, and is as wrong.
        prefix_block_tokens=request.prefix_block_tokens * prompt_tokens / estimate,
        program=request.program_id,
        tools=request.uses_tools,
        outcome=outcome,
    )
