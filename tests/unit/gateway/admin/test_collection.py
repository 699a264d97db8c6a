from types import SimpleNamespace

import pytest

from gateway.admin.problems import AdminProblem
from gateway.admin.resources.collection import etag_of, registry_answers
from gateway.config.problems import ConfigProblem
from gateway.registry.changes import ANY_THERE, NOT_THERE, AlreadyThere, DeclaredInFile, EtagMismatch, Invalid, NotFound


def asked(if_match, if_none_match=None):
    return SimpleNamespace(if_match=if_match, if_none_match=if_none_match)


@pytest.mark.parametrize(("given", "meant"), [(None, None), ("*", ANY_THERE), ('"7"', "7"), ('"6", "7"', "7")])
def test_a_change_is_for_the_version_that_it_names_or_for_any(given, meant):
    assert etag_of(asked(given), "7") == meant


@pytest.mark.parametrize(("given", "there", "meant"), [("*", None, NOT_THERE), ('"6"', "7", "7"), ('"6"', None, "")])
def test_a_change_may_be_for_what_is_not_there_or_for_another_version(given, there, meant):
    assert etag_of(asked(None, given), there) == meant


@pytest.mark.parametrize(
    ("if_match", "if_none_match", "there"),
    [(None, "*", "7"), (None, '"6", "7"', "7"), ('"7"', "*", "7"), ("*", None, None), ('"7"', None, None)],
)
def test_a_condition_that_does_not_hold_refuses_the_change(if_match, if_none_match, there):
    with pytest.raises(AdminProblem) as refused:
        etag_of(asked(if_match, if_none_match), there)
    assert refused.value.status == 412


@pytest.mark.parametrize("given", ['"6"', 'W/"7"', "7", "", '"'])
def test_a_change_for_another_version_is_refused_and_a_weak_one_is_another(given):
    with pytest.raises(AdminProblem) as refused:
        etag_of(asked(given), "7")
    assert refused.value.status == 412


@pytest.mark.parametrize(
    ("error", "status"),
    [(NotFound(), 404), (AlreadyThere(), 409), (EtagMismatch(), 412), (DeclaredInFile(), 409)],
)
def test_what_the_registry_refuses_has_its_status(error, status):
    with pytest.raises(AdminProblem) as refused, registry_answers():
        raise error
    assert refused.value.status == status


def test_what_does_not_agree_is_named_field_by_field():
    with pytest.raises(AdminProblem) as refused, registry_answers():
        raise Invalid([ConfigProblem(("envelope", "ttft_ms"), "is odd"), ConfigProblem((), "there are too many")])
    assert [(each.field, each.reason) for each in refused.value.errors] == [
        ("body.envelope.ttft_ms", "is odd"),
        ("body", "there are too many"),
    ]


def test_other_errors_go_on():
    with pytest.raises(ZeroDivisionError), registry_answers():
        raise ZeroDivisionError
