"""Stop strings in text that comes in pieces: where an answer ends, and what is sent until then."""

import pytest

from gateway.continuation.stops import Stopped, StopStrings


def searched(stops, tokens, *, is_included=False, tokens_min=0, before=""):
    search = StopStrings(stops, is_included=is_included, tokens_min=tokens_min, before=before)
    return search.passed(tokens)


@pytest.mark.parametrize("stops", [("bcd", "bc"), ("bc", "bcd"), ("d", "c"), ("c", "d")])
def test_of_several_the_one_that_ends_first_counts(stops):
    first = "bc" if "bc" in stops else "c"
    assert searched(stops, ["abcd"]) == ("abcd".partition(first)[0], Stopped(first, 1))


def test_of_two_that_end_together_the_first_of_the_list_counts():
    assert searched(("c", "bc"), ["abc"])[1].by == "c"
    assert searched(("bc", "c"), ["abc"])[1].by == "bc"


@pytest.mark.parametrize(("is_included", "text"), [(True, "say stop"), (False, "say ")])
def test_it_may_begin_before_and_end_in_a_later_token(is_included, text):
    """What was held back before is sent, up to the end of the answer."""
    sent, stopped = searched(("stop",), ["op", "ping"], is_included=is_included, before="say st")
    assert ("say st" if is_included else "say") + sent == text
    assert stopped == Stopped("stop", 1)


def test_none_counts_before_the_least_tokens():
    assert searched(("b",), ["a", "b", "c", "b", "d"], tokens_min=2) == ("abc", Stopped("b", 4))


def test_what_may_be_the_beginning_of_one_is_held_back_until_the_end():
    search = StopStrings(("stop",), is_included=False, tokens_min=0)
    assert search.passed(["best"]) == ("b", None)
    assert search.rest() == "est"
