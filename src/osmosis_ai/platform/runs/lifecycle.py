"""Kinds of runs, their status transitions, and the file names that workers and the platform share.

``pending -> running -> finished | failed | stopped``, and ``pending -> failed | stopped`` for a run that never
started. A terminal run never changes, unless it is reopened: a training run is resumed, an evaluation is retried
(``reopening``). The phases between are in ``platform/queue/phases.py``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Literal

from osmosis_ai.errors import ConflictError
from osmosis_ai.evaluation.attempt_files import item_name

RunKind = Literal["eval", "training"]
"""The names of the kinds in rows, routes and commands."""
RunStatus = Literal["pending", "running", "finished", "failed", "stopped"]
Outcome = Literal["finished", "failed", "stopped"]
"""A status that a run ends in."""

OPEN: tuple[RunStatus, ...] = ("pending", "running")
"""Not ended yet."""
UNFINISHED: tuple[RunStatus, ...] = ("failed", "stopped")
"""Ended before its end: a training run can be resumed, as long as its checkpoint is kept."""
CHECKPOINT_KEPT = timedelta(days=30)
"""How long after a run's end it can be resumed."""

KIND_NAMES: Mapping[str, str] = {"eval": "evaluation", "training": "training"}
"""The printed names of the kinds, before "run"."""
COMMAND_GROUPS: Mapping[str, str] = {"eval": "osmosis eval", "training": "osmosis train"}
"""The commands about runs of each kind."""


class LeaseLostError(ConflictError):
    """The shard has another owner now, or has ended; nothing was written."""


class JournalOffsetError(ConflictError):
    """A part of a journal begins after the stored end."""

    def __init__(self, stored: int) -> None:
        super().__init__(f"the platform has {stored} bytes of this journal.", details={"bytes": stored})
        self.stored = stored


class UploadGoneError(ConflictError):
    """An upload has not arrived as announced: it must be requested and sent again."""


class UploadLimitError(ConflictError):
    """A run has too many uploads open, or sends more than the platform permits."""


# -- file names of training runs ---------------------------------------------------------------------

CHECKPOINTS, RESUME = "checkpoints", "resume"
"""Upload name prefixes of kept adapters and of resume archives."""
RESUME_FILE = "checkpoint.tar"
"""The name of a resume archive in its part."""
VALIDATION = "validation"
"""The kind of the newest validation's files, and the validation's key in the metrics of its run."""
VALIDATION_SAMPLES = f"{VALIDATION}/samples.jsonl"
_VERSION = re.compile(r"(\d{1,10})-[0-9a-f]{16}")


def conversation_path(row: int, attempt: int) -> str:
    return f"{VALIDATION}/{item_name(row, attempt)}.json"


def version_of(step: int, listed: bytes) -> str:
    """Return the name that identifies the validation after ``step`` whose list of samples is ``listed``."""
    return f"{step}-{hashlib.sha256(listed).hexdigest()[:16]}"


def is_version(name: str) -> bool:
    """Return whether :func:`version_of` may have made a name, which is then a single segment of a key."""
    return _VERSION.fullmatch(name) is not None


def blobs_below(version: str) -> str:
    return f"{VALIDATION}/{version}"


def version_in_key(blob_key: str) -> str:
    return blob_key.split("/")[-2]
