"""StopStrings: finds stop strings in text from two backends, as vLLM does in its own text.

A backend that continues an answer sees only its own part of the text, so it would miss a stop string that begins in the
earlier part. The text that the first backend held back would be lost, too: while there are stop strings, vLLM does not
send the last characters, which may be the beginning of a stop string. The gateway therefore sends no stop strings with
a continuation, and looks for them itself.

The rules are vLLM's (v1/engine/detokenizer.py): text is checked token by token, once there are more than `min_tokens`;
of several matches the one that ends first counts. Held back are as many characters as the longest stop string has, less
one, unless stop strings are a part of the answer.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Stopped(NamedTuple):
    """The finding that a stop string has ended an answer. `by` is the stop string. `tokens` counts the tokens of the
    last event up to the token that completes the stop string.
    """

    by: str
    tokens: int


class StopStrings:
    """A search for one answer's stop strings in text from two backends. Mutable: it keeps the end of the text."""

    def __init__(
        self, stops: Sequence[str], *, is_included: bool, tokens_min: int, before: str = "", tokens_before: int = 0
    ) -> None:
        """`is_included`: a found stop string is a part of the answer. `tokens_min`: stop strings count only after these
        tokens. `before` is the end of the text before, at least `lookback` characters or all of it, of `tokens_before`
        tokens; where stop strings are not included, its last `lookback` characters were not sent.
        """
        self._stops = tuple(stops)
        self.lookback = lookback(self._stops)
        self._holds_back = 0 if is_included else self.lookback
        self.is_included = is_included
        self._tokens_min = tokens_min
        self._tokens = tokens_before
        self._text = before
        self._sent = max(0, len(before) - self._holds_back)  # of `_text`

    def passed(self, texts: Sequence[str]) -> tuple[str, Stopped | None]:
        """Take the texts of the tokens of one event. Return the text to send, and the stop that was found."""
        sent = ""
        for number, text in enumerate(texts, start=1):
            piece, by = self._token(text)
            sent += piece
            if by is not None:
                return sent, Stopped(by, number)
        return sent, None

    def rest(self) -> str:
        """The text that was held back, for the end of the answer."""
        rest, self._sent = self._text[self._sent :], len(self._text)
        return rest

    def _token(self, piece: str) -> tuple[str, str | None]:
        self._tokens += 1
        self._text += piece
        by, end = self._find(len(piece)) if self._tokens > self._tokens_min else (None, 0)
        if by is None:
            end = max(self._sent, len(self._text) - self._holds_back)
        sent = self._text[self._sent : end]
        start = max(0, min(end, len(self._text) - self.lookback))
        self._text, self._sent = self._text[start:], end - start
        return sent, by

    def _find(self, new_chars: int) -> tuple[str | None, int]:
        """The stop string that ends first among the new characters, and the position where the answer then ends."""
        text, found, first_end = self._text, None, len(self._text) + 1
        if not new_chars:
            return None, 0
        for stop in self._stops:
            at = text.find(stop, max(0, len(text) - new_chars - len(stop) + 1))
            if 0 <= at < first_end - len(stop):
                found, first_end = stop, at + len(stop)
        if found is None:
            return None, 0
        return found, first_end if self.is_included else first_end - len(found)


def lookback(stops: Sequence[str]) -> int:
    """The number of characters at the end of a text in which a stop string may have begun."""
    return max(map(len, stops), default=1) - 1
