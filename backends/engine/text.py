"""Text without a model: the number of tokens of a prompt, and the words of an answer.

A token is four bytes of prompt, or one word of answer. An answer depends only on the server's seed, the request's seed
and the prompt, so equal requests get equal bytes, whatever else runs.
"""

import json
import random
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

BYTES_PER_TOKEN = 4
VOCABULARY = 32_000
_WORD_LIST = """
the of and to in is that it was for on are as with they be at one have this from by hot word but what some we can out
other were all there when up use your how said an each she which do their time if will way about many then them write
would like so these her long make thing see him two has look more day could go come did number sound no most people my
over know water than call first who may down side been now find
"""
WORDS = tuple(" " + word for word in _WORD_LIST.split())
_BYTE_TO_WORD = bytes(byte % len(WORDS) for byte in range(256))
FIRST_WORD_ID = 1000
"""Token id of the first word; the others follow."""


@dataclass(frozen=True, slots=True)
class PromptText:
    """The prompt of a call to a simulated engine: its text or its token ids, the number of its `tokens`, and the hashes
    of its leading KV blocks (`prefix`), `block_tokens` tokens each. `digest` is a hash of the whole prompt.
    """

    text: str
    tokens: int
    token_ids: tuple[int, ...] | None
    """None for text: ids are made up only by `ids`."""
    prefix: tuple[int, ...]
    digest: bytes
    block_tokens: int

    def ids(self) -> list[int]:
        """Return the token ids of the prompt, which are invented if the prompt is a text."""
        if self.token_ids is not None:
            return list(self.token_ids)
        data = self.text.encode()
        pieces = (data[start : start + BYTES_PER_TOKEN] for start in range(0, len(data), BYTES_PER_TOKEN))
        return [zlib.crc32(piece) % VOCABULARY for piece in pieces] or [0]


def text_prompt(text: str, *, block_tokens: int, salt: str = "") -> PromptText:
    """Make the prompt of a text, hashed in blocks of `block_tokens`; equal prompts with another `salt` have other
    hashes.
    """
    data = text.encode()
    tokens = max(1, -(-len(data) // BYTES_PER_TOKEN))
    prefix, digest = _hash_blocks(data, block_tokens * BYTES_PER_TOKEN, salt)
    return PromptText(text, tokens, None, prefix, digest, block_tokens)


def token_prompt(ids: Sequence[int], *, block_tokens: int, salt: str = "") -> PromptText:
    """Make the prompt of these token ids, hashed in blocks of `block_tokens`, with `salt` as in text_prompt."""
    data = b"".join((token % 2**32).to_bytes(4) for token in ids)
    prefix, digest = _hash_blocks(data, block_tokens * 4, salt)
    return PromptText("".join(map(token_text, ids)), len(ids), tuple(ids), prefix, digest, block_tokens)


def render_chat(messages: Iterable[tuple[str, Any]], tools: Any = None) -> str:
    """Render a conversation of (role, content) as one string. If a conversation continues another one, its string
    begins with the other's string.
    """
    lines = [json.dumps(tools)] if tools else []
    for role, content in messages:
        lines += [f"<|{role}|>", _content_text(content)]
    return "\n".join([*lines, "<|assistant|>"])


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _hash_blocks(data: bytes, block_bytes: int, salt: str) -> tuple[tuple[int, ...], bytes]:
    """Chained hashes of the full blocks (equal hash: equal prompt up to there), and a hash of the whole."""
    link = blake2b(salt.encode(), digest_size=8).digest()
    hashes = []
    for end in range(block_bytes, len(data) + 1, block_bytes):
        link = blake2b(link + data[end - block_bytes : end], digest_size=8).digest()
        hashes.append(int.from_bytes(link))
    rest = data[len(hashes) * block_bytes :]
    return tuple(hashes), blake2b(link + rest, digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class AnswerText:
    """The text of one choice of an answer. It is drawn as a whole before the engine gives the first token. `words` has
    one index into WORDS for each token.
    """

    words: bytes
    finish_reason: str
    stop_reason: str | None = None
    text_end: int | None = None
    """Characters of text before a stop string; None when nothing is cut."""

    @property
    def tokens(self) -> int:
        return len(self.words)

    def text(self, begin: int, end: int) -> str:
        """Return the text of tokens begin..end-1."""
        text = "".join(WORDS[word] for word in self.words[begin:end])
        if self.text_end is None or end < len(self.words):
            return text
        before = sum(len(WORDS[word]) for word in self.words[:begin])
        return text[: max(0, self.text_end - before)]

    def ids(self, begin: int, end: int) -> list[int]:
        return [FIRST_WORD_ID + word for word in self.words[begin:end]]


def make_answer(
    prompt: PromptText,
    *,
    seed: str,
    tokens_max: int,
    tokens_min: int,
    tokens_mean: int | None,
    stops: Sequence[str] = (),
) -> AnswerText:
    """Draw an answer. Its length is exponential with mean `tokens_mean`, or `tokens_max` if that is None."""
    rng = random.Random(prompt.digest + seed.encode())  # noqa: S311  text, not secrets
    drawn = tokens_max if tokens_mean is None else 1 + int(rng.expovariate(1 / tokens_mean))
    tokens = min(max(drawn, tokens_min), tokens_max)
    words = rng.randbytes(tokens).translate(_BYTE_TO_WORD)
    answer = AnswerText(words, "stop" if drawn < tokens_max else "length")
    return _stopped(answer, stops, tokens_min) if stops else answer


def _stopped(answer: AnswerText, stops: Sequence[str], tokens_min: int) -> AnswerText:
    """End the answer at the token that completes the first stop string."""
    text = ""
    for position, word in enumerate(answer.words, start=1):
        searched_from = max(0, len(text) - max(map(len, stops)))
        text += WORDS[word]
        if position < tokens_min:
            continue
        hits = [(at, stop) for stop in stops if (at := text.find(stop, searched_from)) >= 0]
        if hits:
            at, stop = min(hits)
            return AnswerText(answer.words[:position], "stop", stop, at)
    return answer


def token_text(token_id: int) -> str:
    """Return the text of a token id, whether it comes from this server or from a client."""
    return WORDS[(token_id - FIRST_WORD_ID) % len(WORDS)]
