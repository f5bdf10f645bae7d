"""Readers of dataset files: CSV, JSON Lines, JSON arrays and Parquet.

A reader yields ``(number, record)``: the line or row number from 1, and the record as a dict. It passes each problem to
``report`` and skips the record, or raises :class:`StopReading` if the rest of the file is unreadable. It holds one block
of the file and one record in memory.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

import msgspec
import orjson

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Record = dict[str, Any]

SUPPORTED_EXTENSIONS = ("csv", "jsonl", "json", "parquet")
METADATA_COLUMN = "metadata"
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BLOCK_BYTES = 1 << 18
# A line, a CSV field or an element of a JSON array. The limit bounds the memory for a file without line ends.
MAX_RECORD_BYTES = 16 << 20
_TYPE_NAMES: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    str: "a string",
    int: "a number",
    float: "a number",
    dict: "an object",
    list: "an array",
    bytes: "binary data",
}


class StopReading(Exception):
    """The rest of the file is unreadable or not needed; problems have been reported."""


def iter_records(path: Path, *, start: int = 0) -> Iterator[tuple[int, Record]]:
    """Yield (row index from 0, record) for the records of a dataset file from row ``start``."""
    records = open_reader(path, report=raise_for(path)).after(start)
    return ((index, record) for index, (_, record) in enumerate(records, start))


def count_records(path: Path) -> int:
    """Return the number of records in a dataset file."""
    return open_reader(path, report=raise_for(path), uniform=False).count()


def open_reader(
    path: Path,
    *,
    report: Callable[[str], None],
    progress: Callable[[int], None] | None = None,
    only: Collection[str] | None = None,
    uniform: bool = True,
    as_written: bool = True,
) -> RecordReader:
    """Return the reader for ``path`` by its extension.

    Args:
        report: receives each problem.
        progress: receives the number of bytes read so far, after each block.
        only: the columns to read, where the format can skip others.
        uniform: check that all records are objects with the same keys.
        as_written: return the numbers of a JSON file as :class:`WrittenFloat` where text and value may differ.
    """
    require_file(path)
    if problem := describe_file_problem(path):
        raise OsmosisError(f"{path}: {problem}.")
    return _READERS[extension_of(path)](path, report, progress, only, uniform, as_written)


def require_file(path: Path) -> None:
    """Raise an error if ``path`` is not a file."""
    if path.is_dir():
        raise OsmosisError(f"`{path}` is a directory; expected a dataset file.")
    if not path.is_file():
        raise OsmosisError(f"File not found: {path.absolute()}")


def extension_of(path: Path) -> str:
    """Return a file's extension in lower case, without the dot."""
    return path.suffix.lower().removeprefix(".")


def describe_file_problem(path: Path) -> str | None:
    """Return why a file cannot be a dataset, regardless of its records, or None."""
    extension = extension_of(path)
    if extension in SUPPORTED_EXTENSIONS:
        with path.open("rb") as handle:
            start = handle.read(len(LFS_POINTER))
        if start == LFS_POINTER:
            return "the file is a Git LFS pointer; run `git lfs pull` to get its content"
        return None if start else "the file is empty"
    supported = ", ".join(f".{name}" for name in SUPPORTED_EXTENSIONS)
    found = f"unsupported file extension '.{extension}'" if extension else "the file has no extension"
    return f"{found}; supported: {supported}"


def raise_for(path: Path) -> Callable[[str], NoReturn]:
    """Return a ``report`` that raises the first problem of ``path``."""

    def report(problem: str) -> NoReturn:
        raise OsmosisError(f"{path}: {problem}.")

    return report


