"""Server-sent events of a completion stream: count its tokens, remove what the client did not ask for.

The gateway asks every backend for `include_usage` and `continuous_usage_stats`, so that it can charge
each token as it passes; the client gets the bytes that the backend would have sent to it directly. The
meter is sans-IO: bytes in, bytes out, and only whole events leave it, so whoever stops in the middle
never leaves half an event behind.

A vLLM event with one token is recognised by byte search. That is exact: `"usage":{` cannot occur inside
a JSON string, where quotes are escaped. Every other event (first seen spacing, finish, errors, several
choices) is parsed. SSE framing: https://html.spec.whatwg.org/multipage/server-sent-events.html, without
lone CR as a line end, which no server sends.
"""

import re
from collections.abc import Iterator
from typing import Any

import orjson

from policies.types import Usage

EVENT_BYTES_MAX = 16 * 1024 * 1024

# A vLLM event that is not the last of its choice: what stands before and behind its token counts.
_TOKEN_EVENT = re.compile(
    rb'("finish_reason":null[^\[\]{}]*\}\])(,"usage":\{"prompt_tokens":)(\d+)(,"total_tokens":)\d+,"completion_tokens":\d+'
    rb'((?:,"completion_tokens_details":null)?\}\}\n\n)\Z'
)
_USAGE_ANY = re.compile(rb',\s*"usage"\s*:\s*\{(?:[^{}]|\{[^{}]*\})*\}')
_LF = 0x0A
_NEVER = b"\0"  # is found in no event that the rest of the test would let pass


class EventTooLongError(ValueError):
    """The backend sent more than EVENT_BYTES_MAX bytes without ending an event."""


def error_event(message: str, *, code: int = 502) -> bytes:
    """One SSE event with an OpenAI error object: what ends a stream that cannot go on."""
    error = {"message": message, "type": "api_error", "param": None, "code": code}
    return b"data: " + orjson.dumps({"error": error}) + b"\n\n"


def usage_of(body: Any) -> Usage | None:
    """The usage of a parsed response body or event, or None where it has none that makes sense."""
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(_count(usage.get("prompt_tokens")), _count(cached), _count(usage.get("completion_tokens")))


