"""Evaluations of this machine: what a line of a list says of one, and its page."""

from __future__ import annotations

import hashlib
import shlex
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.attempt_files import read_environment
from osmosis_ai.evaluation.journal import replay
from osmosis_ai.evaluation.lenient_json import as_table, as_text
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
from osmosis_ai.viewer.local.recorded import commit_of, moment, recorded_entry, shown_facts
from osmosis_ai.viewer.source import RunEntry


@dataclass(frozen=True)
class KnownEvaluation:
    """An evaluation as its files tell it, its samples aside."""

    entry: RunEntry
    manifest: Manifest | None = None
    estimates: Estimates | None = None
    numbers: Mapping[str, Any] | None = None
    problems: tuple[str, ...] = ()
    context: Sequence[str] = ()


def read_evaluation(
    directory: Path, name: str, *, follow: Callable[[], LocalResults] | None = None
) -> KnownEvaluation:
    """Read what an evaluation is and what it came to; what is damaged is said, not raised."""
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
    context = _not_told(manifest)
    return KnownEvaluation(entry, manifest, estimates, numbers, (*problems, *context), context)


def _damage(events: Path) -> tuple[str, ...]:
    """Return what is wrong with a journal whose size is right; lists of runs do not read large ones."""
    try:
        if 0 < size_of(events) <= MAX_LISTED_BYTES:
            deque(replay(events), maxlen=0)
    except OsmosisError as error:
        return (f"{error.with_hint} The numbers are those of the run's last session.",)
    return ()


def _measures(manifest: Manifest, threshold: float) -> str:
    """Return what another run of its config has to share before their numbers can be compared, as a digest."""
    rollout, dataset = (as_table(manifest.inputs.get(name)) for name in ("rollout", "dataset"))
    rows = manifest.provenance.get("dataset_name"), dataset.get("sha256"), dataset.get("selected_source_rows")
    return hashlib.sha256(repr((rollout.get("name"), *rows, threshold)).encode()).hexdigest()[:16]


def _not_told(manifest: Manifest) -> list[str]:
    """Return what a download that was laid out as a run (``downloaded_runs``) does not tell of it, in sentences."""
    said = manifest.provenance.get("not_told")
    return [each for each in said if isinstance(each, str)] if isinstance(said, list) else []


def facts_of(known: KnownEvaluation, directory: Path) -> list[tuple[str, str]]:
    """Return what else is to be known of a run, as labels and values."""
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
    """Return what to type to go on with a run, or to do again what failed; a run goes by its directory's name."""
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
