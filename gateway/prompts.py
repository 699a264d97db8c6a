"""The part of a body that becomes prompt: how long it is, and how it begins.

Before the backend has counted tokens, fairlead needs two things of a prompt: its size in bytes (from
which gateway/prompt_tokens.py estimates tokens) and hashes of its leading blocks (requests with equal
hashes share KV blocks at one backend). Both are taken from one canonical text: tools, then documents,
then each message as its role and its content, the order in which chat templates write them. It is not
the rendered template; it grows like it, and it differs where the rendered prompt differs.

Images, audio and video stand in it as a digest repeated to `MEDIA_PART_BYTES`: their base64 says
nothing about their tokens, their identity decides whether KV blocks are shared.
"""

from array import array
from hashlib import blake2b
from typing import Any, NamedTuple, Never

import orjson

PREFIX_BLOCK_BYTES = 1024
PREFIX_BLOCKS_MAX = 512
MEDIA_PART_BYTES = 2048

# Content parts that are text, and the field that holds it. Every other type is media.
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
# What a template may write of a message beside its role and content.
MESSAGE_FIELDS = ("name", "reasoning", "reasoning_content", "tool_calls", "tool_call_id")
LEADING_FIELDS = ("tools", "functions", "documents")
# Fields that make the KV blocks of two equal texts different.
SEED_FIELDS = ("model", "cache_salt", "chat_template", "chat_template_kwargs")


class BadRequest(Exception):  # noqa: N818 - named as HTTP names it
    """The body is not a valid call: the sender's fault. The message names fields, never what was sent."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class Prompt(NamedTuple):
    """`text` is all of it; `leading_bytes` of it belong to the first of `prompts` in it.

    `token_ids` is the exact number of tokens where the prompt came as token ids, else None.
    """

    text: bytes
    leading_bytes: int
    token_ids: int | None
    prompts: int


def chat_prompt(call: dict[str, Any]) -> Prompt:
    messages = call.get("messages")
    if type(messages) is not list or not messages:
        _wrong("messages", "must be a list with at least one message")
    pieces: list[bytes] = []
    for name in LEADING_FIELDS:
        if (value := call.get(name)) is not None:
            if type(value) is not list:
                _wrong(name, "must be a list")
            pieces.append(orjson.dumps(value))
    for message in messages:
        _add_message(pieces, message)
    text = b"\n".join(pieces)
    return Prompt(text=text, leading_bytes=len(text), token_ids=None, prompts=1)


def completion_prompt(call: dict[str, Any]) -> Prompt:
    prompt, embeds = call.get("prompt"), call.get("prompt_embeds")
    if embeds is not None and embeds != []:
        return _embedded_prompt(prompt, embeds)
    if type(prompt) is str and prompt:
        text = prompt.encode()
        return Prompt(text=text, leading_bytes=len(text), token_ids=None, prompts=1)
    if type(prompt) is not list or not prompt:
        _wrong("prompt", "must be a string, a list of strings, or lists of token ids, and not empty")
    return _listed_prompt(prompt)


def prefix_hashes(prompt: Prompt, call: dict[str, Any]) -> tuple[int, ...]:
    """Chained 64-bit hashes of the full leading blocks of the first sequence; one stands for all before it.

    A block of a prompt that came as token ids has PREFIX_BLOCK_BYTES / 4 of them.
    """
    blocks = min(prompt.leading_bytes // PREFIX_BLOCK_BYTES, PREFIX_BLOCKS_MAX)
    if not blocks:
        return ()
    digest, text = _seed(prompt, call), prompt.text
    hashes = []
    for start in range(0, blocks * PREFIX_BLOCK_BYTES, PREFIX_BLOCK_BYTES):
        digest = blake2b(digest + text[start : start + PREFIX_BLOCK_BYTES], digest_size=8).digest()
        hashes.append(int.from_bytes(digest, "big"))
    return tuple(hashes)


def _seed(prompt: Prompt, call: dict[str, Any]) -> bytes:
    # Text whose bytes happen to be those of token ids is another prompt.
    fields = [prompt.token_ids is not None, *(call.get(name) for name in SEED_FIELDS)]
    return blake2b(orjson.dumps(fields), digest_size=8).digest()


def _add_message(pieces: list[bytes], message: Any) -> None:
    if type(message) is not dict:
        _wrong("messages", "must hold objects")
    role, content = message.get("role"), message.get("content")
    if type(role) is not str:
        _wrong("messages", "must each have a role, which is a string")
    pieces.append(role.encode())
    if type(content) is str:
        pieces.append(content.encode())
    elif type(content) is list:
        pieces.extend(map(_part_text, content))
    elif content is not None:
        _wrong("messages", "must each have a content that is a string, a list of parts or null")
    if len(message) > 2:
        pieces.extend(_written(value) for name in MESSAGE_FIELDS if (value := message.get(name)) is not None)


def _written(value: Any) -> bytes:
    return value.encode() if type(value) is str else orjson.dumps(value)


def _part_text(part: Any) -> bytes:
    if type(part) is str:
        return part.encode()
    if type(part) is not dict:
        _wrong("messages", "must hold content parts that are objects or strings")
    kind = part.get("type")
    name = TEXT_PARTS.get(kind) if type(kind) is str else None
    if name is None:
        return _media_text(part)
    text = part.get(name)
    if type(text) is not str:
        _wrong("messages", f"must hold the text of a part as a string in '{name}'")
    return text.encode()


def _media_text(part: Any) -> bytes:
    digest = blake2b(orjson.dumps(part), digest_size=16).hexdigest().encode()
    return digest * (MEDIA_PART_BYTES // len(digest))


def _listed_prompt(prompt: list[Any]) -> Prompt:
    kinds = set(map(type, prompt))
    if kinds == {int}:
        packed = _packed(prompt)
        return Prompt(text=packed, leading_bytes=len(packed), token_ids=len(prompt), prompts=1)
    if kinds == {str}:
        texts = [text.encode() for text in prompt]
        return Prompt(text=b"".join(texts), leading_bytes=len(texts[0]), token_ids=None, prompts=len(texts))
    if kinds != {list} or any(set(map(type, ids)) - {int} for ids in prompt):
        _wrong("prompt", "must be a string, a list of strings, or lists of token ids")
    packs = [_packed(ids) for ids in prompt]
    tokens = sum(map(len, prompt))
    return Prompt(text=b"".join(packs), leading_bytes=len(packs[0]), token_ids=tokens, prompts=len(prompt))


def _packed(ids: list[int]) -> bytes:
    try:
        return array("I", ids).tobytes()
    except OverflowError:
        _wrong("prompt", "must hold token ids from 0 to 4294967295")


def _embedded_prompt(prompt: Any, embeds: Any) -> Prompt:
    """Embeddings come as encoded tensors: like media, their bytes say nothing about their tokens."""
    parts = embeds if type(embeds) is list else [embeds]
    if any(type(part) is not str for part in parts):
        _wrong("prompt_embeds", "must be a string or a list of strings")
    beside = Prompt(b"", 0, None, 0) if prompt is None or prompt in ("", []) else completion_prompt({"prompt": prompt})
    text = beside.text + b"".join(map(_media_text, parts))
    return Prompt(text=text, leading_bytes=0, token_ids=None, prompts=beside.prompts + len(parts))


def _wrong(name: str, what: str) -> Never:
    raise BadRequest(f"'{name}' {what}.", param=name)
