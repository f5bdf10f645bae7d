"""Readers of dataset files: CSV, JSON Lines, JSON arrays and Parquet.

A reader yields ``(number, record)``: the line or row number from 1, and the record as a dict. All records of a file have
the same columns. A problem is passed to ``report`` as a sentence with its position; the reader then skips the record, or
raises :class:`StopReading` if the rest of the file is unreadable. It holds one block of the file and one record in memory.
"""

from __future__ import annotations

import csv
import io
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

import orjson

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Record = dict[str, Any]
Report = Callable[[str], None]
Progress = Callable[[int], None]

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
    reader = open_reader(path, report=raise_for(path))
    for index, (_, record) in enumerate(reader.after(start), start):
        yield index, reader.exactly(record)


def count_records(path: Path) -> int:
    """Return the number of records in a dataset file, without checking them."""
    return open_reader(path, report=raise_for(path), uniform=False).count()


def open_reader(
    path: Path,
    *,
    report: Report,
    progress: Progress | None = None,
    only: Collection[str] | None = None,
    uniform: bool = True,
) -> RecordReader:
    """Return the reader for ``path`` by its extension.

    Args:
        report: receives each problem.
        progress: receives the number of bytes read so far, after each block.
        only: the columns to read, where the format can skip others.
        uniform: check that all records are objects with the same keys.
    """
    require_file(path)
    if problem := describe_file_problem(path):
        raise OsmosisError(f"{path}: {problem}.")
    return _READERS[extension_of(path)](path, report, progress, only, uniform)


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


