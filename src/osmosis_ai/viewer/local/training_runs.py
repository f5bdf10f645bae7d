"""Training directories of this machine: a line of a list, a page, and the curves.

Invariant: what a directory does not tell is left out; the first damaged line of its history ends what is read of it,
and is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from osmosis_ai.api.wire.training_runs import ValidatedRows
from osmosis_ai.config.written import config_text
from osmosis_ai.errors import OsmosisError, reason_of
from osmosis_ai.evaluation.attempt_files import read_environment
from osmosis_ai.evaluation.lenient_json import as_number, as_table, as_text
from osmosis_ai.evaluation.log_pages import parse_line
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.files import open_regular
from osmosis_ai.training.learner.checkpoints import checkpoints_in
from osmosis_ai.training.runs.metrics import (
    TRAINING_REWARD,
    VALIDATION_REWARD,
    VALIDATION_REWARD_HIGH,
    VALIDATION_REWARD_LOW,
    StepRecord,
    read_history,
)
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.viewer.local.recorded import commit_of, recorded_entry, secret_names, shown_facts
from osmosis_ai.viewer.source import CurveMark, RunDetail, RunEntry, SavedAdapter, TrainingCurves
from osmosis_ai.viewer.training_curves import viewed_curves

_MOST_LOG_BYTES = 32 << 20
_LARGEST_STEP = 2**53 - 1


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
    records, problems = _records(directory.metrics)
    sessions = tuple(_sessions(directory.log))
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
    metrics: dict[str, list[tuple[int, float]]] = {}
    marks, validation = [], None
    for record in known.records:
        for key, value in record.metrics.items():
            metrics.setdefault(key, []).append((record.step, value))
        marks += [CurveMark(record.step, "warning", warning) for warning in record.warnings]
        if record.validation_rewards:
            with suppress(ValidationError):
                validation = ValidatedRows(step=record.step, rewards=dict(record.validation_rewards))
    for session in known.sessions:
        done = session.get("steps_done")
        if isinstance(done, int) and 0 < done <= _LARGEST_STEP:
            marks.append(CurveMark(done, "restart", f"went on after step {done}"))
    saved = [
        SavedAdapter(checkpoint.directory.name, checkpoint.step, _reward_at(metrics, checkpoint.step), size)
        for checkpoint in checkpoints_in(TrainingDirectory(path).checkpoints)
        if (size := _size(checkpoint.adapter_dir)) is not None
    ]
    marks += [CurveMark(adapter.step, "checkpoint", adapter.name) for adapter in saved]
    return TrainingCurves(
        viewed_curves(metrics), sorted(marks, key=lambda mark: mark.step), saved, validation=validation
    )


def _records(path: Path) -> tuple[tuple[StepRecord, ...], tuple[str, ...]]:
    records: list[StepRecord] = []
    try:
        for record in read_history(path):
            if not isinstance(record.metrics, dict):
                return tuple(records), (
                    f"`{path}` is damaged: a step has no metrics. The steps before are shown.",
                )
            records.append(_as_written(record))
    except OsmosisError as error:
        return tuple(records), (f"{error.message} The steps before that are shown.",)
    except OSError as error:
        return tuple(records), (f"`{path}` can not be read ({reason_of(error)}).",)
    return tuple(records), ()


def _as_written(record: StepRecord) -> StepRecord:
    """Return a step with what can be of one: no metric but finite numbers, no warning but texts."""
    return replace(
        record,
        step=max(0, min(record.step, _LARGEST_STEP)),
        metrics=_numbers(record.metrics),
        warnings=[each for each in record.warnings if isinstance(each, str)]
        if isinstance(record.warnings, list)
        else [],
        validation_rewards=_numbers(as_table(record.validation_rewards)),
    )


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {key: number for key, value in values.items() if (number := as_number(value)) is not None}


def _sessions(log: Path) -> Iterator[dict[str, Any]]:
    """Yield what each session of a run wrote of its plan."""
    try:
        with open_regular(log) as lines:
            for line in lines:
                if b" [plan] " in line[:80]:
                    yield parse_line(line).details or {}
                if lines.tell() > _MOST_LOG_BYTES:
                    return
    except OSError:
        return


def _newest(records: tuple[StepRecord, ...], key: str) -> float | None:
    return next((record.metrics[key] for record in reversed(records) if key in record.metrics), None)


def _reward_at(metrics: dict[str, list[tuple[int, float]]], step: int) -> float | None:
    return dict(metrics.get(VALIDATION_REWARD, ())).get(step)


def _size(folder: Path) -> int | None:
    try:
        return sum(file.lstat().st_size for file in folder.iterdir() if file.is_file())
    except OSError:
        return None


def _moment_of(record: StepRecord) -> datetime | None:
    try:
        return datetime.fromtimestamp(record.timestamp_ms / 1000, timezone.utc)
    except (ValueError, OverflowError, OSError, TypeError):
        return None
