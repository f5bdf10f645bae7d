"""What can become of a run.

``pending -> running -> finished | failed | stopped``, and ``pending -> failed | stopped`` for one that never
ran. A terminal run never changes again, but for a training run that is resumed (``submit.resuming``). A running run without a live lease waits for its next worker.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

RunStatus = Literal["pending", "running", "finished", "failed", "stopped"]
Outcome = Literal["finished", "failed", "stopped"]

OPEN: tuple[RunStatus, ...] = ("pending", "running")
UNFINISHED: tuple[RunStatus, ...] = ("failed", "stopped")
"""Ended before its end: a training run can be resumed, as long as its checkpoint is kept."""
CHECKPOINT_KEPT = timedelta(days=30)
