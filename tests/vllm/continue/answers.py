"""What a client makes of an answer, whichever tokens share an event: for comparison with another answer."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wire import Call


@dataclass
class Answer:
    """A stream as a client reads it. `error`: the stream ended with one."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    finish: tuple[str, Any] | None = None
    usage: dict[str, int] | None = None
    heads: set[tuple] = field(default_factory=set)
    offsets: list[int] = field(default_factory=list)
    error: Any = None
    is_done: bool = False

    @property
    def compared(self) -> dict[str, Any]:
        usage = {name: count for name, count in (self.usage or {}).items() if not name.endswith("details")}
        return {
            "text": self.text, "ids": self.ids, "finish": self.finish, "usage": usage, "offsets": self.offsets,
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
            answer.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            answer.ids += choice.get("token_ids") or ()
            answer.offsets += (choice.get("logprobs") or {}).get("text_offset", ())
            if choice["finish_reason"] is not None:
                answer.finish = (choice["finish_reason"], choice["stop_reason"])
    return answer


def ask(url: str, path: str, body: Mapping[str, Any], request_id: str | None = None) -> Answer:
    headers = {} if request_id is None else {"x-request-id": request_id}
    with Call(url, path, {"model": "tiny", "stream": True, "temperature": 0, **body}, headers=headers) as call:
        assert call.response.status == 200, call.response.read()
        return read(call.events())
