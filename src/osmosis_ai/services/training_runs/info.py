"""Training runs of the platform: listed, described, their metrics and checkpoints read and saved.

The file of metrics has the names people use, ISO times, and null for what is no number: it is for plotting and for
keeping, says which run it is of, and needs no platform to be read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from osmosis_ai.files import expanded
from osmosis_ai.services.runs.lifecycle import TERMINAL, WAITING, DescribedRun, RunKind

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.training_runs import (
        Checkpoint,
        CheckpointList,
        DescribedTrainingRun,
        TrainingMetrics,
        TrainingRun,
        TrainingRunDetail,
        TrainingRunRow,
    )
    from osmosis_ai.services.listing import Listing
    from osmosis_ai.training.runs.validation_headline import ValidationHeadline
    from osmosis_ai.workspace.layout import WorkspaceDirectory

METRICS_NOT_YET = "there are no metrics before the run has started."
EXPORTED_NAMES: Mapping[str, str] = {
    "rollout/raw_reward": "training_reward",
    "eval/validation/reward": "validation_reward",
    "train/entropy_loss": "entropy",
    "rollout/response_lengths": "response_length",
    "rollout/total_lengths": "total_length",
    "rollout/truncated_ratio": "truncation_ratio",
}
"""What the platform's metrics are called in the file; others keep their keys."""

_SHOWN_ID_CHARS = 8


@dataclass(frozen=True)
class DescribedTraining(DescribedRun):
    """A training run in full.

    Attributes:
        checkpoints: of a run that has ended; none when they could not be had.
    """

    kind: ClassVar[RunKind] = "train"
    detail: TrainingRunDetail
    metrics: TrainingMetrics | None = None
    metrics_error: str | None = None
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def run(self) -> DescribedTrainingRun:
        return self.detail.training_run

    @property
    def model(self) -> str | None:
        return self.detail.model.name if self.detail.model else None

    @property
    def summary(self) -> dict[str, Any]:
        return run_summary(self.run)

    @property
    def validation(self) -> ValidationHeadline | None:
        """What the newest validation came to; None before there is one."""
        from osmosis_ai.services.training_runs.watch import points
        from osmosis_ai.training.runs.validation_headline import CURVES, ValidationHeadline

        return ValidationHeadline.of({key: points(self.metrics, key) for key in CURVES})

    def data(self) -> dict[str, Any]:
        detail, run = self.detail, self.run
        return {
            **super().data(),
            "training_run": {
                **_own_fields(run),
                **_references(
                    (detail.model.id, detail.model.name) if detail.model else None,
                    (detail.dataset.id, detail.dataset.name) if detail.dataset else None,
                    (detail.rollout.id, detail.rollout.name) if detail.rollout else None,
                ),
                **_optional(run),
                "examples_processed_count": run.examples_processed_count,
                "notes": run.notes,
            },
            "validation": self.validation.to_json() if self.validation is not None else None,
            **({"platform_url": run.platform_url} if run.platform_url else {}),
            "checkpoints": [checkpoint_item(checkpoint) for checkpoint in self.checkpoints],
            "in_progress": self.in_progress,
            "metrics": metrics_document(self) if self.metrics is not None else None,
        }

    def outcome(self) -> dict[str, Any]:
        data = self.data()
        return {**super().outcome(), **{key: data[key] for key in ("validation", "checkpoints", "metrics")}}


def list_runs(client: PlatformClient, *, limit: int, everything: bool) -> Listing[TrainingRunRow]:
    """Return the workspace's runs, the newest first; arguments as in ``fetch_listing``."""
    from osmosis_ai.services.listing import fetch_listing

    return fetch_listing(
        lambda size, offset: client.training_runs.list(limit=size, offset=offset),
        lambda page: page.training_runs,
        limit=limit,
        everything=everything,
    )


def describe_run(client: PlatformClient, name: str) -> DescribedTraining:
    """Return a run with its metrics and checkpoints; that these cannot be had is no failure.

    Raises:
        PlatformError: no such run, or as every call.
    """
    from osmosis_ai.api.http_errors import PlatformError

    detail = client.training_runs.get(name)
    run = detail.training_run
    checkpoints: tuple[Checkpoint, ...] = ()
    if run.status in TERMINAL["train"]:
        with suppress(PlatformError):
            checkpoints = tuple(client.training_runs.checkpoints(run.id).checkpoints)
    if run.status in WAITING:
        return DescribedTraining(detail, metrics_error=METRICS_NOT_YET)
    try:
        metrics = client.training_runs.metrics(run.id)
    except PlatformError as error:
        return DescribedTraining(detail, metrics_error=error.message, checkpoints=checkpoints)
    return DescribedTraining(detail, metrics, checkpoints=checkpoints)


def list_checkpoints(client: PlatformClient, name: str) -> CheckpointList:
    """Return the adapters that a run has saved, the earliest first."""
    return client.training_runs.checkpoints(name)


