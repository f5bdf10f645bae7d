"""Check whether the platform would accept a dataset file.

Every row is read. The first problems are listed with their positions and the rest are not counted, so that the report
fits on a screen for any file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

from osmosis_ai.datasets.formats import (
    describe_file_problem,
    extension_of,
    open_reader,
    require_file,
)
from osmosis_ai.datasets.metadata import MOST_PATHS, MetadataChecker
from osmosis_ai.datasets.reader import (
    METADATA_COLUMN,
    Record,
    RecordReader,
    StopReading,
    quote_names,
    starts_with_byte_order_mark,
)
from osmosis_ai.datasets.rows import (
    ANSWER_COLUMNS,
    KNOWN_COLUMNS,
    PROMPT_COLUMN,
    as_text,
    missing_columns,
    missing_values,
)

MAX_FILE_BYTES = 5 << 30
MIN_ROWS = 4
MOST_ERRORS = 5

_INTEGER_AS_FLOAT = re.compile(r"-?\d+\.0")

Mode = Literal["prompt", "metadata"]
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
    mode: Mode | None = None
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # For code that must decide what to do about it; in the JSON output it is among the warnings.
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
    problem = _describe_basic_problem(path, size)
    if problem is not None:
        report.errors.append(problem)
    else:
        _Validation(path, report, progress, missing_answer).run()
    report.valid = not report.errors
    return report


def _describe_basic_problem(path: Path, size: int) -> str | None:
    problem = describe_file_problem(path)
    if problem is None and size > MAX_FILE_BYTES:
        return f"the file has {size / 2**30:.1f} GiB; the platform takes at most {MAX_FILE_BYTES >> 30} GiB"
    return problem


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
        self.progress = progress
        self.unusable = 0  # rows without a prompt or an answer
        self.first_unusable = ""
        self.repeating = 0  # rows with a repeated key
        self.first_repeating = ""
        self.may_be_integers = True  # every answer so far is missing or an integer with ".0"
        self.first_integer = ""
        self.first_missing = missing_answer

    def run(self) -> None:
        reader = open_reader(
            self.path,
            report=self._add_error,
            progress=self.progress,
            note_repeats=self._note_repeats,
            only=KNOWN_COLUMNS,
        )
        records = iter(reader)
        with suppress(StopReading):
            # The header or the first valid record determines the columns.
            first = next(records, None)
            self._check_columns(reader)
            self._check_records(reader, chain(() if first is None else (first,), records))
            if self.report.row_count < MIN_ROWS and not self.report.errors:
                self._add_error(
                    f"found {_rows(self.report.row_count)}; the platform takes at least {MIN_ROWS} "
                    "(`osmosis eval run --dataset-file` takes any number)"
                )
        self._add_warnings(reader)

    def _check_columns(self, reader: RecordReader) -> None:
        columns = reader.columns
        if METADATA_COLUMN in columns:
            self.report.mode = "metadata"
            kind = reader.metadata_type()
            if kind is not None:
                reader.fail(f"column '{METADATA_COLUMN}' must be a struct or a string, found {kind}")
        elif columns:
            self.report.mode = "prompt"
            missing = missing_columns(columns)
            if missing:
                self.report.lacks_columns = True
                plural = "s" if len(missing) > 1 else ""
                self._add_error(
                    f"missing column{plural} {quote_names(missing)} (found {quote_names(columns)})"
                )

    def _check_records(self, reader: RecordReader, records: Iterable[Numbered]) -> None:
        answer = next((name for name in ANSWER_COLUMNS if name in reader.columns), None)
        if self.report.mode == "metadata":
            self._check_metadata(reader, records, answer)
        elif PROMPT_COLUMN in reader.columns and answer is not None:
            self._check_prompts(reader, records, answer)
        else:
            self.report.row_count = sum(1 for _ in records)

    def _check_prompts(self, reader: RecordReader, records: Iterable[Numbered], answer: str) -> None:
        for number, record in records:
            self.report.row_count += 1
            if self.may_be_integers:
                self._note_answer(f"{reader.unit} {number}", as_text(record[answer]))
            # Most rows have both, so only the others and NaN are checked in detail.
            if not (record[PROMPT_COLUMN] and record[answer] and record[answer] == record[answer]):
                self._note_missing(reader, number, missing_values(record))

    def _check_metadata(self, reader: RecordReader, records: Iterable[Numbered], answer: str | None) -> None:
        checker = MetadataChecker(reader.unit)
        for number, record in records:
            self.report.row_count += 1
            problems = checker.check(number, record[METADATA_COLUMN])
            if checker.doubtful:
                problems = checker.check(number, reader.exactly(number, record)[METADATA_COLUMN])
            for problem in problems:
                self._add_error(f"{reader.unit} {number}: {problem}")
            if checker.repeated:
                self._note_repeats(number, checker.repeated)
            if self.may_be_integers and answer is not None:
                self._note_answer(f"{reader.unit} {number}", as_text(record[answer]))
        if checker.overflowed:
            self.report.warnings.append(
                f"metadata has more than {MOST_PATHS:,} distinct keys; the types of later ones were not compared"
            )

    def _note_missing(self, reader: RecordReader, number: int, names: list[str]) -> None:
        if names:
            self.unusable += 1
            if not self.first_unusable:
                self.first_unusable = f"{reader.unit} {number}: no value for {quote_names(names)}"

    def _note_answer(self, place: str, answer: str | None) -> None:
        if answer is None:
            self.first_missing = self.first_missing or place
        elif _INTEGER_AS_FLOAT.fullmatch(answer):
            self.first_integer = self.first_integer or f"'{answer}' on {place}"
        else:
            self.may_be_integers = False

    def _note_repeats(self, number: int, names: list[str]) -> None:
        self.repeating += 1
        self.first_repeating = self.first_repeating or f"{number}: {quote_names(names)}"

    def _add_error(self, problem: str) -> None:
        """Add a problem; instead of the sixth, add a note that there are more."""
        if len(self.report.errors) < MOST_ERRORS:
            self.report.errors.append(problem)
            return
        self.report.errors.append(f"... (showing first {MOST_ERRORS} errors)")
        raise StopReading

    def _add_warnings(self, reader: RecordReader) -> None:
        if self.unusable:
            self.report.unusable = (
                f"{_rows(self.unusable)} cannot be evaluated, the first at {self.first_unusable}"
            )
            self.report.warnings.append(self.report.unusable)
        if self.may_be_integers and self.first_integer and self.first_missing:
            self.report.warnings.append(
                f"integer answers became floats ({self.first_integer}) because a value is missing "
                f"({self.first_missing}); convert the column in pandas with .astype('Int64')"
            )
        if self.repeating:
            self.report.warnings.append(
                f"repeated keys in {_rows(self.repeating)} (the last value counts), first at "
                f"{reader.unit} {self.first_repeating}"
            )
        if self.report.extension != "parquet" and starts_with_byte_order_mark(self.path):
            self.report.warnings.append(
                "the file starts with a UTF-8 byte-order mark, which other tools take for a part of "
                "the first column's name"
            )


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
