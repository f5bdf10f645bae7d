"""The common base of the readers of all formats.

A reader yields ``(number, record)``: the line or row number from 1, and the record as a dict. All records of one file
have the same columns. A problem is passed to ``report`` as a sentence with its position. The reader then skips the bad
record if the format allows it, and raises :class:`StopReading` otherwise. It keeps only one block of the file and one
record in memory.
"""

from __future__ import annotations

import io
import json
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, KeysView
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NoReturn, cast

import orjson

from osmosis_ai.datasets.record_places import RecordPlace, RecordPlaces, places_in

Record = dict[str, Any]
Report = Callable[[str], None]
Progress = Callable[[int], None]
NoteRepeats = Callable[[int, list[str]], None]

BLOCK_BYTES = 1 << 20
METADATA_COLUMN = "metadata"
# The limit of a record: a line, a CSV field, an element of a JSON array. It bounds a reader's memory for a file without
# line ends, and is far above any prompt that a model accepts.
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
_CONSTANT = re.compile(r"[^\w-]?(NaN|-?Infinity)")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class WrittenFloat(float):
    """A number of a JSON file; ``str`` returns it as written, such as ``1.10``."""

    __slots__ = ("_text",)
    _text: str

    def __new__(cls, text: str) -> WrittenFloat:
        number = super().__new__(cls, text)
        if math.isinf(number):
            raise ValueError(f"the number {text[:20]} is too large")
        number._text = text
        return number

    def __str__(self) -> str:
        return self._text

    @property
    def number(self) -> int | float:
        """The plain number; ``-0`` is an integer."""
        return 0 if self._text == "-0" else float(self)


def written_integer(text: str) -> int | WrittenFloat:
    """Return an integer of a JSON file; ``-0``, which Python's integers lack, keeps its text."""
    return WrittenFloat(text) if text == "-0" else int(text)


class StopReading(Exception):
    """The rest of the file is unreadable or not needed; problems have been reported."""


class RecordReader(ABC):
    """Streams the records of one file."""

    unit: ClassVar[str] = "line"

    def __init__(
        self,
        path: Path,
        *,
        report: Report,
        progress: Progress | None = None,
        note_repeats: NoteRepeats | None = None,
        only: Collection[str] | None = None,
        uniform: bool = True,
    ) -> None:
        self.path = path
        self.report = report
        self.progress = progress
        self.note_repeats = note_repeats
        self.only = only
        self.uniform = uniform
        self.columns: tuple[str, ...] = ()
        self._column_set: frozenset[str] = frozenset()
        self._first_number = 0

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[int, Record]]:
        """Yield (line or row number from 1, record)."""

    def behind(self, rows: int) -> Iterator[tuple[int, Record]]:
        """Yield the records after the first ``rows``, which are not decoded if the format allows it."""
        return islice(self, rows, None)

    def exactly(self, number: int, record: Record) -> Record:
        """Return the last record with its numbers as written."""
        return record

    def count(self) -> int:
        return sum(1 for _ in self)

    def metadata_type(self) -> str | None:
        """Return the type of the ``metadata`` column if it cannot contain objects, else None."""
        return None

    def open(self, block_bytes: int = BLOCK_BYTES) -> io.BufferedReader:
        """Open the file for reading in blocks; ``progress`` is called for each."""
        return io.BufferedReader(_CountingFile(self.path, self.progress), buffer_size=block_bytes)

    def places(self, handle: io.BufferedReader) -> RecordPlaces:
        """Return the known places in an open file."""
        return places_in(handle.fileno(), type(self))

    def go_to(self, handle: io.BufferedReader, place: RecordPlace) -> None:
        """Continue at a place as if everything before it had been read."""
        handle.seek(place.offset)
        self.columns, self._column_set = place.columns, frozenset(place.columns)
        self._first_number = place.first_number

    def place(self, rows: int, offset: int, line: int, column: int = 1) -> RecordPlace:
        """Return the place of the next record, which has ``rows`` rows before it."""
        return RecordPlace(rows, offset, line, column, self.columns, self._first_number)

    def admit(self, number: int, record: object) -> Record | None:
        """Return ``record`` if it is an object with the file's columns; report it otherwise."""
        if not self.uniform:
            return cast(Record, record)
        if not isinstance(record, dict):
            self.report(f"{self.unit} {number}: expected a JSON object, found {name_of_type(record)}")
            return None
        if not self.columns:
            if not record:
                self.report(f"{self.unit} {number}: the object is empty; it names no columns")
                return None
            self.columns, self._column_set, self._first_number = tuple(record), frozenset(record), number
        elif record.keys() != self._column_set:
            difference = describe_difference(self.columns, record.keys())
            first = f"{self.unit} {self._first_number}"
            self.report(f"{self.unit} {number}: columns differ from {first}: {difference}")
            return None
        return record

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


