"""The files of a run that leave its directory: which there are, and which names they may have.

A path is canonical: POSIX, relative, nothing that a file system, a shell or a page could take for anything else.
"""

from __future__ import annotations

from typing import NamedTuple

from osmosis_ai.evaluation.index import ROLLOUT_ID, TRAJECTORY_NAME

INDEX, PROGRESS = "index.jsonl", "progress.json"
TRIALS, ARTIFACTS = "rollout_trials", "artifacts"
MAX_PATH_BYTES, _MAX_NAME_BYTES = 1024, 255
RESERVED_ARTIFACT = "manifest.json"
"""At the top of ``artifacts/`` it belongs to the rollout's server."""


class TrialFile(NamedTuple):
    """A file of one attempt: its trajectory, or the artifact at ``artifact``, relative to its artifacts."""

    rollout_id: str
    trajectory: str | None = None
    artifact: str | None = None


def trial_file(path: str) -> TrialFile | None:
    """Return what the file at ``path``, relative to the run's directory, is of an attempt; None when it is none."""
    parts = path.split("/")
    if len(parts) < 3 or parts[0] != TRIALS or not ROLLOUT_ID.fullmatch(parts[1]):
        return None
    if len(parts) == 3 and TRAJECTORY_NAME.fullmatch(parts[2]):
        return TrialFile(parts[1], trajectory=parts[2])
    if len(parts) > 3 and parts[2] == ARTIFACTS and parts[3:] != [RESERVED_ARTIFACT]:
        return TrialFile(parts[1], artifact="/".join(parts[3:]))
    return None


def name_problem(path: str) -> str | None:
    """Return why a file cannot travel under this relative path."""
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        return "its name is no text"
    if len(encoded) > MAX_PATH_BYTES:
        return f"its path is longer than {MAX_PATH_BYTES} bytes"
    if not path.isprintable() or "\\" in path:
        return "its name has characters that are not allowed"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return "it is no path below the run's directory"
        if len(part.encode("utf-8")) > _MAX_NAME_BYTES:
            return f"its name is longer than {_MAX_NAME_BYTES} bytes"
    return None
