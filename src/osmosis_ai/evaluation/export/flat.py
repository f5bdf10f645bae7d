"""One flat record a sample, for pandas, DuckDB and the like; the conversation is a column."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import orjson

from osmosis_ai.evaluation.export.samples import ExportedRun, ExportedSample

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_GROUP = 1000
# A column of its own for each fact of a sample, and its type in Parquet.
_RESULT_COLUMNS = {
    "tokens": "int64",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
    "model_calls": "int64",
    "cost_usd": "float64",
    "duration_ms": "int64",
    "model_latency_ms": "float64",
    "error_type": "string",
    "category": "string",
    "boundary": "string",
    "error": "string",
    "finish_reason": "string",
    "row_digest": "string",
    "notes": "string",
    "lost_attempts": "int64",
    "judge_calls": "int64",
    "judge_tokens": "int64",
    "judge_cost_usd": "float64",
    "judge_outside_scale": "int64",
}
_COLUMNS = {
    "run": "string",
    "model": "string",
    "dataset": "string",
    "row_index": "int64",
    "source_row_index": "int64",
    "attempt": "int64",
    "rollout_id": "string",
    "status": "string",
    "reward": "float64",
    "passed": "bool",
    **_RESULT_COLUMNS,
    "label": "string",
    "answer": "string",
    "from_model_calls": "bool",
}
# What may differ in shape from sample to sample: objects in JSON Lines, JSON text in Parquet.
_NESTED = ("scores", "unscored", "parts", "judgements", "finish_reasons", "metadata", "messages")


def write_jsonl(run: ExportedRun, target: IO[bytes]) -> int:
    """Write one JSON object a line; return how many."""
    count = 0
    for record in _records(run):
        target.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        count += 1
    return count


def write_parquet(run: ExportedRun, target: IO[bytes]) -> int:
    """Write a Parquet file, a thousand samples at a time; return how many there are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema()
    count = 0
    records = _records(run)
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        while group := list(itertools.islice(records, _ROW_GROUP)):
            writer.write_table(pa.Table.from_pylist([_as_text(record) for record in group], schema=schema))
            count += len(group)
    return count


def _schema() -> pa.Schema:
    import pyarrow as pa

    types = {"int64": pa.int64(), "float64": pa.float64(), "string": pa.string(), "bool": pa.bool_()}
    return pa.schema(
        [(name, types[kind]) for name, kind in _COLUMNS.items()] + [(name, pa.string()) for name in _NESTED]
    )


def _records(run: ExportedRun) -> Iterator[dict[str, Any]]:
    threshold = run.summary.get("pass_threshold")
    for sample in run.samples():
        yield _record(run, sample, threshold if isinstance(threshold, (int, float)) else 1.0)


def _record(run: ExportedRun, sample: ExportedSample, threshold: float) -> dict[str, Any]:
    return {
        "run": run.name,
        "model": run.facts.get("model_name"),
        "dataset": run.facts.get("dataset_name"),
        "row_index": sample.row_index,
        "source_row_index": sample.source_row_index,
        "attempt": sample.attempt,
        "rollout_id": sample.rollout_id,
        "status": sample.status,
        "reward": sample.reward,
        "passed": None if sample.reward is None else sample.reward >= threshold,
        **{name: sample.result.get(name) for name in _RESULT_COLUMNS},
        "label": sample.label,
        "answer": sample.answer,
        "from_model_calls": sample.from_model_calls or None,
        **{
            name: sample.result.get(name)
            for name in ("scores", "unscored", "parts", "judgements", "finish_reasons")
        },
        "metadata": sample.metadata,
        "messages": sample.messages,
    }


def _as_text(record: dict[str, Any]) -> dict[str, Any]:
    texts = {name: orjson.dumps(value).decode() for name in _NESTED if (value := record[name]) is not None}
    return {**record, **dict.fromkeys(_NESTED), **texts}
