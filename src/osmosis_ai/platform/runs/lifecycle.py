"""Kinds of runs and their status transitions.

``pending -> running -> finished | failed | stopped``, and ``pending -> failed | stopped`` for a run that never
started. A terminal run never changes, unless it is reopened: a training run is resumed (``resuming``), an evaluation
retried (``retrying``). The phases between are in ``platform/queue/phases.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Literal

from osmosis_ai.errors import ConflictError

RunKind = Literal["eval", "training"]
"""As rows, routes and commands tell them apart."""
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
"""What people call the kinds, before "run"."""
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
