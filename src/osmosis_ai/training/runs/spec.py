"""What a training run is: its policy, the rows it learns from and those it is measured on, and their order.

Held-out rows come from their own file or are a share of the dataset, chosen before the first step as a pure function of
the dataset's length and the run's seed. The rows of a step are a pure function of the seed and the step number, so
resuming needs no stored state.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from osmosis_ai.datasets import DatasetRow, file_digest, iter_rows, sample_rows
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.sources import ProjectSource

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.evaluation.sources import RemoteSource
    from osmosis_ai.evaluation.spec import DatasetInput

Row = TypeVar("Row")


@dataclass(frozen=True)
class ValidationPlan:
    """The rows to validate on, and the attempts at each."""

    path: Path | None = None
    fraction: float = 0.05
    max_rows: int = 100
    attempts: int = 1
    pass_threshold: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 1:
            raise OsmosisError(
                f"the held-out share must be at least 0 and less than 1, not {self.fraction:g}."
            )
        if self.max_rows < 1 or self.attempts < 1:
            raise OsmosisError("a validation needs at least one row and one attempt.")


@dataclass(frozen=True)
class TrainingSpec:
    settings: TrainingSettings
    model_path: str
    dataset: DatasetInput
    rollout_dir: Path
    entrypoint: str = "main.py"
    validation: ValidationPlan = field(default_factory=ValidationPlan)
    adapter: Path | None = None
    device: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secret_values: Mapping[str, str] = field(default_factory=dict, repr=False)
    served: RemoteSource | None = None
    servers: int = 1

    def inputs(self) -> dict[str, Any]:
        """Return everything that the run's curve depends on, as the manifest locks it."""
        from osmosis_ai.config.training import MAY_CHANGE

        plan, fields = self.validation, type(self.settings).model_fields
        return {
            "model_path": self.model_path,
            "adapter": _folder_digest(self.adapter) if self.adapter else None,
            "dataset": {"sha256": self.dataset.sha256},
            "validation": {
                "sha256": file_digest(plan.path) if plan.path else None,
                "fraction": plan.fraction,
                "max_rows": plan.max_rows,
                "attempts": plan.attempts,
            },
            "rollout": self._rollout_inputs() if self.settings.method == "rl" else None,
            "env": dict(sorted(self.env.items())),
            "secret_names": sorted(self.secret_values),
            "settings": {
                key: value
                for key, value in self.settings.model_dump(mode="json").items()
                if key != "ignored" and MAY_CHANGE not in fields[key].metadata
            },
        }

    def _rollout_inputs(self) -> dict[str, str]:
        digest = (self.served or ProjectSource(self.rollout_dir)).source_digest()
        return {"name": self.rollout_dir.name, "entrypoint": self.entrypoint, "source_digest": digest}


def _folder_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        digest.update(os.fsencode(file.name) + b"\0" + file_digest(file).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class SplitRows(Generic[Row]):
    """The rows of a run: those it learns from, by index, and those it is measured on."""

    training: dict[int, Row]
    held_out: list[Row]


def split_rows(dataset: Path, plan: ValidationPlan, seed: int) -> SplitRows[DatasetRow]:
    rows = list(iter_rows(dataset))
    if not rows:
        raise OsmosisError(f"`{dataset}` has no rows to train on.")
    if plan.path is not None:
        held_out = list(iter_rows(plan.path))
        if len(held_out) > plan.max_rows:
            chosen = sample_rows(len(held_out), fraction=plan.max_rows / len(held_out), seed=seed)
            held_out = [held_out[index] for index in chosen]
        return SplitRows(dict(enumerate(rows)), held_out)
    fraction = min(plan.fraction, plan.max_rows / len(rows)) if len(rows) > 1 else 0
    indices = set(sample_rows(len(rows), fraction=fraction, seed=seed)) if fraction else set()
    training = {index: row for index, row in enumerate(rows) if index not in indices}
    return SplitRows(training, [rows[index] for index in sorted(indices)])


@dataclass(frozen=True)
class DataOrder:
    """The order of the training rows.

    Every epoch is its own permutation, so each row occurs once per epoch. The last batch of an epoch may be smaller.
    """

    rows: tuple[int, ...]
    batch_size: int
    epochs: int
    seed: int
    max_steps: int | None = None

    @classmethod
    def of(cls, rows: SplitRows[Any], settings: TrainingSettings) -> DataOrder:
        return cls(
            tuple(rows.training),
            settings.rollout_batch_size,
            settings.total_epochs,
            settings.seed,
            settings.max_steps,
        )

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.rows) / self.batch_size)

    @property
    def total_steps(self) -> int:
        planned = self.epochs * self.steps_per_epoch
        return planned if self.max_steps is None else min(planned, self.max_steps)

    def batch(self, step: int) -> Sequence[int]:
        epoch, position = divmod(step - 1, self.steps_per_epoch)
        start = position * self.batch_size
        return _permutation(self.rows, self.seed, epoch)[start : start + self.batch_size]


@lru_cache(maxsize=2)
def _permutation(rows: tuple[int, ...], seed: int, epoch: int) -> Sequence[int]:
    return random.Random(f"{seed}:{epoch}").sample(rows, len(rows))
