"""Rows for agents: messages, the expected answer, metadata; and their digests.

A file with a `metadata` column may omit prompts and answers; any other file has both in every row. Empty strings,
nulls and NaN count as missing, other values become text (numbers as written in the file), and further columns are
ignored.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import NoneType
from typing import Any

from osmosis_ai.datasets.readers import (
    METADATA_COLUMN,
    Record,
    StopReading,
    WrittenFloat,
    decode_json,
    name_of_type,
    open_reader,
    quote_names,
    raise_for,
)

SYSTEM_COLUMN = "system_prompt"
PROMPT_COLUMN = "user_prompt"
ANSWER_COLUMNS = ("ground_truth", "label")
KNOWN_COLUMNS = frozenset({SYSTEM_COLUMN, PROMPT_COLUMN, *ANSWER_COLUMNS, METADATA_COLUMN})

_JSON_AS_IT_IS = frozenset({str, int, bool, NoneType})


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """One row, ready for a rollout."""

    source_row_index: int
    messages: list[dict[str, Any]]
    label: str | None
    metadata: dict[str, Any] | None


def iter_rows(path: Path) -> Iterator[DatasetRow]:
    """Yield the rows of a dataset file of any size while it is read."""
    reader = open_reader(path, report=raise_for(path), only=KNOWN_COLUMNS)
    for index, (number, record) in enumerate(reader):
        try:
            yield normalise(index, record, reader.columns)
        except ValueError as error:
            reader.report_at(number, str(error))
        except RecursionError:
            reader.report_at(number, "nested too deeply")


def find_row(path: Path, source_row_index: int, *, look_s: float) -> DatasetRow | None:
    """Return one row of a dataset file; earlier rows are read but not checked."""
    deadline = time.monotonic() + look_s

    def in_time(_: int) -> None:
        if time.monotonic() > deadline:
            raise StopReading

    reader = open_reader(path, report=raise_for(path), progress=in_time, only=KNOWN_COLUMNS)
    with suppress(StopReading):
        in_time(0)
        for _, record in reader.after(source_row_index):
            return normalise(source_row_index, record, reader.columns)
    return None


def normalise(source_row_index: int, record: Record, columns: Collection[str] = ()) -> DatasetRow:
    """Convert a record to a row."""
    system, prompt = as_text(record.get(SYSTEM_COLUMN)), as_text(record.get(PROMPT_COLUMN))
    metadata = None
    if METADATA_COLUMN in record:
        metadata = _as_json(as_object(record[METADATA_COLUMN]), METADATA_COLUMN)
        if prompt is None and metadata is None:
            raise ValueError(f"the row has neither a '{PROMPT_COLUMN}' nor '{METADATA_COLUMN}'")
    elif missing := missing_columns(record):
        raise ValueError(f"missing {quote_names(missing)} (found {quote_names(columns or record)})")
    elif absent := missing_values(record):
        raise ValueError(f"no value for {quote_names(absent)}")
    messages = (("system", system), ("user", prompt))
    return DatasetRow(
        source_row_index,
        [{"role": role, "content": content} for role, content in messages if content is not None],
        _answer(record),
        metadata,
    )


def missing_columns(columns: Collection[str]) -> list[str]:
    """Return the required columns of a file without metadata that ``columns`` lacks."""
    missing = [] if PROMPT_COLUMN in columns else [PROMPT_COLUMN]
    if not any(name in columns for name in ANSWER_COLUMNS):
        missing.append(ANSWER_COLUMNS[0])
    return missing


def missing_values(record: Record) -> list[str]:
    """Return the required columns of a row without metadata that are missing or empty in it."""
    missing = [PROMPT_COLUMN] if as_text(record.get(PROMPT_COLUMN)) is None else []
    if _answer(record) is None:
        missing.append(next((name for name in ANSWER_COLUMNS if name in record), ANSWER_COLUMNS[0]))
    return missing


def _answer(record: Record) -> str | None:
    for name in ANSWER_COLUMNS:
        if (text := as_text(record.get(name))) is not None:
            return text
    return None


def as_text(value: object) -> str | None:
    """Return a value as text: strings and numbers as written, JSON for anything else; None if missing or NaN."""
    if value is None or value == "" or value != value:
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, dict, list)):
        return _json_text(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _json_text(value: object) -> str:
    if isinstance(value, dict):
        members = (f"{_json_text(str(key))}: {_json_text(item)}" for key, item in value.items())
        return f"{{{', '.join(members)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_json_text, value))}]"
    if isinstance(value, (WrittenFloat, Decimal)):
        return as_text(value) or ""
    return json.dumps(value, ensure_ascii=False, default=str)


def as_object(value: object) -> dict[str, Any] | None:
    """Return a metadata value as an object; None if it is missing, blank or empty."""
    if isinstance(value, str):
        try:
            value = decode_json(value) if value.strip() else None
        except json.JSONDecodeError as error:
            raise ValueError(f"'{METADATA_COLUMN}' is not valid JSON: {error.msg}") from None
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"'{METADATA_COLUMN}' must be a JSON object, found {name_of_type(value)}")
    return value or None


def _as_json(value: Any, path: str) -> Any:
    """Convert a value to types that every JSON writer supports."""
    if value.__class__ in _JSON_AS_IT_IS:
        return value
    if isinstance(value, dict):
        return {key: _as_json(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item, f"{path}[]") for item in value]
    if isinstance(value, float) and math.isfinite(value):
        return value.number if isinstance(value, WrittenFloat) else value
    found = value if isinstance(value, float) else name_of_type(value)
    raise ValueError(f"'{path}' is {found}, which JSON cannot hold")


def row_digest(row: DatasetRow) -> str:
    """Return the digest of a row as a rollout receives it: messages, expected answer, metadata."""
    return content_digest({"ground_truth": row.label, "messages": row.messages, "metadata": row.metadata})


def content_digest(value: Any) -> str:
    """Return the first 32 hex digits of the SHA-256 of a value's canonical JSON.

    Equal rows have equal digests in every format: JSON Lines omits a key where Parquet has a null, and Parquet turns 3
    into 3.0.
    """
    text = json.dumps(
        _canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str
    )
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        known = {str(key): item for key, raw in value.items() if (item := _canonical(raw)) is not None}
        return known or None
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return int(value) if value.is_integer() else value
    return value
