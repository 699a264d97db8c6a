"""Meter of a stream that another backend may continue: chunks of one choice whose token ids the gateway asked for.

vLLM reports them with `return_token_ids`: the prompt's in the first event, the output's with each token. This meter
keeps them, and takes them out again where the client has not asked for them: its bytes are those that vLLM would have
sent without the field. As each token is counted by its id, no usage is needed in the chunks, and the common event has
none. It is recognised by its last bytes, as in ChunkMeter, and this is exact for the same reason: `"token_ids":[`
cannot occur inside a JSON string.

An event by which a backend says that it stops (an error of the server, a finish reason "abort") does not reach the
client: `interrupted` says so, and the relay of the stream decides between another backend and `cut`.
"""

import re
from array import array
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from backends.meters.chunks import ChunkMeter
from backends.meters.events import IdsEnd, StreamCall, StreamMeter, json_object, payload

ID_BYTES: Final = array("I").itemsize
_PROMPT: Final = re.compile(rb'"prompt_token_ids"\s*:\s*\[')
_OUTPUT: Final = re.compile(rb'"token_ids"\s*:\s*\[')
_OF_LISTS: Final = b"0123456789, \t\r\n"
# A vLLM event without usage that is not the last of its choice: the bytes before and after its token ids.
_TOKEN_EVENT: Final = re.compile(rb'("finish_reason":null[^\[\]{}]*"token_ids":)\[[\d,]*(\]\}\]\}\n\n)\Z')
_OUTPUT_NAME: Final = b'"token_ids":['
_NO_OUTPUT: Final = b'"token_ids":null'
# A parser of tool calls had no text for these tokens: vLLM sends such an event for the sake of its token ids alone.
_EMPTY: Final = b'"delta":{},"logprobs":null,'
_EMPTY_EVENT: Final = _EMPTY + b'"finish_reason":null'
_LF: Final = 0x0A
_BLANK: Final = b"\n\n"


@dataclass(slots=True)
class TokenIds:
    """The token ids of one stream, over all backends that produced parts of it. `prompt` has the ids of the prompt as
    received: the JSON text between the brackets of their list; b"" while they are not known. Beyond `bytes_max` bytes
    all ids are dropped, and `is_full` is set. Mutable.
    """

    bytes_max: int
    prompt: bytes = b""
    output: "array[int]" = field(default_factory=lambda: array("I"))
    is_full: bool = False

    @property
    def outputs_max(self) -> int:
        """The number of output ids for which there is room beside the ids of the prompt."""
        return 0 if self.is_full else max(0, self.bytes_max - len(self.prompt)) // ID_BYTES

    @property
    def prompt_tokens(self) -> int:
        return _members(self.prompt)

    def drop(self) -> None:
        """Drop all ids, because there are more than fit."""
        self.prompt, self.output, self.is_full = b"", array("I"), True


_IDS_LIKE_NONE: Final[IdsEnd] = (b"\0", b"\0", None)  # a NUL is in no JSON


class ResumableMeter(StreamMeter, Protocol):
    """The interface of a meter of a stream that another backend may continue. `last` is the last event with output
    tokens, as the backend sent it; before any, the event with the prompt's token ids. If the stream ends early and
    gives a reason, `interrupted` is that reason, otherwise None.
    """

    last: bytes
    interrupted: str | None

    def forget(self) -> None:
        """Stop keeping token ids, because the stream cannot be continued."""
        ...


