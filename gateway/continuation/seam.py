"""The seam between two parts of an answer: the text of the last tokens that the first backend had decoded and not sent.

Text does not end where tokens end. A token may be a part of a character, and vLLM sends nothing of the character before
its last token; with stop strings it holds back characters. The client's text is right only if the next backend
continues at the right character, so the gateway first asks that backend these questions:

- Is the last character complete? `/detokenize` of the last tokens shows it: the text of an incomplete one ends in
  U+FFFD.
- If it is not: where does the text of the continuation begin? A decoder that begins inside a character returns all text
  from the beginning of the prompt with the first whole one (DecodeStream of `tokenizers`). A completion of one known
  token, whose text is known, shows how much that is.
- Which characters were held back? The last ones of the decoded text, if those before them are what the client has.
  They are not where the stream skips special tokens, which `/detokenize` writes: such a stream is given up.
- Does a special token stand inside a character? `/detokenize` writes it, so the text before it looks whole. Where the
  client was shown no text of the last event, the completion of one known token shows it. Such a stream is given up.

Most streams break after a whole character and without stop strings: then nothing is asked.
"""

from array import array
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from backends.upstream import UpstreamProtocolError

INCOMPLETE: Final = "\N{REPLACEMENT CHARACTER}"
# A character has at most 4 bytes, and a token at least 1. More tokens without a whole character between them are not
# text; so many are looked at nevertheless.
INCOMPLETE_TOKENS_MAX: Final = 16
CONTEXT_TOKENS: Final = 8  # before the first token that matters: a decoder may treat the first ones otherwise
TOKENS_PER_CHARACTER_MAX: Final = 4
KNOWN_TEXT: Final = "a"

Ask = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""A function that posts a body to a path of the backend and returns the answer. Raises UpstreamError."""


class Seam(NamedTuple):
    """The place in an answer where the text of the next backend joins the text of the first one.

    `before` is the end of the first backend's text: its last characters, at most the `chars` that `find_seam` asks for.
    The first `skip` characters of the next backend's text are dropped, because the first backend had decoded them.

    A seam may split a character: the first backend generated its first `cut_tokens` tokens, the next backend the rest.
    `cut_chars` is the position of this character in the next text after `skip`, counted from 1: characters that the
    first backend held back until this one was whole stand before it. At any other seam, both numbers are 0.
    """

    before: str = ""
    skip: int = 0
    cut_chars: int = 0
    cut_tokens: int = 0


class Generated(NamedTuple):
    """The token ids of a prompt and of its output so far, from which `find_seam` makes its questions to the next
    backend: what is the text of the last tokens (/detokenize), and where does the text of a continuation begin
    (/v1/completions)? Each question names the model `model`. `shared` has the fields of the client's call that
    /v1/completions needs too.
    """

    model: str
    prompt: "array[int]"
    output: "array[int]"
    shared: Mapping[str, Any]


class Shown(NamedTuple):
    """The text of the last event that the client received. `held_back` is the number of decoded characters after it
    that the first backend did not send, because they may begin a stop string.
    """

    text: str
    held_back: int

    def ends(self, text: str) -> bool:
        """Whether this decoded text, without what was held back, ends with the shown text, or is the end of it."""
        before = text[: max(0, len(text) - self.held_back)]
        return before.endswith(self.text) or self.text.endswith(before)


async def find_seam(ask: Ask, tokens: Generated, shown: Shown, *, chars: int) -> Seam:
    """The seam after these tokens; `chars` is the needed length of the text before it. Raises UpstreamError."""
    window = min(len(tokens.output), INCOMPLETE_TOKENS_MAX + TOKENS_PER_CHARACTER_MAX * chars)
    ids = (tokens.prompt[-CONTEXT_TOKENS:] + tokens.output)[-window - CONTEXT_TOKENS :].tolist()
    text = await _detokenize(ask, tokens.model, ids)
    whole, whole_text, cut_tokens = len(ids), text, 0
    while whole_text.endswith(INCOMPLETE):
        whole -= 1
        cut_tokens += len(whole_text) == len(text)
        if whole < max(0, len(ids) - INCOMPLETE_TOKENS_MAX):
            raise UpstreamProtocolError("the tokens at the end of the stream are no text")
        whole_text = await _detokenize(ask, tokens.model, ids[:whole])
    cut_chars = len(text) - len(whole_text)
    skip = 0
    if cut_chars or not shown.text or not shown.ends(text):
        skip = await _decoded_chars(ask, tokens, ids, pending=cut_chars)
    seam = Seam(skip=skip, cut_chars=cut_chars, cut_tokens=cut_tokens)
    if not chars:
        return seam
    if window == len(tokens.output):  # the text before it is the prompt's
        prompt_text = await _detokenize(ask, tokens.model, ids[: len(ids) - window])
        whole_text = whole_text.removeprefix(prompt_text)
    _check(whole_text, shown, is_whole=whole == len(ids))
    return seam._replace(before=whole_text[-chars:])


def _check(text: str, shown: Shown, *, is_whole: bool) -> None:
    """Raise UpstreamProtocolError where this text does not contain what the client was shown, up to the end.
    `is_whole`: it is the text of all tokens, so the last of them has a text.
    """
    is_known = shown.ends(text) if shown.text else not is_whole
    if len(text) > shown.held_back and not is_known:
        raise UpstreamProtocolError("the text before the seam is not that of its tokens")


async def _decoded_chars(ask: Ask, tokens: Generated, ids: list[int], *, pending: int) -> int:
    """The number of old characters that a decoder returns besides new ones, where it begins inside a character.
    `pending` is the number of characters for which U+FFFD stands in the text of `ids`.
    """
    known = (await ask("/tokenize", {"model": tokens.model, "prompt": KNOWN_TEXT, "add_special_tokens": False}))[
        "tokens"
    ]
    if type(known) is not list or not known:
        raise UpstreamProtocolError("no token for a letter")
    with_known = await _detokenize(ask, tokens.model, [*ids, known[-1]])
    before = await _detokenize(ask, tokens.model, ids)
    probe = {
        **tokens.shared,
        "model": tokens.model,
        "prompt": [*tokens.prompt, *tokens.output],
        "max_tokens": 1,
        "temperature": 0,
        "allowed_token_ids": [known[-1]],
    }
    answer = await ask("/v1/completions", probe)
    try:
        text: str = answer["choices"][0]["text"]
        new = pending + len(with_known) - len(before)
    except (KeyError, IndexError, TypeError):
        raise UpstreamProtocolError("a completion without text") from None
    is_hidden = text[:-new].endswith(INCOMPLETE) and not with_known[:-new].endswith(INCOMPLETE)
    if is_hidden or len(text) < new:  # shorter: the special token hid that the character had become whole
        raise UpstreamProtocolError("a special token stands inside a character")
    return len(text) - new


async def _detokenize(ask: Ask, model: str, ids: list[int]) -> str:
    text = (await ask("/detokenize", {"model": model, "tokens": ids})).get("prompt")
    if type(text) is not str:
        raise UpstreamProtocolError("no text for token ids")
    return text
