"""Builders of specifications, records and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from osmosis_ai.config.sections import EvaluationSettings, Experiment
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.evaluation.manifest import run_inputs
from osmosis_ai.evaluation.metrics import RunMetrics, compute_metrics
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.spec import DatasetInput, EvalRunSpec


def record(row: int = 0, run: int = 0, **changes: Any) -> TerminalRecord:
    known: dict[str, Any] = {
        "row_index": row,
        "run_index": run,
        "rollout_id": f"{row:016x}{run:016x}",
        "status": "success",
        "duration_ms": 12,
        "source_row_index": row,
        "reward": 1.0,
        "tokens": 7,
    }
    return TerminalRecord(**{**known, **changes})


def spec(
    *, env: Mapping[str, str] | None = None, secret_names: tuple[str, ...] = (), **changes: Any
) -> EvalRunSpec:
    """Return a specification with changed config values."""
    experiment: dict[str, Any] = {
        "rollout": "multiply",
        "entrypoint": "main.py",
        "model_path": "openai/stand-in",
        "dataset": "multiply",
    }
    settings = {key: value for key, value in changes.items() if key in EvaluationSettings.model_fields}
    experiment |= {key: value for key, value in changes.items() if key not in settings}
    return EvalRunSpec(
        Experiment(**experiment), EvaluationSettings(**settings), env=env or {}, secret_names=secret_names
    )


def dataset(path: Path = Path("multiply.jsonl"), sha256: str = "d1") -> DatasetInput:
    return DatasetInput(path, "multiply", sha256, "workspace")


def inputs(*, rows: str = "0-9", source: str = "s1", seed: int = 0, **changes: Any) -> dict[str, Any]:
    return run_inputs(spec(**changes), dataset(), rows, source, seed)


class MeasuredResults(AttemptTable):
    """A table of results that a test adds one by one."""

    def add(self, row: int, run: int, status: str, reward: float | None, **known: Any) -> None:
        self.set_result(
            TerminalRecord(row, run, "", status, **{"duration_ms": None, **known}, reward=reward)  # type: ignore[arg-type]
        )

    def summary(self) -> RunMetrics:
        return compute_metrics(self)
