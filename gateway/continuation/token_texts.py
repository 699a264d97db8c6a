"""TokenTexts: the part of an event's text that each of its tokens adds, as vLLM's decoder found it.

vLLM may put several tokens into one event, and looks for stop strings after each of them. An event has one text, and
log probabilities name each token by itself. A token that ends inside a character adds nothing: the next one that ends
with a whole character adds the text of both. If the character never becomes whole, U+FFFD stands for its bytes. Names
show this only in part (v1/engine/logprobs.py): a token that ends inside a character has no name, nor has a token that
ends a character which began before the seam.

This is exact where the tokens inside characters are single bytes, and otherwise for events with one such character. For
several such characters in one event, with tokens of several bytes, the shortest text that fits is taken.
"""

from collections.abc import Sequence

from gateway.continuation.seam import INCOMPLETE, Seam


class TokenTexts:
    """A splitter of the text of an event into the texts of its tokens, as vLLM's decoder forms them. Mutable."""

    def __init__(self, seam: Seam) -> None:
        self.completed: tuple[int, str] | None = None
        """The token of the last event that completes the character in which the seam is, and the name that it would
        have if the tokens before the seam were of its own answer. None where a special token stands between.
        """
        self._is_inside = seam.cut_tokens > 0  # of a character
        self._cut_chars = seam.cut_chars  # 0 from the first text on
        self._cut_tokens = seam.cut_tokens
        self._is_hidden = False  # a special token, which has a name and no text, came since the seam

    def of(self, text: str, names: Sequence[str]) -> list[str]:
        """Split the text of one event into the texts of its tokens, which have these names. A name that is not in the
        text belongs to a token without text: a special token, or the token that ends the answer.
        """
        hidden = [bool(whole := name.lstrip(INCOMPLETE)) and whole not in text for name in names]
        names = [
            "" if hides or not name.lstrip(INCOMPLETE) else name for name, hides in zip(names, hidden, strict=True)
        ]
        completing = self._completing(text, names)
        self.completed, texts, start = None, list[str](), 0
        for number, name in enumerate(names):
            end = self._cut_chars if number == completing else start
            if name:
                end = self._end(text, start, name, names[number + 1 :])
            texts.append(text[start:end])
            self._is_hidden |= hidden[number]
            if end > start:
                if self._cut_chars and not name and not self._is_hidden:
                    self.completed = number, text[: self._cut_chars].rpartition(INCOMPLETE)[2]
                self._cut_chars = 0
            self._cut_tokens += 1
            self._is_inside, start = end == start, end
        if texts:
            texts[-1] += text[start:]
        return texts

    def _completing(self, text: str, names: Sequence[str]) -> int | None:
        """The token without a name that completes the character in which the seam is."""
        nameless = next((number for number, name in enumerate(names) if name), len(names))
        character = text[self._cut_chars - 1 : self._cut_chars] if self._cut_chars else ""
        if not nameless or character in ("", INCOMPLETE):
            return None
        missing = len(character.encode()) - self._cut_tokens  # tokens, of one byte each
        if missing > nameless < len(names) and names[nameless].startswith(INCOMPLETE):
            return None
        return min(max(missing, 1), nameless) - 1

    def _end(self, text: str, start: int, name: str, later: Sequence[str]) -> int:
        """The position where the text of the token with this name ends, if it begins at `start`."""
        if not self._is_inside and text.startswith(name, start):
            return start + len(name)
        named = sum(map(bool, later))
        if all(later[:named]):  # each of the next ones has its own text, up to the end of this one
            return max(start, len(text) - sum(map(len, later)))
        whole = name.lstrip(INCOMPLETE)
        at = text.find(whole, start + self._cut_chars)
        return at + len(whole) if at >= 0 else start
