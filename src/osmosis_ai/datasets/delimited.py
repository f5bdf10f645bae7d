"""CSV: a header, then rows with exactly the header's columns; quotes as in RFC 4180."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator

from osmosis_ai.datasets.reader import MAX_RECORD_BYTES, Record, RecordReader, quote_names


class CsvReader(RecordReader):
    """Yields (number of the line on which the row starts, record of strings)."""

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        for line, fields in self._rows():
            if len(fields) == len(self.columns):
                yield line, dict(zip(self.columns, fields, strict=True))
            else:
                self.report(f"line {line}: expected {len(self.columns)} columns, found {len(fields)}")

    def count(self) -> int:
        """Return how many rows follow the header; their columns are not counted."""
        return sum(1 for _ in self._rows())

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (line on which the row starts, fields) of every row behind the header."""
        # The module's limit is one for the whole process: it is only ever raised.
        csv.field_size_limit(max(csv.field_size_limit(), MAX_RECORD_BYTES))
        with self.open() as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
            # Strict: a quote that is never closed would otherwise swallow the rest of the file.
            rows = csv.reader(self._lines(text), strict=True)
            line = 1
            try:
                for fields in rows:
                    if fields and self.columns:
                        yield line, fields
                    elif fields:
                        self._take_header(line, fields)
                    line = rows.line_num + 1
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

    def _lines(self, text: io.TextIOWrapper) -> Iterator[str]:
        number = 0
        while line := text.readline(MAX_RECORD_BYTES + 1):
            number += 1
            if len(line) > MAX_RECORD_BYTES:
                self.fail_too_long(number)
            yield line


def _advice(error: csv.Error) -> str:
    if "unexpected end of data" in str(error):
        return "; a quote that opens here is never closed"
    return ""
