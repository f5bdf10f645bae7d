"""The description of a training run: its policy, the rows it learns from and those it is measured on, and their order.

Held-out rows come from their own file or are a share of the dataset, chosen before the first step as a pure function of
the dataset's length and the run's seed. The rows of a step are a pure function of the seed and the step number, so
resuming needs no stored state.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from osmosis_ai.datasets import DatasetRow, file_digest, iter_rows, row_digest, sample_rows
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.sources import ProjectSource

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.evaluation.sources import RemoteSource
    from osmosis_ai.evaluation.spec import DatasetInput

Row = TypeVar("Row")


_HELD_OUT_SHARE, _MOST_HELD_OUT = 0.05, 100


@dataclass(frozen=True)
class ValidationPlan:
    """The rows to validate on: of the file at ``path``, otherwise held out of the training dataset; and the attempts."""

    path: Path | None = None
    rows: int | None = None
    attempts: int = 1
    pass_threshold: float = 1.0

    def choose(self, total: int, seed: int) -> Sequence[int]:
        """Return which of ``total`` rows are validated on."""
        if self.path is None and self.rows is None:
            fraction = min(_HELD_OUT_SHARE, _MOST_HELD_OUT / total) if total > 1 else 0
        else:
            rows = _MOST_HELD_OUT if self.rows is None else self.rows
            fraction = min(1, rows / total) if total else 0
        return sample_rows(total, fraction=fraction, seed=seed).indices if fraction else ()


@dataclass(frozen=True)
class TrainingSpec:
    settings: TrainingSettings
    model_path: str
    dataset: DatasetInput
    rollout_dir: Path
    entrypoint: str = "main.py"
    validation_file: Path | None = None
    adapter: Path | None = None
    device: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secret_values: Mapping[str, str] = field(default_factory=dict, repr=False)
    served: RemoteSource | None = None
    servers: int = 1

    @property
    def validation(self) -> ValidationPlan:
        settings = self.settings
        return ValidationPlan(self.validation_file, settings.validation_rows, settings.validation_attempts)

    def inputs(self) -> dict[str, Any]:
        """Return everything that the run's curve depends on, as the manifest locks it."""
        from osmosis_ai.config.training import MAY_CHANGE

        fields = type(self.settings).model_fields
        return {
            "model_path": self.model_path,
            "adapter": _folder_digest(self.adapter) if self.adapter else None,
            "dataset": {"sha256": self.dataset.sha256},
            "validation": {"sha256": file_digest(self.validation_file)} if self.validation_file else None,
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
    warnings: tuple[str, ...] = ()


def split_rows(dataset: Path, plan: ValidationPlan, seed: int) -> SplitRows[DatasetRow]:
    rows = list(iter_rows(dataset))
    if not rows:
        raise OsmosisError(f"`{dataset}` has no rows to train on.")
    if plan.path is not None:
        others = list(iter_rows(plan.path))
        held_out = [others[index] for index in plan.choose(len(others), seed)]
        return SplitRows(
            dict(enumerate(rows)),
            held_out,
            overlap_warnings(map(row_digest, rows), map(row_digest, held_out)),
        )
    indices = set(plan.choose(len(rows), seed))
    training = {index: row for index, row in enumerate(rows) if index not in indices}
    if not training:
        raise OsmosisError(
            f"[advanced].validation_rows leaves no training rows: the dataset has {len(rows):,}."
        )
    return SplitRows(training, [rows[index] for index in sorted(indices)])


def overlap_warnings(training: Iterable[str], held_out: Iterable[str]) -> tuple[str, ...]:
    """Return a warning if rows of a validation dataset, by their digests, are trained on."""
    validated = list(held_out)
    known = set(validated).intersection(training)
    if not (count := sum(digest in known for digest in validated)):
        return ()
    return (
        f"{count:,} of the {len(validated):,} validation rows are also training rows: the validation overstates the "
        "improvement.",
    )


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

    def first_position(self, step: int) -> int:
        """Return the position of a batch's first row in the sequence of all batches."""
        epoch, position = divmod(step - 1, self.steps_per_epoch)
        return epoch * len(self.rows) + position * self.batch_size

    def at(self, position: int) -> tuple[int, int]:
        """Return the step and the row at a position of the sequence of all batches, which never ends."""
        epoch, offset = divmod(position, len(self.rows))
        row = _permutation(self.rows, self.seed, epoch)[offset]
        return epoch * self.steps_per_epoch + offset // self.batch_size + 1, row


@lru_cache(maxsize=2)
def _permutation(rows: tuple[int, ...], seed: int, epoch: int) -> Sequence[int]:
    return random.Random(f"{seed}:{epoch}").sample(rows, len(rows))
