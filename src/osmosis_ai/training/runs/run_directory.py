"""Directory of a training run: file layout, lock, manifest, samples of the newest validation, and resume archive.

Only ``checkpoints/`` and ``metrics.jsonl`` are essential. Sessions in one directory run one after the other (a
kernel lock) and have equal inputs (the manifest), so that a curve belongs to one configuration.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.evaluation.manifest import Manifest, file_lock, is_locked
from osmosis_ai.files import open_regular, remove_tree, sync_directory, write_atomic
from osmosis_ai.redaction import Redactor
from osmosis_ai.training.learner.checkpoints import CheckpointDirectory, adopt_checkpoint
from osmosis_ai.training.runs.metrics import StepRecord, read_history

MOST_KEPT = 500
LARGEST_BYTES = 32 << 20
_STEP_OF_TRIAL = re.compile(r"(train|valid)-(\d+)-")
KEPT_TRIAL_STEPS = 2
_CHECKPOINT = "checkpoint"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DEEPEST = 3
_MOST_FILES = 1000
_STAGE = ".taking-over"


class _AboutValidation(msgspec.Struct):
    step: int
    total: int
    pass_threshold: float


@dataclass(frozen=True)
class ValidationSamples:
    """The worst samples of a run's newest validation, an index of the kept conversations.

    Each validation replaces the file atomically. Only the worst samples are included, so that disk use and page size
    do not depend on the number of held-out rows.
    """

    step: int
    total: int
    pass_threshold: float
    records: Sequence[TerminalRecord]

    @classmethod
    def of(cls, records: Sequence[TerminalRecord], *, step: int, pass_threshold: float) -> ValidationSamples:

        def badness(record: TerminalRecord) -> tuple[bool, float, int, int]:
            reward = reward_of(record)
            return reward is not None, reward or 0.0, record.row_index, record.run_index

        return cls(step, len(records), pass_threshold, sorted(records, key=badness)[:MOST_KEPT])

    def to_bytes(self) -> bytes:
        lines = [_AboutValidation(self.step, self.total, self.pass_threshold), *self.records]
        return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)

    @classmethod
    def from_bytes(cls, content: bytes) -> ValidationSamples:
        try:
            first, *lines = content.splitlines()
            about = msgspec.json.decode(first, type=_AboutValidation)
            records = [TerminalRecord.from_line(line, without_crc=True) for line in lines[:MOST_KEPT]]
            return cls(about.step, about.total, about.pass_threshold, records)
        except (ValueError, LookupError, TypeError, msgspec.DecodeError) as error:
            raise OsmosisError(f"the list of the newest validation's attempts is damaged: {error}.") from None


def reward_of(record: TerminalRecord) -> float | None:
    reward = record.reward if record.status == "success" else None
    return reward if reward is not None and math.isfinite(reward) else None


class TrainingDirectory:
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
        """Create the directory and lock it against other processes."""
        refusal = ConflictError(f"another process is already training in `{self.path}`.")
        with file_lock(self.path / ".lock", refusal):
            for directory in (self.checkpoints, self.trials):
                directory.mkdir(exist_ok=True)
            sync_directory(self.path.parent)
            yield

    def is_running(self) -> bool:
        try:
            return is_locked(self.path / ".lock")
        except OSError:
            return False  # this user cannot write into it, so none of their processes trains here

    def claim(self, inputs: Mapping[str, Any], provenance: Mapping[str, Any]) -> Manifest:
        """Write the run's inputs, or require that they are unchanged."""
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

    def write_validation(self, samples: ValidationSamples) -> None:
        """Replace the newest validation's samples, whose trajectories stay until the next validation."""
        write_atomic(self.validation, samples.to_bytes())

    def read_validation(self) -> ValidationSamples | None:
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
        """Remove a validation later than the step from which the run resumes."""
        with contextlib.suppress(OsmosisError):
            kept = self.read_validation()
            if kept is None or kept.step <= step:
                return
        self.validation.unlink(missing_ok=True)

    def sweep_trials(self, step: int, sampled: int) -> None:
        """Remove the trajectories of all but the last steps and the newest validation, which would fill the disk.

        Args:
            sampled: The last step whose planned groups are all done; a slow one delays it, and replacements advance it.
        """
        kept, last = set[str](), {"train": sampled - KEPT_TRIAL_STEPS, "valid": step - KEPT_TRIAL_STEPS}
        with contextlib.suppress(OsmosisError):
            if (samples := self.read_validation()) is not None:
                kept = {record.rollout_id for record in samples.records}
        for name in os.listdir(self.trials):  # noqa: PTH208 - a run has hundreds, and most of them stay
            match = _STEP_OF_TRIAL.match(name)
            if match is not None and int(match[2]) <= last[match[1]] and name not in kept:
                remove_tree(self.trials / name)


