"""Answers in the shapes of vLLM 0.32, field by field and in its order.

Chat and completions differ in names and nesting only; both are built from one `ChoicesReply`.
Fields that vLLM leaves out are left out here, fields that it sends as null are null.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from backends.engine.http.requests import EngineCall
from backends.engine.text import FIRST_WORD_ID, WORDS, AnswerText, PromptText, token_text

VLLM_VERSION = "0.32.0"
DONE = b"data: [DONE]\n\n"
Json = dict[str, Any]


def event(body: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(body) + b"\n\n"


def usage(prompt_tokens: int, completion_tokens: int, **details: Any) -> Json:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        **details,
    }


def fingerprint(model: str) -> str:
    return f"vllm-{VLLM_VERSION}-{zlib.crc32(model.encode()):08x}"


@dataclass(frozen=True, slots=True)
class EngineReply(ABC):
    """The reply to one call, which it writes as one body or as the bytes of a stream. `cached_tokens` is the number of
    cached prompt tokens; None: the server does not report them.
    """

    id: str
    created: int
    model: str
    call: EngineCall
    answers: tuple[AnswerText, ...]

    def prompt(self, choice: int) -> PromptText:
        return self.call.prompts[choice // self.call.n]

    def accepted(self) -> bytes:
        """Return the bytes that a stream sends before the engine has done anything."""
        return b""

    @abstractmethod
    def begun(self) -> bytes:
        """Return the bytes that a stream sends just before the first token."""

    @abstractmethod
    def tokens(self, choice: int, begin: int, end: int) -> bytes:
        """Return the bytes for tokens begin..end-1 of one choice; they are the last ones if end is its length."""

    @abstractmethod
    def ended(self, cached_tokens: int | None) -> bytes:
        """Return the bytes that a stream sends when all choices have ended."""

    @abstractmethod
    def whole(self, cached_tokens: int | None) -> Json:
        """Return the body of an answer that is not streamed."""

    def _prompt_tokens(self) -> int:
        return sum(prompt.tokens for prompt in self.call.prompts)

    def _completion_tokens(self) -> int:
        return sum(answer.tokens for answer in self.answers)


class ChoicesReply(EngineReply):
    """A reply in the form of OpenAI's choices; its stream is ended by [DONE]."""

    __slots__ = ()

    def begun(self) -> bytes:
        return b"".join(map(event, self.opening()))

    def tokens(self, choice: int, begin: int, end: int) -> bytes:
        return event(self.chunk(choice, begin, end))

    def ended(self, cached_tokens: int | None) -> bytes:
        return (event(self.closing(cached_tokens)) if self.call.include_usage else b"") + DONE

    @abstractmethod
    def opening(self) -> list[Json]:
        """Return the chunks before the first token."""

    @abstractmethod
    def chunk(self, choice: int, begin: int, end: int) -> Json:
        """Return a chunk of tokens begin..end-1 of one choice; it is the last one if end is its length."""

    def closing(self, cached_tokens: int | None) -> Json:
        """Return the chunk with the usage of all choices."""
        details = {} if cached_tokens is None else {"prompt_tokens_details": self._cached(cached_tokens)}
        total = usage(self._prompt_tokens(), self._completion_tokens(), **details)
        return {**self._head(chunk=True), "choices": [], "usage": total, "system_fingerprint": fingerprint(self.model)}

    @abstractmethod
    def _head(self, *, chunk: bool) -> Json: ...

    def _cached(self, cached_tokens: int) -> Json:
        return {"cached_tokens": cached_tokens}

    def _body(self, choices: list[Json], cached_tokens: int | None, **more: Any) -> Json:
        fields = {"cached_tokens": None, "created_cache_tokens": None, "multimodal_tokens": None}
        cached = None if cached_tokens is None else {**fields, **self._cached(cached_tokens)}
        details = {"prompt_tokens_details": cached, "completion_tokens_details": None}
        return {
            **self._head(chunk=False),
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": fingerprint(self.model),
            "usage": usage(self._prompt_tokens(), self._completion_tokens(), **details),
            **more,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _finish(self, body: Json, choice: int, end: int, **usage_details: Any) -> Json:
        """Add the fields that vLLM puts after the choices: usage on every chunk, or a fingerprint on the last."""
        if self.call.continuous_usage:
            body["usage"] = usage(self.prompt(choice).tokens, end, **usage_details)
        if end == self.answers[choice].tokens and not self.call.include_usage:
            body["system_fingerprint"] = fingerprint(self.model)
        return body

    def _ids(self, answer: AnswerText, begin: int, end: int) -> list[int] | None:
        return answer.ids(begin, end) if self.call.token_ids else None


class ChatShape(ChoicesReply):
    """The reply to a chat completion."""

    def opening(self) -> list[Json]:
        return [self._role(choice) for choice in range(len(self.answers))]

    def chunk(self, choice: int, begin: int, end: int) -> Json:
        answer = self.answers[choice]
        last = end == answer.tokens
        body = {
            "index": choice,
            "delta": {"content": answer.text(begin, end)},
            "logprobs": self._logprobs(answer, begin, end),
            "finish_reason": answer.finish_reason if last else None,
            **({"stop_reason": answer.stop_reason} if last else {}),
            "token_ids": self._ids(answer, begin, end),
        }
        return self._finish({**self._head(chunk=True), "choices": [body]}, choice, end, completion_tokens_details=None)

    def whole(self, cached_tokens: int | None) -> Json:
        choices = [self._whole_choice(choice) for choice in range(len(self.answers))]
        ids = self.call.prompts[0].ids() if self.call.token_ids else None
        return self._body(choices, cached_tokens, prompt_logprobs=None, prompt_token_ids=ids, prompt_text=None)

    def _head(self, *, chunk: bool) -> Json:
        name = "chat.completion.chunk" if chunk else "chat.completion"
        return {"id": self.id, "object": name, "created": self.created, "model": self.model}

    def _cached(self, cached_tokens: int) -> Json:
        prompt = self.call.prompts[0]
        blocks_tokens = len(prompt.prefix) * prompt.block_tokens
        return {"cached_tokens": cached_tokens, "created_cache_tokens": max(0, blocks_tokens - cached_tokens)}

    def _role(self, choice: int) -> Json:
        delta = {"role": "assistant", "content": ""}
        body = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
        chunk = {**self._head(chunk=True), "choices": [body]}
        if self.call.continuous_usage:
            chunk["usage"] = usage(self.prompt(choice).tokens, 0, completion_tokens_details=None)
        chunk["prompt_token_ids"] = self.prompt(choice).ids() if self.call.token_ids else None
        chunk["prompt_text"] = None
        return chunk

    def _whole_choice(self, choice: int) -> Json:
        answer = self.answers[choice]
        message = {
            "role": "assistant",
            "content": answer.text(0, answer.tokens),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        return {
            "index": choice,
            "message": message,
            "logprobs": self._logprobs(answer, 0, answer.tokens),
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
            "token_ids": self._ids(answer, 0, answer.tokens),
            "routed_experts": None,
        }

    def _logprobs(self, answer: AnswerText, begin: int, end: int) -> Json | None:
        top = self.call.top_logprobs
        if top is None:
            return None
        content = []
        for word in answer.words[begin:end]:
            alternatives = [_logprob(other) for other in _alternatives(word, top)]
            content.append({**_logprob(word), "top_logprobs": alternatives})
        return {"content": content}


class CompletionShape(ChoicesReply):
    """The reply to a completion."""

    def opening(self) -> list[Json]:
        return []

    def chunk(self, choice: int, begin: int, end: int) -> Json:
        answer = self.answers[choice]
        first = begin == 0
        body = {
            "index": choice,
            "text": self._text(choice, begin, end),
            "logprobs": self._logprobs(answer, begin, end),
            "finish_reason": answer.finish_reason if end == answer.tokens else None,
            "stop_reason": answer.stop_reason if end == answer.tokens else None,
            "prompt_token_ids": self.prompt(choice).ids()
            if first and (self.call.echo or self.call.token_ids)
            else None,
            "token_ids": self._ids(answer, begin, end),
        }
        return self._finish({**self._head(chunk=True), "choices": [body]}, choice, end)

    def whole(self, cached_tokens: int | None) -> Json:
        return self._body([self._whole_choice(choice) for choice in range(len(self.answers))], cached_tokens)

    def _head(self, *, chunk: bool) -> Json:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}

    def _whole_choice(self, choice: int) -> Json:
        answer = self.answers[choice]
        return {
            "index": choice,
            "text": self._text(choice, 0, answer.tokens),
            "logprobs": self._logprobs(answer, 0, answer.tokens),
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
            "token_ids": self._ids(answer, 0, answer.tokens),
            "prompt_logprobs": None,
            "prompt_token_ids": self.prompt(choice).ids() if self.call.token_ids else None,
            "routed_experts": None,
        }

    def _text(self, choice: int, begin: int, end: int) -> str:
        echoed = self.prompt(choice).text if self.call.echo and begin == 0 else ""
        return echoed if self.call.prompt_only else echoed + self.answers[choice].text(begin, end)

    def _logprobs(self, answer: AnswerText, begin: int, end: int) -> Json | None:
        top = self.call.top_logprobs
        if top is None:
            return None
        words = answer.words[begin:end]
        offset = sum(len(WORDS[word]) for word in answer.words[:begin])
        offsets = []
        for word in words:
            offsets.append(offset)
            offset += len(WORDS[word])
        return {
            "text_offset": offsets,
            "token_logprobs": [_log(word) for word in words],
            "tokens": [WORDS[word] for word in words],
            "top_logprobs": [
                {WORDS[other]: _log(other) for other in [word, *_alternatives(word, top)[1:]]} for word in words
            ],
        }


def model_list(model: str, adapters: Iterable[str], max_model_len: int, created: int) -> Json:
    """Return the body of /v1/models: the base model and its loaded LoRA adapters."""
    cards = [_card(model, model, None, max_model_len, created)]
    cards += [_card(adapter, f"/adapters/{adapter}", model, None, created) for adapter in adapters]
    return {"object": "list", "data": cards}


def _card(name: str, root: str, parent: str | None, max_model_len: int | None, created: int) -> Json:
    permission = {
        "id": f"modelperm-{zlib.crc32(name.encode()):016x}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [permission],
    }


def _log(word: int) -> float:
    """A made-up log probability, the same for equal words."""
    return -(1 + word) / 16


def _alternatives(word: int, top: int) -> list[int]:
    return [(word + step) % len(WORDS) for step in range(min(top, len(WORDS)))]


def _logprob(word: int) -> Json:
    text = token_text(FIRST_WORD_ID + word)
    return {"token": text, "logprob": _log(word), "bytes": list(text.encode())}
