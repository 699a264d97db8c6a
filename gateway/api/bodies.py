"""Request bodies, as received and as forwarded: JSON or a form.

JSON is parsed once. Added fields are inserted before the last brace, so the body is serialized again only where a field
is removed or replaced. The usage reports that a stream asks for depend on its backend.
"""

import codecs
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import orjson

from backends.meters import long
from gateway.api.errors import BadRequest
from gateway.api.fields import LEFT_OUT
from gateway.api.multipart import Form, read_form
from gateway.api.values import flag

NESTING_MAX: Final = 128
JSON_TYPE: Final = "application/json"
COPIED_BYTES_MAX: Final = 64 << 10  # from here on the buffer is mostly full, and a copy takes longer than the rest
# Byte order marks: RFC 8259 forbids them, but editors and shells write them, and vLLM accepts them.
_MARKS: Final = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# The fields by which a form, which has no objects, asks for usage.
_FORM_USAGE: Final = ("stream_include_usage", "stream_continuous_usage_stats")

_ESCAPED_LETTER: Final = b"\\u006"  # begins the escape of each letter of "model"
_ESCAPED_MODEL: Final = re.compile(
    rb'"(?:m|\\u006[dD])(?:o|\\u006[fF])(?:d|\\u0064)(?:e|\\u0065)(?:l|\\u006[cC])"(?<!"model")[ \t\r\n]*:'
)

UsageOptions = Mapping[str, Any]


class UpstreamBody(Protocol):
    """The interface of a call's body in the form in which it is sent to a backend."""

    @property
    def content_type(self) -> str: ...

    def asking(self, *, usage: bool, continuous: bool, token_ids: bool = False) -> bytes | bytearray:
        """The body, with the options of its client; for a stream, with requests for usage and token ids. `usage` asks
        for usage at the end, `continuous` for usage in every chunk.
        """
        ...


class Body(Protocol):
    """The interface of a call's body in the form in which the client sent it."""

    @property
    def values(self) -> dict[str, Any]: ...

    def usage_options(self) -> tuple[bool, bool, UsageOptions | None]:
        """For a stream: whether its client asks for usage, whether it asks for usage in every chunk, and its
        `stream_options`. None in place of the options where the client already asks for both. Raises BadRequest.
        """
        ...

    def with_model(self, model: str) -> "Body":
        """The body with another value of its `model`, a string. All other bytes stay unchanged."""
        ...

    def upstream(self, changes: Mapping[str, Any], options: UsageOptions | None) -> UpstreamBody:
        """The body to forward, with these values in place of the client's. With `options` it can ask for usage."""
        ...


def read_json(body: bytes) -> "JsonBody":
    """Parse one JSON object, nested at most NESTING_MAX levels deep. Raises BadRequest."""
    data: bytes | bytearray = body
    try:
        call = orjson.loads(data)
    except orjson.JSONDecodeError:  # it takes UTF-8 alone
        data = in_utf_8(body)
        try:
            call = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise invalid_json(error.pos) from None
    if type(call) is not dict:
        raise BadRequest("The body must be a JSON object.", code="invalid_json")
    # Counting brackets is far cheaper than walking the value, and almost always sufficient.
    if data.count(b"[") + data.count(b"{") > NESTING_MAX:
        _check_nesting(call)
    return JsonBody(data, call)


def read_body(content_type: str, body: bytes, *, multipart: bool) -> Body:
    """Parse a body of the content type that its path takes. Raises BadRequest, as vLLM does for another type."""
    if multipart:
        return FormBody(read_form(content_type, body))
    if content_type != JSON_TYPE:
        check_content_type(content_type)
    return read_json(body)


def check_content_type(content_type: str) -> None:
    """Raise BadRequest where the content type is not JSON's."""
    if content_type.lower().partition(";")[0] != JSON_TYPE:
        raise BadRequest(f"The content type must be '{JSON_TYPE}'.", code="invalid_content_type")


@dataclass(slots=True)
class JsonBody:
    """The JSON body of a client's call: its bytes (`raw`), and the parsed object. A Body."""

    raw: bytes | bytearray
    values: dict[str, Any]

    def usage_options(self) -> tuple[bool, bool, UsageOptions | None]:
        options = self.values.get("stream_options")
        if options is None:
            return False, False, {}
        if type(options) is not dict:
            raise BadRequest("'stream_options' must be an object.", param="stream_options")
        usage, continuous = flag(options, "include_usage"), flag(options, "continuous_usage_stats")
        return usage, usage and continuous, None if usage and continuous else options

    def with_model(self, model: str) -> "JsonBody":
        changed = {"model": model}
        raw, at = self.raw, None
        # Where the name of a member is written in another way, the values are written anew.
        if _ESCAPED_LETTER not in raw or _ESCAPED_MODEL.search(raw) is None:
            at = long.at_once(long.member_at(raw, "model"))
        spliced = long.with_text(raw, at, model)
        return JsonBody(_json(raw, self.values, changed) if spliced is None else spliced, self.values | changed)

    def upstream(self, changes: Mapping[str, Any], options: UsageOptions | None) -> "UpstreamJson":
        if options is not None and "stream_options" in self.values:  # `asking` adds them again
            changes = {**changes, "stream_options": LEFT_OUT}
        return UpstreamJson(_json(self.raw, self.values, changes) if changes else self.raw, options)


