"""Multipart forms (RFC 7578): a parser that reads and replaces the short fields without touching the file.

The audio is never decoded or copied on its own: a part is a range of bytes. Parsing is strict, because a lenient parser
in the backend could read other fields than the gateway counted: the body is delimiters and parts and nothing else,
every part has one plain name, and all fields but the file are short.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Never

from gateway.api.errors import BadRequest

PARTS_MAX: Final = 64
PART_HEAD_BYTES_MAX: Final = 4096
FIELD_BYTES_MAX: Final = 64 << 10

_BOUNDARY: Final = re.compile(r'multipart/form-data\s*;\s*boundary=("?)([A-Za-z0-9\'+_.-]{1,70})\1\s*', re.IGNORECASE)
_DISPOSITION: Final = re.compile(
    rb'form-data\s*;\s*name=(?:"([^"\\%]{1,128})"|([A-Za-z0-9_.\[\]-]{1,128}))(\s*;\s*filename\*?=.*)?\s*',
    re.IGNORECASE,
)
_SECOND_NAME: Final = re.compile(rb";\s*name\s*[*=]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _FormPart:
    """One part: the offsets of its delimiter (`start`) and of the next one (`end`)."""

    name: str
    is_file: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Form:
    """A multipart form: its short fields by name, and the size of its file. If a name comes more than once, its last
    field counts, as in vLLM.
    """

    body: bytes
    boundary: bytes
    fields: dict[str, str]
    file_bytes: int
    _parts: tuple[_FormPart, ...]

    @property
    def content_type(self) -> str:
        return f"multipart/form-data; boundary={self.boundary.decode()}"

    def changed(self, changes: Mapping[str, str | None]) -> bytes:
        """The body with these values for the named fields; None removes a field."""
        kept = [self.body[part.start : part.end] for part in self._parts if part.name not in changes]
        added = [self._written(name, value) for name, value in changes.items() if value is not None]
        return b"".join([*kept, *added, b"--", self.boundary, b"--\r\n"])

    def with_field(self, name: str, value: str) -> "Form":
        """The form with this value in its last field of this name. All other bytes stay unchanged. ValueError where it
        has no such field.
        """
        place = max(number for number, part in enumerate(self._parts) if part.name == name and not part.is_file)
        part, written = self._parts[place], value.encode()
        start = self.body.index(b"\r\n\r\n", part.start) + 4
        end = part.end - 2  # the line end belongs to the next delimiter
        body = memoryview(self.body)
        moved = len(written) - (end - start)
        parts = (
            *self._parts[:place],
            replace(part, end=part.end + moved),
            *(replace(each, start=each.start + moved, end=each.end + moved) for each in self._parts[place + 1 :]),
        )
        changed = b"".join((body[:start], written, body[end:]))
        return replace(self, body=changed, fields=self.fields | {name: value}, _parts=parts)

    def _written(self, name: str, value: str) -> bytes:
        head = b'\r\nContent-Disposition: form-data; name="%b"\r\n\r\n' % name.encode()
        return b"--" + self.boundary + head + value.encode() + b"\r\n"


def read_form(content_type: str, body: bytes) -> Form:
    """Parse a form. Raises BadRequest."""
    match = _BOUNDARY.fullmatch(content_type)
    if match is None:
        _wrong("must be multipart/form-data with a boundary")
    boundary = match.group(2).encode()
    delimiter = b"--" + boundary
    if not body.startswith(delimiter + b"\r\n"):
        _wrong("does not begin with its boundary")
    fields: dict[str, str] = {}
    parts: list[_FormPart] = []
    file_bytes, start = 0, 0
    while not body.startswith(delimiter + b"--", start):
        if len(parts) == PARTS_MAX:
            _wrong(f"has more than {PARTS_MAX} parts")
        end = body.find(b"\r\n" + delimiter, start + len(delimiter))
        if end < 0 or body[start + len(delimiter) : start + len(delimiter) + 2] != b"\r\n":
            _wrong("is not delimited as it should be")
        name, is_file, value = _part(body, start + len(delimiter) + 2, end)
        if is_file:
            file_bytes += end - value
        else:
            fields[name] = _field(body, value, end)
        parts.append(_FormPart(name, is_file, start, end + 2))
        start = end + 2
    if body[start + len(delimiter) + 2 :].strip(b"\r\n"):
        _wrong("goes on behind its end")
    return Form(body, boundary, fields, file_bytes, tuple(parts))


def _part(body: bytes, start: int, end: int) -> tuple[str, bool, int]:
    """The name of the part, whether it is a file, and the offset of its value."""
    head_end = body.find(b"\r\n\r\n", start, min(end, start + PART_HEAD_BYTES_MAX))
    if head_end < 0:
        _wrong("has a part without a proper head")
    dispositions = [
        line.partition(b":")[2].strip()
        for line in body[start:head_end].split(b"\r\n")
        if line[:20].lower() == b"content-disposition:"
    ]
    match = _DISPOSITION.fullmatch(dispositions[0]) if len(dispositions) == 1 else None
    if match is None or _SECOND_NAME.search(match.group(3) or b""):
        _wrong("has a part without a plain name")
    name = (match.group(1) or match.group(2)).decode("utf-8", "replace")
    return name, match.group(3) is not None, head_end + 4


def _field(body: bytes, start: int, end: int) -> str:
    if end - start > FIELD_BYTES_MAX:
        _wrong(f"has a field of more than {FIELD_BYTES_MAX} bytes that is no file")
    return body[start:end].decode("utf-8", "replace")


def _wrong(what: str) -> Never:
    raise BadRequest(f"The form {what}.", code="invalid_form")
