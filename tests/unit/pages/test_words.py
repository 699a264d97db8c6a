"""Pages that are too long, or that use a banned word, are found; code and links may use any word."""

import pytest

from tests.docs import words


def test_a_banned_word_is_found_in_its_line_with_the_word_to_use():
    page = "# A page\n\nRequests wait in a queue.\nEach takes a\nSeat.\n"
    assert words.faults({"docs/a.md": page}) == ["docs/a.md:5: 'seat' is not a word of these pages: slot"]


@pytest.mark.parametrize("word", words.BANNED)
def test_every_banned_word_is_found_also_as_a_plural_and_over_two_lines(word):
    broken = word.replace(" ", "\n")
    assert len(words.faults({"a.md": f"It has {word}, {word.upper()}s and\n{broken}."})) == 3


def test_code_comments_and_the_targets_of_links_may_use_every_word():
    page = "`seat` in [the queue](lane.md#door) <!-- the clerk -->\n```\nstranger\n```\nOutstanding plane.\n"
    assert words.faults({"docs/a.md": page}) == []


def test_a_line_after_code_has_its_own_number():
    [fault] = words.faults({"docs/a.md": "```\nseat\n```\nA door.\n"})
    assert fault.startswith("docs/a.md:4: ")


def test_pages_over_a_limit_are_found_by_their_folder():
    pages = {"docs/results/a.md": "one two | 3 |\n", "README.md": "- four\n"}
    assert words.faults(pages, {"docs/results/": 3, "": 4}) == []
    assert words.faults(pages, {"docs/results/": 2, "": 3}) == [
        "docs/results/: 3 words, of 2 at most",
        "all pages: 4 words, of 3 at most",
    ]


def test_paragraphs_are_prose_and_items_of_lists():
    ten = "one two three four five six seven eight nine ten"
    page = f"# {ten}\n\n{ten}\neleven\n\n- {ten} a\n- {ten} b\n  c\n\n| {ten} |\n\n```\n{ten}\n```\n\ntoo short\n"
    assert list(words.paragraphs(page)) == [f"{ten} eleven", f"- {ten} a", f"- {ten} b c"]
