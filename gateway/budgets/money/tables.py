"""Tables as files, written piece by piece: CSV (RFC 4180), and Parquet where pyarrow is installed.

A spreadsheet runs a cell that begins with =, +, - or @ as a formula, and a model's name may be anything. So such a text
gets an apostrophe before it in CSV (OWASP, "CSV Injection"); numbers are written as they are. Parquet has types, and
needs no escape.
"""

import csv
from collections.abc import Mapping, Sequence
from io import RawIOBase, StringIO
from typing import Any

from gateway.budgets.money.focus import ColumnKind, Row, text_of

COST_DIGITS, COST_DECIMALS = 38, 12  # a Parquet decimal of 16 bytes
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


Columns = Mapping[str, ColumnKind]


class CsvWriter:
    """A writer of a table as CSV, in UTF-8. Mutable."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._has_head = False

    def write(self, rows: Sequence[Row]) -> bytes:
        """The bytes of these rows, preceded by the head of the file on the first call."""
        text = StringIO()
        writer = csv.writer(text)
        if not self._has_head:
            self._has_head = True
            writer.writerow(self._columns)
        writer.writerows([_cell(value) for value in row] for row in rows)
        return text.getvalue().encode()

    def close(self) -> bytes:
        """The bytes at the end of the file."""
        return b"" if self._has_head else self.write(())


class ParquetWriter:
    """A writer of a table as Parquet, with a row group for each write. Raises ModuleNotFoundError without pyarrow."""

    def __init__(self, columns: Columns) -> None:
        import pyarrow as pa  # noqa: PLC0415 - optional, and slow to load
        from pyarrow import parquet  # noqa: PLC0415

        types: dict[ColumnKind, Any] = {
            ColumnKind.TEXT: pa.string(),
            ColumnKind.COST: pa.decimal128(COST_DIGITS, COST_DECIMALS),
            ColumnKind.COUNT: pa.int64(),
            ColumnKind.TIME: pa.timestamp("us", tz="UTC"),
            ColumnKind.FLAG: pa.bool_(),
        }
        self._pyarrow = pa
        self._schema = pa.schema([(name, types[kind]) for name, kind in columns.items()])
        self._sink = _Sink()
        self._writer = parquet.ParquetWriter(self._sink, self._schema)

    def write(self, rows: Sequence[Row]) -> bytes:
        if rows:
            columns = zip(zip(*rows, strict=True), self._schema, strict=True)
            arrays = [self._pyarrow.array(values, type=field.type) for values, field in columns]
            self._writer.write_table(self._pyarrow.Table.from_arrays(arrays, schema=self._schema))
        return self._sink.take()

    def close(self) -> bytes:
        self._writer.close()
        return self._sink.take()


TableWriter = CsvWriter | ParquetWriter
WRITERS: Mapping[str, type[TableWriter]] = {"csv": CsvWriter, "parquet": ParquetWriter}


class _Sink(RawIOBase):
    """A file that hands over the bytes written to it. Mutable."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        self._size += len(self._pieces[-1])
        return len(self._pieces[-1])

    def tell(self) -> int:
        return self._size

    def take(self) -> bytes:
        """The bytes that were written since the last call."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def _cell(value: Any) -> str:
    text = text_of(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(FORMULA_STARTS) else text
