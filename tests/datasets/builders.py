"""Small builders of dataset files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def prompt_rows(count: int) -> list[Row]:
    return [{"user_prompt": f"What is {n} * {n}?", "ground_truth": str(n * n)} for n in range(count)]


def jsonl(rows: list[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_rows(directory: Path, extension: str, rows: list[Row]) -> Path:
    """Write ``rows`` in one of the four formats; CSV holds objects as JSON text."""
    path = directory / f"rows.{extension}"
    if extension == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    elif extension == "csv":
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(rows[0])
        for row in rows:
            writer.writerow(json.dumps(value) if isinstance(value, dict) else value for value in row.values())
        path.write_bytes(text.getvalue().encode())
    else:
        path.write_text(jsonl(rows) if extension == "jsonl" else json.dumps(rows, indent=1), encoding="utf-8")
    return path


def write(directory: Path, name: str, content: str | bytes) -> Path:
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
