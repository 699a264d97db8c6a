"""The table of paths, and how a path is found in it."""

import re
from collections import Counter

import pytest

from gateway.api.endpoints import (
    CHAT,
    ENDPOINTS,
    MESSAGES,
    MODELS,
    RESPONSE,
    RESPONSE_CANCEL,
    RESPONSES,
    ChargeRule,
    PathTable,
    api_of,
    passthrough_endpoint,
)
from gateway.api.errors import Api
from gateway.api.fields import BODY_FIELDS, CACHE_SALT, STREAM_INTERVAL_MAX
from tests.unit.gateway.api.documented import API, by_name

PATHS = PathTable(ENDPOINTS)
QUEUED = {
    ChargeRule.USAGE: "tokens",
    ChargeRule.PROMPT: "prompt tokens",
    ChargeRule.UNIT: "a unit",
    ChargeRule.NOTHING: "nothing",
}


@pytest.mark.parametrize("endpoint", [CHAT, MODELS, RESPONSES])
def test_a_path_is_found_exactly(endpoint):
    assert PATHS.find(endpoint.path) == (endpoint, "")
    for other in (endpoint.path + "/", endpoint.path + "x", endpoint.path.upper(), " " + endpoint.path):
        assert PATHS.find(other)[0] is not endpoint


def test_a_path_with_an_id_is_found_with_it():
    assert PATHS.find("/v1/responses/resp_1-a") == (RESPONSE, "resp_1-a")
    assert PATHS.find("/v1/responses/resp_1/cancel") == (RESPONSE_CANCEL, "resp_1")


@pytest.mark.parametrize("path_id", ["", "a/b", "..", "a.b", "a b", "a?b", "a#b", "a%2f", "ä", "a\n", "a" * 129])
def test_an_id_cannot_be_another_path(path_id):
    assert PATHS.find(f"/v1/responses/{path_id}") == (None, "")


def test_no_path_is_there_twice():
    assert set(Counter(each.path for each in ENDPOINTS).values()) == {1}


def test_what_is_queued_can_be_read_and_what_generates_can_be_counted():
    for endpoint in ENDPOINTS:
        assert endpoint.queued == (endpoint.shape is not None)
        if endpoint.charge is ChargeRule.USAGE:
            assert endpoint.shape.output_fields
            assert endpoint.methods == ("POST",)


def test_a_listed_path_is_queued_where_it_generates_and_goes_straight_where_it_does_not():
    assert passthrough_endpoint("/v1/x", "generation").queued
    unit = passthrough_endpoint("/x", "unit")
    assert (unit.queued, unit.charge, unit.methods) == (False, ChargeRule.UNIT, ("GET", "POST"))


def test_errors_speak_the_api_of_their_path():
    assert {each.path: each.api for each in ENDPOINTS} == {each.path: api_of(each.path) for each in ENDPOINTS}
    assert api_of(MESSAGES.path + "/nowhere") is Api.ANTHROPIC
    assert api_of("/") is Api.OPENAI


# -- the document ------------------------------------------------------------------------------------------------


def test_the_document_has_the_tables_of_paths():
    section = API.split("\n## Paths\n", 1)[1].split("\n## ", 1)[0]
    documented = []
    for charged, sent, table in re.findall(r"^Charged ([a-z ]+), ([a-z ]+):\n\n((?:\|.*\n)+)", section, re.MULTILINE):
        paths = re.findall(r"^\| `([A-Z, ]+) (/\S+)` \|", table, re.MULTILINE)
        documented += [(path, methods, charged, sent) for methods, path in paths]
    assert documented == [
        (each.path, ", ".join(each.methods), QUEUED[each.charge], "queued" if each.queued else "sent at once")
        for each in ENDPOINTS
    ]


def test_the_document_has_the_table_of_fields():
    documented = by_name("Fields of bodies")
    assert set(documented) == {*BODY_FIELDS, CACHE_SALT}
    assert str(STREAM_INTERVAL_MAX) in documented["stream_interval"][0]
