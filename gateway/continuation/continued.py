"""ContinuedMeter: writes the events of a continuation as the next events of the interrupted stream.

A continuation is a completion with token ids; the client's stream may be a chat. The meter gives the continuation's
events the id, the time and the shape of the client's stream. Counts continue the earlier counts, and text continues
where the client's text ends (seam.py, stops.py, token_texts.py). Every event is parsed and written again, which costs
several times as much as relaying one, and happens only after an interruption.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from backends.meters.chunks import HEAD, ChunkMeter, ending, usage_object
from backends.meters.events import EventMeter, StreamCall, json_object, payload
from backends.upstream import UpstreamError
from gateway.continuation.seam import Seam
from gateway.continuation.stops import StopStrings
from gateway.continuation.stream import ResumableStream
from gateway.continuation.token_texts import TokenTexts
from policies.types import Usage

_CHAT: Final = "chat.completion.chunk"
_NAME_BY_ID: Final = "token_id:%d"  # of a token in log probabilities, where a server does not write its text


class AnswerComplete(UpstreamError):  # noqa: N818 - a state, not an error
    """An error: a stop string has ended the answer, so the rest that the backend sends is dropped."""


class Wanted(NamedTuple):
    """What the client asked for in the events besides text: token ids, and log probabilities."""

    token_ids: bool = False
    logprobs: bool = False


class ContinuedMeter(EventMeter):
    """The meter of a stream after an interruption: it writes the events of the next backend as events of the client's
    stream, and continues the count of tokens.
    """

    __slots__ = (
        "_details", "_fingerprint", "_finish", "_first", "_head", "_ids", "_is_chat", "_names_ids", "_prompt_usage",
        "_skip", "_stops", "_text_offset", "_texts", "_wanted", "interrupted", "is_finished", "last",
    )  # fmt: skip

    def __init__(
        self, call: StreamCall, stream: ResumableStream, *, wanted: Wanted, seam: Seam, stops: StopStrings | None
    ) -> None:
        """`stream` is the stream as it was at its interruption."""
        super().__init__(call)
        self.last = stream.last
        last = json_object(payload(stream.last)) or {}
        self._head = {name: last.get(name) for name in HEAD}
        self._is_chat = last.get("object") == _CHAT
        self._details = {"completion_tokens_details": None} if self._is_chat else {}
        self._text_offset = _text_offset(last)
        self._names_ids = self._is_chat and _names_ids(last)
        self._ids = stream.ids
        self._first = stream.usage
        self._wanted = wanted
        self._skip = seam.skip
        self._stops = stops
        self._texts = TokenTexts(seam)
        self._finish: dict[str, Any] | None = None  # held until it is known whether usage follows
        self.output_tokens = stream.usage.output_tokens
        self.interrupted: str | None = None
        self.is_finished = False

    @property
    def usage(self) -> Usage:
        return self._first._replace(output_tokens=self.output_tokens)

    @property
    def tokens_estimated(self) -> bool:
        return False

    def feed(self, data: bytes) -> bytes:
        if self.done:
            raise AnswerComplete("the answer is complete")
        return self._split(data)

    def cut(self, message: str, error: Mapping[str, Any] = {}) -> bytes:
        return ChunkMeter(self.call).cut(message, error)

    def finish(self) -> bytes:
        rest = super().finish()
        return rest if self.done or not self.is_finished else rest + self._complete()

    def _complete(self) -> bytes:
        """End a complete answer: send its finish event, and the events after it."""
        finish, self._finish, fingerprint = self._finish, None, self.call.memo.fingerprint
        keeps_usage, out = self.call.keeps_usage, b""
        if finish is not None:
            if fingerprint is not None and not keeps_usage:
                finish["system_fingerprint"] = orjson.Fragment(fingerprint)
            out = _event(finish)
        self.done = True
        last = b"data: " + orjson.dumps(self._head) + b"\n\n"
        return out + ending(last, self.usage if keeps_usage else None, fingerprint)

    def _event(self, event: bytes) -> bytes:
        if self.done or self.interrupted is not None:
            return b""
        data = payload(event)
        if data == b"[DONE]":
            return self._complete() if self.is_finished else b""
        message = json_object(data)
        if message is None:
            return event  # a comment
        choices = message.get("choices")
        if not isinstance(choices, list):
            self.interrupted = "an error event of the backend"
            return b""
        if choices:
            return self._choice_event(choices[0])
        if (fingerprint := message.get("system_fingerprint")) is not None:
            self.call.memo.fingerprint = orjson.dumps(fingerprint)
        return b""

    def _choice_event(self, choice: dict[str, Any]) -> bytes:
        token_ids: list[int] = choice.get("token_ids") or []
        text, finish, stop_reason = choice.get("text"), choice.get("finish_reason"), choice.get("stop_reason")
        if finish == "abort" or type(text) is not str:
            self.interrupted = "the backend stopped in mid-stream"
            return b""
        if self._skip:
            text, self._skip = text[self._skip :], max(0, self._skip - len(text))
        logprobs = choice.get("logprobs")
        names = _names(logprobs, token_ids)
        if finish == "stop" and names and not (self._stops is not None and self._stops.is_included):
            names[-1] = ""  # a token that ends the answer is no part of it
        texts = self._texts.of(text, names)
        if self._texts.completed is not None:
            logprobs = _renamed(logprobs, *self._texts.completed)
        if self._stops is not None:
            text, stopped = self._stops.passed(texts)
            if stopped is not None:
                finish, stop_reason, token_ids = "stop", stopped.by, token_ids[: stopped.tokens]
                logprobs = _cut_logprobs(logprobs, stopped.tokens)
            elif finish is not None:
                text += self._stops.rest()
        else:
            stopped = None
        self._count(token_ids)
        message = self._message(text, token_ids, self._logprobs(logprobs, token_ids), finish, stop_reason)
        self.last = _event({**message, "choices": [{**message["choices"][0], "token_ids": token_ids}]})
        if finish is None:
            return _event(message)
        self.is_finished, self._finish = True, message
        return self._complete() if stopped is not None else b""

    def forget(self) -> None:
        self._ids.drop()

    def _count(self, token_ids: list[int]) -> None:
        self.output_tokens += len(token_ids)
        if self._ids.is_full:
            return
        self._ids.output.extend(token_ids)
        if len(self._ids.output) > self._ids.outputs_max:
            self._ids.drop()

    def _message(
        self, text: str, token_ids: list[int], logprobs: Any, finish: str | None, stop_reason: Any
    ) -> dict[str, Any]:
        shown = token_ids if self._wanted.token_ids else None
        choice: dict[str, Any]
        if self._is_chat:
            choice = {"index": 0, "delta": {"content": text}, "logprobs": logprobs, "finish_reason": finish}
            choice |= {} if finish is None else {"stop_reason": stop_reason}
        else:
            choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}
            choice |= {"stop_reason": stop_reason, "prompt_token_ids": None}
        message = {**self._head, "choices": [{**choice, "token_ids": shown}]}
        if self.call.keeps_chunk_usage:
            message["usage"] = {**usage_object(self.usage), **self._details}
        return message

    def _logprobs(self, logprobs: Any, token_ids: list[int]) -> Any:
        """The log probabilities in the form of the client's API; None where it asked for none."""
        if not self._wanted.logprobs or not isinstance(logprobs, dict):
            return None
        tokens: list[str] = logprobs["tokens"]
        if self._is_chat:
            if self._names_ids:
                tokens = [_NAME_BY_ID % token_id for token_id in token_ids]
            pairs = zip(tokens, logprobs["token_logprobs"], strict=True)
            return {"content": [_chat_logprob(token, logprob) for token, logprob in pairs]}
        offsets = []
        for token in tokens:
            offsets.append(self._text_offset)
            self._text_offset += len(token)
        return {**logprobs, "text_offset": offsets}


