"""Trace: a trace file as a stream of calls, read line by line, so that a long one costs no memory.

A file may be compressed by gzip, as rotated logs are. A line that cannot be read ends the stream with a TraceError that
names file, line and reason. A gateway writes a call when it ends, so lines of the gateway's own format are sorted by
arrival within a window of `REORDER_LINES_MAX` lines; every other format has to be in order.
"""

import csv
import gzip
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, cast

import orjson

from gateway.simulate.trace.formats import CSV_FORMATS, JSON_FORMATS, Fields, Format, TraceCall, recognise_format
from gateway.simulate.trace.session_turns import SessionTurns

LINE_BYTES_MAX = 4 << 20
REORDER_LINES_MAX = 16_384
TENANTS_MAX = 100_000
GZIP_MARK = b"\x1f\x8b"
UNREADABLE = (OSError, EOFError, zlib.error)
TELL_BYTES = 1 << 18  # the smallest progress to report

Namer = Callable[[Fields, TraceCall], str]


class TraceError(Exception):
    """An error: a trace file cannot be read. The text names the file, the line (if any) and the reason."""

    def __init__(self, path: Path, line: int | None, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if line is None else f"{path}:{line}: {reason}")


class Trace:
    """One trace file of a known format. Reading it twice gives the same calls."""

    def __init__(self, path: Path) -> None:
        """Raises TraceError where the file cannot be read, or its first line is of no known format."""
        self.path = path
        self._line = 0
        try:
            self.bytes = path.stat().st_size
            with path.open("rb") as file:
                self._json, self.format = self._recognise(_unpacked(file))
        except UNREADABLE as error:
            raise TraceError(path, None, _unreadable(error)) from error

    def calls(
        self, tenant: Namer, *, read_bytes: Callable[[int], None] = lambda _bytes: None
    ) -> Iterator[tuple[str, TraceCall]]:
        """Yield every call with its assigned tenant, in order of arrival. Raises TraceError at the first wrong line.
        `read_bytes` gets the progress of reading.
        """
        try:
            with self.path.open("rb") as file:
                rows = (
                    _json_rows(self._lines(file, read_bytes))
                    if self._json
                    else _csv_rows(self._lines(file, read_bytes))
                )
                named = self._named(rows, tenant)
                yield from self._checked(named) if self.format.ordered else self._sorted(named)
        except UNREADABLE as error:
            raise TraceError(self.path, None, _unreadable(error)) from error
        except (ValueError, csv.Error) as error:
            raise TraceError(self.path, self._line, _plain(error)) from error

    def _recognise(self, file: BinaryIO) -> tuple[bool, Format]:
        self._line = 1
        first = file.readline(LINE_BYTES_MAX).removeprefix(BOM_UTF8).decode(errors="replace").strip()
        try:
            return first.startswith("{"), _format(first)
        except (ValueError, csv.Error) as error:
            raise TraceError(self.path, 1, _plain(error)) from error

    def _lines(self, file: BufferedReader, read_bytes: Callable[[int], None]) -> Iterator[str]:
        """Yield the lines of the file and count them; `read_bytes` is called from time to time."""
        self._line = reported = 0
        unpacked = _unpacked(file)
        while line := unpacked.readline(LINE_BYTES_MAX):
            self._line += 1
            position = file.tell()
            if len(line) == LINE_BYTES_MAX:
                raise ValueError(f"the line is longer than {LINE_BYTES_MAX} bytes")
            if position - reported >= TELL_BYTES:
                read_bytes(position - reported)
                reported = position
            yield (line.removeprefix(BOM_UTF8) if self._line == 1 else line).decode()
        read_bytes(file.tell() - reported)

    def _named(self, rows: Iterator[Fields], tenant: Namer) -> Iterator[tuple[str, TraceCall]]:
        parse, tenants, turns = self.format.parse, set[str](), SessionTurns()
        for fields in rows:
            call = parse(fields)
            name = tenant(fields, call)
            tenants.add(name)
            if len(tenants) > TENANTS_MAX:
                raise ValueError(f"this is tenant number {len(tenants)}, and {TENANTS_MAX} are the most")
            yield name, turns.linked(name, call)

    def _checked(self, calls: Iterator[tuple[str, TraceCall]]) -> Iterator[tuple[str, TraceCall]]:
        latest_s = float("-inf")
        for named in calls:
            if named[1].at_s < latest_s:
                raise ValueError(
                    "this call arrived before the one in the line above: the trace must be in order of time"
                )
            latest_s = named[1].at_s
            yield named

    def _sorted(self, calls: Iterator[tuple[str, TraceCall]]) -> Iterator[tuple[str, TraceCall]]:
        """Yield the calls by arrival (equal ones in file order), with at most `REORDER_LINES_MAX` of them in memory."""
        waiting: list[tuple[float, int, str, TraceCall]] = []
        latest_s = float("-inf")
        for number, (tenant, call) in enumerate(calls):
            if call.at_s < latest_s:
                raise ValueError(
                    f"this call arrived before one that stands {REORDER_LINES_MAX} lines above: sort the file"
                )
            heappush(waiting, (call.at_s, number, tenant, call))
            if len(waiting) > REORDER_LINES_MAX:
                latest_s, _, tenant_due, due = heappop(waiting)
                yield tenant_due, due
        while waiting:
            _, _, tenant, call = heappop(waiting)
            yield tenant, call


def _format(first: str) -> Format:
    """The format that the first line shows. Raises ValueError and csv.Error."""
    if not first:
        raise ValueError("the trace is empty")
    if first.startswith("{"):
        return recognise_format(frozenset(_parsed(first)), JSON_FORMATS)
    return recognise_format(frozenset(next(csv.reader([first]))), CSV_FORMATS)


def _csv_rows(lines: Iterator[str]) -> Iterator[Fields]:
    for row in csv.DictReader(lines):
        if None in row:
            raise ValueError("the line has more fields than the header")
        yield row


def _json_rows(lines: Iterator[str]) -> Iterator[Fields]:
    for line in lines:
        if not line.isspace():
            yield _parsed(line)


def _parsed(line: str) -> Fields:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise ValueError("this is not JSON") from None
    if type(fields) is not dict:
        raise ValueError("this is not a JSON object")
    return fields


def _unpacked(file: BufferedReader) -> BinaryIO:
    if file.peek(len(GZIP_MARK)).startswith(GZIP_MARK):
        return cast("BinaryIO", gzip.GzipFile(fileobj=file))
    return file


def _unreadable(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    return f"is not whole, or was not compressed by gzip: {error}"


def _plain(error: Exception) -> str:
    return "this is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
