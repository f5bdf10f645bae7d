"""CSV: a header, then rows with exactly the header's columns; quotes as in RFC 4180."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator

from osmosis_ai.datasets.reader import (
    MAX_RECORD_BYTES,
    Record,
    RecordReader,
    pass_byte_order_mark,
    quote_names,
)
from osmosis_ai.datasets.record_places import RecordPlace

_MISSING = frozenset({"NaN", "nan"})
"""How pandas and NumPy write a missing value if configured to write one."""
_OTHER_DELIMITERS = (";", "\t", "|")


class CsvReader(RecordReader):
    """Yields (line number of the row's start, record of strings); a missing value is None."""

    _read_to = 0  # bytes of whole lines

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        return self.behind(0)

    def behind(self, rows: int) -> Iterator[tuple[int, Record]]:
        """Yield the rows after the first ``rows``, whose columns are not checked."""
        for line, fields in self._rows(rows):
            if len(fields) == len(self.columns):
                record: Record = dict(zip(self.columns, fields, strict=True))
                if not _MISSING.isdisjoint(fields):
                    record = {name: None if field in _MISSING else field for name, field in record.items()}
                yield line, record
            else:
                self.report(f"line {line}: expected {len(self.columns)} columns, found {len(fields)}")

    def count(self) -> int:
        """Return the number of rows without the header; their columns are not checked."""
        return sum(1 for _ in self._rows())

    def _rows(self, passed: int = 0) -> Iterator[tuple[int, list[str]]]:
        """Yield (line number of the row's start, fields) of every row after the header and ``passed`` rows."""
        # The module's limit applies to the whole process, so it is only ever raised.
        csv.field_size_limit(max(csv.field_size_limit(), MAX_RECORD_BYTES))
        with self.open() as raw:
            places = self.places(raw)
            begin = self._begin(raw, places.before(passed))
            text = io.TextIOWrapper(raw, encoding="utf-8", newline="")
            # Without strict mode, an unclosed quote would swallow the rest of the file.
            rows = csv.reader(self._lines(text, begin.line), strict=True)
            line, number = begin.line, begin.rows
            try:
                for fields in rows:
                    if fields and self.columns:
                        number += 1
                        if number > passed:
                            yield line, fields
                    elif fields:
                        self._take_header(line, fields)
                    line = begin.line + rows.line_num
                    if self._read_to >= places.due_at and self.columns:
                        places.keep(self.place(number, self._read_to, line))
            except csv.Error as error:
                self.fail(f"line {line}: not valid CSV: {error}{_advice(error)}")
            except UnicodeDecodeError:
                self.fail_encoding()
        if not self.columns:
            self.fail("line 1: expected a header with the names of the columns, found nothing")

    def _take_header(self, line: int, names: list[str]) -> None:
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            self.fail(f"line {line}: the header names {quote_names(twice)} more than once")
        self.columns = tuple(names)

    def _begin(self, raw: io.BufferedReader, known: RecordPlace | None) -> RecordPlace:
        """Seek to a known place, or past a byte-order mark."""
        if known is not None:
            self.go_to(raw, known)
        else:
            self.columns = ()
            pass_byte_order_mark(raw)
        self._read_to = raw.tell()
        return known or self.place(0, self._read_to, 1)

    def _lines(self, text: io.TextIOWrapper, number: int) -> Iterator[str]:
        """Yield lines, starting with line ``number``, and count their bytes."""
        while line := text.readline(MAX_RECORD_BYTES + 1):
            if len(line) > MAX_RECORD_BYTES:
                self.fail_too_long(number)
            if not self.columns and "," not in line:
                for delimiter in filter(line.__contains__, _OTHER_DELIMITERS):
                    self.fail(f"line {number}: columns are separated by {delimiter!r}, expected ','")
            number += 1
            self._read_to += len(line) if line.isascii() else len(line.encode())
            yield line


def _advice(error: csv.Error) -> str:
    if "unexpected end of data" in str(error):
        return "; a quote that opens here is never closed"
    return ""
