"""The journal of a judging session: its inputs, every call that ended, and how long it worked.

A line counts once it is on the disk, so a session that was killed goes on where it stopped and pays for no
score twice. The journal lies beside the results while a call without a score is left, and is removed with
the last.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.evaluation.journal import Journal, committed_lines
from osmosis_ai.files import cache_dir, write_atomic
from osmosis_ai.rubric.calls import CallRecord, json_bytes
from osmosis_ai.rubric.session_spec import require_equal_inputs

SUFFIX = ".partial.jsonl"
_SCHEMA = 1
_ELAPSED = b'{"elapsed_s"'
_FULL_HINT = "free some space and run the same command with `--resume`: it continues where it stopped"


class SessionLock:
    """The exclusive right to write a result; a context manager. The kernel releases it however its holder ends."""

    def __init__(self, output: Path) -> None:
        from filelock import FileLock

        self._output = output
        name = hashlib.sha256(os.fsencode(output.absolute())).hexdigest()[:24]
        path = cache_dir() / "locks" / f"rubric-{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path, mode=0o600, preserve_lock_file=True, fallback_to_soft=False)

    def __enter__(self) -> SessionLock:
        """Take the lock."""
        from filelock import Timeout

        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConflictError(
                f"another process is writing '{self._output}'.", hint="choose another `--output`"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def journal_of(output: Path) -> Path:
    """Return where the journal of a result is."""
    return output.with_name(output.name + SUFFIX)


def output_of(journal: Path) -> Path:
    """Return the result that a journal belongs to."""
    return journal.with_name(journal.name.removesuffix(SUFFIX))


def start_journal(path: Path, inputs: dict[str, Any]) -> Path | None:
    """Begin a journal; one that is there is kept beside it."""
    aside = None
    if path.exists():
        aside = path.with_name(path.name.removesuffix(SUFFIX) + ".previous" + SUFFIX)
        path.replace(aside)
    write_atomic(path, json_bytes({"schema_version": _SCHEMA, "inputs": inputs}) + b"\n")
    return aside


def open_journal(path: Path) -> Journal:
    """Open a journal for appending."""
    return Journal.open(path, full_hint=_FULL_HINT)


def find_journal(output: Path, inputs: dict[str, Any], *, fixed: bool) -> Path:
    """Return the journal that a session with ``inputs`` goes on with."""
    if fixed:
        candidates = [path for path in [journal_of(output)] if path.is_file()]
    else:
        found = output.parent.glob(f"*{SUFFIX}") if output.parent.is_dir() else []
        candidates = sorted(
            (path for path in found if not path.name.endswith(".previous" + SUFFIX)),
            key=lambda path: path.stat().st_mtime_ns,
            reverse=True,
        )
    if not candidates:
        where = f"'{output}'" if fixed else f"'{output.parent}'"
        raise NotFoundError(
            f"there is no unfinished session to resume for {where}.",
            hint="a session that scored every record leaves nothing to resume; leave out `--resume` to start one",
        )
    for path in candidates:
        if read_inputs(path) == inputs:
            return path
    require_equal_inputs(str(candidates[0]), read_inputs(candidates[0]), inputs)
    raise AssertionError("equal inputs were found above")


def read_inputs(path: Path) -> dict[str, Any]:
    """Return the inputs that a journal was begun with."""
    try:
        header = orjson.loads(next(line for _, line in committed_lines(path)))
        version, inputs = header["schema_version"], header["inputs"]
    except (StopIteration, ValueError, KeyError, TypeError):
        raise OsmosisError(
            f"'{path}' is not the journal of a judging session.", hint="remove it to start over"
        ) from None
    if version != _SCHEMA:
        raise OsmosisError(f"'{path}' has schema version {version!r}; this release knows {_SCHEMA}.")
    return dict(inputs)


def worked_s(path: Path) -> float:
    """Return how many seconds the sessions of a journal worked."""
    lines = (line for _, line in committed_lines(path) if line.startswith(_ELAPSED))
    return sum(float(orjson.loads(line)["elapsed_s"]) for line in lines)


def replay(path: Path) -> Iterator[tuple[int, CallRecord]]:
    """Yield (offset, call) of everything in a journal, oldest first."""
    for number, (offset, line) in enumerate(committed_lines(path), start=1):
        if number == 1 or line.startswith(_ELAPSED):
            continue
        try:
            call = CallRecord.from_line(line)
        except ValueError as error:
            raise ConflictError(
                f"the journal '{path}' is damaged on line {number}: {error}.",
                details={"path": str(path), "line": number},
                hint="leave out `--resume` to start over; the damaged journal is kept",
            ) from None
        yield offset, call


def elapsed_line(seconds: float) -> bytes:
    """Return the line that says how long a session worked."""
    return json_bytes({"elapsed_s": round(seconds, 3)}) + b"\n"
