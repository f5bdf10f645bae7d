"""The metrics of a training run as a file: the names people use, ISO times, null for what is no number.

The file is for plotting and for keeping: it says which run it is of, and needs no platform to be read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.services.training_runs.info import DescribedTraining
    from osmosis_ai.workspace.layout import WorkspaceDirectory

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
    path = Path(output).expanduser().absolute()
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
