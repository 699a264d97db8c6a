"""Meter of a stream that may be continued elsewhere: chunks of one choice whose token ids the gateway has asked for.

vLLM reports them with `return_token_ids`: the prompt's in the first event, the output's with each token. This meter
keeps them, and takes them out again where the client has not asked for them: its bytes are those that vLLM would have
sent without the field. The common event is recognised by byte search, as in ChunkMeter; this is exact for the same
reason, that `"token_ids":[` cannot occur inside a JSON string.

An event by which a backend says that it stops (an error of the server, a finish reason "abort") does not reach the
client: `interrupted` says so, and whoever relays the stream decides between another backend and `cut`.
"""

import re
from array import array
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import orjson

from backends.meters.chunks import ChunkMeter, with_fingerprint
from backends.meters.events import ExpectedIds, StreamCall, StreamMeter, json_object, payload
from policies.types import Usage

DONE: Final = b"data: [DONE]\n\n"
HEAD: Final = ("id", "object", "created", "model")
ID_BYTES: Final = array("I").itemsize
_PROMPT: Final = re.compile(rb'"prompt_token_ids":\[([\d,]*)\]')
_OUTPUT: Final = re.compile(rb'"token_ids":\[([\d,]*)\]')
# A vLLM event that is not the last of its choice: the bytes around its token ids and around its token counts.
_TOKEN_EVENT: Final = re.compile(
    rb'("finish_reason":null[^\[\]{}]*"token_ids":)\[[\d,]*\](\}\])(,"usage":\{"prompt_tokens":)\d+,"total_tokens":\d+'
    rb',"completion_tokens":\d+((?:,"completion_tokens_details":null)?\}\}\n\n)\Z'
)
_ERROR: Final = b'data: {"error"'
_FINISH: Final = b'"finish_reason":"'
_ABORT: Final = b'"finish_reason":"abort"'
_OUTPUT_TOKENS: Final = re.compile(rb',"completion_tokens":(\d{1,18})')
_LF: Final = 0x0A


@dataclass(slots=True)
class TokenIds:
    """The token ids of one stream over all of its parts. Mutable.

    `prompt`: the members of the JSON list, as received; b"" while it is not known. `bytes_max`: beyond it the ids are
    dropped, and `is_full`.
    """

    bytes_max: int
    prompt: bytes = b""
    output: "array[int]" = field(default_factory=lambda: array("I"))
    is_full: bool = False

    @property
    def outputs_max(self) -> int:
        """How many output ids fit beside the prompt's."""
        return max(0, self.bytes_max - len(self.prompt)) // ID_BYTES

    @property
    def prompt_tokens(self) -> int:
        return self.prompt.count(b",") + 1 if self.prompt else 0

    def drop(self) -> None:
        """Forget all ids: there are more than fit."""
        self.prompt, self.output, self.is_full = b"", array("I"), True


_EXPECTED_NONE: Final[ExpectedIds] = (b"\0%d\0%d\0%d\0", b"\0", None, b"")  # a NUL is in no JSON


class ResumableMeter(StreamMeter, Protocol):
    """A meter of a stream that may be continued elsewhere.

    `interrupted`: what the stream itself says of its early end; None while it says nothing of the kind. `is_finished`:
    the event with the finish reason is here. `last`: the last event with tokens, as its backend sent it, or the one
    with the prompt's.
    """

    last: bytes
    interrupted: str | None
    is_finished: bool

    def complete(self) -> bytes:
        """End a stream that `is_finished` and whose connection broke: what the client still lacks."""
        ...


