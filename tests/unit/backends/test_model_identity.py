"""Whether two backends serve the same model under one name."""

import json

import pytest

from backends.catalog import ModelCard
from backends.model_identity import NO_TOKENIZER, identity, tokenizer_fingerprint


def card(model="tiny", root="org/tiny", parent=None, length=4096):
    return ModelCard(model, root, parent, length, {})


def of(*cards, model="tiny", revision=None, tokenizer="1"):
    return identity(model, cards or [card()], revision=revision, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (of(), None),
        (of(card(root="/models/tiny-v2")), "root"),
        (of(card(length=2048)), "max_model_len"),
        (of(revision="v2"), "revision"),
        (of(tokenizer="2"), "tokenizer"),
        (of(tokenizer=NO_TOKENIZER), "tokenizer"),
        (of(card(), card("alias")), None),
    ],
)
def test_backends_serve_the_same_model_if_all_that_they_tell_agrees(other, difference):
    assert of().difference(other) == other.difference(of()) == difference


def test_an_adapter_is_the_same_if_the_model_is_that_it_extends():
    adapter = card("lora", root="/lora", parent="tiny", length=None)
    assert of(card(), adapter, model="lora").difference(of(card(root="v2"), adapter, model="lora")) == "base"
    assert of(card(), adapter, model="lora").difference(of(card(), adapter, model="lora")) is None


def test_a_model_is_not_known_before_its_tokenizer_is():
    assert of(tokenizer=None) is None
    assert of(card("other")) is None


def test_a_tokenizer_is_told_by_its_tokens():
    first, same, other = (json.dumps({"tokens": tokens, "count": 2}).encode() for tokens in ([1, 2], [1, 2], [1, 3]))
    assert tokenizer_fingerprint(first) == tokenizer_fingerprint(same) != tokenizer_fingerprint(other)
    for body in (b"[]", b"{}", b'{"tokens":["a"]}', b"no"):
        with pytest.raises(ValueError):  # noqa: PT011 - of json, too
            tokenizer_fingerprint(body)
