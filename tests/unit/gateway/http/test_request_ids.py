"""What a request is called."""

import re
from itertools import pairwise

import pytest
from multidict import CIMultiDict

from gateway.http.request_ids import REQUEST_ID_HEADERS, RequestIds


def take(names=None, **headers):
    return (names or RequestIds()).take(CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()}))


@pytest.mark.parametrize("name", REQUEST_ID_HEADERS)
def test_a_client_names_its_request_by_any_of_the_usual_headers(name):
    assert take(**{name: "abc-123"}) == "abc-123"


def test_the_first_usable_name_counts():
    assert take(x_request_id="not ok", request_id="fine") == "fine"


def test_a_name_in_flight_is_not_given_twice_and_is_free_again_behind_it():
    names = RequestIds()
    assert take(names, x_request_id="abc") == "abc"
    assert take(names, x_request_id="abc") != "abc"
    names.free("abc")
    assert take(names, x_request_id="abc") == "abc"


@pytest.mark.parametrize("given", ["", "a" * 129, "a b", "a\r\nx: y", 'a"b', "ä", "-a", "a;b", "{}"])
def test_an_unsafe_name_is_replaced(given):
    assert take(x_request_id=given).startswith("fl-")


def test_a_request_without_a_name_gets_one_of_its_own():
    names = RequestIds()
    assert len({take(names) for _ in range(100)}) == 100
    assert take(x_request_id="a" * 128) == "a" * 128


def test_a_made_name_tells_nothing_of_how_many_others_there_are():
    names, others = RequestIds(), RequestIds()
    made = [take(names) for _ in range(2000)] + [take(others) for _ in range(2000)]
    assert all(re.fullmatch("fl-[0-9a-f]{16}", name) for name in made)
    assert len(set(made)) == len(made)
    # Neither in order, nor with a part in common: a counter in any of the digits would have one.
    columns = list(zip(*(name[3:] for name in made), strict=True))
    assert all(len(set(column)) == 16 for column in columns)
    rises = sum(before < after for before, after in pairwise(made))
    assert 0.45 < rises / len(made) < 0.55  # 3,999 pairs: the half, within six standard deviations


def test_a_made_name_that_a_client_has_given_itself_is_passed_over(monkeypatch):
    monkeypatch.setattr("gateway.http.request_ids.random_ids", lambda: iter(["fl-1", "fl-2"]))
    names = RequestIds()
    assert take(names, x_request_id="fl-1") == "fl-1"
    assert take(names) == "fl-2"


def test_a_body_names_a_request_that_no_header_names():
    names = RequestIds()
    made = take(names)
    assert names.renamed(made, "mine", CIMultiDict()) == "mine"
    assert take(names, x_request_id="mine") != "mine"
    assert take(names, x_request_id=made) == made


@pytest.mark.parametrize("given", [None, 7, "not ok", "taken", ["a"]])
def test_a_body_gives_no_name_that_a_header_could_not(given):
    names = RequestIds()
    take(names, x_request_id="taken")
    made = take(names)
    assert names.renamed(made, given, CIMultiDict()) == made


def test_a_header_goes_before_a_body():
    headers = CIMultiDict({"x-request-id": "by-header"})
    names = RequestIds()
    assert names.renamed(names.take(headers), "by-body", headers) == "by-header"
