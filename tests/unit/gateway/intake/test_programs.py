"""Which agent a call is part of: named by its client, known by a hash."""

import re

import pytest
from multidict import CIMultiDict

from gateway.intake.programs import NAME_CHARS_MAX, Programs

PROGRAMS = Programs(b"s" * 32)


def program(headers=(), values=(), tenant_id="alice", programs=PROGRAMS):
    return programs.of(tenant_id, CIMultiDict(headers), dict(values))


def test_a_call_that_names_no_program_has_none():
    assert program({"x-request-id": "a"}, {"model": "m", "session_id": None}) is None


def test_our_header_goes_before_the_session_and_that_before_the_body():
    ours, theirs, body = {"X-Fairlead-Program-Id": "a"}, {"X-Session-ID": "b"}, {"session_id": "c"}
    a, b, c = program({**ours, **theirs}, body), program(theirs, body), program({}, body)
    assert (a, b, c) == (program(ours), program(theirs), program({}, body))
    assert len({a, b, c}) == 3


def test_a_name_is_the_same_program_however_it_was_given():
    assert program({"x-fairlead-program-id": "a"}) == program({"x-session-id": "a"}) == program({}, {"session_id": "a"})


def test_nothing_of_a_name_can_be_read_from_its_program():
    secret = "session-token-0123456789"
    found = program({"x-session-id": secret})
    assert re.fullmatch("[0-9a-f]{16}", found)
    assert found != program({"x-session-id": secret}, programs=Programs(b"t" * 32))


def test_two_tenants_have_no_program_in_common():
    pairs = [("alice", "x"), ("bob", "x"), ("a", "b c"), ("a b", "c"), ("1 a", "b")]
    assert len({program({"x-session-id": name}, tenant_id=tenant) for tenant, name in pairs}) == len(pairs)


@pytest.mark.parametrize("value", ["", "x" * (NAME_CHARS_MAX + 1), 7, ["a"], {"a": 1}, True])
def test_what_is_no_name_names_no_program(value):
    assert program({}, {"session_id": value}) is None


def test_a_name_of_odd_bytes_is_a_name():
    assert program({"x-session-id": "\udcff\u00e9"}) is not None
