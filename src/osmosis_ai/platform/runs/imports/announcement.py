"""Validate the announcement of an uploaded evaluation before any byte is sent.

Nothing is trusted: names are checked here, bytes by their digests on arrival, and results when the run is created.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from osmosis_ai.api.wire.eval_imports import SCHEMA_VERSION, EvalImportStart, ImportedRun, ImportFile
from osmosis_ai.datasets.selection import Selection, select_rows
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.manifest import VERSIONS
from osmosis_ai.evaluation.run_directory import (
    ARTIFACTS,
    INDEX,
    PROGRESS,
    RESERVED_ARTIFACT,
    ROLLOUT_ID,
    TRAJECTORY_NAME,
    TRIALS,
    name_problem,
)

_GIB, _MIB = 1 << 30, 1 << 20
_PROVENANCE = ("sdk_version", "git_head", "git_branch", "git_dirty", "config_branch", "config_commit_sha")
_YEARS = (2000, 2999)
_MOST_ROWS = 10**9
_ROWS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ImportLimits:
    """How large an uploaded run may be; sizes in bytes."""

    max_files: int = 30_000
    max_samples: int = 100_000
    max_total_bytes: int = 5 * _GIB
    max_file_bytes: int = _GIB
    max_index_bytes: int = 64 * _MIB
    max_trajectory_bytes: int = 64 * _MIB
    max_progress_bytes: int = 64 * 1024
    details_s: float = 120.0


class TrialFile(NamedTuple):
    """A file of one attempt: its trajectory, or an artifact by its path below ``artifacts/``."""

    rollout_id: str
    trajectory: str | None = None
    artifact: str | None = None


def trial_file(path: str) -> TrialFile | None:
    """Return the attempt and kind of the file at ``path``, relative to the run's directory; None for other files."""
    parts = path.split("/")
    if len(parts) < 3 or parts[0] != TRIALS or not ROLLOUT_ID.fullmatch(parts[1]):
        return None
    if len(parts) == 3 and TRAJECTORY_NAME.fullmatch(parts[2]):
        return TrialFile(parts[1], trajectory=parts[2])
    if len(parts) > 3 and parts[2] == ARTIFACTS and parts[3:] != [RESERVED_ARTIFACT]:
        return TrialFile(parts[1], artifact="/".join(parts[3:]))
    return None


def check_announcement(start: EvalImportStart, limits: ImportLimits) -> None:
    """Check what is to be uploaded."""
    _require_known_format(start)
    _require_plain_texts(start.run)
    for moment in (start.run.started_at, start.run.completed_at):
        # What lies at the ends of the calendar has no moment in other zones.
        if not _YEARS[0] <= moment.year <= _YEARS[1]:
            raise _refused(f"the year {moment.year} is not that of any run", "run.started_at")
    if start.run.completed_at < start.run.started_at:
        raise _refused("the run ends before it starts", "run.completed_at")
    rows = selected_rows(start.run, limits)
    samples = len(rows) * start.run.evaluation_config.n
    if not 1 <= samples <= limits.max_samples:
        raise _refused(
            f"a run of {samples:,} samples; this platform takes 1 to {limits.max_samples:,}",
            "run.evaluation_config.n",
        )
    _check_files(start.files, limits)


def selected_rows(run: ImportedRun, limits: ImportLimits) -> Selection:
    """Return which rows of its dataset a run uses."""
    described = run.experiment_config.dataset.selected_source_rows
    count = 0
    for part in described.split(","):
        match = _ROWS.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
        if last < first:
            raise _refused("`selected_source_rows` takes rows and ranges, as in 0-9,12", "dataset")
        count += last - first + 1
        if count > limits.max_samples:
            # Before they are written out one by one.
            raise _refused(f"it uses more than {limits.max_samples:,} rows", "dataset")
    return select_rows(_MOST_ROWS, limit=None, rows=described)


