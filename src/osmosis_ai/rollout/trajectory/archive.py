"""``trajectory.json`` and ``diagnostics.json``: written once, whole, and never at a rollout's expense.

A reader that polls for the file sees all of it or none: it is written under another name in the
rollout's own directory and renamed. It is not flushed to the disk; the controller's journal is what
makes a result durable.
"""

from __future__ import annotations

import json
import logging
import math
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

from ..artifacts import artifact_root as default_artifact_root
from ..types.execution import ExecutionResult
from .atif import Trajectory
from .conversion import convert_sample_to_trajectory
from .report import TrajectoryReport

logger = logging.getLogger(__name__)

TRAJECTORY_FILE = "trajectory.json"
DIAGNOSTICS_FILE = "diagnostics.json"


async def save_trajectory(
    *,
    rollout_id: str,
    result: ExecutionResult | None,
    request_label: str | None = None,
    request_metadata: dict[str, Any] | None = None,
    request_extra_fields: dict[str, Any] | None = None,
    report: TrajectoryReport | None = None,
    artifact_root: Path | None = None,
    diagnostics: dict[str, Any] | None = None,
) -> None:
    """Archive a rollout under ``<artifact root>/<rollout_id>/``; what fails is logged, never raised.

    Args:
        rollout_id: the rollout.
        result: its best result; the sample in it becomes ``trajectory.json``.
        request_label, request_metadata, request_extra_fields: what the controller asked with.
        report: what the controller knows of the model calls.
        artifact_root: instead of the configured one.
        diagnostics: the backend's own facts, for ``diagnostics.json``; the result's when None.
    """
    try:
        home = (artifact_root or default_artifact_root()) / rollout_id
        facts = diagnostics or (result.extra_fields if result is not None else None)
        if facts:
            text = json.dumps(facts, indent=2, sort_keys=True, ensure_ascii=False, default=repr)
            _write_whole(home / DIAGNOSTICS_FILE, text.encode(errors="replace"))
        sample = result.sample if result is not None else None
        if sample is None:
            return
        if not sample.trajectory_messages:
            logger.info("rollout %s has no messages to archive", rollout_id)
            return
        trajectory = convert_sample_to_trajectory(
            sample,
            rollout_id=rollout_id,
            request_label=request_label,
            request_metadata=request_metadata,
            request_extra_fields=request_extra_fields,
            report=report,
        )
        _write_whole(home / TRAJECTORY_FILE, encode_trajectory(trajectory).encode("ascii"))
    except Exception:
        # The rollout is over and reported; a full disk or an odd message must not undo that.
        logger.exception("cannot archive rollout %s", rollout_id)


def encode_trajectory(trajectory: Trajectory) -> str:
    """Return the file's text: indented by two spaces, ASCII, number arrays on one line, no nulls, no NaN."""
    return _encode(trajectory.model_dump(exclude_none=True), "\n")


def _encode(value: Any, newline: str) -> str:
    # json's own indenting encoder puts every token id on a line, and runs in pure Python as well.
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if isinstance(value, dict):
        if not value:
            return "{}"
        inner = newline + "  "
        entries = [
            f"{encode_basestring_ascii(str(key))}: {_encode(item, inner)}" for key, item in value.items()
        ]
        return "{" + inner + f",{inner}".join(entries) + newline + "}"
    if isinstance(value, (list, tuple)):
        if all(type(item) is int or (type(item) is float and math.isfinite(item)) for item in value):
            return json.dumps(value)
        inner = newline + "  "
        return "[" + inner + f",{inner}".join([_encode(item, inner) for item in value]) + newline + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "null"
    return json.dumps(value, default=repr)


def _write_whole(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        temporary.write_bytes(data)
    except FileNotFoundError:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    temporary.replace(target)
