"""Caller: makes calls to a server or a gateway, and times the parts of their answers."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp
import orjson

from gateway.calibrate.load import CALL_TIMEOUT_S, ERROR_CHARS_MAX
from gateway.calibrate.mix import TEXT

WORDS = TEXT.split()


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a call: its tokens, and whether its answer is a stream or whole."""

    prompt_words: int
    output_tokens: int
    stream: bool = True


@dataclass(slots=True)
class Answer:
    """Times are seconds after the call was sent. `tokens_at`: when chunks of text came. `why`: what went wrong."""

    total_s: float = 0.0
    tokens_at: list[float] = field(default_factory=list)
    why: str | None = None

    @property
    def gaps_s(self) -> list[float]:
        """Between one chunk and the next."""
        return [later - earlier for earlier, later in zip(self.tokens_at, self.tokens_at[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send calls: a URL without /v1, headers with the key, and what is to be called for."""

    url: str
    headers: Mapping[str, str]
    model: str
    tls: Any = True  # as aiohttp takes it


class CallSender:
    """Makes calls whose prompts all begin differently, so that no prefix cache reduces the work of some of them."""

    def __init__(self, session: aiohttp.ClientSession, rng: Random) -> None:
        self._session = session
        self._rng = rng

    def body(self, target: Target, shape: Shape) -> dict[str, Any]:
        words = self._rng.choices(WORDS, k=shape.prompt_words)
        body: dict[str, Any] = {
            "model": target.model, "prompt": " ".join(words), "max_tokens": shape.output_tokens, "ignore_eos": True,
            "temperature": 0.0, "stream": shape.stream,
        }  # fmt: skip
        if shape.stream:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        return body

    async def call(
        self, target: Target, body: Mapping[str, Any], on_usage: Callable[[int, int], None] = lambda _i, _o: None
    ) -> Answer:
        """Make a call; `on_usage` is called with its prompt and output tokens so far, as they arrive."""
        answer, began_at = Answer(), time.perf_counter()
        try:
            async with self._session.post(
                f"{target.url}/v1/completions", json=body, headers=target.headers, ssl=target.tls
            ) as response:
                if response.status != 200:
                    text = (await response.content.read(ERROR_CHARS_MAX)).decode("utf-8", "replace")
                    answer.why = f"status {response.status} {text}"
                elif body["stream"]:
                    await _read_stream(response, answer, began_at, on_usage)
                else:
                    await response.read()
        except TimeoutError:
            answer.why = f"no answer in {CALL_TIMEOUT_S:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            answer.why = str(error) or type(error).__name__
        answer.total_s = time.perf_counter() - began_at
        return answer


async def _read_stream(
    response: aiohttp.ClientResponse, answer: Answer, began_at: float, on_usage: Callable[[int, int], None]
) -> None:
    """Raises ValueError for what is no stream of completions."""
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = orjson.loads(data)
        if "error" in event:
            raise ValueError(f"the stream broke: {str(event['error'])[:ERROR_CHARS_MAX]}")
        if event.get("choices"):
            answer.tokens_at.append(time.perf_counter() - began_at)
        usage = event.get("usage") or {}
        on_usage(usage.get("prompt_tokens", 0), usage.get("completion_tokens", len(answer.tokens_at)))
    raise ValueError("the stream ended before [DONE]")