class StreamMeter:
    """One stream's usage so far, and the bytes its client is to see.

    `choices` is the number of sequences in the answer (n times the number of prompts), `prompts` the
    number of prompts: continuous usage is per choice and per prompt, and is summed here.

    `fingerprint` is what this backend was last seen to send as `system_fingerprint` (JSON bytes). vLLM
    puts it on the last event: on the usage event where one was asked for, else on every finish event.
    A client that did not ask for usage gets it on the finish event: the last finish event waits for the
    usage event right behind it; earlier ones, of n > 1, take the one remembered. Keep `meter.fingerprint`
    per backend and pass it to the next stream.
    """

    __slots__ = (
        "_cached_tokens", "_choice_tail", "_choices", "_choices_per_prompt", "_continuous", "_estimated", "_finished",
        "_held", "_known", "_outputs", "_partial", "_prompt_tokens", "_prompts", "_scanned", "_usage_head",
        "_usage_tail", "_wants_usage", "aborted", "done", "error", "fingerprint", "output_tokens",
    )  # fmt: skip

    def __init__(
        self,
        *,
        client_wants_usage: bool,
        client_wants_continuous: bool,
        choices: int,
        prompts: int = 1,
        fingerprint: bytes | None = None,
    ) -> None:
        self._wants_usage = client_wants_usage
        # vLLM honours continuous_usage_stats only together with include_usage.
        self._continuous = client_wants_usage and client_wants_continuous
        self._choices = choices
        self._choices_per_prompt = max(1, choices // prompts)
        self._usage_head, self._usage_tail, self._choice_tail = _NEVER, b"", b""
        self._partial = bytearray()
        self._scanned = 0
        self._held: tuple[bytes, bytes] | None = None
        self._outputs: dict[int, int] = {}
        self._prompts: dict[int, int] = {}
        self._cached_tokens = 0
        self._prompt_tokens = 0
        self._estimated: set[int] = set()
        self._finished: set[int] = set()
        self.fingerprint = fingerprint
        self._known = False
        self.output_tokens = 0  # of all choices so far
        self.done = False
        self.error = False
        self.aborted = False

    @property
    def usage(self) -> Usage | None:
        """All choices together, cumulative; None before the first report."""
        return Usage(self._prompt_tokens, self._cached_tokens, self.output_tokens) if self._known else None

    @property
    def tokens_estimated(self) -> bool:
        """Whether output_tokens counts events, for want of usage, and prompt_tokens may be 0."""
        return bool(self._estimated)

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the body; return bytes for the client, whole events only. Raises EventTooLongError."""
        out = self._token(data)
        if out is not None:
            return out
        if not self._partial and data.find(b"\n") == len(data) - 2 and data[-1] == _LF:  # one whole event
            return self._slow(data)
        return self._split(data)

    def finish(self) -> bytes:
        """The body ended or broke off: return what is held back. Half an event is dropped, as a client would."""
        rest = bytes(self._partial)
        self._partial.clear()
        payload = _payload(rest)
        if payload == b"[DONE]" or _json_object(payload) is not None:  # only its blank line is missing
            return self._event(rest.rstrip(b"\r\n") + b"\n\n")
        return self._flush()

    def _token(self, event: bytes) -> bytes | None:
        """One whole event that differs from the one before only in its tokens; None if it is not that.

        bytes.partition is the cheapest search there is in CPython: it parses no arguments.
        """
        before, _, usage = event.rpartition(self._usage_head)
        total_tokens, _, output_tokens = usage.partition(b',"completion_tokens":')
        output_tokens = output_tokens.removesuffix(self._usage_tail)
        if not (output_tokens.isdigit() and total_tokens.isdigit()) or _LF in before:
            return None
        self.output_tokens = int(output_tokens)
        return event if self._continuous else before + self._choice_tail

    def _split(self, data: bytes) -> bytes:
        partial = self._partial
        partial += data
        out, start = [], 0
        for end in _event_ends(partial, self._scanned):
            out.append(self._event(bytes(partial[start:end])))
            start = end
        del partial[:start]
        self._scanned = max(0, len(partial) - 2)  # an event end is up to 3 bytes, cut anywhere
        if partial:
            self._usage_head = _NEVER
        if len(partial) > EVENT_BYTES_MAX:
            raise EventTooLongError(f"an event of more than {EVENT_BYTES_MAX} bytes")
        return b"".join(out)

    def _event(self, event: bytes) -> bytes:
        out = self._token(event)
        return self._slow(event) if out is None else out

    def _slow(self, event: bytes) -> bytes:
        out = self._parsed(event)
        self._expect_like(event)
        return out

    def _expect_like(self, event: bytes) -> None:
        """Remember what surrounds the tokens of an event, for _token(), where that is all there is to know."""
        match = _TOKEN_EVENT.search(event)
        if match is None or self._choices != 1 or self._held is not None or self._estimated:
            self._usage_head = _NEVER
            return
        choice_end, usage_start, prompt_tokens, usage_middle, usage_end = match.groups()
        self._usage_head = choice_end + usage_start + prompt_tokens + usage_middle
        self._usage_tail = usage_end
        self._choice_tail = choice_end + b"}\n\n"

    def _parsed(self, event: bytes) -> bytes:
        """One whole event of any kind."""
        payload = _payload(event)
        if payload == b"[DONE]":
            return self._flush() + self._end(event)
        message = _json_object(payload)
        if message is None:  # a comment that keeps the connection alive, or not ours to judge
            return self._flush() + event
        if message.get("error"):
            self.error = True
            return self._flush() + event
        choices = message.get("choices")
        if isinstance(choices, list) and choices:
            return self._flush() + self._choice_event(event, payload, message)
        return self._usage_event(event, message)

    def _end(self, event: bytes) -> bytes:
        """[DONE] says that the answer is whole: after an error or an abort it would be false."""
        if self.error:
            return b""
        if self.aborted:
            self.error = True
            return error_event("The backend stopped before the answer was complete.", code=502)
        self.done = True
        return event

    def _choice_event(self, event: bytes, payload: bytes, message: dict[str, Any]) -> bytes:
        choices = [choice for choice in message["choices"] if isinstance(choice, dict)]
        finished = [_count(choice.get("index")) for choice in choices if choice.get("finish_reason") is not None]
        self.aborted = self.aborted or any(choice.get("finish_reason") == "abort" for choice in choices)
        usage = usage_of(message)
        if usage is None:
            self._estimate(choices)
            return event
        self._count_choice(_count(choices[0].get("index")) if choices else 0, usage)
        if self._continuous:
            return event
        before, after = _cut_usage(event, payload, message)
        if not finished or self._wants_usage or "system_fingerprint" in message:
            return before + after
        self._finished.update(finished)
        if len(self._finished) < self._choices:
            return _with_fingerprint(before, self.fingerprint, after)
        self._held = before, after
        return b""

    def _count_choice(self, index: int, usage: Usage) -> None:
        """Continuous usage: absolute, of one choice and its prompt."""
        self._outputs[index] = usage.output_tokens
        self._prompts[index // self._choices_per_prompt] = usage.prompt_tokens
        self._cached_tokens = max(self._cached_tokens, usage.cached_tokens)
        self._estimated.discard(index)
        self._sum_up()

    def _estimate(self, choices: list[dict[str, Any]]) -> None:
        """No usage came with this event: count one token for each choice that has content."""
        if self._choices == 1 and self._known:  # events that _token() takes leave their count nowhere else
            self._outputs[0], self._prompts[0] = self.output_tokens, self._prompt_tokens
        for choice in choices:
            if _has_content(choice):
                index = _count(choice.get("index"))
                self._outputs[index] = self._outputs.get(index, 0) + 1
                self._estimated.add(index)
                self._sum_up()

    def _sum_up(self) -> None:
        self._prompt_tokens, self.output_tokens = sum(self._prompts.values()), sum(self._outputs.values())
        self._known = True

    def _usage_event(self, event: bytes, message: dict[str, Any]) -> bytes:
        """The last event but [DONE]: usage of all choices together."""
        usage = usage_of(message)
        if usage is None:
            return self._flush() + event
        self._prompt_tokens, self._cached_tokens, self.output_tokens = usage
        self._known = True
        self._estimated.clear()
        fingerprint = message.get("system_fingerprint")
        self.fingerprint = orjson.dumps(fingerprint) if fingerprint is not None else None
        if self._wants_usage:
            return self._flush() + event
        held, self._held = self._held, None
        return _with_fingerprint(held[0], self.fingerprint, held[1]) if held is not None else b""

    def _flush(self) -> bytes:
        held, self._held = self._held, None
        return held[0] + held[1] if held is not None else b""


def _event_ends(data: bytearray, start: int) -> Iterator[int]:
    """Where events end: behind a line end that a blank line follows."""
    at = data.find(b"\n", start)
    while at >= 0:
        for blank in (b"\n", b"\r\n"):
            if data.startswith(blank, at + 1):
                at += len(blank)
                yield at + 1
                break
        at = data.find(b"\n", at + 1)


def _payload(event: bytes) -> bytes:
    """The data lines of an event, joined as the SSE standard says; empty where there is none."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2:
        return event[6:-2]
    return b"\n".join(line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:"))


def _json_object(payload: bytes) -> dict[str, Any] | None:
    try:
        message = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None
    return message if isinstance(message, dict) else None


def _cut_usage(event: bytes, payload: bytes, message: dict[str, Any]) -> tuple[bytes, bytes]:
    """What stands before and after the event's usage, without it. Bytes are kept wherever that is possible."""
    name_at = event.rfind(b'"usage"')
    at = event.rfind(b",", 0, max(0, name_at))
    match = _USAGE_ANY.match(event, at) if at >= 0 else None
    if match is not None and event.find(b'"usage"') == name_at:  # there is no other: it is the message's own
        return event[:at], event[match.end() :]
    rest = {key: value for key, value in message.items() if key != "usage"}
    if match is not None:
        before, after = event[:at], event[match.end() :]
        if _json_object(_payload(before + after)) == rest:
            return before, after
    line_end = b"\r\n" if event.endswith(b"\r\n") else b"\n"
    before, found, after = event.partition(payload)
    if not found:  # JSON over several data lines
        before, after = b"data: ", line_end * 2
    return before + orjson.dumps(rest)[:-1], b"}" + after


def _with_fingerprint(before: bytes, fingerprint: bytes | None, after: bytes) -> bytes:
    """The fingerprint stands where usage would: vLLM never sends both in an event that has choices."""
    return before + b',"system_fingerprint":' + fingerprint + after if fingerprint is not None else before + after


def _has_content(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(value for key, value in delta.items() if key != "role")
    return bool(choice.get("text"))


def _count(value: Any) -> int:
    """A count from outside: anything but a natural number is 0."""
    return value if type(value) is int and value > 0 else 0
