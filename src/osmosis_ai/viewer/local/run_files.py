"""List entries and details of local runs, from their files."""

from __future__ import annotations

import hashlib
import shlex
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from osmosis_ai.config.toml_text import config_text
from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.errors import OsmosisError, reason_of
from osmosis_ai.evaluation.attempt_files import read_environment
from osmosis_ai.evaluation.journal import replay
from osmosis_ai.evaluation.lenient_json import as_number, as_table, as_text
from osmosis_ai.evaluation.local_results import (
    MAX_LISTED_BYTES,
    LocalResults,
    current_numbers,
    pass_threshold_of,
)
from osmosis_ai.evaluation.manifest import Manifest, is_running
from osmosis_ai.evaluation.metrics import Estimates, RunScore
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.files import size_of
from osmosis_ai.rubric.documents import read_result
from osmosis_ai.training.runs.curves import RecordedTraining
from osmosis_ai.training.runs.metrics import (
    TRAINING_REWARD,
    VALIDATION_REWARD,
    VALIDATION_REWARD_HIGH,
    VALIDATION_REWARD_LOW,
)
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.ui.numbers import parse_date
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.source import RunDetail, RunEntry


def recorded_entry(kind: RunKind, name: str, manifest: Manifest, *, dataset: str | None = None) -> RunEntry:
    """Return a run's entry from its manifest, as of a run without a process."""
    inputs, provenance = manifest.inputs, manifest.provenance
    dataset = as_text(provenance.get("dataset_name")) or dataset
    rollout, dirty = as_text(as_table(inputs.get("rollout")).get("name")), provenance.get("git_dirty")
    return RunEntry(
        kind=kind,
        name=name,
        id=manifest.local_run_id,
        status="incomplete",
        started_at=moment(manifest.created_at),
        model=as_text(inputs.get("model_path")),
        dataset=dataset,
        rollout=rollout,
        commit=as_text(provenance.get("git_head")),
        dirty=dirty if isinstance(dirty, bool) else None,
        # Of which no config is known, they have these in common.
        config=as_text(provenance.get("config")) or " on ".join(filter(None, (rollout, dataset))) or None,
    )


def shown_facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(label, str(value)) for label, value in facts.items() if value is not None]


def secret_names(manifest: Manifest) -> list[str]:
    names = manifest.inputs.get("secret_names")
    return [str(each) for each in names] if isinstance(names, list) else []


def commit_of(entry: RunEntry) -> str | None:
    return entry.commit and f"{entry.commit}{' (dirty)' if entry.dirty else ''}"


def with_time_so_far(entry: RunEntry) -> RunEntry:
    """Return the entry; the duration of a running run counts from its start."""
    if entry.status != "running" or entry.duration_s or entry.started_at is None:
        return entry
    return replace(
        entry, duration_s=max(0.0, (datetime.now(timezone.utc) - entry.started_at).total_seconds())
    )


def moment(written: Any) -> datetime | None:
    """Parse a timestamp; None if it is invalid."""
    return parse_date(written) if isinstance(written, str) else None


@dataclass(frozen=True)
class KnownEvaluation:
    entry: RunEntry
    manifest: Manifest | None = None
    estimates: Estimates | None = None
    numbers: Mapping[str, Any] | None = None
    problems: tuple[str, ...] = ()
    context: Sequence[str] = ()


