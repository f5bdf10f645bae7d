"""JSON Lines: one object per line, all with the same keys; blank lines are skipped.

Files are read in blocks of whole lines, and a valid block is decoded by one call: its line ends become ``,N,`` with a
random number N, so that the decoded array alternates between records and N. A line that is not a complete JSON value
cannot keep up that alternation without knowing N. A block that fails any check is read again line by line, to report
which line is wrong, and why.
"""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Generator, Iterator
from itertools import islice

import orjson

from osmosis_ai.datasets.reader import (
    MAX_RECORD_BYTES,
    METADATA_COLUMN,
    Record,
    RecordReader,
    WrittenFloat,
    count_line_ends,
    describe_json_error,
    may_have_lost_digits,
    may_repeat_keys,
    pass_byte_order_mark,
    repeated_keys,
    written_integer,
)
from osmosis_ai.datasets.record_places import RecordPlace

# Small enough for its records to stay in the processor's cache: 5 % faster than 256 KiB.
_BLOCK_BYTES = 64 << 10
_NUMBER = secrets.randbits(62)
_SEAM = b",%d," % _NUMBER


class JsonLinesReader(RecordReader):
    """Yields (line number, object)."""

    _block = b""  # the lines of the records that are being yielded
    _block_starts_at = 1
    _lines: list[bytes] | None = None  # the block's lines, split when needed

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        return self.behind(0)

    def behind(self, rows: int) -> Iterator[tuple[int, Record]]:
        """Yield the records after the first ``rows``, which are counted but not decoded."""
        with self.open(_BLOCK_BYTES) as handle:
            places = self.places(handle)
            begin = self._begin(handle, places.before(rows))
            passed, number, offset = begin.rows, begin.line, begin.offset
            for block in self._blocks(handle):
                if offset >= places.due_at:
                    places.keep(self.place(passed, offset, number))
                if passed >= rows or (held := _rows_in(block)) > rows - passed:
                    held = yield from self._records(block, number, max(rows - passed, 0))
                passed += held
                number += block.count(b"\n") + 1
                offset += len(block) + 1

    def _begin(self, handle: io.BufferedReader, known: RecordPlace | None) -> RecordPlace:
        """Seek to a known place, or past a byte-order mark."""
        if known is not None:
            handle.seek(known.offset)
            return known
        pass_byte_order_mark(handle)
        return self.place(0, handle.tell(), 1)

    def _records(self, block: bytes, number: int, passed: int) -> Generator[tuple[int, Record], None, int]:
        """Yield a block's records after the first ``passed``; ``number`` is its first line. Return its number of
        records.
        """
        records = self._decode_block(block)
        if records is not None:
            self._note_repeats(number, block, records)
            self._block, self._block_starts_at, self._lines = block, number, None
            yield from islice(enumerate(records, number), passed, None)
            return len(records)
        for at, raw in enumerate(block.split(b"\n"), number):
            if passed and raw and not raw.isspace():
                passed -= 1
            elif (record := self._decode_line(at, raw)) is not None:
                self._block, self._block_starts_at, self._lines = raw, at, None
                yield at, record
        return _rows_in(block)

    def exactly(self, number: int, record: Record) -> Record:
        """Return the last record with its numbers as written; in metadata, only long integers."""
        if not self.uniform:
            is_exact = not may_have_lost_digits(record, least=0)
        else:
            wanted = [record.get(name) for name in self.only or record if name != METADATA_COLUMN]
            is_exact = not may_have_lost_digits(wanted, least=0)
            is_exact = is_exact and not may_have_lost_digits(record.get(METADATA_COLUMN))
        if is_exact:
            return record
        if self._lines is None:
            self._lines = self._block.split(b"\n")
        try:
            exact: Record = _decode_as_written(self._lines[number - self._block_starts_at].decode())
        except RecursionError:
            self.fail(f"line {number}: nested too deeply")
        return exact

    def count(self) -> int:
        """Return the number of lines that are not blank, without decoding them."""
        with self.open(_BLOCK_BYTES) as handle:
            pass_byte_order_mark(handle)
            return sum(map(_rows_in, self._blocks(handle)))

    def _decode_block(self, block: bytes) -> list[Record] | None:
        """Return the block's records if every line is valid, else None."""
        if not self.columns:
            return None
        try:
            joined = block.replace(b"\n", _SEAM)
            values = orjson.loads(b"".join((b"[", joined, b"]")))
        except ValueError:
            return None
        records: list[Record] = values[::2]
        lines = 1 + (len(joined) - len(block)) // (len(_SEAM) - 1)
        if len(records) != lines or values[1::2].count(_NUMBER) != lines - 1:
            return None
        if set(map(type, records)) != {dict}:
            return None
        if any(self._column_set != set(names) for names in set(map(tuple, records))):
            return None
        return records

    def _decode_line(self, number: int, raw: bytes) -> Record | None:
        if not raw or raw.isspace():
            return None
        try:
            value = orjson.loads(raw)
        except ValueError as error:
            self._report_line(number, raw, error)
            return None
        self._note_repeats(number, raw, value)
        return self.admit(number, value)

    def _note_repeats(self, number: int, lines: bytes, decoded: object) -> None:
        if self.note_repeats is None or not may_repeat_keys(lines, decoded):
            return
        for at, raw in enumerate(lines.split(b"\n"), number):
            if names := repeated_keys(raw):
                self.note_repeats(at, names)

    def _report_line(self, number: int, raw: bytes, error: ValueError) -> None:
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail_encoding()
        column = getattr(error, "colno", 1)
        self.report(f"line {number}: not valid JSON: {describe_json_error(raw, error)} (column {column})")

    def _blocks(self, handle: io.BufferedReader) -> Iterator[bytes]:
        """Yield blocks of whole lines, without the last line end of each block."""
        pieces: list[bytes] = []
        held = 0
        while data := handle.read(_BLOCK_BYTES):
            end = data.rfind(b"\n")
            if end < 0:
                pieces.append(data)
                held += len(data)
                if held > MAX_RECORD_BYTES:
                    self.fail_too_long(1 + count_line_ends(self.path, handle.tell() - held))
                continue
            pieces.append(data[:end])
            yield b"".join(pieces)
            pieces = [data[end + 1 :]]
            held = len(pieces[0])
        if held:
            yield b"".join(pieces)


_decode_as_written = json.JSONDecoder(parse_float=WrittenFloat, parse_int=written_integer).decode


def _rows_in(block: bytes) -> int:
    """Return the number of lines that are not blank."""
    return sum(1 for raw in block.split(b"\n") if raw and not raw.isspace())