def known_provenance(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known to be said of where a run came from, in a form that can be kept and shown."""
    known = {name: provenance.get(name) for name in _PROVENANCE}
    texts = {name: value for name, value in known.items() if isinstance(value, str)}
    dirty = known["git_dirty"]
    return {
        **{name: text for name, text in texts.items() if text.isprintable() and 0 < len(text) <= 255},
        **({"git_dirty": dirty} if isinstance(dirty, bool) else {}),
    }


def _require_known_format(start: EvalImportStart) -> None:
    theirs = {"schema_version": start.schema_version, **start.schema_versions}
    ours: Mapping[str, Any] = {"schema_version": SCHEMA_VERSION, **VERSIONS}
    for name, version in theirs.items():
        known = ours.get(name)
        if known is not None and _number(version) > _number(known):
            raise OsmosisError(
                f"this run is of a newer format than this platform reads: `{name}` is {str(version)[:40]}, known is {known}.",
                details={"key": name},
                hint="upgrade the platform",
            )


def _number(version: Any) -> tuple[int, ...]:
    """Return a version as numbers that can be compared; what is no version is newer than all."""
    parts = str(version)[:40].split(".")
    return tuple(map(int, parts)) if all(p.isascii() and p.isdigit() for p in parts) else (10**9,)


def _require_plain_texts(run: ImportedRun) -> None:
    experiment = run.experiment_config
    for field, text, longest in (
        ("run.name", run.name, 96),
        ("rollout.name", experiment.rollout.name, 255),
        ("entrypoint", experiment.entrypoint, 1024),
        ("model_path", experiment.model_path, 255),
        ("dataset.name", experiment.dataset.name, 255),
    ):
        if not (0 < len(text) <= longest and text.isprintable() and text == text.strip()):
            raise _refused(f"`{field}` must be 1 to {longest} printable characters", field)
    rollout, dataset = experiment.rollout, experiment.dataset
    for other in (rollout.source_digest, rollout.branch, rollout.commit_sha, dataset.sha256):
        if other is not None and not (len(other) <= 255 and other.isprintable()):
            raise _refused("a branch, commit or digest has characters that none has", "run")
    if "/" in run.name or run.name in (".", ".."):
        raise _refused("the name of the run is not a valid directory name", "run.name")


def _check_files(files: list[ImportFile], limits: ImportLimits) -> None:
    if len(files) > limits.max_files:
        raise _refused(f"{len(files):,} files; this platform takes {limits.max_files:,} of a run", "files")
    for file in files:
        problem = name_problem(file.path)
        if problem is None and not (file.path in (INDEX, PROGRESS) or trial_file(file.path)):
            problem = "it is not a file of an uploaded run"
        largest = _largest(file.path, limits)
        if problem is None and file.size > largest:
            problem = f"it has {file.size:,} bytes, and {largest:,} are the most"
        if problem is not None:
            raise _refused(f"the file {file.path[:200]!r} cannot be uploaded: {problem}", "files")
    paths = [file.path for file in files]
    _require_distinct(paths)
    if missing := {INDEX, PROGRESS}.difference(paths):
        raise _refused(f"`{min(missing)}` is missing", "files")
    total = sum(file.size for file in files)
    if total > limits.max_total_bytes:
        raise _refused(
            f"the files have {total:,} bytes; this platform takes {limits.max_total_bytes:,} of a run",
            "files",
        )


def _require_distinct(paths: list[str]) -> None:
    """Refuse a path that is there twice, or is a file and a directory at once."""
    known = set(paths)
    if len(known) < len(paths):
        raise _refused("a file is named twice", "files")
    for path in known:
        if clash := known.intersection(_above(path)):
            raise _refused(f"{min(clash)[:200]!r} is a file and a directory at once", "files")


def _above(path: str) -> Iterable[str]:
    return (str(parent) for parent in PurePosixPath(path).parents)


def _largest(path: str, limits: ImportLimits) -> int:
    if path == INDEX:
        return limits.max_index_bytes
    if path == PROGRESS:
        return limits.max_progress_bytes
    file = trial_file(path)
    return limits.max_trajectory_bytes if file and file.trajectory else limits.max_file_bytes


def _refused(what: str, field: str) -> OsmosisError:
    return OsmosisError(f"this run cannot be uploaded: {what}.", details={"key": field})
