"""Forms of the page: the values that may be typed for each setting, by the sections that validate it.

The page loads the forms as a module, fields.js, which is served beside its own files.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from gateway.admin.models.backends import BackendFields
from gateway.admin.models.resources import NewKey
from gateway.config.aliases import AliasSection
from gateway.config.marks import FormField, QueueLimit, inner_section, marked
from gateway.config.prices import PricePeriod
from gateway.config.sections import GroupSection, TenantSection, TierSection
from gateway.config.value_types import AMOUNT_PATTERN

MODULE = "fields.js"
FORMS: Mapping[str, type[BaseModel]] = {
    "tenants": TenantSection,
    "groups": GroupSection,
    "tiers": TierSection,
    "aliases": AliasSection,
    "periods": PricePeriod,
    "keys": NewKey,
    "backends": BackendFields,
}
BOUNDS = {"minimum": "min", "maximum": "max", "exclusiveMinimum": "above", "exclusiveMaximum": "below"}


@cache
def fields_module() -> bytes:
    """The text of the module fields.js: FIELDS, by the name of the form."""
    forms = {name: list(form_fields(section)) for name, section in FORMS.items()}
    return f"export const FIELDS = {json.dumps(forms, indent=1)};\n".encode()


def form_fields(section: type[BaseModel], path: str = "", *, is_optional: bool = False) -> Iterator[dict[str, Any]]:
    """The fields of a section's form; fields of sections in it have dotted names. A field of a section that
    `is_optional` may be left out.
    """
    schema = section.model_json_schema()
    shown = marked(section, FormField)
    for name, described in schema["properties"].items():
        inner = inner_section(section.model_fields[name].annotation)
        if inner is not None:
            yield from form_fields(inner, f"{path}{name}.", is_optional=section.model_fields[name].default is None)
        elif name in shown:
            is_required = not is_optional and _is_required(
                described, is_without_default=name in schema.get("required", ())
            )
            yield {
                "name": path + name,
                "label": shown[name].label,
                "unit": shown[name].unit,
                "example": shown[name].example,
                "about": _sentence(described.get("description", "")),
                "default": described.get("default"),
                "isRequired": is_required,
                "isOperators": name in marked(section, QueueLimit),
                **_input(described),
            }


def _is_required(described: Mapping[str, Any], *, is_without_default: bool) -> bool:
    return is_without_default or described.get("type") in ("number", "integer")


def _input(described: Mapping[str, Any]) -> dict[str, Any]:
    """The checks that the browser makes of the value."""
    forms = [each for each in described.get("anyOf", [described]) if each.get("type") != "null"]
    bounds = {ours: form[name] for form in forms for name, ours in BOUNDS.items() if name in form}
    types = {form.get("type") for form in forms}
    if types == {"boolean"}:
        return {"choices": [False, True]}
    if "enum" in forms[0]:
        return {"choices": forms[0]["enum"]}
    if any(form.get("pattern") == AMOUNT_PATTERN for form in forms):
        return {"isAmount": True, "step": "any", **bounds}
    if types == {"string"}:
        return {"isText": True, "maxLength": forms[0].get("maxLength")}
    return {"step": 1 if types == {"integer"} else "any", **bounds}


def _sentence(description: str) -> str:
    return f"{description[:1].upper()}{description[1:]}." if description else ""
