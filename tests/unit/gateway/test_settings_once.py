"""Every setting of tenants, groups, tiers, keys, backends, price lists, aliases and pools is the same for the file, the
admin API, the chart and the page's forms: its type, bounds, default and description.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from gateway.admin.models import backends, forms, resources
from gateway.admin.resources import pools
from gateway.admin.resources.collection import CollectionModels
from gateway.config.aliases import AliasSection
from gateway.config.prices import PriceSection
from gateway.config.scheduling import PoolSettings, Scheduling
from gateway.config.schema import config_schema
from gateway.config.sections import BackendSection, GroupSection, StepTimeSection, TenantSection, TierSection
from gateway.config.value_types import FileSchema, Name
from gateway.registry.resource_kinds import ApiKey, ManagedBackend
from policies.fairness import FAIRNESS

ROOT = Path(__file__).parents[3]
CHART = json.loads((ROOT / "helm/values.schema.json").read_text())
SECTIONS: dict[str, type[BaseModel]] = {
    "tenants": TenantSection,
    "groups": GroupSection,
    "tiers": TierSection,
    "keys": ApiKey,
    "backends": ManagedBackend,
    "prices": PriceSection,
    "aliases": AliasSection,
}
MADE: dict[str, type[BaseModel]] = {
    "keys": resources.NewKey,
    "backends": backends.NewBackend,
    **{kind: CollectionModels.of(SECTIONS[kind], kind, Name).made for kind in SECTIONS.keys() - {"keys", "backends"}},
}
# The API has the id in a path, names no file of the gateway's machine, and holds no secret.
OF_THE_FILE_ALONE = {"backends": {*BackendSection.model_fields} - {*backends.WholeBackend.model_fields}}
MADE_HERE = {"keys": {"hmac", "last_four", "created_at", "expires_at", "revoked"}}  # of what the caller says
OF_THE_API_ALONE = {"keys": {"expires_in_s"}}
STRICTER = {("backends", "url"), ("backends", "api_key_env")}  # so that no caller sends keys to its own server
SAME = ("default", "description", "enum", "const")
BOUNDS = (
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
)


def settings(
    schema: dict[str, Any], definitions: dict[str, Any], path: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every setting by its path, with what its JSON schema says of it in all its forms."""
    for name, described in schema["properties"].items():
        forms = list(_forms(described))
        inner = [_resolved(form.get("items", form), definitions) for form in forms]
        for each in inner:
            if "properties" in each:
                yield from settings(each, definitions, f"{path}{name}.")
        facts = {key: described[key] for key in SAME if key in described}
        facts["required"] = name in schema.get("required", [])
        facts["types"] = {form["type"] for form in forms if "type" in form}
        facts["bounds"] = {(key, form[key]) for form in [*forms, described] for key in BOUNDS if key in form}
        facts["patterns"] = {form["pattern"] for form in forms if "pattern" in form}
        yield f"{path}{name}", facts


