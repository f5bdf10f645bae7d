"""Inputs of an agent loop that runs in this process: dataset rows and the requests made from them.

A row has the columns ``system_prompt`` and ``user_prompt``, and optionally ``ground_truth``. Rows stream, and a row is
checked only when it is used. Its index is its position in the file, from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, cast

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.rollout.cli_utils import load_agent_loop

if TYPE_CHECKING:
    from osmosis_ai.datasets.readers import RecordReader
    from osmosis_ai.rollout.core.schemas import RolloutRequest

DEFAULT_MODEL = "gpt-5-mini"
DEFAULT_MAX_TURNS = 10
MAX_TOKENS_TOTAL = 4096
REQUIRED_COLUMNS = ["user_prompt", "system_prompt"]
_KNOWN_COLUMNS = frozenset((*REQUIRED_COLUMNS, "ground_truth"))
_SUFFIXES = (".json", ".jsonl", ".parquet")


class LocalExecutionError(OsmosisError):
    """A local run, or one of its rows, cannot be executed."""


class DatasetParseError(LocalExecutionError):
    """A dataset file cannot be read."""


class DatasetValidationError(LocalExecutionError):
    """A row is invalid; the message begins with ``Row <index>:``."""


class MissingDatasetError(NotFoundError, FileNotFoundError):
    """The dataset file does not exist."""

    def __str__(self) -> str:
        return self.message  # OSError would show its own arguments


class ToolValidationError(LocalExecutionError):
    """An agent's tools cannot be offered to a model."""


class ProviderError(LocalExecutionError):
    """A model call failed; the message begins with the kind of failure."""


class LoopRow(TypedDict):
    """A row: these columns with lower-case names, and all other columns under their own names."""

    system_prompt: str
    user_prompt: str
    ground_truth: str | None


# Names of the public SDK.
DatasetRow = LoopRow
load_agent = load_agent_loop


class DatasetReader:
    """Reads the rows of a ``.json``, ``.jsonl`` or ``.parquet`` file."""

    def __init__(self, file_path: str | Path) -> None:
        self.file_path = Path(file_path)
        self._suffix = self.file_path.suffix.lower()
        if not self.file_path.is_file():
            raise MissingDatasetError(f"Dataset file not found: '{self.file_path}'.")
        if self._suffix not in _SUFFIXES:
            raise DatasetParseError(
                f"Unsupported file format: {self.file_path.name} (supported: {', '.join(_SUFFIXES)})."
            )

    def __len__(self) -> int:
        """Return the number of rows, without checking them."""
        reader = self._open()
        return reader.count() if reader is not None else 0

    def read(self, limit: int | None = None, offset: int = 0) -> list[LoopRow]:
        """Return rows as a list; raises as :meth:`iter_rows`."""
        return list(self.iter_rows(limit, offset))

    def iter_rows(self, limit: int | None = None, offset: int = 0) -> Iterator[LoopRow]:
        """Yield at most ``limit`` rows after the first ``offset``.

        Raises:
            DatasetParseError: the file cannot be read.
            DatasetValidationError: a row is invalid.
        """
        reader = self._open()
        if reader is None:
            return
        stop = None if limit is None else offset + limit
        for index, (_, record) in islice(enumerate(reader), offset, stop):
            yield loop_row(record, index)

    def _open(self) -> RecordReader | None:
        """Return the file's reader; None for an empty ``.jsonl`` file, which has no rows."""
        from osmosis_ai.datasets.readers import open_reader

        def fail(problem: str) -> NoReturn:
            kind = "Parquet" if self._suffix == ".parquet" else self._suffix[1:].upper()
            raise DatasetParseError(f"Invalid {kind} in {self.file_path}: {problem}.")

        if self._suffix == ".jsonl" and self.file_path.stat().st_size == 0:
            return None
        try:
            return open_reader(self.file_path, report=fail, uniform=False)
        except OsmosisError as error:
            raise DatasetParseError(error.message, hint=error.hint) from None


def loop_row(record: object, index: int) -> LoopRow:
    """Check a record and return it as a row; ``ground_truth`` is None if it is missing, null or empty."""
    from pydantic_core import to_jsonable_python

    from osmosis_ai.datasets.readers import name_of_type
    from osmosis_ai.datasets.rows import as_text

    def fail(problem: str) -> NoReturn:
        raise DatasetValidationError(f"Row {index}: {problem}.")

    if not isinstance(record, Mapping):
        fail(f"Expected object, found {name_of_type(record)}")
    known = {name.lower(): value for name, value in record.items() if name.lower() in _KNOWN_COLUMNS}
    missing = [name for name in REQUIRED_COLUMNS if name not in known]
    if missing:
        fail(f"Missing required columns: {', '.join(missing)} (found: {', '.join(record) or 'none'})")
    for name in REQUIRED_COLUMNS:
        if known[name] is None:
            fail(f"'{name}' cannot be null")
        if not isinstance(known[name], str):
            fail(f"'{name}' must be a string, found {name_of_type(known[name])}")
        if not known[name].strip():
            fail(f"'{name}' cannot be empty")
    answer = known.get("ground_truth")
    if isinstance(answer, bool | int | float | Decimal):
        answer = as_text(answer)
    if not isinstance(answer, str | None):
        fail(f"'ground_truth' must be a string, found {name_of_type(answer)}")
    # Requests are JSON, which has no dates, bytes, NaN and infinity.
    others = to_jsonable_python(other_columns(record), inf_nan_mode="null", bytes_mode="base64")
    return cast(LoopRow, {**known, "ground_truth": answer or None, **others})


def row_messages(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the initial messages of a row's conversation."""
    return [
        {"role": "system", "content": row["system_prompt"]},
        {"role": "user", "content": row["user_prompt"]},
    ]


def other_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a row that are passed on as metadata."""
    return {name: value for name, value in row.items() if name.lower() not in _KNOWN_COLUMNS}


def dataset_row_to_request(
    row: Mapping[str, Any],
    row_index: int,
    max_turns: int = DEFAULT_MAX_TURNS,
    max_tokens_total: int = MAX_TOKENS_TOTAL,
    completion_params: dict[str, Any] | None = None,
    rollout_id_prefix: str = "local",
    rollout_id: str | None = None,
    metadata_overrides: dict[str, Any] | None = None,
) -> RolloutRequest:
    """Return an agent loop's request for a row.

    Raises:
        DatasetValidationError: the row does not fit into a request.
    """
    from pydantic import ValidationError

    from osmosis_ai.rollout.core.schemas import RolloutRequest

    metadata = {"ground_truth": row.get("ground_truth"), "row_index": row_index, **other_columns(row)}
    try:
        return RolloutRequest(
            rollout_id=rollout_id or f"{rollout_id_prefix}-{row_index}",
            server_url="http://local-rollout.local",
            messages=row_messages(row),
            completion_params=completion_params or {},
            max_turns=max_turns,
            max_tokens_total=max_tokens_total,
            metadata={**metadata, **(metadata_overrides or {})},
        )
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise DatasetValidationError(f"Row {row_index}: invalid request: {reason}.") from None


def build_completion_params(
    temperature: float | None = None, max_tokens: int | None = None
) -> dict[str, Any]:
    """Return the sampling parameters that are set."""
    given = {"temperature": temperature, "max_tokens": max_tokens}
    return {name: value for name, value in given.items() if value is not None}
