"""Datasets of agent loops: ``system_prompt`` and ``user_prompt`` in every row, ``ground_truth`` where there is one.

Rows stream: no file is held as a whole. A row that nobody takes is not checked, so that one bad row does not
keep anybody from the others. The index of a row is its place in the file, from 0, whatever part of it is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, cast

from osmosis_ai.datasets.rows import as_text
from osmosis_ai.evaluation.agent_loop.errors import (
    DatasetParseError,
    DatasetValidationError,
    MissingDatasetError,
)

if TYPE_CHECKING:
    from osmosis_ai.datasets.reader import RecordReader
    from osmosis_ai.rollout.loop.schemas import RolloutRequest

REQUIRED_COLUMNS = ["user_prompt", "system_prompt"]
OPTIONAL_COLUMN = "ground_truth"
MAX_TOKENS_TOTAL = 4096
"""What an agent is told that it may take, where nobody says otherwise."""

SUFFIXES = (".json", ".jsonl", ".parquet")
LOCAL_SERVER_URL = "http://local-rollout.local"

KNOWN_COLUMNS = frozenset((*REQUIRED_COLUMNS, OPTIONAL_COLUMN))


class LoopRow(TypedDict):
    """A row: the known columns under their lower-case names, and every other column as the file has it."""

    system_prompt: str
    user_prompt: str
    ground_truth: str | None


DatasetRow = LoopRow  # as user code knows it


class DatasetReader:
    """Reads the rows of one ``.json``, ``.jsonl`` or ``.parquet`` file."""

    def __init__(self, file_path: str | Path) -> None:
        self.file_path = Path(file_path)
        if not self.file_path.is_file():
            what = "a directory" if self.file_path.is_dir() else "not there"
            raise MissingDatasetError(f"Dataset file not found: {self.file_path} is {what}.")
        if self.file_path.suffix.lower() not in SUFFIXES:
            raise DatasetParseError(
                f"Unsupported file format: {self.file_path.name}; a dataset is a {', '.join(SUFFIXES[:-1])} "
                f"or {SUFFIXES[-1]} file."
            )

    def __len__(self) -> int:
        """Return how many rows the file holds, without checking them."""
        return 0 if self._has_no_lines() else self._open().count()

    def read(self, limit: int | None = None, offset: int = 0) -> list[LoopRow]:
        """Return rows as a list; raises as :meth:`iter_rows`."""
        return list(self.iter_rows(limit=limit, offset=offset))

    def iter_rows(self, limit: int | None = None, offset: int = 0) -> Iterator[LoopRow]:
        """Yield rows as the file streams in."""
        stop = None if limit is None else offset + limit
        for index, record in islice(enumerate(self._records()), offset, stop):
            yield loop_row(record, index)

    def _records(self) -> Iterator[Any]:
        if self._has_no_lines():
            return
        reader = self._open()
        for number, record in reader:
            yield reader.exactly(number, record)

    def _open(self) -> RecordReader:
        from osmosis_ai.datasets.formats import open_reader
        from osmosis_ai.errors import OsmosisError

        try:
            return open_reader(self.file_path, report=self._refuse, uniform=False)
        except OsmosisError as error:
            raise DatasetParseError(error.message, hint=error.hint) from None

    def _refuse(self, problem: str) -> NoReturn:
        kind = self.file_path.suffix.lower().removeprefix(".")
        named = kind.upper() if kind != "parquet" else "Parquet"
        raise DatasetParseError(f"Invalid {named} in {self.file_path}: {problem}.")

    def _has_no_lines(self) -> bool:
        """Tell whether the file is a ``.jsonl`` of nothing, which has no rows; of other formats, that is no file."""
        return self.file_path.suffix.lower() == ".jsonl" and self.file_path.stat().st_size == 0


def loop_row(record: object, index: int) -> LoopRow:
    """Check a record and return it as a row; ``ground_truth`` is None where the record has no answer."""
    if not isinstance(record, Mapping):
        from osmosis_ai.datasets.reader import name_of_type

        raise DatasetValidationError(f"Row {index}: Expected object, found {name_of_type(record)}.")
    row: dict[str, Any] = {}
    for name, value in record.items():
        known = name.lower() in KNOWN_COLUMNS
        row[name.lower() if known else name] = value if known else _as_json(value, name, index)
    missing = [name for name in REQUIRED_COLUMNS if name not in row]
    if missing:
        found = ", ".join(str(name) for name in record) or "none"
        raise DatasetValidationError(
            f"Row {index}: Missing required columns: {', '.join(missing)} (found: {found})."
        )
    for name in REQUIRED_COLUMNS:
        if row[name] is None:
            raise DatasetValidationError(f"Row {index}: '{name}' cannot be null.")
        _require_text(row[name], name, index)
        if not row[name].strip():
            raise DatasetValidationError(f"Row {index}: '{name}' cannot be empty.")
    answer = row.get(OPTIONAL_COLUMN)
    if isinstance(answer, bool | int | float | Decimal):
        answer = as_text(answer)
    if answer is not None:
        _require_text(answer, OPTIONAL_COLUMN, index)
    row[OPTIONAL_COLUMN] = answer or None
    return cast(LoopRow, row)


def _require_text(value: object, name: str, index: int) -> None:
    if not isinstance(value, str):
        from osmosis_ai.datasets.reader import name_of_type

        raise DatasetValidationError(f"Row {index}: '{name}' must be a string, found {name_of_type(value)}.")


def _as_json(value: Any, name: str, index: int) -> Any:
    """Return a value of a further column as JSON has it: a request's metadata travels as JSON. NaN counts as null."""
    if isinstance(value, float):
        if math.isinf(value):
            raise DatasetValidationError(f"Row {index}: '{name}' is {value}, which JSON cannot hold.")
        return None if math.isnan(value) else float(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _as_json(item, name, index) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item, name, index) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def row_messages(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a conversation about a row begins with."""
    return [
        {"role": "system", "content": row["system_prompt"]},
        {"role": "user", "content": row["user_prompt"]},
    ]


def dataset_row_to_request(
    row: Mapping[str, Any],
    row_index: int,
    max_turns: int = 10,
    max_tokens_total: int = MAX_TOKENS_TOTAL,
    completion_params: dict[str, Any] | None = None,
    rollout_id_prefix: str = "local",
    rollout_id: str | None = None,
    metadata_overrides: dict[str, Any] | None = None,
) -> RolloutRequest:
    """Return the request that an agent loop gets for a row."""
    from pydantic import ValidationError

    from osmosis_ai.rollout.loop.schemas import RolloutRequest

    further = {name: value for name, value in row.items() if name not in KNOWN_COLUMNS}
    try:
        return RolloutRequest(
            rollout_id=rollout_id or f"{rollout_id_prefix}-{row_index}",
            server_url=LOCAL_SERVER_URL,
            messages=row_messages(row),
            completion_params=completion_params or {},
            max_turns=max_turns,
            max_tokens_total=max_tokens_total,
            metadata={
                OPTIONAL_COLUMN: row.get(OPTIONAL_COLUMN),
                "row_index": row_index,
                **further,
                **(metadata_overrides or {}),
            },
        )
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise DatasetValidationError(f"Row {row_index}: no request can be made of it: {why}.") from None