@dataclass
class RecordReader(ABC):
    """Streams the records of one file; the fields are those of :func:`open_reader`."""

    unit: ClassVar[str] = "line"

    path: Path
    report: Callable[[str], None]
    progress: Callable[[int], None] | None
    only: Collection[str] | None
    uniform: bool
    as_written: bool
    columns: tuple[str, ...] = field(default=(), init=False)
    wrong_metadata_type: str | None = field(default=None, init=False)
    """The type of the ``metadata`` column if it cannot contain objects."""

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        """Yield (line or row number from 1, record)."""
        return self.after(0)

    @abstractmethod
    def after(self, rows: int) -> Iterator[tuple[int, Record]]:
        """Yield the records after the first ``rows``, which are not decoded if the format allows it."""

    def count(self) -> int:
        return sum(1 for _ in self)

    def repeated_keys(self, record: Record, keys: int) -> list[str]:
        """Return the repeated keys of the last record, which has ``keys`` keys without repetition."""
        return []

    def open(self) -> io.BufferedReader:
        """Open the file after its byte-order mark; ``progress`` is called for each block."""
        file = _ObservedFile(self.path, self.progress)
        handle: io.BufferedReader = io.BufferedReader(file, buffer_size=BLOCK_BYTES)
        if handle.peek(len(BYTE_ORDER_MARK)).startswith(BYTE_ORDER_MARK):
            handle.read(len(BYTE_ORDER_MARK))
        return handle

    def report_at(self, number: int, problem: str) -> None:
        """Report a problem of one record."""
        self.report(f"{self.unit} {number}: {problem}")

    def fail(self, problem: str) -> NoReturn:
        """Report why the rest of the file is unreadable, and stop reading."""
        self.report(problem)
        raise StopReading

    def fail_encoding(self) -> NoReturn:
        """Report the first byte that is not UTF-8, and stop reading."""
        line, position, byte = find_invalid_utf8(self.path) or (1, 0, 0)
        self.fail(
            f"line {line}: not UTF-8: byte 0x{byte:02x} at position {position} of the file; "
            "save the file as UTF-8"
        )

    def fail_too_long(self, number: int) -> NoReturn:
        """Report a record that exceeds the limit, and stop reading."""
        self.fail(f"{self.unit} {number}: longer than {MAX_RECORD_BYTES >> 20} MiB, the limit of one row")


class _ObservedFile(io.FileIO):
    def __init__(self, path: Path, progress: Callable[[int], None] | None) -> None:
        super().__init__(path, "r")
        self._progress = progress

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer) or 0
        if self._progress is not None and count:
            self._progress(self.tell())
        return count


