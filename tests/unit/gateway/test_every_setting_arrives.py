"""A setting of a tenant, group, tier or backend reaches its use.

Each is written in the sections and in the scheduler's types. One that is forgotten there would be accepted and ignored.
"""

from typing import Any

import pytest
from pydantic import BaseModel

from gateway.budgets.accounts import limits_of
from gateway.config import sections
from gateway.config.config import backend_spec, envelope_of, policy_group, policy_tenant, policy_tier
from gateway.config.marks import inner_section
from gateway.config.value_types import AMOUNT_PATTERN

# Other ways to say the same: a file or a variable instead of the value.
BACKEND_SOURCES = {"api_key_file", "api_key_env", "step_time_file", "ca_file", "cert_file", "key_file"}


def tenant(**fields):
    section = sections.TenantSection(**fields)
    groups = {"other": sections.GroupSection(tier="other")}
    return policy_tenant("alice", section, groups), envelope_of(section), limits_of(section)


def group(**fields):
    section = sections.GroupSection(**fields)
    return policy_group("research", section), limits_of(section)


def tier(**fields):
    section = sections.TierSection(**fields)
    return policy_tier("gold", section), envelope_of(section)


def backend(**fields):
    return backend_spec(sections.BackendSection(**{"url": "http://127.0.0.1:1", **fields}))


def other_values(section: type[BaseModel]) -> dict[str, Any]:
    """A value of every setting that is not its default."""
    found = {}
    for name, described in section.model_json_schema()["properties"].items():
        inner = inner_section(section.model_fields[name].annotation)
        found[name] = _other(described) if inner is None else other_values(inner)
    return found


def _other(described: dict[str, Any]) -> Any:
    form = described.get("anyOf", [described])[0]
    if "enum" in form:
        return next(each for each in form["enum"] if each != described.get("default"))
    if form["type"] == "boolean":
        return not described["default"]
    if form["type"] in ("integer", "number"):
        return 0.5 if form.get("exclusiveMaximum") == 1 else 7
    return {"^https?://": "http://127.0.0.1:2", AMOUNT_PATTERN: "7.50"}.get(form.get("pattern", ""), "other")


CASES = [
    pytest.param(convert, {name: value}, id=f"{convert.__name__}-{name}")
    for convert, section in (
        (tenant, sections.TenantSection),
        (group, sections.GroupSection),
        (tier, sections.TierSection),
        (backend, sections.BackendSection),
    )
    for name, value in other_values(section).items()
    if section is not sections.BackendSection or name not in BACKEND_SOURCES
]


@pytest.mark.parametrize(("convert", "setting"), CASES)
def test_a_setting_reaches_the_scheduler_the_envelopes_the_budgets_or_the_backends_client(convert, setting):
    assert convert(**setting) != convert()