@dataclass(slots=True)
class UpstreamJson:
    """The JSON body of a call for a backend. An UpstreamBody."""

    data: bytes | bytearray
    options: UsageOptions | None
    content_type: ClassVar = JSON_TYPE

    def asking(self, *, usage: bool, continuous: bool, token_ids: bool = False) -> bytes | bytearray:
        if self.options is None and not token_ids:
            return self.data
        if not self.options:
            tail = _TAILS[usage, continuous] if self.options is not None else b"}"
        else:
            asked = {**self.options, **_ASKED[usage, continuous]}
            tail = b',"stream_options":' + orjson.dumps(asked) + b"}"
        if token_ids:
            tail = b',"return_token_ids":true' + tail
        return b"".join((without_brace(self.data), tail))  # one copy of a body that may be long


@dataclass(frozen=True, slots=True)
class FormBody:
    """The multipart form of a client's call. A Body."""

    form: Form

    @property
    def values(self) -> dict[str, Any]:
        return {**self.form.fields, "file_bytes": self.form.file_bytes}

    def usage_options(self) -> tuple[bool, bool, UsageOptions | None]:
        usage, continuous = (flag(self.form.fields, name) for name in _FORM_USAGE)
        # The client's own options stay in the form, where `asking` replaces them.
        return usage, usage and continuous, None if usage and continuous else {}

    def with_model(self, model: str) -> "FormBody":
        return FormBody(self.form.with_field("model", model))

    def upstream(self, changes: Mapping[str, Any], options: UsageOptions | None) -> "UpstreamForm":
        texts = {name: None if value is LEFT_OUT else str(value) for name, value in changes.items()}
        return UpstreamForm(self.form, texts, options)


@dataclass(frozen=True, slots=True)
class UpstreamForm:
    """The multipart form of a call for a backend, with changed fields. An UpstreamBody."""

    form: Form
    changes: Mapping[str, str | None]
    options: UsageOptions | None

    @property
    def content_type(self) -> str:
        return self.form.content_type

    def asking(self, *, usage: bool, continuous: bool, token_ids: bool = False) -> bytes | bytearray:
        changes = dict(self.changes)
        if self.options is not None:
            changes |= {name: "true" for name, asked in zip(_FORM_USAGE, (usage, continuous), strict=True) if asked}
        return self.form.changed(changes) if changes else self.form.body


_ASKED: Final = {
    (False, False): {},
    (True, False): {"include_usage": True},
    (True, True): {"include_usage": True, "continuous_usage_stats": True},
}
_TAILS: Final = {
    which: b',"stream_options":' + orjson.dumps(asked) + b"}" if asked else b"}" for which, asked in _ASKED.items()
}


def invalid_json(at: int) -> BadRequest:
    """The BadRequest of a body whose first invalid character, counted from 0, is `at`."""
    return BadRequest(f"The body is not valid JSON (at character {at}).", code="invalid_json")


def without_brace(data: bytes | bytearray) -> memoryview:
    """The JSON object without its last brace, which only white space follows."""
    return memoryview(data)[: data.rindex(b"}")]


def in_utf_8(body: bytes | bytearray) -> bytes | bytearray:
    """Convert JSON in any Unicode encoding to UTF-8 without a byte order mark. Undecodable bytes are returned
    unchanged.
    """
    if not (body.startswith(_MARKS) or b"\0" in body[:4]):
        return body
    try:
        return body.decode(json.detect_encoding(body)).encode()
    except UnicodeError:
        return body


def compact(made: bytes) -> bytes:
    """A copy of bytes from orjson, for storing: orjson leaves them in its buffer, which has at least 8 KB."""
    return bytes(memoryview(made)) if len(made) < COPIED_BYTES_MAX else made


def _json(raw: bytes | bytearray, values: Mapping[str, Any], changes: Mapping[str, Any]) -> bytes | bytearray:
    if changes.keys().isdisjoint(values) and values:
        return b"".join((without_brace(raw), b",", memoryview(orjson.dumps(changes))[1:]))
    merged = {**values, **changes}
    return compact(orjson.dumps({name: value for name, value in merged.items() if value is not LEFT_OUT}))


def _check_nesting(call: dict[str, Any]) -> None:
    """Reject nesting that could exhaust the backend's recursion (templates, schema compilers) and look like its own
    fault.
    """
    level: list[Any] = [call]
    for _ in range(NESTING_MAX):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise BadRequest(f"The body is nested more than {NESTING_MAX} levels deep.", code="invalid_json")