def read_evaluation(
    directory: Path, name: str, *, follow: Callable[[], LocalResults] | None = None
) -> KnownEvaluation:
    """Read an evaluation; damage becomes a problem, not an error."""
    found = RunDirectory(directory)
    try:
        manifest = Manifest.load(found.manifest)
    except OsmosisError as error:
        entry = RunEntry("eval", name, id=str(directory), status="incomplete", error=error.message)
        return KnownEvaluation(entry, problems=(error.with_hint,))
    # Check the lock first: the process that releases it has written everything before.
    running = is_running(directory.parent, directory.name)
    written = found.read_metrics() or {}
    estimates, numbers, problems = current_numbers(found, written, follow)
    if follow is None and estimates is not None and not problems:
        problems = _damage(found.events)
    facts = as_table(written.get("eval_run"))
    headline = RunScore.of(estimates, RowsDrawn.read(facts.get("rows"))) if estimates is not None else None
    pending = headline is None or headline.pending > 0
    reward = estimates.reward if estimates is not None else None
    entry = recorded_entry("eval", name, manifest, dataset=as_text(facts.get("dataset_name")))
    entry = replace(
        entry,
        status="running" if running else "incomplete" if pending else "finished",
        ended_at=moment(facts.get("completed_at")),
        measures=_measures(manifest, pass_threshold_of(found, written)),
        headline=headline,
        reward=reward.value if reward is not None else None,
        reward_low=reward.low if reward is not None else None,
        reward_high=reward.high if reward is not None else None,
        cost_usd=estimates.cost_usd.total if estimates is not None else None,
        duration_s=_seconds(facts.get("duration_ms")),
        error=problems[0] if problems else None,
    )
    context = _missing_data(manifest)
    return KnownEvaluation(entry, manifest, estimates, numbers, (*problems, *context), context)


def _damage(events: Path) -> tuple[str, ...]:
    """Return the problem of a journal of the expected size; lists do not read large journals."""
    try:
        if 0 < size_of(events) <= MAX_LISTED_BYTES:
            deque(replay(events), maxlen=0)
    except OsmosisError as error:
        return (f"{error.with_hint} The numbers are those of the run's last session.",)
    return ()


def _measures(manifest: Manifest, threshold: float) -> str:
    """Return a digest of what runs must share to be comparable."""
    rollout, dataset = (as_table(manifest.inputs.get(name)) for name in ("rollout", "dataset"))
    rows = manifest.provenance.get("dataset_name"), dataset.get("sha256"), dataset.get("selected_source_rows")
    return hashlib.sha256(repr((rollout.get("name"), *rows, threshold)).encode()).hexdigest()[:16]


def _missing_data(manifest: Manifest) -> list[str]:
    said = manifest.provenance.get("missing_data")
    return [each for each in said if isinstance(each, str)] if isinstance(said, list) else []


def facts_of(known: KnownEvaluation, directory: Path) -> list[tuple[str, str]]:
    entry, manifest = known.entry, known.manifest
    if manifest is None:
        return [("Directory", str(directory))]
    inputs, provenance = manifest.inputs, manifest.provenance
    dataset, rollout, timeouts = (as_table(inputs.get(name)) for name in ("dataset", "rollout", "timeouts"))
    facts = {
        "Model": entry.model,
        "Dataset": entry.dataset,
        "Dataset's SHA-256": dataset.get("sha256"),
        "Rows": dataset.get("selected_source_rows"),
        "Attempts per row": inputs.get("n"),
        "Seed": inputs.get("seed"),
        "Rollout": rollout.get("name"),
        "Entrypoint": rollout.get("entrypoint"),
        "Digest of the source": rollout.get("source_digest"),
        "Grader": manifest.grader_digest,
        "Config": provenance.get("config"),
        "Commit": commit_of(entry),
        "Branch": provenance.get("git_branch"),
        "Environment": read_environment(directory),
        "Isolation": provenance.get("isolation"),
        "Agent's time limit (s)": timeouts.get("agent_timeout_sec"),
        "Grader's time limit (s)": timeouts.get("grader_timeout_sec"),
        "Osmosis version": provenance.get("sdk_version"),
        "Run id": as_text(provenance.get("run_id")) or manifest.local_run_id,
        "Directory": str(directory),
    }
    return shown_facts(facts)