class TokenIdMeter(ChunkMeter):
    """A meter of one stream of one choice, which counts usage by token ids and keeps the ids."""

    __slots__ = (
        "_append", "_client_ids", "_has_ids", "_ids", "_ids_like", "_is_resumable", "_outputs_max", "interrupted",
        "last",
    )  # fmt: skip

    def __init__(self, call: StreamCall, ids: TokenIds, *, keeps_ids: bool, is_resumable: bool = True) -> None:
        """`keeps_ids`: the client itself asked for the ids. `is_resumable`: another backend may continue the stream. If
        no backend may, the client sees the event by which the backend ends the stream.
        """
        super().__init__(call)
        self._is_resumable = is_resumable
        self._ids = ids
        self._append = ids.output.append
        self._outputs_max = ids.outputs_max
        self._client_ids = keeps_ids
        self._has_ids = False  # the stream has told any
        self._ids_like: IdsEnd = _IDS_LIKE_NONE
        self.last = b""
        self.interrupted: str | None = None

    def forget(self) -> None:
        self._ids.drop()
        self._append, self._outputs_max, self._is_resumable = self._ids.output.append, 0, False

    def feed(self, data: bytes) -> bytes:
        # One whole event without usage, like the one before but for its text and its token.
        ids_name, end, client_end = self._ids_like
        if data.endswith(end):
            before, _, token_id = data.removesuffix(end).rpartition(ids_name)
            if token_id.isdigit() and self.output_tokens < self._outputs_max:
                if _LF in before:
                    out = self._several(data)
                    return self._other(data) if out is None else out
                self.output_tokens += 1
                self._append(int(token_id))
                self.last = data
                if client_end is None:
                    return data
                return b"" if before.endswith(_EMPTY) else before + client_end
        return self._other(data)

    def _several(self, data: bytes) -> bytes | None:
        """Do the same as `_more_tokens` for several events in one read, as on a busy processor; None if any is of
        another kind.
        """
        ids_name, end, client_end = self._ids_like
        end = end.removesuffix(_BLANK)
        ids, out, event = array("I"), [], b""
        for event in data.removesuffix(_BLANK).split(_BLANK):
            before, _, token_id = event.removesuffix(end).rpartition(ids_name)
            if not token_id.isdigit() or not event.endswith(end) or _LF in before:
                return None
            ids.append(int(token_id))
            if client_end is not None and not before.endswith(_EMPTY):
                out.append(before + client_end)
        if self.output_tokens + len(ids) > self._outputs_max:
            return None
        self.output_tokens += len(ids)
        self._ids.output.extend(ids)
        self.last = event + _BLANK
        return data if client_end is None else b"".join(out)

    def _other(self, data: bytes) -> bytes:
        out = super()._other(data)
        if self._partial:
            self._ids_like = _IDS_LIKE_NONE  # the next bytes begin in the middle of an event
        return out

    def _more_tokens(self, event: bytes) -> bytes | None:
        """Handle an event with any number of tokens, without usage or with usage as ChunkMeter knows it; None for any
        other.
        """
        ids_name, end, client_end = self._ids_like
        before, _, rest = event.rpartition(_OUTPUT_NAME)
        token_ids, _, after = rest.partition(b"]")
        if not token_ids.replace(b",", b"").isdigit() or _LF in before:
            return None
        if b"]" + after == end and before.endswith(ids_name.removesuffix(_OUTPUT_NAME)):
            self._count(token_ids)
            self._keep(event, token_ids)
            if client_end is None:
                return event
            return b"" if _EMPTY_EVENT in event else before + _NO_OUTPUT + after
        if self._client_ids:
            return None
        out = super()._more_tokens(before + _NO_OUTPUT + after)
        if out is not None:
            self._keep(event, token_ids)
        return b"" if out and _EMPTY_EVENT in event else out

    def _keep(self, event: bytes, token_ids: bytes) -> None:
        ids, self.last = self._ids, event
        if ids.is_full:
            return
        ids.output.extend(map(int, token_ids.split(b",")))
        if len(ids.output) > self._outputs_max:
            ids.drop()
            self._outputs_max = 0

    def _count(self, token_ids: bytes) -> None:
        self.output_tokens += _members(token_ids)
        self._known = True

    def _slow(self, event: bytes, *, is_one: bool = False) -> bytes:
        data = payload(event, is_one=is_one)
        if _LF in data:  # JSON has no line end inside a string
            event = b"data: " + data.replace(b"\n", b" ") + _BLANK
        plain = self._without_ids(event)
        data = payload(plain)
        message = json_object(data)
        if self._is_resumable and self.interrupted is None:
            self.interrupted = interruption(message)
        if self.interrupted is not None:
            return b""
        has_ids = False
        if (output := _list_at(_OUTPUT, event)) is not None:
            token_ids = event[output[0] : output[1]]
            has_ids = _members(token_ids) > 0
            if has_ids:
                self._count(token_ids)
                self._keep(event, token_ids)
        if self._client_ids:
            data = payload(event)
            out = self._parsed(event, data, json_object(data))
        else:
            out = self._parsed(plain, data, message)
        self._expect_like(plain)
        self._expect_ids_like(event)
        return b"" if not self._client_ids and has_ids and _is_empty(_choice(message)) else out

    def _without_ids(self, event: bytes) -> bytes:
        """Keep the ids of the prompt, and return the event without its ids."""
        ids, plain = self._ids, event
        if (prompt := _list_at(_PROMPT, plain)) is not None:
            self.last, self._has_ids = event, True
            start, stop = prompt
            self._prompt_tokens, self._known = _members(plain[start:stop]), True
            if not ids.is_full:
                ids.prompt = plain[start:stop]
                self._outputs_max = ids.outputs_max
            plain = plain[: start - 1] + b"null" + plain[stop + 1 :]
        if (output := _list_at(_OUTPUT, plain)) is not None:
            self._has_ids = True
            plain = plain[: output[0] - 1] + b"null" + plain[output[1] + 1 :]
        return plain

    def _estimate(self, choices: list[dict[str, Any]]) -> None:
        """Estimate nothing, because token ids are counted, unless the stream has none."""
        if not self._has_ids:
            super()._estimate(choices)

    def _expect_ids_like(self, event: bytes) -> None:
        """Keep the bytes around an event's token ids, where nothing else can differ."""
        match = _TOKEN_EVENT.search(event)
        if match is None or self._held is not None:
            self._ids_like = _IDS_LIKE_NONE
            return
        ids_name, end = match.groups()
        like = (ids_name + b"[", end, None if self._client_ids else ids_name + b"null" + end[1:])
        # As in ChunkMeter: one object for all streams of a backend stays in the cache.
        self._ids_like = self.call.memo.ids_like = self.call.memo.ids_like if self.call.memo.ids_like == like else like


