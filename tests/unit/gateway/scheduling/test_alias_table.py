"""The order in which an alias tries its models, and which aliases a configuration may have."""

from collections import Counter

import pytest
from pydantic import ValidationError

from gateway.config import Config
from gateway.config.aliases import AliasSection
from gateway.scheduling.alias_table import AliasTable

SPLIT = {"models": ["big", "small"], "split": {"big": 50, "canary": 50}, "sticky": "tenant"}


def table(**aliases):
    return AliasTable({name: AliasSection(**fields) for name, fields in aliases.items()})


def order(of, tenant="alice", session=None):
    return of.order("chat", tenant=tenant, session=session)


def test_without_a_split_models_are_tried_in_order():
    assert order(table(chat={"models": ["big", "small"]})) == ("big", "small")


def test_the_chosen_target_of_a_split_comes_first_and_then_the_models_in_order():
    found = {order(table(chat=SPLIT), tenant=f"tenant-{number}") for number in range(50)}
    assert found == {("big", "small"), ("canary", "big", "small")}


def test_a_tenant_keeps_its_target_whatever_its_sessions():
    of = table(chat=SPLIT)
    for tenant in map(str, range(20)):
        assert len({order(of, tenant, session) for session in (None, "a", "b", "c", "d", "e", "f")}) == 1


def test_calls_of_one_tenant_are_divided_by_weight_where_nothing_else_is_said():
    of = table(chat={"models": ["big"], "split": {"big": 900, "canary": 100, "off": 0}})
    found = Counter(order(of, session="s")[0] for _ in range(10_000))
    assert set(found) == {"big", "canary"}
    assert 800 < found["canary"] < 1_200  # 6.7 standard deviations of 30


def test_a_session_keeps_its_target_and_another_one_may_have_another():
    of = table(chat={**SPLIT, "sticky": "session"})
    by_session = {session: order(of, session=session) for session in map(str, range(50))}
    assert len(set(by_session.values())) == 2
    assert by_session == {session: order(of, session=session) for session in by_session}
    # Sessions of one name of two tenants have nothing in common.
    assert by_session != {session: order(of, "bob", session) for session in by_session}


def test_a_call_without_a_session_goes_by_its_tenant():
    of = table(chat={**SPLIT, "sticky": "session"})
    assert {order(of, tenant, None) == order(table(chat=SPLIT), tenant) for tenant in map(str, range(20))} == {True}


@pytest.mark.parametrize(
    ("alias", "text"),
    [
        ({}, "Field required"),
        ({"models": []}, "at least 1"),
        ({"models": ["a", "a"]}, "twice"),
        ({"models": ["a"] * 17}, "at most 16"),
        ({"models": [""]}, "at least 1"),
        ({"models": ["a\nb"]}, "printable"),
        ({"models": ["a"], "split": {"a": 0}}, "above 0"),
        ({"models": ["a"], "split": {"a": -1}}, "greater than or equal to 0"),
        ({"models": ["a"], "split": {"a": True}}, "not true or false"),
        ({"models": ["a"], "sticky": "caller"}, "session"),
        ({"models": ["a"], "modles": []}, "not permitted"),
    ],
)
def test_a_wrong_alias_is_refused(alias, text):
    with pytest.raises(ValidationError, match=text):
        AliasSection(**alias)


@pytest.mark.parametrize("of", ["models", "split"])
def test_chains_and_cycles_are_refused_at_load(of):
    fields = {"models": ["b"]} if of == "models" else {"models": ["real"], "split": {"real": 1, "b": 0}}
    for aliases in ({"a": fields, "b": {"models": ["real"]}}, {"a": fields, "b": {"models": ["a"]}}):
        with pytest.raises(ValidationError, match="'b' is an alias itself"):
            Config(aliases=aliases)


def test_an_alias_may_have_the_name_of_its_own_target():
    assert Config(aliases={"big": {"models": ["big", "small"]}}).aliases["big"].models == ("big", "small")


def test_a_configuration_without_aliases_has_none():
    assert Config().aliases == {}
    assert AliasTable(Config().aliases).find("tiny") is None
