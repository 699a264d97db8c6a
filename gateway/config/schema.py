"""JSON schema (2020-12) of the configuration, for editors and for the chart's values.

The schema describes each setting alone. `fairlead check-config` checks rules that span settings, and the named files.
"""

from typing import Any

from gateway.config.config import Config
from gateway.config.value_types import FileSchema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def config_schema() -> dict[str, Any]:
    """The schema of a complete configuration file."""
    schema = _tidied(Config.model_json_schema(schema_generator=FileSchema))
    # A section with nothing but comments is null in YAML: its defaults apply.
    sections = schema["properties"].items()
    schema["properties"] = {name: {"anyOf": [section, {"type": "null"}]} for name, section in sections}
    return {"$schema": DIALECT, "title": "fairlead.yaml", **schema}


def _tidied(schema: Any) -> Any:
    """The schema without titles, which repeat the field names, and with bounds under their JSON Schema names. pydantic
    keeps its own names where a field has a validator.
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
