"""Training directories of this machine: a line of a list, a page, and the curves.

Invariant: what a directory does not tell is left out; the first damaged line of its history ends what is read of it,
and is said.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from osmosis_ai.config.written import config_text
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.attempt_files import read_environment
from osmosis_ai.evaluation.lenient_json import as_text
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.training.runs.curves import (
    TrainingCurves,
    readable_history,
    recorded_curves,
    session_plans,
)
from osmosis_ai.training.runs.metrics import (
    TRAINING_REWARD,
    VALIDATION_REWARD,
    VALIDATION_REWARD_HIGH,
    VALIDATION_REWARD_LOW,
    StepRecord,
)
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.viewer.local.recorded import commit_of, recorded_entry, secret_names, shown_facts
from osmosis_ai.viewer.source import RunDetail, RunEntry


@dataclass(frozen=True)
class KnownTraining:
    """A training run as its files tell it.

    Attributes:
        sessions: what each session said of its plan, the oldest first.
        problems: what could not be read, a sentence each.
    """

    entry: RunEntry
    manifest: Manifest | None
    records: tuple[StepRecord, ...]
    sessions: tuple[dict[str, Any], ...]
    problems: tuple[str, ...]


def read_training(path: Path, name: str) -> KnownTraining:
    """Read a training directory; what is damaged is said, not raised."""
    directory = TrainingDirectory(path)
    try:
        manifest = Manifest.load(directory.manifest)
    except OsmosisError as error:
        entry = RunEntry("training", name, id=str(path), status="incomplete", error=error.message)
        return KnownTraining(entry, None, (), (), (error.message,))
    running = directory.is_running()
    records, problems = readable_history(directory.metrics)
    sessions = tuple(session_plans(directory.log))
    last = records[-1] if records else None
    reward = _newest(records, VALIDATION_REWARD)
    of_validation = reward is not None
    total = sessions[-1].get("total_steps") if sessions else None
    finished = last is not None and (not isinstance(total, int) or last.step >= total)
    ended = None if running or last is None else _moment_of(last)
    entry = recorded_entry("training", name, manifest)
    entry = replace(
        entry,
        status="running" if running else "finished" if finished else "incomplete",
        ended_at=ended,
        reward=reward if of_validation else _newest(records, TRAINING_REWARD),
        reward_low=_newest(records, VALIDATION_REWARD_LOW) if of_validation else None,
        reward_high=_newest(records, VALIDATION_REWARD_HIGH) if of_validation else None,
        duration_s=(ended - entry.started_at).total_seconds() if ended and entry.started_at else None,
        error=problems[0] if problems else None,
    )
    return KnownTraining(entry, manifest, records, sessions, problems)


def training_detail(known: KnownTraining, path: Path) -> RunDetail:
    """Return a training run's page, its series aside."""
    if known.manifest is None:
        return RunDetail(known.entry, facts=[("Directory", str(path))], problems=known.problems)
    inputs, entry = known.manifest.inputs, known.entry
    written = known.manifest.provenance.get("config")
    last = known.records[-1].step if known.records else 0
    total = known.sessions[-1].get("total_steps") if known.sessions else None
    facts = {
        "Steps": f"{last} of {total}" if isinstance(total, int) else last,
        "Model": entry.model,
        "Dataset": entry.dataset,
        "Rollout": entry.rollout,
        "Config": as_text(written),
        "Commit": commit_of(entry),
        "Environment": read_environment(path),
        "Isolation": as_text(known.manifest.provenance.get("isolation")),
        "Device": known.sessions[-1].get("device") if known.sessions else None,
        "Run id": known.manifest.local_run_id,
        "Directory": str(path),
    }
    return RunDetail(
        entry,
        config_written=config_text(written) if isinstance(written, dict) else None,
        config_effective=inputs,
        facts=shown_facts(facts),
        secret_names=secret_names(known.manifest),
        problems=known.problems,
    )


def training_curves(known: KnownTraining, path: Path) -> TrainingCurves:
    """Return the curves of a run, what happened on the way, and what it saved."""
    return recorded_curves(known.records, known.sessions, TrainingDirectory(path))


def _newest(records: tuple[StepRecord, ...], key: str) -> float | None:
    return next((record.metrics[key] for record in reversed(records) if key in record.metrics), None)


def _moment_of(record: StepRecord) -> datetime | None:
    try:
        return datetime.fromtimestamp(record.timestamp_ms / 1000, timezone.utc)
    except (ValueError, OverflowError, OSError, TypeError):
        return None