class RecordReader(ABC):
    """Streams the records of one file."""

    unit: ClassVar[str] = "line"

    def __init__(
        self,
        path: Path,
        report: Report,
        progress: Progress | None,
        only: Collection[str] | None,
        uniform: bool,
    ) -> None:
        self.path = path
        self.report = report
        self.progress = progress
        self.only = only
        self.uniform = uniform
        self.columns: tuple[str, ...] = ()

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[int, Record]]:
        """Yield (line or row number from 1, record)."""

    def after(self, rows: int) -> Iterator[tuple[int, Record]]:
        """Yield the records after the first ``rows``, which are not decoded if the format allows it."""
        return islice(self, rows, None)

    def exactly(self, record: Record) -> Record:
        """Return the last record with its numbers as written."""
        return record

    def repeated_keys(self, record: Record, keys: int) -> list[str]:
        """Return the repeated keys of the last record, which has ``keys`` keys without repetition."""
        return []

    def count(self) -> int:
        return sum(1 for _ in self)

    def metadata_type(self) -> str | None:
        """Return the type of the ``metadata`` column if it cannot contain objects, else None."""
        return None

    def open(self) -> io.BufferedReader:
        """Open the file after its byte-order mark; ``progress`` is called for each block."""
        handle: io.BufferedReader = io.BufferedReader(
            _ObservedFile(self.path, self.progress), buffer_size=BLOCK_BYTES
        )
        if handle.peek(len(BYTE_ORDER_MARK)).startswith(BYTE_ORDER_MARK):
            handle.read(len(BYTE_ORDER_MARK))
        return handle

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
    def __init__(self, path: Path, progress: Progress | None) -> None:
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

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        for line, fields in self._rows():
            if len(fields) == len(self.columns):
                record: Record = dict(zip(self.columns, fields, strict=True))
                if not self._MISSING.isdisjoint(fields):
                    record = {
                        name: None if field in self._MISSING else field for name, field in record.items()
                    }
                yield line, record
            else:
                self.report(f"line {line}: expected {len(self.columns)} columns, found {len(fields)}")

    def count(self) -> int:
        return sum(1 for _ in self._rows())

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (line number of the row's start, fields) of every row after the header."""
        # The module's limit applies to the whole process, so it is only ever raised.
        csv.field_size_limit(max(csv.field_size_limit(), MAX_RECORD_BYTES))
        self.columns = ()
        line = 1
        with self.open() as raw:
            text = io.TextIOWrapper(raw, encoding="utf-8", newline="")
            # Without strict mode, an unclosed quote would swallow the rest of the file.
            rows = csv.reader(self._lines(text), strict=True)
            try:
                for fields in rows:
                    if fields and self.columns:
                        yield line, fields
                    elif fields:
                        self._take_header(line, fields)
                    line = 1 + rows.line_num
            except csv.Error as error:
                advice = "; a quote that opens here is never closed" if "end of data" in str(error) else ""
                self.fail(f"line {line}: not valid CSV: {error}{advice}")
            except UnicodeDecodeError:
                self.fail_encoding()
        if not self.columns:
            self.fail("line 1: expected a header with the names of the columns, found nothing")

    def _lines(self, text: io.TextIOWrapper) -> Iterator[str]:
        number = 0
        while line := text.readline(MAX_RECORD_BYTES + 1):
            number += 1
            if len(line) > MAX_RECORD_BYTES:
                self.fail_too_long(number)
            if not self.columns and "," not in line:
                for delimiter in filter(line.__contains__, self._OTHER_DELIMITERS):
                    self.fail(f"line {number}: columns are separated by {delimiter!r}, expected ','")
            yield line

    def _take_header(self, line: int, names: list[str]) -> None:
        if repeated := _repeated(names):
            self.fail(f"line {line}: the header names {quote_names(repeated)} more than once")
        self.columns = tuple(names)


class _JsonReader(RecordReader):
    _colon: bytes | str = b":"
    # The last record's position and text.
    _number = 0
    _text: bytes | str = b""
    _names: frozenset[str] = frozenset()
    _first_number = 0

    def exactly(self, record: Record) -> Record:
        if not _may_be_written_differently(record):
            return record
        try:
            return cast(Record, _decode_as_written(self._text))
        except RecursionError:
            self.fail(f"{self.unit} {self._number}: nested too deeply")

    def repeated_keys(self, record: Record, keys: int) -> list[str]:
        # Counting colons is quick, and right unless a string contains one.
        if self._text.count(self._colon) == keys:  # type: ignore[arg-type]
            return []
        return find_repeated_keys(self._text, record)

    def _decode(self, number: int, text: bytes | str) -> Record | None:
        """Decode the text of a record and check it; report a problem and return None."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            if text and not text.isspace():
                self._report_error(number, text, error)
            return None
        return self._admit(number, text, value)

    def _admit(self, number: int, text: bytes | str, value: Any) -> Record | None:
        """Return a decoded record if it is an object with the file's columns; report it otherwise."""
        self._number, self._text = number, text
        if self.uniform:
            if value.__class__ is not dict:
                self.report(f"{self.unit} {number}: expected a JSON object, found {name_of_type(value)}")
                return None
            if value.keys() != self._names and not self._accept_columns(number, value):
                return None
        return cast(Record, value)

    def _accept_columns(self, number: int, record: Record) -> bool:
        """Take the columns of the first record, or report those that differ."""
        if self.columns:
            missing = [name for name in self.columns if name not in record]
            extra = [name for name in record if name not in self._names]
            parts = [f"missing {quote_names(missing)}"] if missing else []
            parts += [f"extra {quote_names(extra)}"] if extra else []
            first = f"{self.unit} {self._first_number}"
            self.report(f"{self.unit} {number}: columns differ from {first}: {'; '.join(parts)}")
            return False
        if not record:
            self.report(f"{self.unit} {number}: the object is empty; it names no columns")
            return False
        self.columns, self._names, self._first_number = tuple(record), frozenset(record), number
        return True

    def _report_error(self, number: int, text: bytes | str, error: orjson.JSONDecodeError) -> None:
        place = ""
        if isinstance(text, bytes):
            try:
                # The line end is no part of the line's text.
                end = len(text.decode("utf-8").rstrip("\r\n"))
            except UnicodeDecodeError:
                self.fail_encoding()
            place = f" (column {min(error.pos, end) + 1})"
        self.report(f"{self.unit} {number}: not valid JSON: {describe_json_error(text, error)}{place}")


class JsonLinesReader(_JsonReader):
    """One object per line; blank lines are skipped."""

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        return self.after(0)

    def after(self, rows: int) -> Iterator[tuple[int, Record]]:
        for number, line in enumerate(self._lines(), 1):
            if rows:
                rows -= not line.isspace()
            elif (record := self._decode(number, line)) is not None:
                yield number, record

    def count(self) -> int:
        return sum(not line.isspace() for line in self._lines())

    def _lines(self) -> Iterator[bytes]:
        with self.open() as handle:
            number = 0
            while line := handle.readline(MAX_RECORD_BYTES + 1):
                number += 1
                if len(line) > MAX_RECORD_BYTES:
                    self.fail_too_long(number)
                yield line


_LONGEST_SEARCH = 64 << 10


class JsonArrayReader(_JsonReader):
    """An array of objects.

    An element usually ends at the first ``}, {``. If the text up to there is valid JSON, it is the whole element;
    otherwise the standard decoder finds the end.
    """

    unit = "row"
    _colon = ":"
    _BLANK = re.compile(r"[ \t\n\r]*")
    _BOUNDARY = re.compile(r"\}[ \t\n\r]*,[ \t\n\r]*\{")
    _scan = staticmethod(json.JSONDecoder().raw_decode)

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        self._window, self._at, self._ended = "", 0, False
        self._line, self._column = 1, 1  # of the window's first character
        number = 0
        with self.open() as raw:
            self._file = io.TextIOWrapper(raw, encoding="utf-8", newline="")
            self._enter()
            more = self._next() != "]"
            search = self._BOUNDARY.search
            while more:
                number += 1
                window, at = self._window, self._at
                boundary = search(window, at, at + _LONGEST_SEARCH) if window.startswith("{", at) else None
                text = window[at : boundary.start() + 1] if boundary else ""
                try:
                    value = orjson.loads(text)
                except ValueError:
                    text = self._scan_element(number)
                    record = self._decode(number, text)
                    self._at += len(text)
                    more = self._pass_comma(number)
                else:
                    record = self._admit(number, text, value)
                    self._at = boundary.end() - 1  # type: ignore[union-attr]
                if record is not None:
                    yield number, record
            self._at += 1
            if self._next():
                self.fail(f"{self._where()}: text after the closing ']'")

    def _pass_comma(self, number: int) -> bool:
        """Move to the next element, or to the end of the array and return False."""
        following = self._next()
        if following == ",":
            self._at += 1
            if self._next() == "]":
                self.fail(f"{self._where()}: a comma before the closing ']'")
            return True
        if following != "]":
            found = repr(following) if following else "the end of the file"
            self.fail(f"{self._where()}: expected ',' or ']' after row {number}, found {found}")
        return False

    def _enter(self) -> None:
        first = self._next()
        if first != "[":
            found = "an object" if first == "{" else repr(first) if first else "nothing"
            advice = "; a file with one object per line is named .jsonl" if first == "{" else ""
            self.fail(f"{self._where()}: expected an array of objects, found {found}{advice}")
        self._at += 1

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
                self.fail(f"{self._where()}: row {number} is nested too deeply")
            except json.JSONDecodeError as error:
                cut_off = error.pos >= len(self._window) - 1 or error.msg.startswith("Unterminated")
                if self._ended or not cut_off:
                    self.fail(f"{self._where(error.pos)}: not valid JSON: {error.msg} (in row {number})")
                if remaining > MAX_RECORD_BYTES:
                    self.fail_too_long(number)
            else:
                # A bare number may continue beyond the window.
                if end < len(self._window) or self._ended:
                    return self._window[self._at : end]
            self._grow(max(BLOCK_BYTES, remaining))

    def _grow(self, count: int) -> None:
        """Drop the text before the current position and read more."""
        self._line, self._column = self._line_and_column(self._at)
        try:
            more = self._file.read(count)
        except UnicodeDecodeError:
            self.fail_encoding()
        self._ended = not more
        self._window, self._at = self._window[self._at :] + more, 0

    def _where(self, at: int | None = None) -> str:
        line, column = self._line_and_column(self._at if at is None else at)
        return f"line {line}, column {column}"

    def _line_and_column(self, at: int) -> tuple[int, int]:
        start = self._window.rfind("\n", 0, at)
        column = at - start if start >= 0 else self._column + at
        return self._line + self._window.count("\n", 0, at), column


class ParquetReader(RecordReader):
    """Reads in batches that use little memory for row groups of any size."""

    unit = "row"
    _BATCH_BYTES = 1 << 20
    _MOST_BATCH_ROWS = 4096

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        return self.after(0)

    def after(self, rows: int) -> Iterator[tuple[int, Record]]:
        import pyarrow as pa

        with self._open_parquet() as file:
            footer, number, first_group = file.metadata, 0, 0
            while first_group < footer.num_row_groups:
                group_rows = footer.row_group(first_group).num_rows
                if number + group_rows > rows:
                    break
                number += group_rows
                first_group += 1
            groups = range(first_group, footer.num_row_groups)
            total_bytes = sum(footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))
            row_bytes = max(total_bytes / max(footer.num_rows, 1), 1)
            wanted = [name for name in self.columns if self.only is None or name in self.only]
            size = self.path.stat().st_size
            try:
                batches = file.iter_batches(
                    max(1, min(self._MOST_BATCH_ROWS, int(self._BATCH_BYTES / row_bytes))),
                    row_groups=list(groups),
                    columns=wanted,
                    use_threads=False,  # every thread uses memory
                )
                for batch in batches:
                    skipped = min(max(rows - number, 0), batch.num_rows)
                    part = batch.slice(skipped)
                    records = part.to_pylist() if wanted else [{}] * part.num_rows
                    _shorten_floats(records, batch.schema)
                    yield from enumerate(records, number + skipped + 1)
                    number += batch.num_rows
                    if self.progress is not None:
                        self.progress(size * number // max(footer.num_rows, 1))
            except (pa.ArrowException, OSError) as error:
                self.fail(f"row {number + 1}: cannot be read: {_first_line(error)}")

    def count(self) -> int:
        with self._open_parquet() as file:
            return int(file.metadata.num_rows)

    def metadata_type(self) -> str | None:
        import pyarrow as pa

        with self._open_parquet() as file:
            kind = file.schema_arrow.field(METADATA_COLUMN).type
        fits = pa.types.is_struct(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
        return None if fits else str(kind)

    def _open_parquet(self) -> pq.ParquetFile:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            # By default (no buffer size, pre-buffering), pyarrow reads whole column chunks ahead.
            file = pq.ParquetFile(self.path, buffer_size=1 << 20, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            self.fail(f"not a Parquet file: {_first_line(error).rstrip('.')}")
        names = file.schema_arrow.names
        if repeated := _repeated(names):
            self.fail(f"the schema names {quote_names(sorted(repeated))} more than once")
        self.columns = tuple(names)
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
        number._text = text
        return number

    def __str__(self) -> str:
        return self._text

    @property
    def number(self) -> int | float:
        """The plain number; ``-0`` is an integer."""
        return 0 if self._text == "-0" else float(self)


def _written_integer(text: str) -> int | WrittenFloat:
    # Python's integers have no negative zero.
    return WrittenFloat(text) if text == "-0" else int(text)


_decode_text = json.JSONDecoder(parse_float=WrittenFloat, parse_int=_written_integer).decode


def _decode_as_written(text: bytes | str) -> Any:
    return _decode_text(text.decode() if isinstance(text, bytes) else text)


def decode_json(raw: bytes | str, *, as_written: bool = False) -> Any:
    """Decode strict JSON (no NaN, no lone surrogates), keeping every digit of long integers.

    Args:
        as_written: return other numbers as :class:`WrittenFloat`.
    """
    value = orjson.loads(raw)
    if as_written:
        return _decode_as_written(raw) if _may_be_written_differently(value) else value
    return json.loads(raw) if any(map(may_be_long_integer, _leaves(value))) else value


def describe_json_error(raw: bytes | str, error: Exception) -> str:
    """Return why :func:`decode_json` rejected a text; NaN and infinities are named."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    # The position is that of the word, or just after its sign.
    constant = re.compile(r"[^\w-]?(NaN|-?Infinity)").match(text, max(getattr(error, "pos", 0) - 1, 0))
    return f"{constant[1]} instead of null" if constant else getattr(error, "msg", str(error))


def may_be_long_integer(value: object) -> bool:
    """Tell whether a decoded value is a float that may be a long integer in the text."""
    return isinstance(value, float) and abs(value) >= 2**63


def _may_be_written_differently(value: Any) -> bool:
    """Tell whether a decoded value contains a float, or a 0 that may be written ``-0``."""
    return any(isinstance(item, float) or (item.__class__ is int and not item) for item in _leaves(value))


def _leaves(value: Any) -> Iterator[Any]:
    values = [value]
    for item in values:  # grows during the iteration
        if isinstance(item, dict):
            values.extend(item.values())
        elif isinstance(item, list):
            values.extend(item)
        else:
            yield item


def find_repeated_keys(text: bytes | str, value: Any) -> list[str]:
    """Return the keys that an object of a JSON text contains more than once; ``value`` is the decoded text."""
    colons = (
        text.count(b'":') + text.count(b'" :') if isinstance(text, bytes) else len(re.findall('" ?:', text))
    )
    containers = [value]
    for container in containers:  # grows during the iteration
        if isinstance(container, dict):
            colons -= len(container)
            containers.extend(container.values())
        elif isinstance(container, list):
            containers.extend(container)
    found: list[str] = []
    if colons:
        with suppress(RecursionError):
            json.loads(
                text, object_pairs_hook=lambda pairs: found.extend(_repeated([key for key, _ in pairs]))
            )
    return found


def _repeated(names: Collection[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def find_invalid_utf8(path: Path) -> tuple[int, int, int] | None:
    """Return (line from 1, byte position from 0, byte) of the first byte that is not UTF-8, or None."""
    line, offset, rest = 1, 0, b""
    with path.open("rb") as handle:
        while True:
            block = handle.read(BLOCK_BYTES)
            data = rest + block
            try:
                data.decode("utf-8")
                cut = len(data)
            except UnicodeDecodeError as error:
                # A character may be split between two blocks, so an incomplete one waits for the next block.
                if not block or len(data) - error.start > 3:
                    return line + data.count(b"\n", 0, error.start), offset + error.start, data[error.start]
                cut = error.start
            if not block:
                return None
            line += data.count(b"\n", 0, cut)
            offset += cut
            rest = data[cut:]


def quote_names(names: Collection[str], *, most: int = 8) -> str:
    """Join names for a sentence, each in quotes, at most ``most`` of them."""
    shown = ", ".join(f"'{name}'" for name in list(names)[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def name_of_type(value: object) -> str:
    """Return the name of a JSON value's type for a sentence."""
    kind = float if isinstance(value, float) else type(value)
    return _TYPE_NAMES.get(kind) or f"a {kind.__name__}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
