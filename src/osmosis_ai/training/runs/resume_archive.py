"""Single-file archive of a run's resume state, from which another machine computes the same steps.

An uncompressed tar, since weights and optimiser moments hardly shrink:

    checkpoint/...     the checkpoint's directory
    metrics.jsonl      the history up to its step
    validation.jsonl   the samples of the newest validation up to its step, if any
    manifest.json      the run's inputs

The archive comes over a network: only plain files with known names are accepted, and the checkpoint is put in place
last, after everything has been verified. A kill in between leaves earlier checkpoints intact.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.files import sync_directory
from osmosis_ai.redaction import Redactor
from osmosis_ai.training.learner.checkpoints import CheckpointDirectory, adopt_checkpoint
from osmosis_ai.training.runs.metrics import StepRecord, read_history
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.training.runs.validation_samples import ValidationSamples

CHECKPOINT = "checkpoint"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DEEPEST = 3
_MOST_FILES = 1000
_STAGE = ".taking-over"


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
    """Write the resume state of ``checkpoint`` to ``target``."""
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in _files_below(checkpoint.directory):
            name = f"{CHECKPOINT}/{path.relative_to(checkpoint.directory).as_posix()}"
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
    """Have the run in ``directory`` go on from an archive; what is there of it gives way."""
    stage = directory.path / _STAGE
    shutil.rmtree(stage, ignore_errors=True)
    (stage / CHECKPOINT).mkdir(parents=True, mode=0o700)
    try:
        _extract(archive, stage)
        unpacked = TrainingDirectory(stage)
        _require_whole(unpacked, CheckpointDirectory(step, stage / CHECKPOINT))
        # A manifest without the rest is a run that has not begun: who is killed here begins with it again.
        for path in (unpacked.manifest, unpacked.metrics, unpacked.validation):
            if path.exists():
                path.replace(directory.path / path.name)
        sync_directory(directory.path)
        adopt_checkpoint(stage / CHECKPOINT, directory.checkpoints, step)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _files_below(directory: Path) -> Iterator[Path]:
    yield from (path for path in sorted(directory.rglob("*")) if path.is_file() and not path.is_symlink())


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    archive.addfile(entry, content)


def _extract(archive: Path, stage: Path) -> None:
    try:
        with tarfile.open(archive, mode="r:") as entries:
            for count, entry in enumerate(entries):
                if count == _MOST_FILES:
                    raise DamagedArchiveError("it has too many files")
                _extract_file(entries, entry, stage)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise DamagedArchiveError(f"it cannot be read ({type(error).__name__})") from error


def _extract_file(entries: tarfile.TarFile, entry: tarfile.TarInfo, stage: Path) -> None:
    # A sparse file is larger than what came over the network.
    if not entry.isreg() or entry.issparse() or not _is_ours(entry.name):
        raise DamagedArchiveError("it holds something that no checkpoint has")
    content, path = entries.extractfile(entry), stage / entry.name
    assert content is not None
    try:
        path.parent.mkdir(exist_ok=True, parents=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except (FileExistsError, IsADirectoryError, NotADirectoryError):
        raise DamagedArchiveError("it holds a name twice") from None
    with os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(content, file)
        file.flush()
        os.fsync(file.fileno())


def _is_ours(name: str) -> bool:
    first, *rest = name.split("/")
    if not rest:
        of_run = TrainingDirectory(Path())
        return first in {path.name for path in (of_run.manifest, of_run.metrics, of_run.validation)}
    return first == CHECKPOINT and len(rest) <= _DEEPEST and all(_NAME.fullmatch(part) for part in rest)


def _require_whole(unpacked: TrainingDirectory, checkpoint: CheckpointDirectory) -> None:
    """Refuse what a trainer would stumble over later, or what is of another step."""
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
        raise DamagedArchiveError(f"it is of step {found!r} and not of step {checkpoint.step}")
