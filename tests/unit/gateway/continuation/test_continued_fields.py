"""What a continuation does with each field is what the table says, and docs/continue.md names those that exclude."""

import json
from array import array

import pytest
from field_table import EXCLUDING, FIELDS, OTHERS

from backends.meters.token_ids import TokenIds
from gateway.api.endpoints import CHAT
from gateway.api.fields import BODY_FIELDS
from gateway.continuation.body import continuation_body
from gateway.continuation.exclusions import KNOWN, exclusion

FALSE_EXCLUDES = {"include_reasoning", "spaces_between_special_tokens"}


def continued(name, value, *, is_chat):
    ids = TokenIds(1000, b"1,2,3", array("I", [7, 8]))
    return json.loads(continuation_body({name: value}, ids, is_chat=is_chat, context_tokens_max=100))


def test_each_field_is_in_one_row():
    names = [name for row in FIELDS.values() for name in row]
    assert len(names) == len(set(names)) > 60


@pytest.mark.parametrize("name", FIELDS["as they were"])
@pytest.mark.parametrize("is_chat", [False, True])
def test_a_field_stays_as_it_was(name, is_chat):
    assert continued(name, "anything", is_chat=is_chat)[name] == "anything"


@pytest.mark.parametrize("name", FIELDS["what is left of them"])
def test_a_limit_is_what_is_left_of_it(name):
    body = continued(name, 50, is_chat=True)
    assert body["min_tokens" if name == "min_tokens" else "max_tokens"] == 48
    assert "max_completion_tokens" not in body


def test_a_seed_moves_on():
    (name,) = FIELDS["moved on"]
    assert continued(name, 50, is_chat=True)[name] == 52


@pytest.mark.parametrize("name", [*FIELDS["the gateway's"], *FIELDS["done with the prompt"]])
def test_a_field_of_the_client_is_left_out(name):
    assert continued(name, "off", is_chat=True).get(name) != "off"


@pytest.mark.parametrize("name", FIELDS["exclude a stream"])
def test_a_field_excludes(name):
    call = {"messages": [], name: False if name in FALSE_EXCLUDES else {"any": "value"}}
    assert exclusion(CHAT, call, choices=2 if name == "n" else 1) is not None


@pytest.mark.parametrize("name", FIELDS["in no request that the gateway sends"])
def test_a_field_is_not_forwarded(name):
    assert name in BODY_FIELDS


def test_the_page_names_the_fields_that_exclude_a_stream():
    assert sorted(EXCLUDING) == sorted(FIELDS["exclude a stream"])


def test_the_fields_that_are_known_are_those_of_the_table():
    """What a continuation does with each was decided. Those of vLLM are in the table."""
    assert {name for names in FIELDS.values() for name in names} | OTHERS == set(KNOWN)
