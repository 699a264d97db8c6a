"""A stream as it would be if its server had never put several tokens into one event, nor a token into several.

How tokens fall into events depends on how busy a machine is, so it differs between any two streams of one server.
Everything else has to be the same to the byte. So what grows from event to event (text, tokens and what is said of
each, counts) is cut out of an event's bytes; what is left is its mould. Events that follow one another with the same
mould are one, in which what grew is joined. The numbers of events have to count up by one, and are left out.
"""

import json
import re

# What grows, by the name before it in JSON: strings and lists are joined, of counts the last stands.
GROWING = (
    "content", "reasoning", "text", "delta", "arguments", "thinking", "partial_json", "token_ids", "tokens", "logprobs",
    "token_logprobs", "top_logprobs", "text_offset", "completion_tokens", "total_tokens",
)  # fmt: skip
NUMBER = "sequence_number"

_NAMED = re.compile(r'"(' + "|".join((*GROWING, NUMBER)) + r')": ?')
_DECODER = json.JSONDecoder()


def folded(pieces: tuple[bytes, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The moulds of a stream's events, each with what grew in those that follow one another in it, as it is written."""
    runs: list[tuple[str, list[str]]] = []
    number = -1
    for piece in pieces:
        mould, grown, numbers = cast(piece.decode())
        for each in numbers:
            assert each == number + 1, f"event {each} comes behind event {number}"
            number = each
        if runs and runs[-1][0] == mould and grown:
            runs[-1] = (mould, [joined(before, more) for before, more in zip(runs[-1][1], grown, strict=True)])
        else:
            runs.append((mould, grown))
    return tuple((mould, tuple(grown)) for mould, grown in runs)


def cast(event: str) -> tuple[str, list[str], list[int]]:
    """The mould of an event, what grows in it, and its number where it has one."""
    parts, grown, numbers, at = [], [], [], 0
    while (match := _NAMED.search(event, at)) is not None:
        start = match.end()
        value, end = _DECODER.raw_decode(event, start)
        if match[1] == NUMBER:
            numbers.append(value)
        elif value is None or isinstance(value, dict):  # there is nothing, or what grows is within
            end = start
        else:
            grown.append(event[start:end])
        parts += [event[at:start], "" if end == start else type(value).__name__]
        at = end
    return "".join((*parts, event[at:])), grown, numbers


def joined(before: str, more: str) -> str:
    """Two strings, or two lists, as one would be written; of two numbers the second."""
    if before[0] not in '"[':
        return more
    between = "," if before[0] == "[" and "[]" not in (before, more) else ""
    return before[:-1] + between + more[1:]