def commands_of(known: KnownEvaluation, directory: Path) -> list[str]:
    """Return the commands that continue a run or retry failed attempts."""
    manifest, entry = known.manifest, known.entry
    config = manifest.provenance.get("config") if manifest is not None else None
    if manifest is None or not isinstance(config, str) or entry.status == "running":
        return []
    options = manifest.provenance.get("options")
    given = map(str, options if isinstance(options, list) else ())
    again = shlex.join(["osmosis", "eval", "run", config, "--name", directory.name, *given])
    failed = entry.headline is not None and (entry.headline.failed or entry.headline.skipped)
    found = [again] if entry.status == "incomplete" else []
    return [*found, *([f"{again} --retry-failed"] if failed else [])]


def _seconds(milliseconds: Any) -> float | None:
    return milliseconds / 1000 if isinstance(milliseconds, (int, float)) else None


class KnownTraining(NamedTuple):
    """A training run: list entry, manifest (None if unreadable) and directory content."""

    entry: RunEntry
    manifest: Manifest | None
    recorded: RecordedTraining | None
    problems: Sequence[str]


def read_training(path: Path, name: str) -> KnownTraining:
    """Read a training directory; damage becomes a problem, not an error."""
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
    """Return a training run's details, without curves."""
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
        **as_table(recorded.planned("adapter")),
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


def read_session(path: Path, name: str) -> tuple[RunEntry, Mapping[str, Any], str | None]:
    """Return a session's list entry, its document (empty if unreadable), and the read error."""
    try:
        document = read_result(path)
    except (OSError, ValueError, RecursionError) as error:
        problem = f"`{path}` is not a readable result of a judging session ({reason_of(error)})."
        return RunEntry("rubric", name, id=str(path), status="incomplete", error=problem), {}, problem
    return session_entry(document, name, str(path)), document, None


def session_entry(document: Mapping[str, Any], name: str, id: str) -> RunEntry:
    usage, statistics = as_table(document.get("usage")), as_table(document.get("overall_statistics"))
    counts = as_table(document.get("counts"))
    scored = counts.get("scored") or statistics.get("success_count")
    made = parse_date(as_text(document.get("generated_at")) or "")
    return RunEntry(
        kind="rubric",
        name=name,
        id=id,
        status="finished" if document.get("complete", True) else "incomplete",
        started_at=made,
        ended_at=made,
        model=as_text(document.get("model")),
        dataset=as_text(document.get("data_path")) and PurePath(str(document["data_path"])).name,
        config=as_text(document.get("rubric_id")),
        headline=_calls(counts),
        reward=as_number(statistics.get("average")) if scored else None,
        cost_usd=as_number(usage.get("cost_usd")),
        duration_s=as_number(usage.get("elapsed_s")),
    )


def _calls(counts: Mapping[str, Any]) -> RunScore | None:
    """Return the number of scored and planned calls; None if unknown."""
    known = [as_number(counts.get(name)) for name in ("calls", "scored", "failed", "unscored", "pending")]
    if None in known:
        return None
    calls, scored, failed, unscored, pending = (int(each or 0) for each in known)
    return RunScore(planned=calls, scored=scored, failed=failed + unscored, pending=pending)


def session_detail(
    entry: RunEntry, document: Mapping[str, Any], problem: str | None, **known: str | None
) -> RunDetail:
    """Return a judging session's details: ``summary_numbers`` is its document, ``known`` adds facts."""
    records, models = document.get("records"), document.get("models")
    inputs = as_table(document.get("inputs"))
    facts = {
        "Rubric": document.get("rubric_id"),
        "Rubric from": document.get("rubric_source"),
        "Judges": ", ".join(map(str, models)) if isinstance(models, list) else entry.model,
        "Data": document.get("data_path"),
        "Data, SHA-256": inputs.get("data"),
        "Records": len(records) if isinstance(records, list) else None,
        "Calls per record and judge": document.get("number"),
        "Seed": document.get("seed"),
        **known,
    }
    return RunDetail(
        entry,
        summary_numbers=document,
        config_written=as_text(document.get("rubric")) or as_text(inputs.get("rubric")),
        facts=[(label, str(value)) for label, value in facts.items() if value is not None],
        problems=[problem] if problem is not None else [],
    )
