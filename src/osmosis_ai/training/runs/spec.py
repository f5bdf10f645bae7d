"""What a training run is: which policy learns what, from which rows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.datasets import file_digest
from osmosis_ai.evaluation.sources import ProjectSource
from osmosis_ai.training.runs.run_directory import locked_settings
from osmosis_ai.training.runs.validation import ValidationPlan

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.evaluation.sources import RemoteSource
    from osmosis_ai.evaluation.spec import DatasetInput


@dataclass(frozen=True)
class TrainingSpec:
    """One training run."""

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
        plan = self.validation
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
            "rollout": {
                "name": self.rollout_dir.name,
                "entrypoint": self.entrypoint,
                "source_digest": (self.served or ProjectSource(self.rollout_dir)).source_digest(),
            },
            "env": dict(sorted(self.env.items())),
            "secret_names": sorted(self.secret_values),
            "settings": locked_settings(self.settings),
        }


def _folder_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        digest.update(os.fsencode(file.name) + b"\0" + file_digest(file).encode())
    return digest.hexdigest()