def _event(message: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(message) + b"\n\n"


def _chat_logprob(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode(errors="replace")), "top_logprobs": []}


def _names(logprobs: Any, token_ids: list[int]) -> list[str]:
    """The names of an event's tokens in its log probabilities."""
    if isinstance(logprobs, dict) and len(logprobs["tokens"]) == len(token_ids):
        return list(logprobs["tokens"])
    return [""] * len(token_ids)


def _renamed(logprobs: Any, number: int, name: str) -> Any:
    """The log probabilities, with this name for a token that has none."""
    if not isinstance(logprobs, dict) or logprobs["tokens"][number]:
        return logprobs
    renamed = {**logprobs, "tokens": [*logprobs["tokens"]]}
    renamed["tokens"][number] = name
    if (tops := logprobs.get("top_logprobs")) and tops[number]:
        renamed["top_logprobs"] = [*tops]
        renamed["top_logprobs"][number] = {each or name: logprob for each, logprob in tops[number].items()}
    return renamed


def _names_ids(event: dict[str, Any]) -> bool:
    """Whether the log probabilities of a chat event name its tokens by their ids."""
    choice = event["choices"][0] if event.get("choices") else {}
    tokens, ids = (choice.get("logprobs") or {}).get("content"), choice.get("token_ids")
    return bool(tokens and ids and tokens[-1]["token"] == _NAME_BY_ID % ids[-1])


def _cut_logprobs(logprobs: Any, tokens: int) -> Any:
    return {name: each[:tokens] for name, each in logprobs.items()} if isinstance(logprobs, dict) else logprobs


def _text_offset(event: dict[str, Any]) -> int:
    """The position where the next token's text begins, by the log probabilities of a completion."""
    logprobs = event["choices"][0].get("logprobs") if event.get("choices") else None
    if not isinstance(logprobs, dict) or not logprobs.get("text_offset"):
        return 0
    return int(logprobs["text_offset"][-1]) + len(logprobs["tokens"][-1])