class TokenIdMeter(ChunkMeter):
    """Usage and token ids of one stream of one choice."""

    __slots__ = ("_append", "_client_ids", "_expected", "_ids", "_outputs_max", "interrupted", "is_finished", "last")

    def __init__(self, call: StreamCall, ids: TokenIds, *, keeps_ids: bool) -> None:
        """`keeps_ids`: the client asked for them itself."""
        super().__init__(call)
        self._ids = ids
        self._append = ids.output.append
        self._outputs_max = ids.outputs_max
        self._client_ids = keeps_ids
        self._expected: ExpectedIds = _EXPECTED_NONE
        self.last = b""
        self.interrupted: str | None = None
        self.is_finished = False

    def feed(self, data: bytes) -> bytes:
        # One whole event, like the one before but for its text and one token more: as in ChunkMeter.
        counts, ids_name, client_end, _ = self._expected
        prompt_tokens, output_tokens = self._prompt_tokens, self.output_tokens + 1
        end = counts % (prompt_tokens, prompt_tokens + output_tokens, output_tokens)
        if data.endswith(end) and output_tokens <= self._outputs_max:
            before, _, token_id = data.removesuffix(end).rpartition(ids_name)
            if token_id.isdigit() and _LF not in before:
                self._append(int(token_id))
                self.output_tokens, self.last = output_tokens, data
                return self._kept(data) if client_end is None else before + client_end
        return self._other(data)

    def complete(self) -> bytes:
        held, self._held, fingerprint = self._held, None, self.call.memo.fingerprint
        out = b""
        if held is not None:
            out = with_fingerprint(held.before, None if self._keeps_usage else fingerprint, held.after)
        self.done = True
        return out + ending(self.last, self.usage if self._keeps_usage else None, fingerprint)

    def _other(self, data: bytes) -> bytes:
        out = super()._other(data)
        if self._partial:
            self._expected = _EXPECTED_NONE  # the next bytes begin in the middle of an event
        return out

    def _more_tokens(self, event: bytes) -> bytes | None:
        """The same as the beginning of `feed`, for any number of tokens more; None if this is no such event."""
        count = _OUTPUT_TOKENS.search(event)
        if count is None:
            return None
        counts, ids_name, client_end, _ = self._expected
        output_tokens = int(count[1])
        end = counts % (self._prompt_tokens, self._prompt_tokens + output_tokens, output_tokens)
        if not event.endswith(end):
            return None
        before, _, token_ids = event.removesuffix(end).rpartition(ids_name)
        if not token_ids.replace(b",", b"").isdigit() or _LF in before:
            return None
        self.output_tokens = output_tokens
        self._keep(event, token_ids)
        return self._kept(event) if client_end is None else before + client_end

    def _kept(self, event: bytes) -> bytes:
        """An event with tokens for a client that asked for token ids, for usage in chunks, or for both."""
        if self._client_ids and self._continuous:
            return event
        _, ids_name, _, kept_end = self._expected
        before, _, rest = event.rpartition(ids_name)
        token_ids, _, usage = rest.partition(b"]")
        return before + ids_name + token_ids + kept_end if self._client_ids else before + kept_end + usage

    def _keep(self, event: bytes, token_ids: bytes) -> None:
        self.last = event
        if self._ids.is_full:
            return
        self._ids.output.extend(map(int, token_ids.split(b",")))
        if len(self._ids.output) > self._outputs_max:
            self._ids.drop()
            self._outputs_max = 0

    def _slow(self, event: bytes) -> bytes:
        if self.interrupted is None:
            self.interrupted = _interruption(event)
        if self.interrupted is not None:
            return b""
        self.is_finished = self.is_finished or _FINISH in event
        out = self._parsed(self._without_ids(event))
        self._expect_like(event)
        return out

    def _without_ids(self, event: bytes) -> bytes:
        """Keep the ids of this event. Return it as it would be without them, or, where the client asked for them, as it
        is.
        """
        ids, plain = self._ids, event
        if (prompt := _PROMPT.search(plain)) is not None:
            self.last = event
            if not ids.is_full:
                ids.prompt = prompt[1]
                self._outputs_max = ids.outputs_max
            plain = plain[: prompt.start(1) - 1] + b"null" + plain[prompt.end() :]
        if (output := _OUTPUT.search(plain)) is not None:
            if output[1]:
                self._keep(event, output[1])
            plain = plain[: output.start(1) - 1] + b"null" + plain[output.end() :]
        return event if self._client_ids else plain

    def _expect_like(self, event: bytes) -> None:
        """Remember the bytes around an event's token ids and counts, where nothing else can differ."""
        match = _TOKEN_EVENT.search(event)
        if match is None or self._held is not None or self._estimated:
            self._expected = _EXPECTED_NONE
            return
        ids_name, choice_end, usage_start, usage_end = match.groups()
        numbers = b'%d,"total_tokens":%d,"completion_tokens":%d'
        counts = (b"]" + choice_end + usage_start).replace(b"%", b"%%") + numbers + usage_end
        end = choice_end + self._absent_usage + b"}\n\n"
        is_plain = not (self._client_ids or self._continuous)
        expected = (
            counts,
            ids_name + b"[",
            ids_name + b"null" + end if is_plain else None,
            b"]" + end if self._client_ids else ids_name + b"null",
        )
        # As in ChunkMeter: one object for all streams of a backend stays in the cache.
        memo = self.call.memo
        self._expected = memo.ids_like = memo.ids_like if memo.ids_like == expected else expected


def ending(event: bytes, usage: Usage | None, fingerprint: bytes | None) -> bytes:
    """What ends a stream after its finish event: its usage, if the client gets it, and [DONE]. `event` is one of it."""
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


def _interruption(event: bytes) -> str | None:
    """What an event says of the early end of its stream; None where it is of another kind."""
    if _ABORT in event:
        return "the backend stopped in mid-stream"
    if event.startswith(_ERROR):
        error = (json_object(payload(event)) or {}).get("error")
        code = error.get("code") if isinstance(error, dict) else None
        if type(code) is not int or code >= 500:
            return "an error event of the backend"
    return None
