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
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from osmosis_ai.datasets import iter_records, validate_dataset
from osmosis_ai.errors import OsmosisError

PREVIEW_ROWS = 50
PREVIEW_BYTES = 128 * 1024
_MAX_TEXT_CHARS = 4096
_MAX_DEPTH = 16
# A separate process takes half a second; smaller text files take less.
_SMALL_BYTES = 4 << 20
_TIME_LIMIT_S = 3600.0


@dataclass(frozen=True)
class Check:
    """The result of a check; the file is valid if there are no errors."""

    row_count: int = 0
    mode: str | None = None
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    preview: list[dict[str, Any]] = field(default_factory=list)


class CheckCancelled(Exception):
    """The platform is stopping; the next start checks the file."""


def check_dataset(path: Path, *, stopping: threading.Event) -> Check:
    """Check a file whose name ends in its extension."""
    if path.suffix != ".parquet" and path.stat().st_size <= _SMALL_BYTES:
        return check_in_process(path)
    return _check_in_subprocess(path, stopping)


def check_in_process(path: Path) -> Check:
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
    # A column that runs ignore may be unreadable in a valid dataset.
    with suppress(OsmosisError, RecursionError):
        for _, record in islice(iter_records(path), PREVIEW_ROWS):
            row = {name: _presentable(value) for name, value in record.items()}
            left -= len(json.dumps(row, ensure_ascii=False).encode())
            if left < 0:
                break
            rows.append(row)
    return rows


def _presentable(value: Any, depth: int = 0) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        # JSON readers would drop digits of such numbers, so they become text.
        return value if math.isfinite(value) and str(value) == repr(value) else str(value)
    if depth < _MAX_DEPTH and isinstance(value, dict):
        return {_text(str(key)): _presentable(item, depth + 1) for key, item in value.items()}
    if depth < _MAX_DEPTH and isinstance(value, (list, tuple)):
        return [_presentable(item, depth + 1) for item in value]
    return _text(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))


def _text(text: str) -> str:
    # Databases refuse NUL inside JSON.
    kept = text[:_MAX_TEXT_CHARS].replace("\0", "\N{REPLACEMENT CHARACTER}")
    return kept if len(text) <= _MAX_TEXT_CHARS else f"{kept}…"


def _check_in_subprocess(path: Path, stopping: threading.Event) -> Check:
    from osmosis_ai.process_environment import python_environment
    from osmosis_ai.processes.child_process import ChildProcess

    with tempfile.TemporaryDirectory(prefix="osmosis-check-") as directory:
        result = Path(directory) / "result.json"
        command = [sys.executable, "-m", "osmosis_ai.platform.datasets.check", str(path), str(result)]
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
    """Check the file named by the first argument, and write the result to the second."""
    from osmosis_ai.processes.child_process import watch_parent

    watch_parent()
    os.nice(10)
    source, result = map(Path, arguments)
    result.write_text(json.dumps(asdict(check_in_process(source))), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
