"""Prompts of pooling calls: the inputs of embeddings, scores and classes, and their size.

Nothing is generated, so there is no output limit: each input is a sequence of its own in the engine. A pair (query and
document) is one sequence. As in prompts.py only the size of an input is read; the backend checks its content.
"""

from collections.abc import Callable
from typing import Any

import orjson

from gateway.api.prompts import Prompt, media_text, wrong

# The two sides of a pair, by vLLM's field names; the first field that is set counts.
QUERY_FIELDS = ("text_1", "queries", "data_1", "query")
DOCUMENT_FIELDS = ("text_2", "documents", "data_2")


def inputs_prompt(*names: str) -> Callable[[dict[str, Any]], Prompt]:
    """A reader of the first of these fields that is set: an input, a list of inputs, or token ids."""

    def read(call: dict[str, Any]) -> Prompt:
        given = _first(call, names)
        if given is None:
            wrong(names[0], "must be there")
        if type(given) is list and given and set(map(type, given)) == {int}:
            return Prompt((bytes(4 * len(given)),), leading_bytes=0, token_ids=len(given), prompts=1)
        if (
            type(given) is list
            and given
            and all(type(each) is list and set(map(type, each)) == {int} for each in given)
        ):
            tokens = sum(map(len, given))
            return Prompt((bytes(4 * tokens),), leading_bytes=0, token_ids=tokens, prompts=len(given))
        texts = list(map(_text, _listed(given)))
        return Prompt(texts, leading_bytes=0, token_ids=None, prompts=max(len(texts), 1), between=b"\n")

    return read


def pairs_prompt(call: dict[str, Any]) -> Prompt:
    """Read pairs of queries and documents: one query with every document, or one query for each."""
    queries, documents = _first(call, QUERY_FIELDS), _first(call, DOCUMENT_FIELDS)
    if queries is None or documents is None:
        wrong("documents" if queries is not None else "query", "must be there")
    one_side, other = list(map(_text, _listed(queries))), list(map(_text, _listed(documents)))
    pairs = max(len(one_side), len(other), 1)
    repeated = sum(len(side[0]) * (pairs - 1) for side in (one_side, other) if len(side) == 1)
    texts = one_side + other
    return Prompt(texts, leading_bytes=0, token_ids=None, prompts=pairs, repeated_bytes=repeated, between=b"\n")


def _first(call: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((value for name in names if (value := call.get(name)) is not None), None)


def _listed(given: Any) -> list[Any]:
    """The inputs as a list, in which a list of messages, or an object with content, is one input."""
    if type(given) is not list:
        return [given]
    return [given] if given and type(given[0]) is dict and "role" in given[0] else given


def _text(given: Any) -> bytes:
    if type(given) is str:
        return given.encode()
    if type(given) is dict and "image_url" in given:
        return media_text(given)
    if type(given) is dict and type(given.get("content")) is list:
        return b"\n".join(map(_text, given["content"]))
    if type(given) is dict and type(text := given.get("text", given.get("content"))) is str:
        return text.encode()
    return b"\n".join(map(_text, given)) if type(given) is list else orjson.dumps(given)
