"""Prompt text of a generating call: its size, and hashes of its leading blocks.

Before the backend has counted tokens, fairlead needs two facts about a prompt: its size in bytes (from which
gateway/api/token_counts.py estimates tokens) and hashes of its leading blocks (requests with equal hashes share KV
blocks at one backend). Both come from one canonical text: tools, then documents, then each message as its role and its
content, in the order of chat templates. This text is not the rendered template, but it grows with the rendered prompt,
and differs where that differs.

An image, audio or video is represented by a digest repeated to `MEDIA_PART_BYTES`: its base64 length says nothing about
its tokens, while its identity decides whether KV blocks are shared.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Never

import orjson

from backends.meters.long import LONG_BYTES
from gateway.api.errors import BadRequest

PREFIX_BLOCK_BYTES = 1024
PREFIX_BLOCKS_MAX = 512
MEDIA_PART_BYTES = 2048
# Whisper encodes 50 tokens a second: about 24,000 bytes of sound (between MP3 and WAV), or 150 bytes of text.
AUDIO_BYTES_PER_PROMPT_BYTE = 160

# Content parts that are text, and the field that holds it. Every other type is media.
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
# Further fields of a message that a chat template may render.
MESSAGE_FIELDS = ("name", "reasoning", "reasoning_content", "tool_calls", "tool_call_id")
# Blocks of messages and responses that are neither text nor tool calls.
MEDIA_BLOCKS = ("image", "input_image", "document", "input_file", "input_audio")
# Fields of an item of messages and responses that a chat template may render.
ITEM_FIELDS = ("role", "name", "content", "arguments", "output", "summary")
LEADING_FIELDS = ("tools", "functions", "documents")
_LEADING = frozenset(LEADING_FIELDS)
INSTRUCTIONS = ("system", "instructions")  # of messages, and of responses
# Fields that make the KV blocks of two equal texts different.
SEED_FIELDS = ("model", "cache_salt", "chat_template", "chat_template_kwargs")


Piece = str | bytes


@dataclass(slots=True)
class Prompt:
    """The text of all prompts of a call (`prompts` is their number); its first `leading_bytes` bytes belong to the
    first prompt.

    The text is `pieces`, joined by `between`. Most calls need only its size and its beginning, and a joined copy would
    cost as much memory again. `token_ids` is the exact number of tokens if the prompt came as token ids, else None.
    `repeated_bytes` are added to the size of the text: for a query that is read again with each document, or for audio.
    """

    pieces: Sequence[Piece]
    leading_bytes: int
    token_ids: int | None
    prompts: int
    repeated_bytes: int = 0
    between: bytes = b""

    @property
    def text(self) -> bytes:
        return self.between.join(map(_encoded, self.pieces))

    @property
    def text_bytes(self) -> int:
        is_led = self.prompts == 1 and self.leading_bytes  # what leads is all there is
        return self.leading_bytes if is_led else _size(self.pieces, self.between)

    def beginning(self, bytes_max: int) -> bytes:
        """The first bytes of the text, at least `bytes_max` of them if the text has as many."""
        if len(self.pieces) == 1:
            only = self.pieces[0]
            return only if isinstance(only, bytes) else only[:bytes_max].encode()
        pieces, size = [], 0
        for piece in self.pieces:
            if size - len(self.between) >= bytes_max:
                break
            pieces.append(_encoded(piece[:bytes_max]))  # no character is less than a byte
            size += len(pieces[-1]) + len(self.between)
        return self.between.join(pieces)


def chat_prompt(call: dict[str, Any]) -> Prompt:
    """Read the prompt of /v1/chat/completions."""
    return _one(_chat_pieces(call, call.get("messages")))


def batch_prompt(call: dict[str, Any]) -> Prompt:
    """Read the prompt of /v1/chat/completions/batch: a list of conversations, one choice for each."""
    conversations = call.get("messages")
    if type(conversations) is not list or not conversations:
        wrong("messages", "must be a list with at least one conversation")
    texts = [b"\n".join(map(_encoded, _chat_pieces(call, messages))) for messages in conversations]
    return Prompt(texts, leading_bytes=len(texts[0]), token_ids=None, prompts=len(texts))


def messages_prompt(call: dict[str, Any]) -> Prompt:
    """Read the prompt of /v1/messages: Anthropic's tools, then the system's text, then messages of blocks."""
    messages = call.get("messages")
    if type(messages) is not list:
        wrong("messages", "must be a list of messages")
    pieces: list[Piece] = [orjson.dumps(tools)] if (tools := call.get("tools")) is not None else []
    if (system := call.get("system")) is not None:
        pieces.extend(_content_pieces(system))
    for message in messages:
        pieces.extend(_item_pieces(message))
    return _one(pieces)


def unknown_prompt(call: dict[str, Any]) -> Prompt:
    """Read the prompt of a path that the operator lists: the whole body counts as prompt."""
    return Prompt((orjson.dumps(call),), leading_bytes=0, token_ids=None, prompts=1)


def audio_prompt(call: dict[str, Any]) -> Prompt:
    """Read the prompt of /v1/audio/*: the sound, and an optional text prompt."""
    text = call.get("prompt")
    written = text if type(text) is str else ""
    audio_tokens = int(call.get("file_bytes", 0)) // AUDIO_BYTES_PER_PROMPT_BYTE
    return Prompt((written,), leading_bytes=0, token_ids=None, prompts=1, repeated_bytes=max(audio_tokens, 1))


def responses_prompt(call: dict[str, Any]) -> Prompt:
    """Read the prompt of /v1/responses: tools, instructions, then a text or a list of items."""
    given = call.get("input")
    if type(given) is not str and type(given) is not list:
        wrong("input", "must be a string or a list of items")
    pieces: list[Piece] = [orjson.dumps(tools)] if (tools := call.get("tools")) is not None else []
    if (instructions := call.get("instructions")) is not None:
        pieces.extend(_content_pieces(instructions))
    for item in (given,) if type(given) is str else given:
        pieces.extend(_item_pieces(item))
    return _one(pieces)


def completion_prompt(call: dict[str, Any]) -> Prompt:
    """Read the prompt of /v1/completions: a text, a list of texts, token ids, lists of token ids, or embeddings."""
    prompt, embeds = call.get("prompt"), call.get("prompt_embeds")
    if embeds is not None and embeds != []:
        return _embedded_prompt(prompt, embeds)
    if type(prompt) is str and prompt:
        return _one([prompt])
    if type(prompt) is not list or not prompt:
        wrong("prompt", "must be a string, a list of strings, or lists of token ids, and not empty")
    return _listed_prompt(prompt)


def prefix_hashes(prompt: Prompt, call: dict[str, Any], salt: str | None = None) -> tuple[int, ...]:
    """Chained 64-bit hashes of the full leading blocks of the first sequence; each also covers all blocks before it.

    For a prompt of token ids, a block holds PREFIX_BLOCK_BYTES / 4 ids.
    """
    if prompt.leading_bytes < PREFIX_BLOCK_BYTES:
        return ()
    blocks = min(prompt.leading_bytes // PREFIX_BLOCK_BYTES, PREFIX_BLOCKS_MAX)
    digest, text = _seed(prompt, call, salt), prompt.beginning(blocks * PREFIX_BLOCK_BYTES)
    hashes = []
    for start in range(0, blocks * PREFIX_BLOCK_BYTES, PREFIX_BLOCK_BYTES):
        digest = blake2b(digest + text[start : start + PREFIX_BLOCK_BYTES], digest_size=8).digest()
        hashes.append(int.from_bytes(digest, "big"))
    return tuple(hashes)


def conversation_start(call: Mapping[str, Any]) -> bytes | None:
    """The beginning of a conversation, up to the user's first message. All turns of the conversation share it, whatever
    model they call. None: the call is no conversation, or has no message of a user.
    """
    items = call.get("messages", call.get("input"))
    pieces: list[Piece] = [
        piece for name in INSTRUCTIONS if (told := call.get(name)) is not None for piece in _content_pieces(told)
    ]
    for item in items if type(items) is list else ():
        pieces.extend(_item_pieces(item))
        if type(item) is dict and item.get("role") == "user":
            return b"\n".join(map(_encoded, pieces))
    return None


def wrong(name: str, what: str) -> Never:
    """Raise BadRequest about this field."""
    raise BadRequest(f"'{name}' {what}.", param=name)


def media_text(part: Any) -> bytes:
    """The text that stands for an image, audio or video."""
    digest = blake2b(orjson.dumps(part), digest_size=16).hexdigest().encode()
    return digest * (MEDIA_PART_BYTES // len(digest))


def _one(pieces: list[Piece]) -> Prompt:
    if sum(map(len, pieces)) < LONG_BYTES:  # one short text costs less than its pieces
        try:
            text = "\n".join(pieces).encode()  # type: ignore[arg-type]
        except TypeError:  # some are bytes
            text = b"\n".join(map(_encoded, pieces))
        return Prompt((text,), len(text), None, 1)
    size = _size(pieces, b"\n")
    return Prompt(pieces, leading_bytes=size, token_ids=None, prompts=1, between=b"\n")


def _size(pieces: Sequence[Piece], between: bytes) -> int:
    sizes = [len(each) if each.isascii() else len(_encoded(each)) for each in pieces]
    return sum(sizes) + len(between) * max(len(pieces) - 1, 0)


def _encoded(piece: Piece) -> bytes:
    return piece.encode() if isinstance(piece, str) else piece


def _seed(prompt: Prompt, call: dict[str, Any], salt: str | None) -> bytes:
    # Text whose bytes equal those of token ids is a different prompt.
    fields = [salt, prompt.token_ids is not None, *(call.get(name) for name in SEED_FIELDS)]
    return blake2b(orjson.dumps(fields), digest_size=8).digest()


def _chat_pieces(call: dict[str, Any], messages: Any) -> list[Piece]:
    if type(messages) is not list or not messages:
        wrong("messages", "must be a list with at least one message")
    pieces: list[Piece] = []
    for name in LEADING_FIELDS if not _LEADING.isdisjoint(call) else ():
        if (value := call.get(name)) is not None:
            if type(value) is not list:
                wrong(name, "must be a list")
            pieces.append(orjson.dumps(value))
    for message in messages:
        if type(message) is not dict:
            wrong("messages", "must hold objects")
        role, content = message.get("role"), message.get("content")
        if type(role) is not str:
            wrong("messages", "must each have a role, which is a string")
        pieces += (role,) if content is None else (role, content) if type(content) is str else (role, *_parts(content))
        if len(message) > 2:
            pieces.extend(_written(value) for name in MESSAGE_FIELDS if (value := message.get(name)) is not None)
    return pieces


def _parts(content: Any) -> Iterator[Piece]:
    if type(content) is not list:
        wrong("messages", "must each have a content that is a string, a list of parts or null")
    return map(_part_piece, content)


def _written(value: Any) -> Piece:
    return value if type(value) is str else orjson.dumps(value)


def _part_piece(part: Any) -> Piece:
    if type(part) is str:
        return part
    if type(part) is not dict:
        wrong("messages", "must hold content parts that are objects or strings")
    kind = part.get("type")
    name = TEXT_PARTS.get(kind) if type(kind) is str else None
    if name is None:
        return media_text(part)
    text = part.get(name)
    if type(text) is not str:
        wrong("messages", f"must hold the text of a part as a string in '{name}'")
    return text


def _item_pieces(item: Any) -> Iterator[Piece]:
    """The text of a message of blocks, or of another item of a conversation (a tool call, its result). The backend
    checks whether the item is valid.
    """
    if type(item) is not dict:
        yield from _content_pieces(item)
        return
    for name in ITEM_FIELDS:
        if item.get(name) is not None:
            yield from _content_pieces(item[name])


def _content_pieces(content: Any) -> Iterator[Piece]:
    if type(content) is list:
        for block in content:
            yield from _block_pieces(block)
    else:
        yield _written(content)


def _block_pieces(block: Any) -> Iterator[Piece]:
    if type(block) is not dict:
        yield from _content_pieces(block)
        return
    kind, inner = block.get("type"), block.get("content")
    if type(kind) is str and (text := block.get(TEXT_PARTS.get(kind, ""))) is not None:
        yield from _content_pieces(text)
    elif kind in MEDIA_BLOCKS:
        yield media_text(block)
    elif type(inner) is list:
        yield from _content_pieces(inner)
    else:
        yield orjson.dumps(block)


def _listed_prompt(prompt: list[Any]) -> Prompt:
    kinds = set(map(type, prompt))
    if kinds == {int}:
        packed = _packed(prompt)
        return Prompt((packed,), leading_bytes=len(packed), token_ids=len(prompt), prompts=1)
    if kinds == {str}:
        return Prompt(prompt, leading_bytes=_size(prompt[:1], b""), token_ids=None, prompts=len(prompt))
    if kinds != {list} or any(set(map(type, ids)) - {int} for ids in prompt):
        wrong("prompt", "must be a string, a list of strings, or lists of token ids")
    packs = [_packed(ids) for ids in prompt]
    tokens = sum(map(len, prompt))
    return Prompt(packs, leading_bytes=len(packs[0]), token_ids=tokens, prompts=len(prompt))


def _packed(ids: list[int]) -> bytes:
    try:
        return array("I", ids).tobytes()
    except OverflowError:
        wrong("prompt", "must hold token ids from 0 to 4294967295")


def _embedded_prompt(prompt: Any, embeds: Any) -> Prompt:
    """The prompt of embeddings, which are encoded tensors: like media, their bytes say nothing about their tokens."""
    parts = embeds if type(embeds) is list else [embeds]
    if any(type(part) is not str for part in parts):
        wrong("prompt_embeds", "must be a string or a list of strings")
    beside = Prompt((), 0, None, 0) if prompt is None or prompt in ("", []) else completion_prompt({"prompt": prompt})
    pieces = (beside.text, *map(media_text, parts))
    return Prompt(pieces, leading_bytes=0, token_ids=None, prompts=beside.prompts + len(parts))
