"""Model identity: do two backends serve the same model under one name?

A stream is continued with the token ids that its first backend has reported: for another model, or another tokenizer,
they are another text. So backends are compared by what they report about themselves: the root of the model (and of the
model that an adapter extends), its context, a `revision` where the operator names one, and the tokens of one text.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Final, NamedTuple

from backends.catalog import ModelCard

TEXT: Final = (
    "Hello, world! The quick brown fox isn't 3.14159 or 1234567890.\n\n"
    "def f(x):\n\treturn [x ** 2 for _ in range(10)]  # naïve façade\n"
    "Grüße aus Zürich, 你好世界, こんにちは, Привет, مرحبا, 🙂👩‍🚀\u200b  \u00a0"
    "<|im_start|>user<|im_end|><s>[INST]</s><|eot_id|><bos>"
)
"""A text of several scripts, with numbers, code, white space and special tokens of some models: tokenizers that agree
on it hardly differ.
"""
NO_TOKENIZER: Final = "none"  # the fingerprint of a server that does not tell tokens


class ModelIdentity(NamedTuple):
    """The values by which a model at one backend is told apart from another model of the same name."""

    root: str | None
    base: str | None
    max_model_len: int | None
    revision: str | None
    tokenizer: str

    def difference(self, other: "ModelIdentity") -> str | None:
        """The first field in which the identities differ; None: it is the same model."""
        return next((name for name, own, its in zip(self._fields, self, other, strict=True) if own != its), None)


def identity(
    model: str, cards: Iterable[ModelCard], *, revision: str | None, tokenizer: str | None
) -> ModelIdentity | None:
    """The identity of this model at a backend with these cards; None while a part of it is not known."""
    by_id = {card.id: card for card in cards}
    card = by_id.get(model)
    if card is None or tokenizer is None:
        return None
    base = by_id.get(card.parent) if card.parent is not None else None
    return ModelIdentity(card.root, None if base is None else base.root, card.max_model_len, revision, tokenizer)


def tokenizer_fingerprint(body: bytes) -> str:
    """The fingerprint of a tokenizer, from its answer for TEXT. Raises ValueError for a malformed answer."""
    answer = json.loads(body)
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(each, int) for each in tokens):
        raise ValueError("an answer without tokens")
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]