def _list_at(name: re.Pattern[bytes], event: bytes) -> tuple[int, int] | None:
    """The positions where the members of the list of numbers with this name begin and end; None without such a list. A
    regular expression for the members would take 10 ms for a long prompt.
    """
    found = name.search(event)
    if found is None:
        return None
    start, stop = found.end(), event.find(b"]", found.end())
    return (start, stop) if stop >= 0 and not event[start:stop].translate(None, _OF_LISTS) else None


def _members(ids: bytes) -> int:
    """The number of members of a JSON list."""
    return ids.count(b",") + 1 if ids.strip() else 0


def _is_empty(choice: dict[str, Any]) -> bool:
    """Whether vLLM would send this choice of a chat only because of its token ids."""
    return choice.get("delta") == {} and choice.get("logprobs") is None and choice.get("finish_reason") is None


def _choice(message: dict[str, Any] | None) -> dict[str, Any]:
    """The choice of an event; empty where it has none."""
    choices = (message or {}).get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def interruption(message: dict[str, Any] | None) -> str | None:
    """The reason that an event gives for the early end of its stream; None for an event of another kind."""
    if message is not None and (error := message.get("error")) is not None:
        code = error.get("code") if isinstance(error, dict) else None
        return "an error event of the backend" if type(code) is not int or code >= 500 else None
    return "the backend stopped in mid-stream" if _choice(message).get("finish_reason") == "abort" else None
