"""What manifests of evaluations and training runs say alike: a line of a list, as far as it goes, and facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from osmosis_ai.evaluation.lenient_json import as_table, as_text
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.ui.numbers import parse_date
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.source import RunEntry


def recorded_entry(kind: RunKind, name: str, manifest: Manifest, *, dataset: str | None = None) -> RunEntry:
    """Return a run's line as its manifest tells it, as of a run that nobody works on."""
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
    """Return facts as labels and values, without what nobody knows."""
    return [(label, str(value)) for label, value in facts.items() if value is not None]


def secret_names(manifest: Manifest) -> list[str]:
    """Return the names of a run's secrets."""
    names = manifest.inputs.get("secret_names")
    return [str(each) for each in names] if isinstance(names, list) else []


def commit_of(entry: RunEntry) -> str | None:
    """Return the commit that a run was made of, and whether there were changes beside it."""
    return entry.commit and f"{entry.commit}{' (dirty)' if entry.dirty else ''}"


def with_time_so_far(entry: RunEntry) -> RunEntry:
    """Return the entry; of a running run that nobody has measured yet, with the time since its start."""
    if entry.status != "running" or entry.duration_s or entry.started_at is None:
        return entry
    return replace(
        entry, duration_s=max(0.0, (datetime.now(timezone.utc) - entry.started_at).total_seconds())
    )


def moment(written: Any) -> datetime | None:
    """Return a moment as files have it; None where it is none."""
    return parse_date(written) if isinstance(written, str) else None
