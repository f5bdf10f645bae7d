"""Check whether the platform would accept a dataset file: read every row, list the first problems.

A file with `messages` and no prompts has conversations, of which each has an assistant turn.

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
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Literal

from osmosis_ai.datasets.conversations import CONVERSATION_COLUMNS, MESSAGES_COLUMN, read_conversation_row
from osmosis_ai.datasets.readers import (
    BYTE_ORDER_MARK,
    METADATA_COLUMN,
    Record,
    RecordReader,
    StopReading,
    describe_file_problem,
    extension_of,
    find_repeated_keys,
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


@dataclass
class DatasetReport:
    """The result of a validation."""

    file: str
    file_name: str
    extension: str
    file_size: int
    valid: bool = False
    row_count: int = 0
    mode: Literal["prompt", "metadata", "messages"] | None = None
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
        _Validation(report, progress, missing_answer).run()
    report.valid = not report.errors
    return report


class _Validation:
    """A single validation of one file."""

    def __init__(
        self, report: DatasetReport, progress: Callable[[int], None] | None, missing_answer: str
    ) -> None:
        self.report, self.path = report, Path(report.file)
        self.reader = open_reader(
            self.path,
            report=self.add_error,
            progress=progress,
            only=KNOWN_COLUMNS.union(CONVERSATION_COLUMNS),
            as_written=False,
        )
        self.unusable_rows = self.repeating_rows = 0
        self.may_be_integers = True  # every answer so far is missing or an integer with ".0"
        self.first = {"missing": missing_answer} if missing_answer else {}
        """The position of the first row with a trait."""

    def run(self) -> None:
        records = iter(self.reader)
        with suppress(StopReading):
            # The header or the first valid record determines the columns.
            first = next(records, None)
            self._check_columns()
            self._check_records(chain(() if first is None else (first,), records))
            if self.report.row_count < MIN_ROWS and not self.report.errors:
                self.add_error(
                    f"found {_rows(self.report.row_count)}; the platform requires at least {MIN_ROWS} "
                    "('osmosis eval run --dataset-file' takes any number)"
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
            if kind := self.reader.wrong_metadata_type:
                self.reader.fail(f"column '{METADATA_COLUMN}' must be a struct or a string, found {kind}")
        elif MESSAGES_COLUMN in columns and PROMPT_COLUMN not in columns:
            self.report.mode = "messages"
        elif columns:
            self.report.mode = "prompt"
            if missing := missing_columns(columns):
                self.report.lacks_columns = True
                plural = "s" if len(missing) > 1 else ""
                self.add_error(
                    f"missing column{plural} {quote_names(missing)} (found {quote_names(columns)})"
                )

    def _check_records(self, records: Iterable[tuple[int, Record]]) -> None:
        reader, unit, report = self.reader, self.reader.unit, self.report
        repeated_keys = reader.repeated_keys
        answer_column = next((name for name in ANSWER_COLUMNS if name in reader.columns), None)
        checker = _MetadataChecker(reader) if report.mode == "metadata" else None
        for report.row_count, (number, record) in enumerate(records, 1):
            if report.lacks_columns:
                continue
            if report.mode == "messages":
                try:
                    read_conversation_row(record)
                except ValueError as error:
                    reader.report_at(number, str(error))
                continue
            answer = record[answer_column] if answer_column else None
            if checker is not None:
                checker.check(number, record[METADATA_COLUMN])
                repeated = checker.repeated or repeated_keys(record, len(record) + checker.keys)
            else:
                # Most rows have both, so only the others and NaN are checked in detail.
                complete = answer and answer == answer and record[PROMPT_COLUMN]
                if not complete and (missing := missing_values(record)):
                    self.unusable_rows += 1
                    self.first.setdefault("unusable", f"{unit} {number}: no value for {quote_names(missing)}")
                repeated = repeated_keys(record, len(record))
            if repeated:
                self.repeating_rows += 1
                self.first.setdefault("repeating", f"{unit} {number}: {quote_names(repeated)}")
            if self.may_be_integers and answer_column:
                self._note_answer(f"{unit} {number}", as_text(answer))
        if checker is not None and checker.overflowed:
            report.warnings.append(
                f"metadata has more than {MOST_PATHS:,} distinct keys; the types of later ones were not compared"
            )

    def _note_answer(self, place: str, answer: str | None) -> None:
        if answer is None:
            self.first.setdefault("missing", place)
        elif _INTEGER_AS_FLOAT.fullmatch(answer):
            self.first.setdefault("integer", f"'{answer}' on {place}")
        else:
            self.may_be_integers = False

    def _add_warnings(self) -> None:
        warnings, first = self.report.warnings, self.first
        if self.unusable_rows:
            self.report.unusable = (
                f"{_rows(self.unusable_rows)} cannot be evaluated, the first at {first['unusable']}"
            )
            warnings.append(self.report.unusable)
        if self.may_be_integers and "integer" in first and "missing" in first:
            warnings.append(
                f"integer answers became floats ({first['integer']}) because a value is missing "
                f"({first['missing']}); convert the column in pandas with .astype('Int64')"
            )
        if self.repeating_rows:
            warnings.append(
                f"repeated keys in {_rows(self.repeating_rows)} (the last value counts), first at "
                f"{first['repeating']}"
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

    def __init__(self, reader: RecordReader) -> None:
        self._reader = reader
        self._root = _Path(None, METADATA_COLUMN)
        self._paths = 1
        self.overflowed = False
        # Values of the last row:
        self._number = self.keys = 0
        self.repeated: list[str] = []

    def check(self, number: int, value: object) -> None:
        """Report the problems in the metadata of line or row ``number``."""
        self._number, self.keys, self.repeated = number, 0, []
        try:
            metadata = as_object(value)
        except ValueError as error:
            self._report(str(error))
            return
        if metadata is None:
            found = "an empty object" if isinstance(value, (dict, str)) and value else "nothing"
            self._report(f"'{METADATA_COLUMN}' must be a non-empty JSON object, found {found}")
            return
        self._check_items(self._root, metadata, 0)
        if isinstance(value, str):
            self.keys, self.repeated = 0, find_repeated_keys(value, metadata)

    def _report(self, problem: str) -> None:
        self._reader.report_at(self._number, problem)

    def _check_items(self, path: _Path, value: dict[str, Any] | list[Any], level: int) -> None:
        if level > MOST_LEVELS:
            self._report(f"'{path}' is nested deeper than {MOST_LEVELS} levels")
            return
        if isinstance(value, dict):
            self.keys += len(value)
            if not value:
                self._report(f"'{path}' is an empty object")
        for key, item in value.items() if isinstance(value, dict) else zip(repeat("[]"), value):
            child = path.children.get(key) or self._child(path, key)
            kind = item.__class__
            if kind is not child.accepted or (kind is int and not _INT64_MIN <= item <= _INT64_MAX):
                self._check(child, item, level + 1)
            elif kind is dict or kind is list:
                self._check_items(child, item, level + 1)

    def _check(self, path: _Path, value: Any, level: int) -> None:
        """Check a value that is the first of its path, of another type, or a number."""
        if value is None:
            return
        kind = name_of_type(value)
        if path.kind is None:
            path.kind, path.number = kind, self._number
            path.accepted = None if isinstance(value, float) else value.__class__
        if path.kind != kind:
            self._report(f"'{path}' is {kind}, but {path.kind} on {self._reader.unit} {path.number}")
        elif problem := _describe_problem(value):
            self._report(f"'{path}' {problem}")
        elif isinstance(value, (dict, list)):
            self._check_items(path, value, level)

    def _child(self, path: _Path, key: str) -> _Path:
        child = _Path(path, key)
        if self._paths < MOST_PATHS:
            path.children[key] = child
            self._paths += 1
        else:
            self.overflowed = True
        return child


@dataclass(slots=True)
class _Path:
    """A key path, its type in this file, and the line or row that determined it."""

    parent: _Path | None
    key: str
    kind: str | None = None
    number: int = 0
    accepted: type | None = None  # values of this class need no further check
    children: dict[str, _Path] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.parent is None:
            return self.key
        return f"{self.parent}{self.key}" if self.key == "[]" else f"{self.parent}.{self.key}"


def _describe_problem(value: Any) -> str | None:
    """Describe a problem with a value that does not depend on other rows."""
    if isinstance(value, int) and not _INT64_MIN <= value <= _INT64_MAX:
        # Formatting an integer takes time quadratic in its digits, so only the size of a long one is shown.
        shown = str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
        return f"is {shown}, beyond 64-bit integers"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"is {value}, which JSON cannot hold"
    if isinstance(value, (str, int, dict, list)):
        return None
    return f"is {name_of_type(value)}, which JSON cannot hold"


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
