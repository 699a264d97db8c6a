"""Meters of chat completions, completions and transcriptions: chunks of choices, a chunk of usage, [DONE].

The gateway asks every backend that supports them for `include_usage` and `continuous_usage_stats`, so that the gateway
can charge each token when it arrives. The client gets the bytes that the backend would have sent to it directly. A vLLM
event that equals the previous one except for its token counts is recognised by its last bytes. That is exact:
`"usage":{` cannot occur inside a JSON string, where quotes are escaped. Every other event (first seen spacing, finish,
errors, several choices) is parsed. Events without usage are counted, and the last usage corrects the count.

The last finish event is held until the next event, which decides its contents: `system_fingerprint` (vLLM puts it on
the usage event if there is one, else on every finish event), and the usage of a server that reports it only on the
finish event.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from backends.meters.events import EventEnd, EventMeter, StreamCall, Uncounted, is_one_event, json_object, payload
from backends.meters.usage import count, openai_usage, response_usage, texts
from policies.types import Usage

# A vLLM event that is not the last of its choice: the bytes before and after its token counts.
_TOKEN_EVENT = re.compile(
    rb'("finish_reason":null[^\[\]{}]*\}\])(,"usage":\{"prompt_tokens":)\d+,"total_tokens":\d+,"completion_tokens":\d+'
    rb'((?:,"completion_tokens_details":null)?\}\}\n\n)\Z'
)
_OUTPUT_TOKENS = re.compile(rb',"completion_tokens":(\d{1,18})')
_USAGE_ANY = re.compile(rb',\s*"usage"\s*:\s*(?:null|\{(?:[^{}]|\{[^{}]*\})*\})')
_NULL_USAGE = b',"usage":null'
DONE: Final = b"data: [DONE]\n\n"
HEAD: Final = ("id", "object", "created", "model")
_LIKE_NONE: EventEnd = (b"\0%d\0%d\0%d\0", None)  # a NUL is in no JSON
_LF = 0x0A
_CLIENTS_FAULTS = range(400, 500)
_STOPPED = "The backend stopped before the answer was complete."


class _Held(NamedTuple):
    """The last finish event, split at the place of a fingerprint; `alone` is sent if no usage event follows."""

    before: bytes
    after: bytes
    alone: bytes


class ChunkMeter(EventMeter):
    """A meter of one stream of OpenAI's chunks. vLLM reports usage in each chunk separately for each choice and prompt;
    the meter sums it up.
    """

    __slots__ = (
        "_absent_usage", "_cached_tokens", "_choices", "_choices_per_prompt", "_continuous",
        "_estimated", "_finish", "_finished", "_has_told_usage", "_held", "_keeps_usage", "_known", "_like", "_outputs",
        "_prompt_tokens", "_prompts",
    )  # fmt: skip

    def __init__(self, call: StreamCall) -> None:
        super().__init__(call)
        self._keeps_usage = call.keeps_usage
        self._continuous = call.keeps_chunk_usage
        self._choices = call.choices
        self._choices_per_prompt = max(1, call.choices // call.prompts)
        self._like: EventEnd = _LIKE_NONE
        self._absent_usage = b""  # what this server writes into a chunk without usage
        self._held: _Held | None = None
        self._outputs: dict[int, int] = {}
        self._prompts: dict[int, int] = {}
        self._cached_tokens = 0
        self._prompt_tokens = 0
        self._estimated: dict[int, Uncounted] = {}
        self._finished = frozenset[int]()
        self._has_told_usage = False  # at the end
        self._finish = b""  # the last finish event
        self._known = False

    @property
    def usage(self) -> Usage | None:
        return Usage(self._prompt_tokens, self._cached_tokens, self.output_tokens) if self._known else None

    @property
    def tokens_estimated(self) -> bool:
        return bool(self._estimated)

    def feed(self, data: bytes) -> bytes:
        # One whole event, like the one before but for its text and one token more, as nearly all are.
        usage, without = self._like
        prompt_tokens, output_tokens = self._prompt_tokens, self.output_tokens + 1
        end = usage % (prompt_tokens, prompt_tokens + output_tokens, output_tokens)
        if data.endswith(end):
            before = data.removesuffix(end)
            if _LF not in before:
                self.output_tokens = output_tokens
                return data if without is None else before + without
        return self._other(data)

    def _other(self, data: bytes) -> bytes:
        if not self._partial and is_one_event(data):
            out = self._more_tokens(data)
            return self._slow(data, is_one=True) if out is None else out
        out = self._split(data)
        if self._partial:
            self._like = _LIKE_NONE  # the next bytes begin in the middle of an event
        return out

    @property
    def is_finished(self) -> bool:
        """Whether the finish reasons of all choices have arrived."""
        return len(self._finished) >= self._choices

    def finish(self) -> bytes:
        rest = super().finish()
        lacks_end = self.is_finished and not (self.done or self.error or self.aborted)
        return rest + (self._complete() if lacks_end else self._flush())

    def cut(self, message: str, error: Mapping[str, Any] = {}) -> bytes:
        payload = {"message": message, "type": "api_error", "param": None, "code": 502, **error}
        return b"data: " + orjson.dumps({"error": payload}) + b"\n\n"

    def _more_tokens(self, event: bytes) -> bytes | None:
        """Do the same as the beginning of `feed`, for any number of new tokens; None for another kind of event."""
        usage, without = self._like
        count = None if self._like is _LIKE_NONE else _OUTPUT_TOKENS.search(event)
        if count is None:
            return None
        output_tokens = int(count[1])
        end = usage % (self._prompt_tokens, self._prompt_tokens + output_tokens, output_tokens)
        before = event.removesuffix(end)
        if len(before) == len(event) or _LF in before:
            return None
        self.output_tokens = output_tokens
        return event if without is None else before + without

    def _event(self, event: bytes) -> bytes:
        if event == DONE:
            return self._slow(event, is_one=True)
        return self.feed(event) if is_one_event(event) else self._slow(event)

    def _slow(self, event: bytes, *, is_one: bool = False) -> bytes:
        if event == DONE:
            return self._parsed(event, b"[DONE]", None)
        data = payload(event, is_one=is_one)
        out = self._parsed(event, data, json_object(data))
        self._expect_like(event)
        return out

    def _expect_like(self, event: bytes) -> None:
        """Keep the bytes around an event's token counts for `feed`, where nothing else can differ."""
        match = _TOKEN_EVENT.search(event)
        if match is None or self._choices != 1 or self._held is not None or self._estimated:
            self._like = _LIKE_NONE
            return
        choice_end, usage_start, usage_end = match.groups()
        numbers = b'%d,"total_tokens":%d,"completion_tokens":%d'
        usage = (choice_end + usage_start).replace(b"%", b"%%") + numbers + usage_end
        like = (usage, None if self._continuous else choice_end + self._absent_usage + b"}\n\n")
        # The streams of a backend have the same: one object for all of them stays in the cache.
        self._like = self.call.memo.like = self.call.memo.like if self.call.memo.like == like else like

    def _parsed(self, event: bytes, data: bytes, message: dict[str, Any] | None) -> bytes:
        """Process one whole event of any kind, given with its data and the data's object."""
        if not data:  # a comment, between any two events
            return event
        if data == b"[DONE]":
            return self._flush() + self._end(event)
        if message is None:
            return self._flush() + event
        if error := message.get("error"):
            self.error = True
            self.rejected = not self.output_tokens and isinstance(error, dict) and error.get("code") in _CLIENTS_FAULTS
            return self._flush() + event
        choices = message.get("choices")
        if type(choices) is list and choices:
            before = self._flush() if self._held is not None else b""
            return before + self._choice_event(event, data, message)
        return self._usage_event(event, message)

    def _end(self, event: bytes) -> bytes:
        """Handle [DONE], which says that the answer is complete: it is withheld after an error or an abort."""
        if self.error:  # after a rejected call, [DONE] does not look like a complete answer
            return event if self.rejected else b""
        if self.aborted:
            self.error = True
            return self.cut(_STOPPED)
        self.done = True
        return event

    def _choice_event(self, event: bytes, data: bytes, message: dict[str, Any]) -> bytes:
        choices = [choice for choice in message["choices"] if type(choice) is dict]
        finished = []
        for choice in choices:
            if (reason := choice.get("finish_reason")) is not None:
                finished.append(count(choice.get("index")))
                self.aborted = self.aborted or reason == "abort"
        usage = openai_usage(message)
        if finished:
            self._finished, self._finish = self._finished.union(finished), event
        if usage is None:
            self._estimate(choices)
            before, after = self._with_null_usage(event, data, message) if "usage" in message else _at_end(event)
        else:
            self._count_choice(count(choices[0].get("index")) if choices else 0, usage)
            if self._continuous:
                return event
            before, after = _cut_usage(event, data, message)
            before += self._absent_usage
        if not finished:
            return before + after
        return self._finish_event(_Held(before, after, before + after if usage is None else event), message)

    def _with_null_usage(self, event: bytes, data: bytes, message: dict[str, Any]) -> tuple[bytes, bytes]:
        if self.call.nulls_usage and not self._keeps_usage:
            return _cut_usage(event, data, message)
        self._absent_usage = _NULL_USAGE
        return _at_end(event)

    def _finish_event(self, held: _Held, message: dict[str, Any]) -> bytes:
        lacks_fingerprint = not self._keeps_usage and "system_fingerprint" not in message
        if len(self._finished) < self._choices:
            fingerprint = self.call.memo.fingerprint if lacks_fingerprint else None
            return with_fingerprint(held.before, fingerprint, held.after)
        self._held = held if lacks_fingerprint or self._keeps_usage else None
        return b"" if self._held is not None else held.before + held.after

    def _count_choice(self, index: int, usage: Usage) -> None:
        """Record continuous usage: absolute counts of one choice and of its prompt."""
        self._outputs[index] = usage.output_tokens
        self._prompts[index // self._choices_per_prompt] = usage.prompt_tokens
        self._cached_tokens = max(self._cached_tokens, usage.cached_tokens)
        self._estimated.pop(index, None)
        self._sum_up()

    def _estimate(self, choices: list[dict[str, Any]]) -> None:
        """Estimate the tokens of each choice from an event without usage."""
        if self._choices == 1 and self._known:  # `feed` stores its count nowhere else
            self._outputs[0], self._prompts[0] = self.output_tokens, self._prompt_tokens
        for choice in choices:
            index = count(choice.get("index"))
            uncounted = self._estimated.get(index) or Uncounted(self._outputs.get(index, 0))
            if self._passed(texts(choice), uncounted):
                self._outputs[index] = uncounted.tokens
                self._estimated[index] = uncounted
                self._sum_up()

    def _sum_up(self) -> None:
        self._prompt_tokens, self.output_tokens = sum(self._prompts.values()), sum(self._outputs.values())
        self._known = True

    def _usage_event(self, event: bytes, message: dict[str, Any]) -> bytes:
        """Read the last event before [DONE]: the usage of all choices together."""
        usage = openai_usage(message)
        if usage is None:
            return self._flush() + event
        self._prompt_tokens, self._cached_tokens, self.output_tokens = usage
        self._known = self._has_told_usage = True
        self._estimated.clear()
        fingerprint = message.get("system_fingerprint")
        fingerprint = orjson.dumps(fingerprint) if fingerprint is not None else None
        self.call.memo.fingerprint = fingerprint
        held, self._held = self._held, None
        if self._keeps_usage:
            return (held.before + held.after if held is not None else b"") + event
        return with_fingerprint(held.before, fingerprint, held.after) if held is not None else b""

    def _complete(self) -> bytes:
        """Return the bytes that the client still lacks of a complete answer whose backend did not say that it is
        complete.
        """
        held, self._held, fingerprint, out = self._held, None, self.call.memo.fingerprint, b""
        if held is not None:
            out = with_fingerprint(held.before, None if self._keeps_usage else fingerprint, held.after)
        has_usage = self._keeps_usage and self._known and not (self._has_told_usage or self.tokens_estimated)
        self.done = True
        return out + ending(self._finish, self.usage if has_usage else None, fingerprint)

    def _flush(self) -> bytes:
        """Release the held finish event, because no usage event follows."""
        held, self._held = self._held, None
        if held is None:
            return b""
        return held.alone if self._keeps_usage else held.before + held.after


class TranscriptionMeter(ChunkMeter):
    """A meter of one stream of a transcription. vLLM sends chunks, as for chats. OpenAI's API sends
    `transcript.text.delta` and `transcript.text.done` events, without [DONE].
    https://platform.openai.com/docs/api-reference/audio/transcript-text-delta-event
    """

    __slots__ = ()
    is_finished = False  # by a chunk: a long recording is transcribed in parts, and each has a finish reason

    def _usage_event(self, event: bytes, message: dict[str, Any]) -> bytes:
        match message.get("type"):
            case "transcript.text.delta":
                self._estimate([{"text": message.get("delta")}])
            case "transcript.text.done":
                self.done = True
                if (usage := response_usage(message)) is not None:
                    self._count_choice(0, usage)
            case _:
                return super()._usage_event(event, message)
        return event


def _at_end(event: bytes) -> tuple[bytes, bytes]:
    """Split the event before the end of its JSON object, where a field can be added."""
    at = event.rfind(b"}")
    return event[:at], event[at:]


def _cut_usage(event: bytes, data: bytes, message: dict[str, Any]) -> tuple[bytes, bytes]:
    """Return the bytes before and after the event's usage. They stay unchanged wherever possible."""
    name_at = event.rfind(b'"usage"')
    at = event.rfind(b",", 0, max(0, name_at))
    match = _USAGE_ANY.match(event, at) if at >= 0 else None
    if match is not None and event.find(b'"usage"') == name_at:  # the only one, so it is the message's own
        return event[:at], event[match.end() :]
    rest = {key: value for key, value in message.items() if key != "usage"}
    if match is not None:
        before, after = event[:at], event[match.end() :]
        if json_object(payload(before + after)) == rest:
            return before, after
    line_end = b"\r\n" if event.endswith(b"\r\n") else b"\n"
    before, found, after = event.partition(data)
    if not found:  # JSON over several data lines
        before, after = b"data: ", line_end * 2
    return before + orjson.dumps(rest)[:-1], b"}" + after


def with_fingerprint(before: bytes, fingerprint: bytes | None, after: bytes) -> bytes:
    """Put the fingerprint where the usage would be: vLLM never sends both in an event that has choices."""
    return before + b',"system_fingerprint":' + fingerprint + after if fingerprint is not None else before + after


def ending(event: bytes, usage: Usage | None, fingerprint: bytes | None) -> bytes:
    """The end of a stream after its finish event: the usage, if the client gets the usage, and [DONE]. `event` is any
    event of the stream.
    """
    if usage is None:
        return DONE
    head = json_object(payload(event)) or {}
    message: dict[str, Any] = {name: head.get(name) for name in HEAD}
    message |= {"choices": [], "usage": usage_object(usage)}
    if fingerprint is not None:
        message["system_fingerprint"] = orjson.Fragment(fingerprint)
    return b"data: " + orjson.dumps(message) + b"\n\n" + DONE


def usage_object(usage: Usage) -> dict[str, int]:
    """The usage of a chat completion or a completion, in vLLM's order."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "completion_tokens": usage.output_tokens,
    }
