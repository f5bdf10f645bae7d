"""Runs for comparisons, in memory and as run directories."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.decisions.samples import SAMPLE_FIELDS, ComparedInputs, RunSamples
from osmosis_ai.evaluation.manifest import Manifest

INPUTS = ComparedInputs(
    model="osmosis/tiny",
    dataset_name="multiply",
    dataset_sha256="d" * 64,
    rollout="math",
    entrypoint="main.py",
    source_digest="5" * 64,
    grader_digest="9" * 64,
    commit="c" * 40,
    dirty=False,
    config="configs/eval/math.toml",
    n=1,
    seed=0,
    pass_threshold=1.0,
)


def run_of(
    rewards: Sequence[Sequence[float | None]],
    *,
    name: str = "run",
    keys: Sequence[str] | None = None,
    inputs: ComparedInputs | None = None,
    **fields: Any,
) -> RunSamples:
    """Return a finished run with ``rewards[row][attempt]``; None is an attempt that succeeded without a reward."""
    samples = [
        (row, row, attempt, 0, math.nan if reward is None else reward, 0.01, 100.0, 1000.0, 500.0)
        for row, attempts in enumerate(rewards)
        for attempt, reward in enumerate(attempts)
    ]
    n = max((len(attempts) for attempts in rewards), default=1)
    known: dict[str, Any] = {
        "name": name,
        "run_id": name,
        "place": "local",
        "location": f"/evals/{name}",
        "status": "finished",
        "inputs": inputs or replace(INPUTS, n=n, model=f"model-of-{name}"),
        "row_keys": tuple(keys) if keys is not None else tuple(f"row-{row}" for row in range(len(rewards))),
        "keyed_by": "row_digest",
        "source_rows": np.arange(len(rewards)),
        "samples": np.array(samples, dtype=np.dtype(SAMPLE_FIELDS)),
        "planned": len(rewards) * n,
    }
    return RunSamples(**{**known, **fields})


def write_journalled_run(
    directory: Path,
    rewards: Sequence[Sequence[float | None]],
    *,
    digests: Sequence[str | None] | None = None,
    inputs: dict[str, Any] | None = None,
    provenance: dict[str, Any] | None = None,
    grader_digest: str | None = None,
    name: str | None = None,
    finish_reasons: Mapping[tuple[int, int], Mapping[str, int]] | None = None,
) -> Path:
    """Write a run directory whose journal has ``rewards[row][attempt]`` and a digest for each row.

    Its manifest calls the run by its directory's name, or by ``name``.
    """
    directory.mkdir(parents=True)
    written = {
        "dataset": {"sha256": "d" * 64, "selected_source_rows": f"0-{len(rewards) - 1}"},
        "n": max(len(attempts) for attempts in rewards),
        "seed": 0,
        "model_path": "osmosis/tiny",
        "rollout": {"name": "math", "entrypoint": "main.py", "source_digest": "5" * 64},
        **(inputs or {}),
    }
    Manifest(name or directory.name, written, provenance or {}, grader_digest=grader_digest).write(
        directory / "manifest.json"
    )
    lines = [
        TerminalRecord(
            row_index=row,
            run_index=attempt,
            rollout_id=f"row-{row}-run-{attempt}",
            status="success" if reward is not None else "failed",
            duration_ms=1000,
            source_row_index=row,
            reward=reward,
            tokens=100,
            cost_usd=0.01,
            model_latency_ms=500.0,
            row_digest=f"{row:032x}" if digests is None else digests[row],
            finish_reasons=(finish_reasons or {}).get((row, attempt)),
        ).to_line()
        for row, attempts in enumerate(rewards)
        for attempt, reward in enumerate(attempts)
    ]
    (directory / "events.jsonl").write_bytes(b"".join(lines))
    return directory
