"""Directory of a training run: file layout, lock and manifest.

Only ``checkpoints/`` and ``metrics.jsonl`` are essential. Sessions in one directory run one after the other (a
kernel lock) and have equal inputs (the manifest), so that a curve belongs to one configuration.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.evaluation.manifest import Manifest, file_lock, is_locked
from osmosis_ai.evaluation.run_directory import ENVIRONMENT_FILE
from osmosis_ai.files import open_regular, remove_tree, sync_directory, write_atomic
from osmosis_ai.training.runs.validation_samples import LARGEST_BYTES, ValidationSamples

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings

_STEP_OF_TRIAL = re.compile(r"(?:train|valid)-(\d+)-")
KEPT_TRIAL_STEPS = 2


class TrainingDirectory:
    """Paths and rights of one run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = path / "manifest.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.log = path / "logs.txt"
        self.server_log = path / "rollout-server.log"
        self.learner = path / "learner"
        self.engine_log = path / "engine-server.log"
        self.served_adapters = path / "served_adapters"
        self.trials = path / "rollout_trials"
        self.validation = path / "validation.jsonl"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Make the directory and keep every other process from writing into it."""
        refusal = ConflictError(f"another process is training in `{self.path}` already.")
        with file_lock(self.path / ".lock", refusal):
            for directory in (self.checkpoints, self.trials):
                directory.mkdir(exist_ok=True)
            sync_directory(self.path.parent)
            yield

    def is_running(self) -> bool:
        """Tell whether some process trains in the directory right now."""
        try:
            return is_locked(self.path / ".lock")
        except OSError:
            return False  # nobody here may write into it, so nobody here trains

    def claim(self, inputs: Mapping[str, Any], provenance: Mapping[str, Any]) -> Manifest:
        """Say what the run is made from, or make sure that it is still the same."""
        if self.manifest.exists():
            manifest = Manifest.load(self.manifest)
            manifest.require_equal_inputs(inputs)
            return manifest
        if self.metrics.exists() or any(self.checkpoints.iterdir()):
            raise OsmosisError(
                f"`{self.path}` holds files of a run but no manifest; choose another directory."
            )
        manifest = Manifest(self.path.name, inputs, provenance)
        manifest.write(self.manifest)
        return manifest

    def write_environment(self, words: str) -> None:
        """Keep what the agent runs in; that of the newest session counts."""
        write_atomic(self.path / ENVIRONMENT_FILE, f"{words}\n")

    def write_validation(self, samples: ValidationSamples) -> None:
        """Keep what became of the newest validation's samples; their trajectories stay until the next one's."""
        write_atomic(self.validation, samples.to_bytes())

    def read_validation(self) -> ValidationSamples | None:
        """Return what became of the newest validation's samples; None where there is no record of it."""
        try:
            with open_regular(self.validation) as file:
                content = file.read(LARGEST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OsmosisError(f"`{self.validation}` cannot be read ({error.strerror or error}).") from None
        if len(content) > LARGEST_BYTES:
            raise OsmosisError(f"`{self.validation}` has more than {LARGEST_BYTES >> 20} MB.")
        return ValidationSamples.from_bytes(content)

    def forget_validation_after(self, step: int) -> None:
        """Remove the record of a validation later than the step the run resumes from."""
        with contextlib.suppress(OsmosisError):
            kept = self.read_validation()
            if kept is None or kept.step <= step:
                return
        self.validation.unlink(missing_ok=True)

    def sweep_trials(self, step: int) -> None:
        """Remove the trajectories of steps before the last few, which would fill the disk; not the newest validation's."""
        kept = self._kept_trials()
        for name in os.listdir(self.trials):  # noqa: PTH208 - there are hundreds, most of them to stay
            match = _STEP_OF_TRIAL.match(name)
            if match is not None and int(match[1]) <= step - KEPT_TRIAL_STEPS and name not in kept:
                remove_tree(self.trials / name)

    def _kept_trials(self) -> frozenset[str]:
        try:
            samples = self.read_validation()
        except OsmosisError:
            return frozenset()
        return (
            frozenset(record.rollout_id for record in samples.records) if samples is not None else frozenset()
        )


def locked_settings(settings: TrainingSettings) -> dict[str, Any]:
    """Return the settings that a run's curve depends on."""
    from osmosis_ai.config.training import MAY_CHANGE

    return {
        key: value
        for key, value in settings.model_dump(mode="json").items()
        if key != "ignored" and MAY_CHANGE not in type(settings).model_fields[key].metadata
    }
