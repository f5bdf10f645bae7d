"""Write ``trajectory.json`` and ``diagnostics.json`` atomically. Errors never affect the rollout.

The conversation is written before the result is reported, so a crash after the acknowledgement loses nothing. It gets
its final name by a rename when the rollout is over. Files are not flushed to disk; the controller's journal makes a
result durable.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from ..artifacts import DIAGNOSTICS_FILE, PENDING_TRAJECTORY_FILE
from ..artifacts import artifact_root as default_artifact_root
from ..types.protocol import ExecutionResult
from ..types.sample import json_safe
from .atif import Trajectory
from .conversion import TrajectoryReport, convert_sample_to_trajectory

logger = logging.getLogger(__name__)

# Strings have no raw newlines in JSON, and no non-ASCII characters are outside of strings.
_NON_ASCII = re.compile(r"[^\x00-\x7f]")
_NUMBER_ARRAY = re.compile(r"\[\n *-?\d[-+.eE\d,\s]*\]")

TRAJECTORY_FILE = "trajectory.json"


class RolloutArchive:
    """Files of one rollout in ``<artifact root>/<rollout_id>/``. Errors are logged, never raised."""

    def __init__(self, rollout_id: str, root: Path | None = None, **request: Any) -> None:
        self._rollout_id = rollout_id
        self._root = root
        self._request = request  # arguments of `convert_sample_to_trajectory`
        self._kept: tuple[ExecutionResult, TrajectoryReport | None] | None = None

    def keep(self, result: ExecutionResult | None, report: TrajectoryReport | None) -> None:
        """Write the best result so far under a temporary name."""
        if result is None or (self._kept and self._kept[0] is result and self._kept[1] == report):
            return
        with self._logged():
            pending = self._home / PENDING_TRAJECTORY_FILE
            if result.sample is None or not result.sample.trajectory_messages:
                logger.info("rollout %s has no messages to archive", self._rollout_id)
                pending.unlink(missing_ok=True)
            else:
                trajectory = convert_sample_to_trajectory(
                    result.sample, rollout_id=self._rollout_id, report=report, **self._request
                )
                # Nothing acknowledged depends on the first version yet, so a torn file does no harm.
                write = _write if self._kept is None else _write_whole
                write(pending, encode_trajectory(trajectory).encode("ascii"))
            self._kept = result, report

    def publish(
        self,
        result: ExecutionResult | None,
        report: TrajectoryReport | None,
        diagnostics: dict[str, Any] | None,
    ) -> None:
        """Give the files of a finished rollout their final names."""
        self.keep(result, report)
        with self._logged():
            if diagnostics:
                text = json.dumps(diagnostics, indent=2, sort_keys=True, ensure_ascii=False, default=repr)
                _write_whole(self._home / DIAGNOSTICS_FILE, text.encode(errors="replace"))
        if self._kept is None:
            return
        with self._logged(), contextlib.suppress(FileNotFoundError):
            (self._home / PENDING_TRAJECTORY_FILE).replace(self._home / TRAJECTORY_FILE)

    @cached_property
    def _home(self) -> Path:
        return (self._root or default_artifact_root()) / self._rollout_id

    @contextlib.contextmanager
    def _logged(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            # A full disk or an odd message must not invalidate the rollout.
            logger.exception("cannot archive rollout %s", self._rollout_id)


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
    """Archive a rollout in ``<artifact root>/<rollout_id>/``. Errors are logged, never raised.

    The sample of ``result`` becomes ``trajectory.json``; the backend's ``diagnostics`` (default: the result's extra fields)
    become ``diagnostics.json``.
    """
    archive = RolloutArchive(
        rollout_id,
        artifact_root,
        request_label=request_label,
        request_metadata=request_metadata,
        request_extra_fields=request_extra_fields,
    )
    archive.publish(result, report, diagnostics or (result.extra_fields if result is not None else None))


def encode_trajectory(trajectory: Trajectory | Mapping[str, Any]) -> str:
    """Encode a trajectory as ASCII JSON: two-space indent, number arrays on one line, no nulls, no NaN."""
    content = trajectory.model_dump(exclude_none=True) if isinstance(trajectory, Trajectory) else trajectory
    try:
        text = orjson.dumps(content, default=repr, option=orjson.OPT_INDENT_2).decode()
    except TypeError:  # integers beyond 64 bits, lone surrogates, keys that are not text
        text = json.dumps(json_safe(content), indent=2)
    if not text.isascii():
        text = _NON_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)
    return _NUMBER_ARRAY.sub(lambda match: f"[{' '.join(match[0][1:-1].split())}]", text)


def _write_whole(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".{target.name}.tmp")
    _write(temporary, data)
    temporary.replace(target)


def _write(target: Path, data: bytes) -> None:
    try:
        target.write_bytes(data)
    except FileNotFoundError:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    except OSError:
        target.unlink(missing_ok=True)
        raise