class CsvReader(RecordReader):
    """A header, then rows with exactly the header's columns; quotes as in RFC 4180. All values are strings."""

    # How pandas and NumPy write a missing value if configured to write one.
    _MISSING = frozenset({"NaN", "nan"})
    _OTHER_DELIMITERS = (";", "\t", "|")

    def after(self, rows: int) -> Iterator[tuple[int, Record]]:
        for line, fields in islice(self._rows(), rows, None):
            if len(fields) != len(self.columns):
                self.report_at(line, f"expected {len(self.columns)} columns, found {len(fields)}")
                continue
            if not self._MISSING.isdisjoint(fields):
                fields = [None if value in self._MISSING else value for value in fields]
            yield line, dict(zip(self.columns, fields, strict=True))

    def count(self) -> int:
        return sum(1 for _ in self._rows())

    def _rows(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield (line number of the row's start, fields) of every row after the header."""
        # The module's limit applies to the whole process, so it is only ever raised.
        csv.field_size_limit(max(csv.field_size_limit(), MAX_RECORD_BYTES))
        self.columns = ()
        line = 1
        with self.open() as raw:
            # Without strict mode, an unclosed quote would swallow the rest of the file.
            rows = csv.reader(self._lines(raw), strict=True)
            try:
                for fields in rows:
                    if fields and self.columns:
                        yield line, fields
                    elif fields:
                        if repeated := _repeated(fields):
                            self.fail(f"line {line}: the header names {quote_names(repeated)} more than once")
                        self.columns = tuple(fields)
                    line = 1 + rows.line_num
            except csv.Error as error:
                advice = "; a quote that opens here is never closed" if "end of data" in str(error) else ""
                self.fail(f"line {line}: not valid CSV: {error}{advice}")
            except UnicodeDecodeError:
                self.fail_encoding()
        if not self.columns:
            self.fail("line 1: expected a header with the names of the columns, found nothing")

    def _lines(self, raw: io.BufferedReader) -> Iterator[str]:
        text, number = io.TextIOWrapper(raw, encoding="utf-8", newline=""), 0
        while line := text.readline(MAX_RECORD_BYTES + 1):
            number += 1
            if len(line) > MAX_RECORD_BYTES:
                self.fail_too_long(number)
            if not self.columns and "," not in line:
                for delimiter in filter(line.__contains__, self._OTHER_DELIMITERS):
                    self.fail(f"line {number}: columns are separated by {delimiter!r}, expected ','")
            yield line


class _JsonReader(RecordReader):
    _text: Any = b""
    """The text of the last record, like those of ``_colons``."""
    _colons: ClassVar[tuple[Any, Any]] = (b":", b'":')
    _first_number = 0

    def repeated_keys(self, record: Record, keys: int) -> list[str]:
        # Counting colons is quick, and right unless a string contains one.
        colon, after_quote = self._colons
        if self._text.count(colon) == keys or self._text.count(after_quote) == keys:
            return []
        return find_repeated_keys(self._text, record)

    def _check_columns(self, values: Iterable[tuple[int, bytes | str, Any]]) -> Iterator[tuple[int, Record]]:
        """Yield the decoded values that are objects with the file's columns; report the others."""
        uniform, names = self.uniform, [*self.columns] or None
        for number, self._text, value in values:
            if not uniform or (value.__class__ is dict and list(value) == names):
                yield number, value
            elif value.__class__ is not dict:
                self.report_at(number, f"expected a JSON object, found {name_of_type(value)}")
            elif self._accept_columns(number, value):
                names = [*self.columns]
                yield number, value

    def _accept_columns(self, number: int, record: Record) -> bool:
        """Take the columns of the first record, or report those that differ."""
        if not self.columns and not record:
            self.report_at(number, "the object is empty; it names no columns")
            return False
        if not self.columns:
            self.columns, self._first_number = tuple(record), number
        elif record.keys() != (known := set(self.columns)):
            missing = [name for name in self.columns if name not in record]
            extra = [name for name in record if name not in known]
            parts = [f"missing {quote_names(missing)}"] if missing else []
            parts += [f"extra {quote_names(extra)}"] if extra else []
            first = f"{self.unit} {self._first_number}"
            self.report_at(number, f"columns differ from {first}: {'; '.join(parts)}")
            return False
        return True

    def _report_invalid(self, number: int, text: str, error: Exception) -> None:
        described = _json_error(text, error)
        place = f" (column {described.pos + 1})" if self.unit == "line" else ""
        self.report_at(number, f"not valid JSON: {described.msg}{place}")


class JsonLinesReader(_JsonReader):
    """One object per line; blank lines are skipped."""

    def after(self, rows: int) -> Iterator[tuple[int, Record]]:
        return self._check_columns(self._values(islice(self._lines(), rows, None)))

    def count(self) -> int:
        return sum(1 for _ in self._lines())

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with self.open() as handle:
            number = 0
            while line := handle.readline(MAX_RECORD_BYTES + 1):
                number += 1
                if len(line) > MAX_RECORD_BYTES:
                    self.fail_too_long(number)
                if not line.isspace():
                    yield number, line

    def _values(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes, Any]]:
        loads = decode_as_written if self.as_written else _loads
        for number, line in lines:
            try:
                value = loads(line)
            except (ValueError, RecursionError) as error:
                try:
                    text = line.decode()
                except UnicodeDecodeError:
                    self.fail_encoding()
                self._report_invalid(number, text, error)
            else:
                yield number, line, value


class JsonArrayReader(_JsonReader):
    """An array of objects.

    An element usually ends at the first ``}, {``. If the text up to there is valid JSON, it is the whole element;
    otherwise the standard decoder finds the end.
    """

    unit = "row"
    _colons = (":", '":')
    _BLANK = re.compile(r"[ \t\n\r]*")
    _BOUNDARY = re.compile(r"\}[ \t\n\r]*,[ \t\n\r]*\{")
    _LONGEST_SEARCH = 64 << 10
    _scan = staticmethod(json.JSONDecoder().raw_decode)

    def after(self, rows: int) -> Iterator[tuple[int, Record]]:
        return islice(self._check_columns(self._values()), rows, None)

    def _values(self) -> Iterator[tuple[int, str, Any]]:
        loads = decode_as_written if self.as_written else _loads
        self._window, self._at, self._dropped, self._ended = "", 0, 0, False
        with io.TextIOWrapper(self.open(), encoding="utf-8", newline="") as self._file:
            first = self._next()
            if first != "[":
                found = "an object" if first == "{" else repr(first) if first else "nothing"
                advice = "; a file with one object per line is named .jsonl" if first == "{" else ""
                self._fail_here(f"expected an array of objects, found {found}{advice}")
            self._at += 1
            number = 0
            while (following := self._next()) != "]":
                if number:
                    if following != ",":
                        found = repr(following) if following else "the end of the file"
                        self._fail_here(f"expected ',' or ']' after row {number}, found {found}")
                    self._at += 1
                    if self._next() == "]":
                        self._fail_here("a comma before the closing ']'")
                window, at = self._window, self._at
                for boundary in self._BOUNDARY.finditer(window, at, at + self._LONGEST_SEARCH):
                    text = window[at : boundary.start() + 1]
                    try:
                        value = loads(text)
                    except (ValueError, RecursionError):
                        break  # The text is only a part of the element, or not valid JSON.
                    number += 1
                    at = boundary.end() - 1
                    yield number, text, value
                number += 1
                self._at = at
                text = self._scan_element(number)
                self._at += len(text)
                try:
                    value = loads(text)
                except (ValueError, RecursionError) as error:
                    self._report_invalid(number, text, error)
                else:
                    yield number, text, value
            self._at += 1
            if self._next():
                self._fail_here("text after the closing ']'")

    def _next(self) -> str:
        """Skip whitespace; return the next character, or "" at the end of the file."""
        while True:
            self._at = cast("re.Match[str]", self._BLANK.match(self._window, self._at)).end()
            if self._at < len(self._window):
                return self._window[self._at]
            if self._ended:
                return ""
            self._grow(BLOCK_BYTES)

    def _scan_element(self, number: int) -> str:
        """Return the text of the element at the current position."""
        while True:
            remaining = len(self._window) - self._at
            try:
                _, end = self._scan(self._window, self._at)
            except RecursionError:
                self._fail_here(f"row {number} is nested too deeply")
            except json.JSONDecodeError as error:
                # A literal, an escape sequence or a number may continue beyond the window.
                near_end = error.pos > len(self._window) - 16
                cut_off = near_end or error.msg.startswith("Unterminated")
                if self._ended or not cut_off:
                    self._fail_here(f"not valid JSON: {error.msg} (in row {number})", error.pos)
                if remaining > MAX_RECORD_BYTES:
                    self.fail_too_long(number)
            else:
                # A bare number may continue beyond the window.
                if end < len(self._window) or self._ended:
                    return self._window[self._at : end]
            self._grow(max(BLOCK_BYTES, remaining))

    def _grow(self, count: int) -> None:
        """Drop the text before the current position and read more."""
        try:
            block = self._file.read(count)
        except UnicodeDecodeError:
            self.fail_encoding()
        self._ended = not block
        self._dropped += self._at
        self._window, self._at = self._window[self._at :] + block, 0

    def _fail_here(self, problem: str, at: int | None = None) -> NoReturn:
        """Report a problem at the current position, or at ``at`` of the window, and stop reading."""
        left, line, column = self._dropped + (self._at if at is None else at), 1, 1
        with self.path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            while block := file.read(min(left, BLOCK_BYTES)):
                left -= len(block)
                line += block.count("\n")
                column = len(block) - block.rfind("\n") if "\n" in block else column + len(block)
        self.fail(f"line {line}, column {column}: {problem}")


class ParquetReader(RecordReader):
    """Reads in batches that use little memory for row groups of any size."""

    unit = "row"
    _BATCH_BYTES = 1 << 20
    _MOST_BATCH_ROWS = 4096

    def after(self, rows: int) -> Iterator[tuple[int, Record]]:
        import pyarrow as pa

        with self._open_parquet() as file:
            groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
            total_rows = max(file.metadata.num_rows, 1)
            row_bytes = max(sum(group.total_byte_size for group in groups) / total_rows, 1)
            batch_rows = max(1, min(self._MOST_BATCH_ROWS, int(self._BATCH_BYTES / row_bytes)))
            wanted = [name for name in self.columns if self.only is None or name in self.only]
            number = 0
            try:
                for index, group in enumerate(groups):
                    if number + group.num_rows <= rows:
                        number += group.num_rows
                        continue
                    # Every thread uses memory.
                    for batch in file.iter_batches(batch_rows, [index], wanted, use_threads=False):
                        part = batch.slice(min(max(rows - number, 0), batch.num_rows))
                        records = part.to_pylist() if wanted else [{}] * part.num_rows
                        _shorten_floats(records, batch.schema)
                        number += batch.num_rows
                        yield from enumerate(records, number - part.num_rows + 1)
                        if self.progress is not None:
                            self.progress(self.path.stat().st_size * number // total_rows)
            except (pa.ArrowException, OSError) as error:
                self.fail(f"row {number + 1}: cannot be read: {_first_line(error)}")

    def count(self) -> int:
        with self._open_parquet() as file:
            return int(file.metadata.num_rows)

    def _open_parquet(self) -> pq.ParquetFile:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            # By default (no buffer size, pre-buffering), pyarrow reads whole column chunks ahead.
            file = pq.ParquetFile(self.path, buffer_size=1 << 20, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            self.fail(f"not a Parquet file: {_first_line(error).rstrip('.')}")
        self.columns = tuple(file.schema_arrow.names)
        if repeated := _repeated(self.columns):
            self.fail(f"the schema names {quote_names(sorted(repeated))} more than once")
        if METADATA_COLUMN in self.columns:
            kind = file.schema_arrow.field(METADATA_COLUMN).type
            if not (pa.types.is_struct(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                self.wrong_metadata_type = str(kind)
        return file


_READERS: dict[str, type[RecordReader]] = {
    "csv": CsvReader,
    "jsonl": JsonLinesReader,
    "json": JsonArrayReader,
    "parquet": ParquetReader,
}


def _shorten_floats(records: list[Record], schema: pa.Schema) -> None:
    """Replace narrow floats with the shortest numbers that round to them: 0.1 for 0.10000000149011612."""
    for column in schema:
        if "float" in str(column.type):
            for record in records:
                record[column.name] = _shortened(record[column.name], column.type)


def _shortened(value: Any, kind: pa.DataType) -> Any:
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        return float(str(kind.to_pandas_dtype()(value)))
    if pa.types.is_struct(kind):
        return {field.name: _shortened(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(_shortened(key, kind.key_type), _shortened(item, kind.item_type)) for key, item in value]
    if pa.types.is_dictionary(kind):
        return _shortened(value, kind.value_type)
    if isinstance(value, list):
        return [_shortened(item, kind.value_type) for item in value]
    return value


class WrittenFloat(float):
    """A number of a JSON file; ``str`` returns it as written, such as ``1.10``."""

    __slots__ = ("_text",)
    _text: str

    def __new__(cls, text: str) -> WrittenFloat:
        number = super().__new__(cls, text)
        if math.isinf(number):
            raise ValueError(text)
        number._text = text
        return number

    def __str__(self) -> str:
        return self._text

    @property
    def number(self) -> int | float:
        """The plain number; ``-0`` is an integer."""
        return 0 if self._text == "-0" else float(self)


# msgspec keeps every digit of long integers; orjson describes errors better.
_loads = msgspec.json.Decoder().decode
_loads_floats_as_written = msgspec.json.Decoder(float_hook=WrittenFloat).decode
_NEGATIVE_ZERO = re.compile(r"-0(?![\d.eE])")
_loads_zeros_as_written = json.JSONDecoder(
    parse_float=WrittenFloat, parse_int=lambda text: WrittenFloat(text) if text == "-0" else int(text)
).decode


def decode_as_written(raw: bytes | str) -> Any:
    """Decode strict JSON with numbers other than integers as :class:`WrittenFloat`.

    Raises:
        ValueError: the text is not JSON, or
        RecursionError: it is nested too deeply.
    """
    value = _loads_floats_as_written(raw)
    if ("-0" in raw) if isinstance(raw, str) else (b"-0" in raw):
        # Integers have no negative zero.
        text = raw if isinstance(raw, str) else raw.decode()
        return _loads_zeros_as_written(text) if _NEGATIVE_ZERO.search(text) else value
    return value


def decode_json(raw: bytes | str) -> Any:
    """Decode strict JSON (no NaN, no lone surrogates), keeping every digit of long integers.

    Raises:
        json.JSONDecodeError: ``msg`` names the problem.
    """
    try:
        return _loads(raw)
    except (ValueError, RecursionError) as error:
        raise _json_error(raw, error) from None


def _json_error(raw: bytes | str, error: Exception) -> json.JSONDecodeError:
    """Return a decoder's error with its position; NaN and infinities are named."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    message, position = "nested too deeply" if isinstance(error, RecursionError) else str(error), 0
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as described:
        # The line end is no part of the line's text.
        message, position = described.msg, min(described.pos, len(text.rstrip("\r\n")))
    # The position is that of the word, or just after its sign.
    constant = re.compile(r"[^\w-]?(NaN|-?Infinity)").match(text, max(position - 1, 0))
    return json.JSONDecodeError(f"{constant[1]} instead of null" if constant else message, text, position)


def find_repeated_keys(raw: bytes | str, value: Any) -> list[str]:
    """Return the keys that an object of a JSON text contains more than once; ``value`` is the decoded text."""
    text = raw.decode() if isinstance(raw, bytes) else raw
    repeated = text.count('":') + text.count('" :')
    containers = [value]
    for container in containers:  # grows during the iteration
        if isinstance(container, dict):
            repeated -= len(container)
            containers.extend(container.values())
        elif isinstance(container, list):
            containers.extend(container)
    found: list[str] = []
    if repeated:  # or a string contains a quote and a colon
        with suppress(RecursionError):
            json.loads(
                text, object_pairs_hook=lambda pairs: found.extend(_repeated([key for key, _ in pairs]))
            )
    return found


def _repeated(names: Collection[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")  # how Python decodes bytes that are not UTF-8


def find_invalid_utf8(path: Path) -> tuple[int, int, int] | None:
    """Return (line from 1, byte position from 0, byte) of the first byte that is not UTF-8, or None."""
    line, position = 1, 0
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as text:
        while block := text.read(BLOCK_BYTES):
            invalid = _ESCAPED_BYTE.search(block)
            before = block[: invalid.start()] if invalid else block
            line += before.count("\n")
            position += len(before.encode())
            if invalid:
                return line, position, ord(invalid[0]) - 0xDC00
    return None


def quote_names(names: Collection[str]) -> str:
    """Join names for a sentence, each in quotes, at most eight of them."""
    shown = ", ".join(f"'{name}'" for name in list(names)[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown


def name_of_type(value: object) -> str:
    """Return the name of a JSON value's type for a sentence."""
    kind = float if isinstance(value, float) else type(value)
    return _TYPE_NAMES.get(kind) or f"a {kind.__name__}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
