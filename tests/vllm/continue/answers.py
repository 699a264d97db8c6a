"""What a client makes of an answer, whichever tokens share an event: for comparison with another answer."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from wire import Call


@dataclass
class Answer:
    """A stream as a client reads it. `error`: the stream ended with one."""

    text: str = ""
    pieces: list[tuple[str, int]] = field(default_factory=list)  # of events: text, tokens
    ids: list[int] = field(default_factory=list)
    finish: tuple[str, Any] | None = None
    usage: dict[str, int] | None = None
    heads: set[tuple] = field(default_factory=set)
    offsets: list[int] = field(default_factory=list)
    tokens: list[tuple[str, Any]] = field(default_factory=list)  # of log probabilities: text, bytes
    logprobs: list[float] = field(default_factory=list)
    error: Any = None
    is_done: bool = False

    def chars_after(self, tokens: int) -> int:
        """The characters that are here after so many tokens."""
        chars = 0
        for text, count in self.pieces:
            if tokens <= 0:
                break
            chars, tokens = chars + len(text), tokens - max(count, 1)
        return chars

    @property
    def compared(self) -> dict[str, Any]:
        usage = {name: count for name, count in (self.usage or {}).items() if not name.endswith("details")}
        return {
            "text": self.text, "ids": self.ids, "finish": self.finish, "usage": usage, "offsets": self.offsets,
            "tokens": self.tokens,
            "heads": len(self.heads), "error": self.error, "is_done": self.is_done,
        }  # fmt: skip


def read(payloads: Iterable[str]) -> Answer:
    answer = Answer()
    for payload in payloads:
        if payload == "[DONE]":
            answer.is_done = True
            continue
        message = json.loads(payload)
        if "error" in message:
            answer.error = message["error"]
            continue
        answer.heads.add(tuple(message[name] for name in ("id", "object", "created", "model")))
        answer.usage = message.get("usage") or answer.usage
        for choice in message["choices"]:
            text, ids = choice.get("text") or choice.get("delta", {}).get("content") or "", choice.get("token_ids")
            answer.text, answer.ids = answer.text + text, answer.ids + (ids or [])
            answer.pieces.append((text, len(ids or ())))
            _log_probabilities(answer, choice.get("logprobs") or {})
            if choice["finish_reason"] is not None:
                answer.finish = (choice["finish_reason"], choice["stop_reason"])
    return answer


def _log_probabilities(answer: Answer, logprobs: Mapping[str, Any]) -> None:
    """Those of one event, of a completion or of a chat."""
    answer.offsets += logprobs.get("text_offset", ())
    answer.tokens += [(token, None) for token in logprobs.get("tokens", ())]
    answer.logprobs += logprobs.get("token_logprobs", ())
    for each in logprobs.get("content", ()):
        assert each["top_logprobs"] == []
        answer.tokens.append((each["token"], each["bytes"]))
        answer.logprobs.append(each["logprob"])


def ask(
    url: str,
    path: str,
    body: Mapping[str, Any],
    request_id: str | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Answer:
    headers = {**headers, **({} if request_id is None else {"x-request-id": request_id})}
    with Call(url, path, {"model": "tiny", "stream": True, "temperature": 0, **body}, headers=headers) as call:
        assert call.response.status == 200, call.response.read()
        return read(call.events())
