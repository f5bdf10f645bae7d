"""Check one file: whether it is a dataset, its row count and a preview.

A file may be crafted to harm its reader. All except small text files are therefore read in a separate
low-priority process, which may run out of memory or crash without affecting requests.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from osmosis_ai.datasets import iter_records, validate_dataset
from osmosis_ai.errors import OsmosisError

PREVIEW_ROWS = 50
PREVIEW_BYTES = 128 * 1024
_MAX_TEXT_CHARS = 4096
_MAX_DEPTH = 16
# A process of its own takes half a second; text up to this size takes less.
_SMALL_BYTES = 4 << 20
_TIME_LIMIT_S = 3600.0


@dataclass(frozen=True)
class Check:
    """What was found in a file; it is good when there are no errors."""

    row_count: int = 0
    mode: str | None = None
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    preview: list[dict[str, Any]] = field(default_factory=list)


class CheckCancelled(Exception):
    """The platform is stopping; the file will be checked when it starts again."""


def check_dataset(path: Path, *, stopping: threading.Event) -> Check:
    """Check a file whose name ends in its extension."""
    if path.suffix != ".parquet" and path.stat().st_size <= _SMALL_BYTES:
        return check_in_process(path)
    return _check_in_subprocess(path, stopping)


def check_in_process(path: Path) -> Check:
    """Check a file in this process."""
    report = validate_dataset(path)
    return Check(
        row_count=report.row_count,
        mode=report.mode,
        errors=report.errors,
        warnings=report.warnings,
        preview=preview(path) if report.valid else [],
    )


def preview(path: Path) -> list[dict[str, Any]]:
    """Return the first rows as JSON values: as many as fit, long texts cut."""
    rows: list[dict[str, Any]] = []
    left = PREVIEW_BYTES
    try:
        for index, record in iter_records(path):
            if index == PREVIEW_ROWS:
                break
            row = {name: _presentable(value, _MAX_TEXT_CHARS) for name, value in record.items()}
            left -= len(json.dumps(row, ensure_ascii=False).encode())
            if left < 0:
                break
            rows.append(row)
    except (OsmosisError, RecursionError):
        # A column that no run looks at may be unreadable in a dataset that is good.
        return rows
    return rows


def _presentable(value: Any, max_chars: int, depth: int = 0) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        # As text, a number keeps the digits that an answer has and JSON's readers drop: 1.10.
        return value if math.isfinite(value) and str(value) == repr(value) else str(value)
    if depth < _MAX_DEPTH and isinstance(value, dict):
        return {
            _text(str(key), max_chars): _presentable(item, max_chars, depth + 1)
            for key, item in value.items()
        }
    if depth < _MAX_DEPTH and isinstance(value, (list, tuple)):
        return [_presentable(item, max_chars, depth + 1) for item in value]
    return _text(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value), max_chars)


def _text(text: str, max_chars: int) -> str:
    # Databases refuse NUL inside JSON.
    kept = text[:max_chars].replace("\0", "\N{REPLACEMENT CHARACTER}")
    return kept if len(text) <= max_chars else f"{kept}…"


def _check_in_subprocess(path: Path, stopping: threading.Event) -> Check:
    from osmosis_ai.process_environment import python_environment
    from osmosis_ai.processes import ChildProcess

    with tempfile.TemporaryDirectory(prefix="osmosis-check-") as directory:
        result = Path(directory) / "result.json"
        command = [sys.executable, "-m", "osmosis_ai.platform.datasets", str(path), str(result)]
        output = Path(directory) / "output"
        child = ChildProcess(command, env=python_environment(os.environ), cwd=Path(directory), stdout=output)
        status = child.finish(_TIME_LIMIT_S, stopping)
        if status == 0:
            return Check(**json.loads(result.read_bytes()))
        if status is None and stopping.is_set():
            raise CheckCancelled
        if status is None:
            hours = _TIME_LIMIT_S / 3600
            return Check(errors=[f"reading the file took longer than {hours:.0f} h"])
        return Check(
            errors=["reading the file failed: it needs more memory than there is, or is damaged"],
            warnings=output.read_text("utf-8", "replace").splitlines()[-1:],
        )


def main(arguments: list[str]) -> None:
    """Check the file of the first argument, write what was found to the second."""
    from osmosis_ai.processes import watch_parent

    watch_parent()
    os.nice(10)
    source, result = map(Path, arguments)
    result.write_text(json.dumps(asdict(check_in_process(source))), "utf-8")
