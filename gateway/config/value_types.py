"""Types of settings: the allowed values, in Python, in a file and in the JSON of the admin API.

Each type has its bounds once, and its JSON schema states every check of its validator. So if the schema allows a value
and a section refuses it, the value contradicts another one (ValueError).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, GetCoreSchemaHandler
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from backends.engine.batching import BATCHING
from backends.engine.coefficients import COEFFICIENTS
from backends.kinds import BACKEND_KINDS

NAME_CHARS_MAX = 64
POOL_CHARS_MAX = 256

BYTES_PATTERN = r"^\s*(\d*\.?\d+)\s*(\w+)?"  # as of pydantic.ByteSize

COUNT_MAX = 2**63 - 1
"""The largest integer that JSON readers, msgpack and SQLite can all hold."""
WEIGHT_MAX = 1e15
"""A double has 15 decimal digits: the sum of a weight beyond it and the default weight of 1 is that weight."""
WEIGHT_MIN = 1 / WEIGHT_MAX
COEFFICIENT_MAX = 1e9  # of a step time: microseconds per token, nanoseconds per token read
MILLISECONDS_MAX = 86_400_000.0  # a day
ERROR_RATIO_MAX = 1e3

NAME_PATTERN = rf"^[A-Za-z0-9][A-Za-z0-9._@-]{{0,{NAME_CHARS_MAX - 1}}}$"
# A tenant name can be a model name, which may contain slashes.
TENANT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@/:-]{0,127}$"
AMOUNT_PATTERN = r"^[0-9]{1,9}(\.[0-9]{1,6})?$"
BACKEND_URL_PATTERN = r"^https?://([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?/?$"
CA_PATTERN = "-----BEGIN CERTIFICATE-----"
DAY_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
DIGITS_PATTERN = r"^[0-9]{1,18}$"
HTTP_PATTERN = "^https?://"
# Restricted by prefix: otherwise a caller could send any environment variable's value to a server of its own.
KEY_VARIABLE_PATTERN = r"^BACKEND_KEY_[A-Z0-9_]{1,64}$"
LABEL_PATTERN = r"^[a-z0-9-]{1,63}$"
MODEL_PATTERN = rf"^[^\x00-\x1f\x7f]{{1,{POOL_CHARS_MAX}}}$"
POLICY_PATTERN = (
    r"^[a-z0-9-]{1,32}(:[a-z_0-9]{1,32}=[A-Za-z0-9.+-]{1,32}(,[a-z_0-9]{1,32}=[A-Za-z0-9.+-]{1,32}){0,15})?$"
)
PORT_NAME_PATTERN = r"^[a-z0-9-]{1,15}$"
REQUEST_CURSOR_PATTERN = r"^-?[0-9]{1,12}(\.[0-9]{1,9})? [!-~]{1,128}$"

_A_CURSOR = "the next_cursor of the page before"
HISTORY_PATTERN = r"^(pool|tier|group|tenant|backend):[^\x00-\x1f\x7f]{1,256}$"
NOTE_PATTERN = r"^[^\x00-\x1f\x7f]{1,200}$"
PATTERNS: Mapping[str, str] = {
    NAME_PATTERN: f"1 to {NAME_CHARS_MAX} letters, digits, '.', '_', '@' or '-', the first a letter or digit",
    TENANT_PATTERN: "1 to 128 letters, digits, '.', '_', '@', '/', ':' or '-', the first a letter or digit",
    AMOUNT_PATTERN: 'an amount like "0.60", of at most 9 digits before the decimal point and 6 behind it',
    BACKEND_URL_PATTERN: "a URL without a path, like http://10.0.0.1:8000",
    CA_PATTERN: f"certificates as PEM text ({CA_PATTERN} ...)",
    DAY_PATTERN: "a day like 2026-11-20",
    DIGITS_PATTERN: _A_CURSOR,
    HISTORY_PATTERN: "a pool, tier, group, tenant or backend, like tenant:chat",
    HTTP_PATTERN: "a URL that begins with http:// or https://",
    KEY_VARIABLE_PATTERN: "the name of a variable like BACKEND_KEY_A: BACKEND_KEY_ and 1 to 64 of A-Z, 0-9 and '_'",
    LABEL_PATTERN: "1 to 63 lower-case letters, digits or '-'",
    MODEL_PATTERN: f"1 to {POOL_CHARS_MAX} characters, and no control characters",
    NOTE_PATTERN: "1 to 200 characters, and no control characters",
    POLICY_PATTERN: "a policy like vtc, or with parameters like drr:quantum_service=200",
    PORT_NAME_PATTERN: "1 to 15 lower-case letters, digits or '-'",
    REQUEST_CURSOR_PATTERN: _A_CURSOR,
}
"""What a text of each pattern is: errors say it in place of the pattern."""
TENANT_NAME = re.compile(TENANT_PATTERN.strip("^$"))
MODEL_NAME = re.compile(MODEL_PATTERN.strip("^$"))
_NAME = re.compile(NAME_PATTERN.strip("^$"))


def not_bool(value: object) -> object:
    """Reject true and false, which pydantic would read as numbers."""
    if isinstance(value, bool):
        raise outside_schema("must be a number, not true or false")
    return value


def whole(value: object) -> object:
    """Read an integer as JSON may write it: also 2.0 (JSON Schema 2020-12, 4.2.3). Rejects true and false."""
    return int(value) if isinstance(value, float) and value.is_integer() else not_bool(value)


def outside_schema(text: str) -> PydanticCustomError:
    """The error for a value that the JSON schema of its field excludes, too."""
    return PydanticCustomError("outside_schema", "{text}", {"text": text})


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise outside_schema(f"must be {PATTERNS[NAME_PATTERN]}")
    return value


def _tenant_name(value: str) -> str:
    if not TENANT_NAME.fullmatch(value):
        raise outside_schema(f"must be {PATTERNS[TENANT_PATTERN]}")
    return value


def _network(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return ip_network(value)
    except ValueError:
        raise ValueError("must be a network like 10.0.0.0/8 or fc00::/7, with no bit set behind its prefix") from None


def read_choice_of(names: tuple[str, ...], value: str) -> str:
    if value not in names:
        raise outside_schema(f"must be one of {', '.join(names)}")
    return value


def one_of(names: Iterable[str]) -> Any:
    """A field whose JSON schema lists these values."""
    return Field(json_schema_extra={"enum": list(names)})


@dataclass(frozen=True, eq=False)  # by identity: a schema has no hash
class InJson:
    """An annotation for the type of a setting that has one form in JSON and several in a configuration file, such as
    64MiB and 67108864 for bytes. `form` is the type that JSON values are checked against; `in_file` is the JSON schema
    of the forms in a file.
    """

    form: Any
    in_file: Mapping[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written: Any = handler(source)
        written["metadata"] = {"pydantic_js_functions": [lambda _schema, _handler: dict(self.in_file)]}
        return core_schema.json_or_python_schema(json_schema=handler.generate_schema(self.form), python_schema=written)


class FileSchema(GenerateJsonSchema):
    """The generator of the JSON schema for configuration files."""

    def json_or_python_schema(self, schema: core_schema.JsonOrPythonSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["python_schema"])

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        made = super().dict_schema(schema)
        return made | {"additionalProperties": False} if "patternProperties" in made else made


Name = Annotated[str, AfterValidator(_name), Field(json_schema_extra={"pattern": NAME_PATTERN})]
Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)]
TenantName = Annotated[str, AfterValidator(_tenant_name), Field(json_schema_extra={"pattern": TENANT_PATTERN})]
PoolName = Annotated[str, Field(min_length=1, max_length=POOL_CHARS_MAX)]  # a pool may be named after its model
Count = Annotated[int, Field(ge=1, le=COUNT_MAX), BeforeValidator(whole)]
Bytes = Annotated[
    ByteSize,
    Field(ge=1, le=COUNT_MAX),
    BeforeValidator(not_bool),
    InJson(Count, {"anyOf": [{"type": "string", "pattern": BYTES_PATTERN}, {"type": "integer", "minimum": 1}]}),
]
Positive = Annotated[float, Field(gt=0), BeforeValidator(not_bool)]
NotNegative = Annotated[float, Field(ge=0), BeforeValidator(not_bool)]
Weight = Annotated[float, Field(ge=WEIGHT_MIN, le=WEIGHT_MAX), BeforeValidator(not_bool)]
Coefficient = Annotated[float, Field(ge=0, le=COEFFICIENT_MAX), BeforeValidator(not_bool)]
Seconds = Annotated[float, Field(gt=0, le=86_400), BeforeValidator(not_bool)]
# Below 1 ms network latency dominates; beyond an hour no client waits.
TargetMs = Annotated[float, Field(ge=1, le=3_600_000), BeforeValidator(not_bool)]
Batching = Annotated[str, AfterValidator(lambda value: read_choice_of(tuple(BATCHING), value)), one_of(BATCHING)]
Wait = Annotated[float, Field(ge=0, le=86_400), BeforeValidator(not_bool)]
Kind = Annotated[str, AfterValidator(lambda value: read_choice_of(tuple(BACKEND_KINDS), value)), one_of(BACKEND_KINDS)]
Coefficients = Annotated[
    str, AfterValidator(lambda value: read_choice_of(tuple(COEFFICIENTS), value)), one_of(COEFFICIENTS)
]