class DamagedArchiveError(OsmosisError):
    """A resume archive differs from what was packed."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the run's stored checkpoint cannot be used: {why}.",
            hint="submit the run again, from one of its kept checkpoints: "
            '[experiment].model_path = "BASE:CHECKPOINT"',
        )


def pack(
    directory: TrainingDirectory, checkpoint: CheckpointDirectory, redactor: Redactor, target: IO[bytes]
) -> None:
    """Write the resume state of ``checkpoint`` to ``target``, from which another machine computes the same steps.

    The archive is an uncompressed tar, since weights and optimiser moments hardly shrink:

        checkpoint/...     the checkpoint's directory
        metrics.jsonl      the history up to its step
        validation.jsonl   the samples of the newest validation up to its step, if any
        manifest.json      the run's inputs
    """
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(checkpoint.directory.rglob("*")):
            if path.is_file() and not path.is_symlink():
                name = f"{_CHECKPOINT}/{path.relative_to(checkpoint.directory).as_posix()}"
                with path.open("rb") as content:
                    _add(archive, name, content, os.fstat(content.fileno()).st_size)
        history = b"".join(
            StepRecord(**redactor.tree(asdict(record))).to_line()
            for record in read_history(directory.metrics)
            if record.step <= checkpoint.step
        )
        _add(archive, directory.metrics.name, io.BytesIO(history), len(history))
        samples = directory.read_validation()
        if samples is not None and samples.step <= checkpoint.step:
            kept = samples.to_bytes()
            _add(archive, directory.validation.name, io.BytesIO(kept), len(kept))
        manifest = directory.manifest.read_bytes()
        _add(archive, directory.manifest.name, io.BytesIO(manifest), len(manifest))


def unpack(archive: Path, directory: TrainingDirectory, step: int) -> None:
    """Have the run in ``directory`` resume from an archive, which replaces its files.

    The archive comes over a network: only plain files with known names are accepted, and the checkpoint is put in place
    last, after everything has been verified. A kill in between leaves earlier checkpoints intact.
    """
    stage = directory.path / _STAGE
    shutil.rmtree(stage, ignore_errors=True)
    (stage / _CHECKPOINT).mkdir(parents=True, mode=0o700)
    try:
        try:
            with tarfile.open(archive, mode="r:") as entries:
                for count, entry in enumerate(entries):
                    if count == _MOST_FILES:
                        raise DamagedArchiveError("it has too many files")
                    _extract_file(entries, entry, stage)
        except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
            raise DamagedArchiveError(f"it cannot be read ({type(error).__name__})") from error
        unpacked = TrainingDirectory(stage)
        _require_whole(unpacked, CheckpointDirectory(step, stage / _CHECKPOINT))
        # A manifest without the rest is a run that has not begun: after a kill here, the next session starts over.
        for path in (unpacked.manifest, unpacked.metrics, unpacked.validation):
            if path.exists():
                path.replace(directory.path / path.name)
        sync_directory(directory.path)
        adopt_checkpoint(stage / _CHECKPOINT, directory.checkpoints, step)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    archive.addfile(entry, content)


def _extract_file(entries: tarfile.TarFile, entry: tarfile.TarInfo, stage: Path) -> None:
    # A sparse file is larger than what came over the network.
    if not entry.isreg() or entry.issparse() or not _is_ours(entry.name):
        raise DamagedArchiveError("it has a file that does not belong to a checkpoint")
    content, path = entries.extractfile(entry), stage / entry.name
    assert content is not None
    try:
        path.parent.mkdir(exist_ok=True, parents=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except (FileExistsError, IsADirectoryError, NotADirectoryError):
        raise DamagedArchiveError("it has two files with the same name") from None
    with os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(content, file)
        file.flush()
        os.fsync(file.fileno())


def _is_ours(name: str) -> bool:
    first, *rest = name.split("/")
    if not rest:
        of_run = TrainingDirectory(Path())
        return first in {path.name for path in (of_run.manifest, of_run.metrics, of_run.validation)}
    return first == _CHECKPOINT and len(rest) <= _DEEPEST and all(_NAME.fullmatch(part) for part in rest)


def _require_whole(unpacked: TrainingDirectory, checkpoint: CheckpointDirectory) -> None:
    """Refuse an archive that a trainer cannot resume from, or that has another step."""
    try:
        Manifest.load(unpacked.manifest)
        if any(record.step > checkpoint.step for record in read_history(unpacked.metrics)):
            raise DamagedArchiveError("its curve extends beyond its checkpoint")
        if unpacked.validation.exists():
            ValidationSamples.from_bytes(unpacked.validation.read_bytes())
        found = checkpoint.trainer_state().get("step")
    except DamagedArchiveError:
        raise
    except OsmosisError as error:
        raise DamagedArchiveError(error.message.rstrip(".")) from error
    if found != checkpoint.step:
        raise DamagedArchiveError(f"it has step {found!r} instead of step {checkpoint.step}")
