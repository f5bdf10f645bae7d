"""Dataset files on this machine: validate them, and import files of other formats row by row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from osmosis_ai.datasets import DatasetReport, validate_dataset
from osmosis_ai.datasets.mapping import (
    FIELDS,
    OUTPUT_COLUMNS,
    ColumnMapping,
    Field,
    MissingAnswerError,
    answers_in_conversation,
    guess_mapping,
    left_out,
    map_record,
    parse_mapping,
    resolve_mapping,
)
from osmosis_ai.datasets.readers import Record, StopReading, name_of_type, open_reader, quote_names, raise_for
from osmosis_ai.datasets.rows import SYSTEM_COLUMN
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.files import replacing
from osmosis_ai.workspace.layout import find_workspace

MOST_PROBLEMS = 5
PREVIEW_ROWS = 3


def validate_file(path: Path, *, progress: Callable[[int], None] | None = None) -> DatasetReport:
    """Check that the platform would accept a dataset file; needs no workspace and no login.

    An invalid file is an error with the first problems; its details are the whole report.
    """
    report = validate_dataset(path, progress=progress)
    if not report.valid:
        hint = f"map other columns with: osmosis dataset import {path}" if report.lacks_columns else None
        message = f"Validation failed: {path}{_listed(report.errors)}"
        raise OsmosisError(message, details=asdict(report), hint=hint)
    return report


def check_file(path: Path, *, progress: Callable[[int], None] | None = None) -> DatasetReport:
    """Check a file before its upload; ``progress`` receives the number of bytes read so far."""
    try:
        path.name.encode()
    except UnicodeEncodeError:
        raise OsmosisError(
            f"The file name '{path.name}' is not valid UTF-8.", hint="rename the file"
        ) from None
    report = validate_dataset(path, progress=progress)
    if not report.valid:
        message = f"File validation failed:{_listed(report.errors)}"
        raise OsmosisError(message, details=asdict(report))
    return report


def _listed(problems: Sequence[str]) -> str:
    return "".join(f"\n  - {problem}" for problem in problems)


@dataclass(frozen=True)
class ImportPlan:
    """The plan of an import; nothing has been written.

    Attributes:
        target: the JSON Lines file to write.
        mapping: our fields and the columns that each is made from.
        guessed: the fields of ``mapping`` that the user did not name.
        answer_in_conversation: the expected answer is the last turn of the prompt's conversation.
        left_out: columns that are not imported.
        preview: the first rows as they would be written, without those that cannot be converted.
    """

    source: Path
    target: Path
    mapping: ColumnMapping
    guessed: tuple[Field, ...]
    answer_in_conversation: bool
    left_out: Sequence[str]
    preview: Sequence[Record]

    def as_option(self) -> str:
        """Return the mapping as ``--map`` takes it."""
        return ",".join(f"{name}={'+'.join(columns)}" for name, columns in self.mapping.items())


@dataclass
class ImportReport:
    """The result of an import: the number of rows written and skipped, the first ``problems``, and the check of the file.

    ``missing_answer`` is the position of the first row left out only because its answer is missing.
    """

    row_count: int = 0
    skipped: int = 0
    problems: list[str] = field(default_factory=list)
    dataset: DatasetReport | None = None
    missing_answer: str = ""


def plan_import(
    source: Path, *, mapping: Sequence[str], target: Path | None, skip_invalid: bool
) -> ImportPlan:
    """Decide from its first rows how a file's columns are imported.

    Args:
        mapping: ``field=column`` as typed. If empty, every field is guessed; otherwise only the required ones.
        target: the file to write (default: ``data/NAME.jsonl`` of the workspace directory, or next to the source).
        skip_invalid: skip unreadable rows instead of rejecting the file.
    """
    first_records = _first_records(source, skip_invalid=skip_invalid)
    first = first_records[0]
    try:
        named = resolve_mapping(parse_mapping(mapping), first)
        guess = guess_mapping(first)
        known: ColumnMapping = {
            name: named.get(name) or guess[name]
            for name in FIELDS
            if name in named or (name in guess and (not named or name in ("prompt", "ground_truth")))
        }
    except ValueError as error:
        raise OsmosisError(f"{source}: {error}{'' if str(error).endswith('?') else '.'}") from None
    answered = answers_in_conversation(known, first)
    if answered:
        known = {name: columns for name, columns in known.items() if name in named or name != "ground_truth"}
    _require_fields(source, known, first, answered=answered)
    return ImportPlan(
        source=source,
        target=_target(source, target),
        mapping=known,
        guessed=tuple(name for name in known if name not in named),
        answer_in_conversation=answered,
        left_out=left_out(known, first),
        preview=list(_preview(known, first_records)),
    )


def _first_records(source: Path, *, skip_invalid: bool) -> list[Record]:
    problems: list[str] = []
    reader = open_reader(source, report=problems.append if skip_invalid else raise_for(source), uniform=False)
    records: list[Record] = []
    with suppress(StopReading):
        for number, record in reader:
            if isinstance(record, dict):
                records.append(record)
            elif not records:
                reader.report_at(number, _not_an_object(record))
            if len(records) == PREVIEW_ROWS:
                break
    if not records or not records[0]:
        raise OsmosisError(f"{source}: {problems[-1] if problems else 'found no rows'}.")
    return records


def _require_fields(source: Path, mapping: ColumnMapping, first: Record, *, answered: bool) -> None:
    if "metadata" in mapping:
        return
    required = ("prompt",) if answered else ("prompt", "ground_truth")
    missing = [name for name in required if name not in mapping]
    if missing:
        example = " ".join(f"--map {name}=COLUMN" for name in missing)
        raise OsmosisError(
            f"{source}: no column for {' and '.join(missing)} (found {quote_names(list(first))}).",
            hint=f"name the column with: {example}",
        )


def _preview(mapping: ColumnMapping, records: Sequence[Record]) -> Iterator[Record]:
    for record in records:
        try:
            yield map_record(mapping, record)
        except ValueError:
            continue


def _target(source: Path, target: Path | None) -> Path:
    if target is None:
        try:
            directory = find_workspace(require_scaffold=False).data_dir
        except OsmosisError:
            directory = Path()
        target = directory / f"{source.stem}.jsonl"
    elif target.is_dir():
        target = target / f"{source.stem}.jsonl"
    if target.suffix.lower() != ".jsonl":
        raise OsmosisError(f"Output file must end in .jsonl: {target}.")
    if target.resolve() == source.resolve():
        raise OsmosisError(
            f"Output file is the source: {target}.", hint="choose another path with '--output'"
        )
    return target


def check_target(target: Path, *, overwrite: bool) -> None:
    """Refuse to replace a file unless ``overwrite`` is set."""
    if target.exists() and not overwrite:
        raise ConflictError(
            f"File exists: {target}.", hint="use '--overwrite', or choose another path with '--output'"
        )


def import_rows(
    plan: ImportPlan, *, overwrite: bool, skip_invalid: bool, progress: Callable[[int], None] | None = None
) -> ImportReport:
    """Write the rows of a plan; the new file is written completely or not at all.

    With ``skip_invalid``, rows that cannot be converted are skipped instead of rejecting the file.
    """
    check_target(plan.target, overwrite=overwrite)
    report = ImportReport()
    try:
        with replacing(plan.target, mode=0o644) as handle:
            for row in _rows(plan, report, skip_invalid=skip_invalid, progress=progress):
                handle.write(_line(row))
                report.row_count += 1
            if not report.row_count:
                raise _failure(plan, report.problems or ["no row is valid"])
    except OSError as error:
        raise OsmosisError(f"File cannot be written: {plan.target} ({error.strerror or error}).") from error
    report.dataset = validate_dataset(plan.target, missing_answer=report.missing_answer)
    return report


def _rows(
    plan: ImportPlan, report: ImportReport, *, skip_invalid: bool, progress: Callable[[int], None] | None
) -> Iterator[Record]:
    problems, last = report.problems, ""

    def add(problem: str) -> None:
        nonlocal last
        last = problem
        report.skipped += 1
        if len(problems) < MOST_PROBLEMS:
            problems.append(problem)
        elif not skip_invalid:
            raise StopReading

    mapped = {name for columns in plan.mapping.values() for name in columns}
    mapped |= {name.partition(".")[0] for name in mapped}
    reader = open_reader(plan.source, report=add, progress=progress, only=mapped, uniform=False)
    try:
        for number, record in reader:
            try:
                if not isinstance(record, dict):
                    raise ValueError(_not_an_object(record))
                yield map_record(plan.mapping, record)
            except ValueError as error:
                if isinstance(error, MissingAnswerError):
                    report.missing_answer = report.missing_answer or f"{reader.unit} {number}"
                add(f"{reader.unit} {number}: {error}")
            except RecursionError:
                add(f"{reader.unit} {number}: nested too deeply")
    except StopReading:
        # Even with ``skip_invalid``: the rest of the file is unreadable, which is more than one bad row.
        raise _failure(plan, [last] if skip_invalid else problems) from None
    if problems and not skip_invalid:
        raise _failure(plan, problems)


def _not_an_object(record: object) -> str:
    return f"expected a JSON object, found {name_of_type(record)}"


def _failure(plan: ImportPlan, problems: Sequence[str]) -> OsmosisError:
    listed = _listed(problems[:MOST_PROBLEMS])
    more = f"\n  - ... (showing first {MOST_PROBLEMS} errors)" if len(problems) >= MOST_PROBLEMS else ""
    return OsmosisError(
        f"Import failed: {plan.source}{listed}{more}", hint="leave out such rows with '--skip-invalid'"
    )


def _line(row: Record) -> bytes:
    """Return a row as one JSON line: dates and similar values as text, integers of any length in full."""
    try:
        return orjson.dumps(row, default=str, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        return json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n"


def mapping_rows(plan: ImportPlan) -> list[dict[str, Any]]:
    """Return the mapping of each column as the JSON output shows it: ``column``, ``becomes``, ``guessed``."""
    rows = [
        {"column": column, "becomes": OUTPUT_COLUMNS[name], "guessed": name in plan.guessed}
        for name, columns in plan.mapping.items()
        for column in columns
    ]
    guessed = "prompt" in plan.guessed
    if "system" not in plan.mapping and any(row.get(SYSTEM_COLUMN) for row in plan.preview):
        column = plan.mapping["prompt"][0]
        rows.append({"column": f"{column} (system turn)", "becomes": SYSTEM_COLUMN, "guessed": guessed})
    if plan.answer_in_conversation:
        column = plan.mapping["prompt"][0]
        rows.append({"column": f"{column} (last turn)", "becomes": "ground_truth", "guessed": guessed})
    return rows + [{"column": column, "becomes": None, "guessed": False} for column in plan.left_out]
