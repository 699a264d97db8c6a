"""Which token of an event has which text: as vLLM 0.32's detokenizer and log probabilities gave texts and names."""

import pytest

from gateway.continuation.seam import INCOMPLETE, Seam
from gateway.continuation.token_texts import TokenTexts

FACE = "\N{GRINNING FACE}"
ACCENTED = "\N{LATIN SMALL LETTER E WITH ACUTE}"
EURO = "\N{EURO SIGN}"
NONE = Seam()
# The bytes of the tokens before the seam and after it; the seam, the names of tokens, and their texts.
RECORDED = {
    "x | y, c3": (NONE, ["y", ""], ["y", ""]),
    "x | c3, a": (NONE, ["", "a"], ["", f"{INCOMPLETE}a"]),
    "x | y, c3, a, b": (NONE, ["y", "", "a", "b"], ["y", "", f"{INCOMPLETE}a", "b"]),
    "x | c3, (a9 a)": (NONE, ["", f"{INCOMPLETE}a"], ["", f"{ACCENTED}a"]),
    "x | (a b c3), a, b": (NONE, ["", "a", "b"], ["", f"ab{INCOMPLETE}a", "b"]),
    "x | c3, a, e2, 82, a": (NONE, ["", "a", "", "", "a"], ["", f"{INCOMPLETE}a", "", "", f"{INCOMPLETE}a"]),
    "x | c3, a9, c3, a9": (NONE, ["", ACCENTED, "", ACCENTED], ["", ACCENTED, "", ACCENTED]),
    "x, c3 | b, c": (Seam(cut_chars=1, cut_tokens=1), ["b", "c"], [f"{INCOMPLETE}b", "c"]),
    "x, f0, 9f | 98, 80, b": (Seam(cut_chars=1, cut_tokens=2), ["", "", "b"], ["", FACE, "b"]),
    "x, (f0 9f) | 98, 80, b": (Seam(cut_chars=1, cut_tokens=1), ["", "", "b"], ["", FACE, "b"]),
    "x, (f0 9f) | (98 80), b": (Seam(cut_chars=1, cut_tokens=1), ["", "b"], [FACE, "b"]),
    "x, e2 | 82, (ac a)": (Seam(cut_chars=1, cut_tokens=1), ["", f"{INCOMPLETE}a"], ["", f"{EURO}a"]),
    "x, e2, e2, 82 | ac, c3, a": (
        Seam(cut_chars=2, cut_tokens=2), ["", "", "a"], [f"{INCOMPLETE}{EURO}", "", f"{INCOMPLETE}a"],
    ),
    "x, (a e2) | a, c3, a": (
        Seam(cut_chars=2, cut_tokens=1), ["a", "", "a"], [f"a{INCOMPLETE}a", "", f"{INCOMPLETE}a"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("tokens", RECORDED)
@pytest.mark.parametrize("merges", range(1, 6))
def test_each_token_has_the_text_that_the_decoder_found_with_it(tokens, merges):
    """However many of them share an event."""
    seam, names, texts = RECORDED[tokens]
    decoded, got = TokenTexts(seam), []
    for at in range(0, len(names), merges):
        got += decoded.of("".join(texts[at : at + merges]), names[at : at + merges])
    assert got == texts


def test_two_characters_of_tokens_of_several_bytes_in_one_event_may_count_with_a_later_token():
    """x, (a e2) | (9f 98), (9f 98): nothing tells that the first token here has two bytes. docs/continue.md says so."""
    seam, character = Seam(cut_chars=2, cut_tokens=1), "\N{LARGE UP TACK}"
    assert TokenTexts(seam).of(f"a{character}", ["", ""]) == ["", f"a{character}"]
    decoded = TokenTexts(seam)
    assert decoded.of(f"a{character}", [""]) + decoded.of("", [""]) == [f"a{character}", ""]


def test_a_special_token_that_is_skipped_has_none():
    assert TokenTexts(NONE).of("ab", ["a", "<|im_end|>", "b"]) == ["a", "", "b"]


def test_text_of_tokens_without_names_counts_with_the_last():
    assert TokenTexts(NONE).of("ab", ["", ""]) == ["", "ab"]