def run_item(row: TrainingRunRow) -> dict[str, Any]:
    """Return a listed run as scripts see it."""
    return {
        **_own_fields(row),
        **_references(
            (row.model.id, row.model.model_name) if row.model else None,
            (row.dataset.id, row.dataset.file_name) if row.dataset else None,
            (row.rollout.id, row.rollout.name) if row.rollout else None,
        ),
        **_optional(row),
        "summary": run_summary(row),
    }


def checkpoint_item(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint as scripts see it."""
    known = checkpoint.model_dump(mode="json")
    return {key: known[key] for key in ("id", "checkpoint_name", "checkpoint_step", "status", "created_at")}


def run_summary(run: TrainingRun) -> dict[str, Any]:
    """Return the numbers of a run that are known."""
    known: dict[str, Any] = {"reward": run.reward} if run.reward is not None else {}
    if run.current_step is not None and run.total_steps is not None:
        total = max(run.total_steps, run.current_step)
        known["progress"] = {"completed": run.current_step, "total": total, "unit": "steps"}
    return known


def _own_fields(run: TrainingRun) -> dict[str, Any]:
    known = run.model_dump(mode="json")
    own = (
        "id",
        "name",
        "status",
        "creator_name",
        "creator_email",
        "created_at",
        "started_at",
        "completed_at",
    )
    return {key: known[key] for key in own}


def _references(*references: tuple[str | None, str | None] | None) -> dict[str, str | None]:
    named: dict[str, str | None] = {}
    for what, reference in zip(("model", "dataset", "rollout"), references, strict=True):
        named[f"{what}_id"], named[f"{what}_name"] = reference or (None, None)
    return named


def _optional(run: TrainingRun) -> dict[str, Any]:
    optional = ("platform_url", "current_step", "total_steps", "reward", "error", "waits")
    known = {key: getattr(run, key) for key in optional}
    return {key: value for key, value in known.items() if value is not None}


def metrics_document(described: DescribedTraining) -> dict[str, Any]:
    """Return the file's content; a run without metrics has none in it."""
    run, detail, metrics = described.run, described.detail, described.metrics
    overview = metrics.overview if metrics else None
    known = run.model_dump(mode="json")
    about = {
        "id": run.id,
        "status": run.status,
        "name": run.name,
        "base_model_name": detail.model.name if detail.model else None,
        "dataset_name": detail.dataset.name if detail.dataset else None,
        "rollout_name": detail.rollout.name if detail.rollout else None,
        "duration_ms": described.duration_ms,
        "started_at": known["started_at"],
        "completed_at": known["completed_at"],
        "rows_processed": _first(
            overview.examples_processed_count if overview else None, run.examples_processed_count
        ),
        "latest_step": _first(overview.latest_step if overview else None, run.current_step),
        "total_steps": _first(overview.total_steps if overview else None, run.total_steps),
    }
    return {
        "training_run": _present(about),
        "summary": {
            exported_name(summary.key): _present(summary.model_dump(exclude={"key", "title"}))
            for summary in (overview.metric_summaries if overview else ())
        },
        "metrics": [
            {
                "key": exported_name(series.metric_key),
                "title": series.title,
                "data": [
                    {"step": point.step, "value": point.value, "timestamp": _iso(point.timestamp)}
                    for point in series.data_points
                ],
            }
            for series in (metrics.metrics if metrics else ())
        ],
    }


def exported_name(key: str) -> str:
    """Return what the metric ``key`` of the platform is called in the file."""
    return EXPORTED_NAMES.get(key, key)


def export_path(described: DescribedTraining, workspace: WorkspaceDirectory, output: str | None) -> Path:
    """Return where the file goes.

    Args:
        described: the run.
        workspace: holds the default place, ``.osmosis/metrics``.
        output: a directory that exists or ends in a slash, for the default name in it; else the file itself,
            whose suffix becomes ``.json``.
    """
    from osmosis_ai.services.runs.files import safe_name

    run = described.run
    name = f"{safe_name(run.name or 'run')}_{safe_name(run.id[:_SHOWN_ID_CHARS])}.json"
    if output is None:
        return workspace.state_dir / "metrics" / name
    path = expanded(output).absolute()
    separators = tuple(filter(None, (os.sep, os.altsep)))
    return path / name if output.endswith(separators) or path.is_dir() else path.with_suffix(".json")


def save_metrics(
    described: DescribedTraining, workspace: WorkspaceDirectory, output: str | None = None
) -> tuple[Path | None, str | None]:
    """Write the file; return where it is, or, when it could not be written, why.

    Args:
        described, workspace, output: as for :func:`export_path`.
    """
    from osmosis_ai.files import write_json

    path = export_path(described, workspace, output)
    try:
        if output is None:
            workspace.create_state_dir()
        write_json(path, metrics_document(described), mode=0o644, durable=False)
    except OSError as error:
        return None, f"the metrics could not be saved to {path}: {error.strerror or error}."
    return path, None


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _iso(timestamp_ms: int) -> str | None:
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None  # no date that a calendar has
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