def _forms(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "anyOf" in schema:
        for each in schema["anyOf"]:
            yield from _forms(each)
    else:
        yield schema


def _resolved(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    return definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def of_model(model: type[BaseModel], **options: Any) -> dict[str, dict[str, Any]]:
    schema = model.model_json_schema(**options)
    return dict(settings(schema, schema.get("$defs", {})))


@pytest.mark.parametrize("kind", SECTIONS)
def test_the_api_has_every_setting_of_the_file_as_the_file_has_it(kind):
    own, api = of_model(SECTIONS[kind]), of_model(MADE[kind])
    left_out = OF_THE_FILE_ALONE.get(kind, set()) | MADE_HERE.get(kind, set())
    assert {name for name in own if name.partition(".")[0] not in left_out} == {
        name for name in api if name not in {"id", *OF_THE_API_ALONE.get(kind, ())}
    }
    for name in own.keys() & api.keys():
        if (kind, name) not in STRICTER:
            assert api[name] == own[name], name


@pytest.mark.parametrize("kind", SECTIONS)
def test_a_file_may_write_more_forms_of_a_value_than_json_but_no_other_values(kind):
    in_file, own = of_model(SECTIONS[kind], schema_generator=FileSchema), of_model(SECTIONS[kind])
    assert in_file.keys() == own.keys()
    for name, facts in own.items():
        written = in_file[name]
        several = {"types": written["types"], "bounds": written["bounds"], "patterns": written["patterns"]}
        assert written == facts | several, name
        assert facts["types"] - written["types"] <= {"integer"}, name  # where a file may write any number


def test_the_chart_has_every_setting_of_the_file():
    chart = {name: schema for name, schema in CHART["$defs"].items() if "properties" in schema}
    for section in (*SECTIONS.values(), Scheduling):
        if section in (ApiKey, ManagedBackend):  # what the API alone makes
            continue
        described = dict(settings(chart[section.__name__], CHART["$defs"]))
        assert described == of_model(section, schema_generator=FileSchema), section
    assert config_schema()["$defs"] == CHART["$defs"]


def test_every_setting_is_described():
    for section in SECTIONS.values():
        undescribed = {name for name, facts in of_model(section).items() if "description" not in facts}
        assert undescribed <= {"hmac", "last_four", "created_at", "expires_at", "revoked"}, section


def test_what_the_api_changes_of_a_pool_is_what_a_file_may_say_of_it():
    own = Scheduling.model_json_schema()
    pool = pools.PoolFields.model_json_schema()
    assert set(PoolSettings.model_fields) == {"scheduling"}
    for kind in pools.LIVE_KINDS:
        forms = [form for form in own["properties"][kind]["anyOf"] if "properties" in form]
        models = [
            _resolved(form, pool["$defs"])
            for form in _forms(pool["properties"][kind])
            for form in form.get("oneOf", [form])
        ]
        api = {each["properties"]["policy"]["const"]: each for each in models if "properties" in each}
        for form in forms:
            name = form["properties"]["policy"]["const"]
            described = dict(settings(form, {}))
            taken = dict(settings(api[name], pool["$defs"]))
            del described["policy"], taken["policy"]
            assert taken == described, name


# What a file declared, and what the API took in its model before both had the same bounds.
@pytest.mark.parametrize(
    ("section", "fields"),
    [
        (TenantSection, {"weight": 2e6}),
        (TenantSection, {"weight": 1e-7}),
        (TenantSection, {"weight": 1e6}),
        (TenantSection, {"weight": 1e-6}),
        (TenantSection, {"in_flight_max": 10**13}),
        (TenantSection, {"in_flight_max": 2**63 - 1}),
        (GroupSection, {"weight": 2e6, "tokens_per_month_max": 10**13}),
        (TierSection, {"weight": 2e6, "envelope": {"ttft_ms": 3_600_000, "tpot_ms": 1}}),
        (AliasSection, {"models": ["a"], "split": {"a": 1e6}}),
    ],
)
def test_what_a_file_declares_can_be_put_back_by_the_api(section, fields):
    body = section.model_validate(fields).model_dump_json(exclude_unset=True)
    assert section.model_validate_json(body, strict=True) == section.model_validate(fields)


# What the page has no input for: of a key what it is made for; of a backend its drain, a button, and a learnt model.
WITHOUT_INPUT = {
    "keys": {"models", "tenant", "role", "group"},
    "backends": {"draining", "step_time", *(f"step_time.{name}" for name in StepTimeSection.model_fields)},
}


@pytest.mark.parametrize("form", forms.FORMS)
def test_the_pages_form_has_every_setting_with_its_bounds(form):
    section = forms.FORMS[form]
    own = {name: facts for name, facts in of_model(section).items() if name not in ("envelope", "shadow")}
    fields = {field["name"]: field for field in forms.form_fields(section)}
    assert own.keys() - fields.keys() == WITHOUT_INPUT.get(form, set())
    for name, field in fields.items():
        bounds = {(key, field[ours]) for key, ours in forms.BOUNDS.items() if ours in field}
        numbers = {(key, value) for key, value in own[name]["bounds"] if key in forms.BOUNDS}
        assert bounds == numbers, name
        assert field.get("choices", own[name].get("enum")) in (own[name].get("enum"), [False, True]), name
        assert field["default"] == own[name].get("default"), name
        assert field["about"].lower() == f"{own[name]['description']}.".lower(), name


def test_the_page_types_no_bound_again():
    views = ROOT / "gateway/web/static/views"
    for name in ("settings.js", "keys.js", "models.js"):
        typed = re.findall(r"\b(?:min|max|maxlength)(?:: |=\")\S+", (views / name).read_text(encoding="utf-8"))
        assert typed in ([], ['min="0.01"']), name  # a hundredth of a day, until a key expires


def test_the_page_says_of_every_order_which_request_is_next():
    words = (ROOT / "gateway/web/static/words.js").read_text(encoding="utf-8")
    orders = words.split("const ORDERS = {\n")[1].split("};")[0]
    assert set(re.findall(r"^  (\w+): ", orders, re.MULTILINE)) == set(FAIRNESS)
    assert "ORDER_NAMES.map" in (ROOT / "gateway/web/static/views/what-if.js").read_text(encoding="utf-8")
