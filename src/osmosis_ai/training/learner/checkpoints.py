"""Atomic checkpoints.

A checkpoint is a directory `step-00000042`. It is written under another name, flushed to disk and renamed, so a
kill, a power cut or a full disk leaves earlier checkpoints intact. It holds everything that determines how a run
continues:

    adapter/             the LoRA adapter in PEFT format, with a copy of its provenance
    learner.pt           adapter, optimiser, schedule and random state
    trainer_state.json   trainer state: data order, history
    provenance.json      config, commit, dataset digest, metrics

The last checkpoint is always kept; earlier ones only if requested. Names that start with a dot are unfinished: opening
the store reverts an interrupted replacement and removes the rest. Only one process at a time may write to a store.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError, with_causes
from osmosis_ai.files import is_disk_full, replacing, sync_directory, write_atomic, write_json

if TYPE_CHECKING:
    from osmosis_ai.training.learner.policy import Policy

ADAPTER_DIR, LEARNER_FILE = "adapter", "learner.pt"
TRAINER_FILE, PROVENANCE_FILE = "trainer_state.json", "provenance.json"
_KEEP_MARK = "keep"
_NAME = re.compile(r"step-(\d{8,})")
_UNFINISHED, _REPLACED, _DISCARDED = ".writing-", ".replaced-", ".discarded-"


@dataclass(frozen=True)
class CheckpointDirectory:
    step: int
    directory: Path

    @property
    def adapter_dir(self) -> Path:
        return self.directory / ADAPTER_DIR

    @property
    def kept(self) -> bool:
        return (self.directory / _KEEP_MARK).exists()

    def trainer_state(self) -> dict[str, Any]:
        return self._read_json(TRAINER_FILE)

    def provenance(self) -> dict[str, Any]:
        """Return its provenance, with ``step`` and ``saved_at`` (ISO 8601) added."""
        return self._read_json(PROVENANCE_FILE)

    def load_into(self, learner: Policy) -> dict[str, Any]:
        """Restore ``learner``; return the trainer's state."""
        import pickle

        import torch

        try:
            state = torch.load(self.directory / LEARNER_FILE, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise self._damaged(LEARNER_FILE, error) from error
        trainer_state = self.trainer_state()
        learner.load_state_dict(state)
        return trainer_state

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.directory / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self._damaged(name, error) from error
        return found

    def _damaged(self, name: str, error: Exception) -> OsmosisError:
        return OsmosisError(
            f"the checkpoint of step {self.step} cannot be read: {self.directory / name}: {error}",
            hint="remove its directory to continue from the previous checkpoint",
        )


def checkpoints_in(directory: Path) -> tuple[CheckpointDirectory, ...]:
    """Return the checkpoints in a directory, the earliest first, also while another process writes them."""
    try:
        paths = list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return ()
    found = [
        CheckpointDirectory(int(match[1]), path) for path in paths if (match := _NAME.fullmatch(path.name))
    ]
    return tuple(sorted(found, key=lambda checkpoint: checkpoint.step))


def adopt_checkpoint(written: Path, directory: Path, step: int) -> None:
    """Move a flushed checkpoint from the same disk into a store, atomically."""
    directory.mkdir(parents=True, exist_ok=True)
    _put_in_place(written, directory / _name(step))


class CheckpointStore:
    def __init__(self, directory: Path, *, keep_every: int) -> None:
        self.directory = directory
        self._keep_every = keep_every
        directory.mkdir(parents=True, exist_ok=True)
        self._clean_up()

    def list(self) -> tuple[CheckpointDirectory, ...]:
        return checkpoints_in(self.directory)

    def latest(self) -> CheckpointDirectory | None:
        checkpoints = self.list()
        return checkpoints[-1] if checkpoints else None

    def save(
        self,
        step: int,
        learner: Policy,
        trainer_state: Mapping[str, Any],
        provenance: Mapping[str, Any] | None = None,
        *,
        keep: bool = False,
    ) -> CheckpointDirectory:
        """Write the checkpoint of ``step`` durably, and remove earlier ones that are not kept."""
        import torch

        final = self.directory / _name(step)
        writing = self.directory / f"{_UNFINISHED}{final.name}"
        described = {**(provenance or {}), "step": step, "saved_at": datetime.now(timezone.utc).isoformat()}
        try:
            shutil.rmtree(writing, ignore_errors=True)
            writing.mkdir()
            learner.save_adapter(writing / ADAPTER_DIR)
            state = learner.state_dict()
            if "tinker_path" in state:  # where the policy is on its server
                described["tinker_path"] = state["tinker_path"]
            with replacing(writing / LEARNER_FILE, durable=False) as file:
                torch.save(state, file)
            write_json(writing / TRAINER_FILE, dict(trainer_state), durable=False)
            # Every copy of the adapter carries it; a server may not offer its adapter for download.
            for folder in filter(Path.is_dir, (writing, writing / ADAPTER_DIR)):
                write_json(folder / PROVENANCE_FILE, described, durable=False)
            if keep or step % self._keep_every == 0:
                write_atomic(writing / _KEEP_MARK, b"", durable=False)
            _flush(writing)
            _put_in_place(writing, final)
        except (OSError, RuntimeError) as error:
            raise self._not_written(step, _disk_error(error)) from error
        finally:
            shutil.rmtree(writing, ignore_errors=True)
        self._drop_superseded(step)
        return CheckpointDirectory(step, final)

    def _drop_superseded(self, step: int) -> None:
        for checkpoint in self.list():
            if checkpoint.step < step and not checkpoint.kept:
                # Renamed first: a directory that is half removed must not look like a checkpoint.
                discarded = self.directory / f"{_DISCARDED}{checkpoint.directory.name}"
                shutil.rmtree(discarded, ignore_errors=True)
                checkpoint.directory.rename(discarded)
                shutil.rmtree(discarded, ignore_errors=True)

    def _clean_up(self) -> None:
        for path in self.directory.glob(f"{_REPLACED}*"):
            final = self.directory / path.name.removeprefix(_REPLACED)
            if not final.exists():
                path.rename(final)
        for prefix in (_UNFINISHED, _REPLACED, _DISCARDED):
            for path in self.directory.glob(f"{prefix}*"):
                shutil.rmtree(path, ignore_errors=True)
        # A save that was killed after its checkpoint was in place has not removed the earlier ones.
        latest = self.latest()
        if latest is not None:
            self._drop_superseded(latest.step)

    def _not_written(self, step: int, error: Exception) -> OsmosisError:
        full = isinstance(error, OSError) and is_disk_full(error)
        reason = "the disk is full" if full else str(error)
        latest = self.latest()
        left = (
            f"the checkpoint of step {latest.step} is intact" if latest else "there is no earlier checkpoint"
        )
        return OsmosisError(
            f"the checkpoint of step {step} could not be written to {self.directory}: {reason}; {left}.",
            hint="free space there, then start the run again" if full else None,
        )


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _put_in_place(written: Path, final: Path) -> None:
    replaced = final.with_name(f"{_REPLACED}{final.name}")
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    written.rename(final)
    sync_directory(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _disk_error(error: Exception) -> Exception:
    """Return the disk's error: torch reports a refused write as an unexpected position."""
    return next((cause for cause in with_causes(error) if isinstance(cause, OSError)), error)


def _flush(directory: Path) -> None:
    """Make every file below ``directory``, and their names, survive a power cut."""
    for folder, _, files in os.walk(directory):
        for name in files:
            descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)  # noqa: PTH118 - os.walk's own
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(Path(folder))
