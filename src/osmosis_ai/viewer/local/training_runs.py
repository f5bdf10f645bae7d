"""Training directories of this machine: a line of a list, and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from osmosis_ai.config.toml_text import config_text
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.attempt_files import read_environment
from osmosis_ai.evaluation.lenient_json import as_text
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.training.runs.curves import RecordedTraining
from osmosis_ai.training.runs.metrics import (
    TRAINING_REWARD,
    VALIDATION_REWARD,
    VALIDATION_REWARD_HIGH,
    VALIDATION_REWARD_LOW,
)
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.viewer.local.recorded import (
    commit_of,
    recorded_entry,
    secret_names,
    shown_facts,
    with_time_so_far,
)
from osmosis_ai.viewer.source import RunDetail, RunEntry


class KnownTraining(NamedTuple):
    """A training run: list entry, manifest (None if unreadable) and directory content."""

    entry: RunEntry
    manifest: Manifest | None
    recorded: RecordedTraining | None
    problems: Sequence[str]


def read_training(path: Path, name: str) -> KnownTraining:
    """Read a training directory; what is damaged is said, not raised."""
    directory = TrainingDirectory(path)
    try:
        manifest = Manifest.load(directory.manifest)
    except OsmosisError as error:
        entry = RunEntry("training", name, id=str(path), status="incomplete", error=error.message)
        return KnownTraining(entry, None, None, (error.message,))
    running = directory.is_running()
    recorded = RecordedTraining.read(directory)
    reward, total = recorded.newest(VALIDATION_REWARD), recorded.total_steps
    of_validation = reward is not None
    finished = bool(recorded.records) and (total is None or recorded.last_step >= total)
    ended = None if running else recorded.ended_at
    entry = recorded_entry("training", name, manifest)
    entry = replace(
        entry,
        status="running" if running else "finished" if finished else "incomplete",
        ended_at=ended,
        reward=reward if of_validation else recorded.newest(TRAINING_REWARD),
        reward_low=recorded.newest(VALIDATION_REWARD_LOW) if of_validation else None,
        reward_high=recorded.newest(VALIDATION_REWARD_HIGH) if of_validation else None,
        duration_s=(ended - entry.started_at).total_seconds() if ended and entry.started_at else None,
        error=recorded.problems[0] if recorded.problems else None,
    )
    return KnownTraining(entry, manifest, recorded, recorded.problems)


def training_detail(known: KnownTraining, path: Path) -> RunDetail:
    """Return a training run's page, its series aside."""
    recorded = known.recorded
    if known.manifest is None or recorded is None:
        return RunDetail(known.entry, facts=[("Directory", str(path))], problems=known.problems)
    inputs, entry = known.manifest.inputs, with_time_so_far(known.entry)
    written = known.manifest.provenance.get("config")
    last, total = recorded.last_step, recorded.total_steps
    facts = {
        "Steps": f"{last} of {total}" if total is not None else last,
        "Model": entry.model,
        "Dataset": entry.dataset,
        "Rollout": entry.rollout,
        "Config": as_text(written),
        "Commit": commit_of(entry),
        "Environment": read_environment(path),
        "Isolation": as_text(known.manifest.provenance.get("isolation")),
        "Device": recorded.planned("device"),
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
