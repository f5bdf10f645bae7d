"""Check whether the platform would accept a dataset file.

Every row is read. The first problems are listed with their positions, and the rest are not counted.

Rules for a `metadata` column: every row has a non-empty object without empty objects inside it, and its integers fit in
64 bits. A key path has one JSON type in the whole file: integers and other numbers are one type, nulls have none, and the
elements of an array share the path ``key[]``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from osmosis_ai.datasets.readers import (
    BYTE_ORDER_MARK,
    METADATA_COLUMN,
    Record,
    StopReading,
    describe_file_problem,
    extension_of,
    find_repeated_keys,
    may_be_long_integer,
    name_of_type,
    open_reader,
    quote_names,
    require_file,
)
from osmosis_ai.datasets.rows import (
    ANSWER_COLUMNS,
    KNOWN_COLUMNS,
    PROMPT_COLUMN,
    as_object,
    as_text,
    missing_columns,
    missing_values,
)

MAX_FILE_BYTES = 5 << 30
MIN_ROWS = 4
MOST_ERRORS = 5
MOST_PATHS = 100_000
MOST_LEVELS = 100
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_INTEGER_AS_FLOAT = re.compile(r"-?\d+\.0")

Numbered = tuple[int, Record]


@dataclass
class DatasetReport:
    """The result of a validation."""

    file: str
    file_name: str
    extension: str
    file_size: int
    valid: bool = False
    row_count: int = 0
    mode: Literal["prompt", "metadata"] | None = None
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Not fields, because the JSON output has only the fields. The warnings repeat ``unusable``.
        self.unusable: str | None = None
        self.lacks_columns = False


def validate_dataset(
    path: Path, *, progress: Callable[[int], None] | None = None, missing_answer: str = ""
) -> DatasetReport:
    """Check a dataset file by the platform's rules, reading all of it.

    Args:
        progress: receives the number of bytes read so far.
        missing_answer: the position of a missing answer in the file from which this one was made.
    """
    require_file(path)
    size = path.stat().st_size
    report = DatasetReport(str(path), path.name, extension_of(path), size)
    problem = describe_file_problem(path)
    if problem is None and size > MAX_FILE_BYTES:
        problem = (
            f"the file has {size / 2**30:.1f} GiB; the platform takes at most {MAX_FILE_BYTES >> 30} GiB"
        )
    if problem is not None:
        report.errors.append(problem)
    else:
        _Validation(path, report, progress, missing_answer).run()
    report.valid = not report.errors
    return report


class _Validation:
    """A single validation of one file."""

    def __init__(
        self,
        path: Path,
        report: DatasetReport,
        progress: Callable[[int], None] | None,
        missing_answer: str,
    ) -> None:
        self.path = path
        self.report = report
        self.reader = open_reader(
            path,
            report=self.add_error,
            progress=progress,
            only=KNOWN_COLUMNS,
        )
        self.unusable_rows = 0
        self.first_unusable = ""
        self.repeating_rows = 0
        self.first_repeating = ""
        self.may_be_integers = True  # every answer so far is missing or an integer with ".0"
        self.first_integer = ""
        self.first_missing = missing_answer

    def run(self) -> None:
        records = iter(self.reader)
        with suppress(StopReading):
            # The header or the first valid record determines the columns.
            first = next(records, None)
            self._check_columns()
            self._check_records(chain(() if first is None else (first,), records))
            if self.report.row_count < MIN_ROWS and not self.report.errors:
                self.add_error(
                    f"found {_rows(self.report.row_count)}; the platform takes at least {MIN_ROWS} "
                    "(`osmosis eval run --dataset-file` takes any number)"
                )
        self._add_warnings()

    def add_error(self, problem: str) -> None:
        """Add a problem; instead of the sixth, add a note that there are more."""
        if len(self.report.errors) < MOST_ERRORS:
            self.report.errors.append(problem)
            return
        self.report.errors.append(f"... (showing first {MOST_ERRORS} errors)")
        raise StopReading

    def _check_columns(self) -> None:
        columns = self.reader.columns
        if METADATA_COLUMN in columns:
            self.report.mode = "metadata"
            if kind := self.reader.metadata_type():
                self.reader.fail(f"column '{METADATA_COLUMN}' must be a struct or a string, found {kind}")
        elif columns:
            self.report.mode = "prompt"
            if missing := missing_columns(columns):
                self.report.lacks_columns = True
                plural = "s" if len(missing) > 1 else ""
                self.add_error(
                    f"missing column{plural} {quote_names(missing)} (found {quote_names(columns)})"
                )

    def _check_records(self, records: Iterable[Numbered]) -> None:
        answer = next((name for name in ANSWER_COLUMNS if name in self.reader.columns), None)
        if self.report.mode == "metadata":
            self._check_metadata(records, answer)
        elif PROMPT_COLUMN in self.reader.columns and answer is not None:
            self._check_prompts(records, answer)
        else:
            self.report.row_count = sum(1 for _ in records)

    def _check_prompts(self, records: Iterable[Numbered], answer: str) -> None:
        repeated_keys = self.reader.repeated_keys
        for number, record in records:
            self.report.row_count += 1
            value = record[answer]
            if names := repeated_keys(record, len(record)):
                self._note_repeats(number, names)
            if self.may_be_integers:
                self._note_answer(number, as_text(value))
            # Most rows have both, so only the others and NaN are checked in detail.
            if not (record[PROMPT_COLUMN] and value and value == value):
                names = missing_values(record)
                self.unusable_rows += bool(names)
                if names and not self.first_unusable:
                    self.first_unusable = f"{self.reader.unit} {number}: no value for {quote_names(names)}"

    def _check_metadata(self, records: Iterable[Numbered], answer: str | None) -> None:
        reader = self.reader
        checker = _MetadataChecker(reader.unit)
        for number, record in records:
            self.report.row_count += 1
            problems = checker.check(number, record[METADATA_COLUMN])
            if checker.may_be_inexact:
                problems = checker.check(number, reader.exactly(record)[METADATA_COLUMN])
            for problem in problems:
                self.add_error(f"{reader.unit} {number}: {problem}")
            if names := checker.repeated or reader.repeated_keys(record, len(record) + checker.keys):
                self._note_repeats(number, names)
            if self.may_be_integers and answer is not None:
                self._note_answer(number, as_text(record[answer]))
        if checker.overflowed:
            self.report.warnings.append(
                f"metadata has more than {MOST_PATHS:,} distinct keys; the types of later ones were not compared"
            )

    def _note_answer(self, number: int, answer: str | None) -> None:
        if answer is None:
            self.first_missing = self.first_missing or f"{self.reader.unit} {number}"
        elif _INTEGER_AS_FLOAT.fullmatch(answer):
            self.first_integer = self.first_integer or f"'{answer}' on {self.reader.unit} {number}"
        else:
            self.may_be_integers = False

    def _note_repeats(self, number: int, names: list[str]) -> None:
        self.repeating_rows += 1
        self.first_repeating = self.first_repeating or f"{self.reader.unit} {number}: {quote_names(names)}"

    def _add_warnings(self) -> None:
        warnings = self.report.warnings
        if self.unusable_rows:
            self.report.unusable = (
                f"{_rows(self.unusable_rows)} cannot be evaluated, the first at {self.first_unusable}"
            )
            warnings.append(self.report.unusable)
        if self.may_be_integers and self.first_integer and self.first_missing:
            warnings.append(
                f"integer answers became floats ({self.first_integer}) because a value is missing "
                f"({self.first_missing}); convert the column in pandas with .astype('Int64')"
            )
        if self.repeating_rows:
            warnings.append(
                f"repeated keys in {_rows(self.repeating_rows)} (the last value counts), first at "
                f"{self.first_repeating}"
            )
        with self.path.open("rb") as handle:
            marked = handle.read(len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK
        if self.report.extension != "parquet" and marked:
            warnings.append(
                "the file starts with a UTF-8 byte-order mark, which other tools take for a part of "
                "the first column's name"
            )


class _MetadataChecker:
    """Checks the metadata of one file's rows; it remembers one type per key path, up to a limit."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._root = _Path(None, METADATA_COLUMN)
        self._paths = 1
        self._found: list[str] = []
        self.overflowed = False
        # Of the last row:
        self.keys = 0
        self.repeated: list[str] = []
        self.may_be_inexact = False

    def check(self, number: int, value: object) -> list[str]:
        """Return the problems in the metadata of line or row ``number``."""
        self.keys, self.repeated, self.may_be_inexact = 0, [], False
        try:
            metadata = as_object(value)
        except ValueError as error:
            return [str(error)]
        if metadata is None:
            found = "an empty object" if isinstance(value, (dict, str)) and value else "nothing"
            return [f"'{METADATA_COLUMN}' must be a non-empty JSON object, found {found}"]
        self._found = []
        self._check_object(number, self._root, metadata, 0)
        if isinstance(value, str):
            self.keys, self.repeated = 0, find_repeated_keys(value, metadata)
        return self._found

    def _check_object(self, number: int, path: _Path, value: dict[str, Any], level: int) -> None:
        self.keys += len(value)
        for key, item in value.items():
            child = path.children.get(key) or self._child(path, key)
            # Most values need no call: strings, booleans and short integers after the first of their path.
            if item.__class__ is not child.accepted or (
                item.__class__ is int and not _INT64_MIN <= item <= _INT64_MAX
            ):
                self._check(number, child, item, level + 1)

    def _check(self, number: int, path: _Path, value: Any, level: int) -> None:
        if value is None:
            return
        kind = name_of_type(value)
        if path.kind is None:
            path.kind, path.number = kind, number
            path.accepted = value.__class__ if isinstance(value, (str, int)) else None
        if path.kind != kind:
            problem: str | None = f"is {kind}, but {path.kind} on {self._unit} {path.number}"
        else:
            problem = self._describe_problem(value, level)
        if problem is not None:
            self._found.append(f"'{path}' {problem}")
        elif isinstance(value, dict):
            self._check_object(number, path, value, level)
        elif isinstance(value, list):
            child = path.children.get("[]") or self._child(path, "[]")
            for item in value:
                if item.__class__ is not child.accepted or item.__class__ is int:
                    self._check(number, child, item, level + 1)

    def _child(self, path: _Path, key: str) -> _Path:
        child = _Path(path, key)
        if self._paths < MOST_PATHS:
            path.children[key] = child
            self._paths += 1
        else:
            self.overflowed = True
        return child

    def _describe_problem(self, value: Any, level: int) -> str | None:
        """Describe a problem with a value that does not depend on other rows."""
        if isinstance(value, (str, bool)):
            return None
        if isinstance(value, (dict, list)):
            if level > MOST_LEVELS:
                return f"is nested deeper than {MOST_LEVELS} levels"
            return "is an empty object" if value == {} else None
        if isinstance(value, int):
            if _INT64_MIN <= value <= _INT64_MAX:
                return None
            # Formatting an integer takes time quadratic in its digits, so only the size of a long one is shown.
            shown = str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
            return f"is {shown}, beyond 64-bit integers"
        if isinstance(value, float):
            self.may_be_inexact = self.may_be_inexact or may_be_long_integer(value)
            return None if math.isfinite(value) else f"is {value}, which JSON cannot hold"
        return f"is {name_of_type(value)}, which JSON cannot hold"


class _Path:
    """A key path, its type in this file, and the line or row that determined it."""

    __slots__ = ("accepted", "children", "key", "kind", "number", "parent")

    def __init__(self, parent: _Path | None, key: str) -> None:
        self.parent = parent
        self.key = key
        self.kind: str | None = None
        self.number = 0
        self.accepted: type | None = None  # values of this class need no further check
        self.children: dict[str, _Path] = {}

    def __str__(self) -> str:
        if self.parent is None:
            return self.key
        return f"{self.parent}{self.key}" if self.key == "[]" else f"{self.parent}.{self.key}"


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
