"""Paths that generate no text: embeddings, and conversion between text and tokens.

A generative vLLM has no /v1/embeddings; this server has this path, so that it can be tried. A vector is made from its
input's hash: equal inputs have equal vectors.
"""

import math
from array import array
from base64 import b64encode
from collections.abc import Iterator
from hashlib import blake2b
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from backends.engine.http.requests import Message, TokenId
from backends.engine.http.responses import Json
from backends.engine.http.wire import EngineLimits, WireError, check_busy, check_model, load, output_limit, validate
from backends.engine.text import PromptText, render_chat, text_prompt, token_prompt, token_text

DIMENSIONS = 16


class EmbeddingBody(BaseModel):
    """The body of a call to /v1/embeddings."""

    model_config = ConfigDict(extra="ignore")

    input: str | list[str] | list[TokenId] | list[list[TokenId]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=4096)] | None = None


class TokenizeBody(BaseModel):
    """The body of a call to /tokenize: a prompt, or the messages of a chat."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    return_token_strs: bool | None = False


class DetokenizeBody(BaseModel):
    """The body of a call to /detokenize."""

    model_config = ConfigDict(extra="ignore")

    tokens: list[TokenId]
    model: str | None = None


def parse_embedding(
    data: bytes, content_type: str, limits: EngineLimits
) -> tuple[tuple[PromptText, ...], EmbeddingBody]:
    """Parse the body of /v1/embeddings. Raises WireError for bodies that vLLM refuses."""
    body = validate(EmbeddingBody, load(data, content_type))
    check_model(body.model, limits)
    prompts = tuple(_prompts(body.input, limits.block_tokens))
    check_busy(len(prompts), limits)
    for prompt in prompts:
        output_limit(None, prompt, limits)
    return prompts, body


def embeddings(prompts: tuple[PromptText, ...], body: EmbeddingBody, *, id_: str, created: int, model: str) -> Json:
    tokens = sum(prompt.tokens for prompt in prompts)
    vectors = [_vector(prompt, body.dimensions or DIMENSIONS) for prompt in prompts]
    data = [
        {"index": index, "object": "embedding", "embedding": _encoded(vector, body.encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}
    return {"id": id_, "object": "list", "created": created, "model": model, "data": data, "usage": usage}


def tokenize(data: bytes, content_type: str, limits: EngineLimits) -> Json:
    """Answer /tokenize. Raises WireError for requests that vLLM refuses."""
    body = validate(TokenizeBody, load(data, content_type))
    check_model(body.model, limits)
    if body.messages is not None:
        text = render_chat([(message.role, message.content) for message in body.messages], body.tools)
    elif body.prompt is not None:
        text = body.prompt
    else:
        raise WireError("Either 'prompt' or 'messages' must be given.", kind="Bad Request", param="body.prompt")
    ids = text_prompt(text, block_tokens=limits.block_tokens).ids() if text else []
    texts = list(map(token_text, ids)) if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": limits.max_model_len, "tokens": ids, "token_strs": texts}


def detokenize(data: bytes, content_type: str, limits: EngineLimits) -> Json:
    """Answer /detokenize. Raises WireError for requests that vLLM refuses."""
    body = validate(DetokenizeBody, load(data, content_type))
    check_model(body.model, limits)
    return {"prompt": "".join(map(token_text, body.tokens))}


def _prompts(given: str | list[Any], block_tokens: int) -> Iterator[PromptText]:
    one = isinstance(given, str) or (given and isinstance(given[0], int))
    items: list[Any] = [given] if one else list(given)
    for item in items:
        if not item:
            raise WireError("The decoder prompt cannot be empty")
        if isinstance(item, str):
            yield text_prompt(item, block_tokens=block_tokens)
        else:
            yield token_prompt(item, block_tokens=block_tokens)


def _vector(prompt: PromptText, dimensions: int) -> list[float]:
    data = b"".join(
        blake2b(prompt.digest + number.to_bytes(2), digest_size=64).digest() for number in range(-(-dimensions // 64))
    )
    raw = [byte / 127.5 - 1 for byte in data[:dimensions]]
    length = math.sqrt(sum(value * value for value in raw)) or 1.0
    return [value / length for value in raw]


def _encoded(vector: list[float], form: str) -> list[float] | str:
    return b64encode(array("f", vector).tobytes()).decode() if form == "base64" else vector