class _CountingFile(io.FileIO):
    def __init__(self, path: Path, progress: Progress | None) -> None:
        super().__init__(path, "r")
        self._progress = progress

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer) or 0
        if self._progress is not None and count:
            self._progress(self.tell())
        return count


def decode_json(raw: bytes | str, *, as_written: bool = False) -> Any:
    """Decode strict JSON (no NaN, no lone surrogates), keeping every digit of long integers."""
    value = orjson.loads(raw)
    if may_have_lost_digits(value, least=0 if as_written else 2**63):
        if not as_written:
            return json.loads(raw)
        return json.loads(raw, parse_float=WrittenFloat, parse_int=written_integer)
    return value


def describe_json_error(raw: bytes | str, error: Exception) -> str:
    """Return why :func:`decode_json` rejected a text; NaN and infinities are named."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    # The position is that of the word, or just after its sign.
    constant = _CONSTANT.match(text, max(getattr(error, "pos", 0) - 1, 0))
    return f"{constant[1]} instead of null" if constant else getattr(error, "msg", str(error))


def may_have_lost_digits(value: Any, *, least: float = 2**63) -> bool:
    """Tell whether ``value`` contains a float of at least this size, which at the default size may be a long integer.

    With a size of 0, an integer 0 counts too, because it may be written ``-0``.
    """
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, float):
            if abs(item) >= least:
                return True
        elif item.__class__ is int:
            if not (item or least):
                return True
        elif isinstance(item, dict):
            pending.extend(inner for inner in item.values() if inner.__class__ is not str)
        elif isinstance(item, list):
            pending.extend(item)
    return False


def may_repeat_keys(raw: bytes | str, value: Any) -> bool:
    """Return False if it is quick to see that no key is repeated; otherwise use :func:`repeated_keys`."""
    text = raw.encode() if isinstance(raw, str) else raw
    return text.count(b'":') + text.count(b'" :') != _count_keys(value)


def repeated_keys(raw: bytes | str) -> list[str]:
    """Return the keys that an object of a valid JSON text contains more than once."""
    found: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        found.extend(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)

    with suppress(RecursionError):
        json.loads(raw, object_pairs_hook=note)
    return found


def _count_keys(value: Any) -> int:
    count, pending = 0, [value]
    while pending:
        item = pending.pop()
        if item.__class__ is dict:
            count += len(item)
            pending.extend(inner for inner in item.values() if inner.__class__ in (dict, list))
        elif item.__class__ is list:
            pending.extend(item)
    return count


def find_invalid_utf8(path: Path) -> tuple[int, int, int] | None:
    """Return (line from 1, byte position from 0, byte) of the first byte that is not UTF-8, or None."""
    line = 1
    offset = 0
    held = b""
    with path.open("rb") as handle:
        while True:
            block = handle.read(BLOCK_BYTES)
            data = held + block
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
            held = data[cut:]


def count_line_ends(path: Path, length: int) -> int:
    """Return the number of line ends in the first ``length`` bytes of a file."""
    ends = 0
    with path.open("rb") as handle:
        while length > 0 and (data := handle.read(min(length, BLOCK_BYTES))):
            ends += data.count(b"\n")
            length -= len(data)
    return ends


def pass_byte_order_mark(handle: io.BufferedReader) -> None:
    """Skip the byte-order mark of an open file, if it has one."""
    if handle.peek(len(BYTE_ORDER_MARK)).startswith(BYTE_ORDER_MARK):
        handle.read(len(BYTE_ORDER_MARK))


def starts_with_byte_order_mark(path: Path) -> bool:
    """Tell whether the file starts with the UTF-8 byte-order mark that some editors write."""
    with path.open("rb") as handle:
        return handle.read(len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK


def describe_difference(expected: Collection[str], found: KeysView[str] | Collection[str]) -> str:
    """Describe which columns are missing and which are extra."""
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    parts = [f"missing {quote_names(missing)}"] if missing else []
    if extra:
        parts.append(f"extra {quote_names(extra)}")
    return "; ".join(parts)


def quote_names(names: Collection[str], *, most: int = 8) -> str:
    """Join names for a sentence, each in quotes, at most ``most`` of them."""
    shown = ", ".join(f"'{name}'" for name in list(names)[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def name_of_type(value: object) -> str:
    """Return the name of a JSON value's type for a sentence."""
    kind = float if isinstance(value, float) else type(value)
    return _TYPE_NAMES.get(kind) or f"a {kind.__name__}"
