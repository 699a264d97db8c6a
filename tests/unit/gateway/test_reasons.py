"""Reasons say what a value must be in the words of the field: no words of the library that checks it."""

import json
import os
import re

import pytest
from pydantic import BaseModel, ValidationError

from gateway.admin.models.backends import BackendFields, NewBackend
from gateway.admin.models.resources import (
    AppliedFile,
    AuditPage,
    KeyChange,
    KeyPage,
    NewKey,
    Page,
    Rotation,
    UsageExport,
    UsagePage,
    UsageSumsPage,
)  # fmt: skip
from gateway.admin.models.what_ifs import WhatIfAsked
from gateway.admin.problems import AdminProblem, invalid_problem, read_checked
from gateway.admin.resources.pools import PoolFields
from gateway.admin.resources.requests import RequestPage
from gateway.admin.routes import Query
from gateway.config import ConfigError, load_config
from gateway.config.aliases import AliasSection
from gateway.config.config import Config
from gateway.config.prices import PERIODS_MAX, PriceSection
from gateway.config.sections import GroupSection, TenantSection, TierSection

BODIES = (
    AliasSection, AppliedFile, BackendFields, GroupSection, KeyChange, NewBackend, NewKey, PoolFields, PriceSection,
    Rotation, TenantSection, TierSection, WhatIfAsked,
)  # fmt: skip
QUERIES = (AuditPage, KeyPage, Page, RequestPage, UsageExport, UsagePage, UsageSumsPage)
WRONG = [  # no list of a configuration may be longer than the periods of a price
    None, True, -1, 0, 1.5, -0.5, 10**18, 1e300, "x", "", "-", "é", "y" * 70_000, [], [[]], [None],
    ["x"] * (PERIODS_MAX + 1), {}, {"a": {}}, {"": 1}, {"policy": "x"}, {"policy": "drr", "quantum_service": "x"},
    [{"prompt": "x", "output": []}],
]  # fmt: skip
LIBRARY_WORDS = re.compile(
    r"\b(input|valid|validation|tuple|array|string|integer|boolean|float|dict(ionary)?|instance|pattern|discriminator|"
    r"tag|constrained|function|literal|union|model|parse|unable|assertion|json|extra inputs|should)\b|\^|\\|_type\b",
    re.IGNORECASE,
)
OF_FIELDS = re.compile(r"(there is no such (field|key)|.*has no such parameter|must be one of|set one of|models has).*")
"""What names fields and choices, which may be called anything."""


def check(path, reason, root):
    said = OF_FIELDS.sub("", reason)
    assert not LIBRARY_WORDS.search(said), (path, reason)
    assert not re.search(r"constrained|function|\[|literal", path), (path, reason)
    assert path.split(".")[0] in root, (path, reason)


def reasons_of(model, name, value):
    try:
        if issubclass(model, Query):
            given = {name: str(value)}
            try:
                model.model_validate(given)
            except ValidationError as error:
                raise invalid_problem(error, given, model, "query") from None
        else:
            read_checked(model, {name: value})
    except AdminProblem as problem:
        return [(each.field.partition(".")[2], each.reason) for each in problem.errors]
    return []


@pytest.mark.parametrize("model", [*BODIES, *QUERIES], ids=lambda model: model.__name__)
def test_every_wrong_value_of_the_api_is_said_in_plain_words(model):
    for name in (*model.model_fields, "no_such_field"):
        for value in WRONG:
            for path, reason in reasons_of(model, name, value):
                check(path, reason, {*model.model_fields, "no_such_field", ""})


@pytest.mark.parametrize("section", Config.model_fields)
def test_every_wrong_value_of_a_configuration_is_said_in_plain_words(section, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", {})  # each of 2,400 configurations looks for its fields among the variables
    model = Config.model_fields[section].annotation
    fields = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}
    file = tmp_path / "fairlead.yaml"

    def wrong_fields(data):
        """Of the section, those that are wrong by themselves."""
        file.write_text(json.dumps(data))
        try:
            load_config(file)
        except ConfigError as error:
            for problem in error.problems:
                check(".".join(map(str, problem.path)) or section, problem.text, {*Config.model_fields})
            return {path[1] for problem in error.problems if len(path := problem.path) > 1}
        return set()

    for value in (value for value in WRONG if value is not None and value != "y" * 70_000):
        wrong_fields({section: value})
        # What a field takes may be wrong beside others, which is looked at only where each is right by itself.
        for name in fields.keys() - wrong_fields({section: dict.fromkeys(fields, value)}):
            wrong_fields({section: {name: value}})


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        (TenantSection, {"weight": "2"}, "weight: must be a number, not text"),
        (TenantSection, {"weight": True}, "weight: must be a number, not true or false"),
        (TenantSection, {"weight": 0}, "weight: must be at least 1e-15"),
        (TenantSection, {"in_flight_max": 2.5}, "in_flight_max: must be a whole number"),
        (TenantSection, {"in_flight_max": None, "tier": 7}, "tier: must be text, not a number"),
        (TenantSection, {"envelope": 5}, "envelope: must be an object with fields, not a number"),
        (TenantSection, {"envelope": {"ttft_ms": 0}}, "envelope.ttft_ms: must be at least 1"),
        (TenantSection, {"wieght": 2}, "wieght: there is no such field (did you mean 'weight'?)"),
        (AliasSection, {"models": "tiny"}, "models: must be a list, not text"),
        (AliasSection, {"models": []}, "models: must have at least 1 entry"),
        (AliasSection, {"models": ["a"], "sticky": "x"}, "sticky: must be one of call, tenant, session"),
        (AliasSection, {}, "models: is missing"),
        (
            PoolFields,
            {"fairness": {"policy": "drr", "quantum_service": 0}},
            "fairness.quantum_service: must be more than 0",
        ),
        (PoolFields, {"fairness": {}}, "fairness: must be an object that names its policy (policy: NAME)"),
        (KeyChange, {"models": 5}, "models: must be a list, not a number"),
        (
            TenantSection,
            {"cost_per_day_max": []},
            "cost_per_day_max: must be text, not a list, or a whole number, not a list",
        ),
    ],
)  # fmt: skip
def test_a_reason_names_the_field_and_what_it_must_be(model, given, said):
    with pytest.raises(AdminProblem) as refused:
        read_checked(model, given)
    assert refused.value.detail == f"body.{said}"
