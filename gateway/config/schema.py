"""The configuration as a JSON schema (2020-12), for editors and for the chart's values.

It says what each setting is. What settings mean together, and whether files are there, `fairlead check-config` says.
"""

from typing import Any

from gateway.config.config import Config

DIALECT = "https://json-schema.org/draft/2020-12/schema"
BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def config_schema() -> dict[str, Any]:
    """The schema of a whole configuration file."""
    schema = _tidied(Config.model_json_schema())
    # A section with nothing but comments is null in YAML, and means its defaults.
    sections = schema["properties"].items()
    schema["properties"] = {name: {"anyOf": [section, {"type": "null"}]} for name, section in sections}
    return {"$schema": DIALECT, "title": "fairlead.yaml", **schema}


def _tidied(schema: Any) -> Any:
    """Without titles, which call each field by its own name once more, and with bounds as JSON Schema calls them: where
    a field has a validator of its own, pydantic leaves them under its own names.
    """
    if isinstance(schema, list):
        return [_tidied(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name if isinstance(value, dict) else BOUNDS.get(name, name): _tidied(value)
        for name, value in schema.items()
        if name != "title" or not isinstance(value, str)
    }
