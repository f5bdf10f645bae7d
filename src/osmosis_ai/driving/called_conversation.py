"""What was said in an attempt that failed, as its model calls tell it: its agent raised, or was out of time, and gave nothing.

It becomes a trajectory like any other, among the attempt's own files, which says of itself where it comes from
(``extra.osmosis.from_model_calls``). Those files are the agent's to write, so no link in their place is followed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.rollout.artifacts import PENDING_TRAJECTORY_FILE

if TYPE_CHECKING:
    from osmosis_ai.datasets import DatasetRow
    from osmosis_ai.driving.conversation import LastCall

logger = logging.getLogger(__name__)

_TRAJECTORY, _UNFINISHED = "trajectory.json", ".trajectory.json.called"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def keep_called_conversation(
    home: Path, call: LastCall, *, row: DatasetRow, told: Mapping[str, Any], report: Mapping[str, Any] | None
) -> None:
    """Write the conversation of an attempt that left none; what fails is logged, never raised."""
    try:
        content = _conversation(home.name, call, row, told, report)
        if content is not None:
            _leave(home, content)
    except Exception:
        # Messages of any agent, in a place of any agent: the attempt counts for what it came to.
        logger.warning("cannot keep what rollout %s said to its model", home.name, exc_info=True)


def _conversation(
    rollout_id: str,
    call: LastCall,
    row: DatasetRow,
    told: Mapping[str, Any],
    report: Mapping[str, Any] | None,
) -> bytes | None:
    """Return the trajectory (ATIF) as the last model call has it; None where nothing was said."""
    from osmosis_ai.rollout.trajectory.archive import encode_trajectory
    from osmosis_ai.rollout.trajectory.conversion import convert_sample_to_trajectory
    from osmosis_ai.rollout.trajectory.report import TrajectoryReport
    from osmosis_ai.rollout.types import RolloutSample

    messages = call.messages()
    if not messages:
        return None
    trajectory = convert_sample_to_trajectory(
        RolloutSample(messages=messages),
        rollout_id=rollout_id,
        request_label=row.label,
        request_metadata=dict(row.metadata) if row.metadata is not None else None,
        request_extra_fields=dict(told),
        report=TrajectoryReport.model_validate(report) if report is not None else None,
        from_model_calls=True,
    )
    return encode_trajectory(trajectory).encode("ascii")


def _leave(home: Path, content: bytes) -> None:
    """Write the trajectory, unless the attempt's own is there or about to be."""
    home.mkdir(exist_ok=True)
    folder = os.open(home, _FOLDER)
    try:
        if {_TRAJECTORY, PENDING_TRAJECTORY_FILE}.isdisjoint(os.listdir(folder)):  # noqa: PTH208 - a descriptor
            with os.fdopen(os.open(_UNFINISHED, _NEW_FILE, 0o600, dir_fd=folder), "wb") as file:
                file.write(content)
            os.rename(_UNFINISHED, _TRAJECTORY, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)
