"""Upload the conversations of a training run's newest validation.

A run has the files of at most one validation. New files are sent under a separate name and replace the old ones in one
transaction. A crash in between leaves one complete validation and, at worst, unused blobs that are deleted with the
run.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from io import BytesIO
from threading import Lock
from typing import BinaryIO

from osmosis_ai.api.wire.workers import RunFilePart, TrainingNews, ValidationPart
from osmosis_ai.evaluation.attempt_files import AttemptFiles
from osmosis_ai.evaluation.conversation import LARGEST_CONVERSATION_BYTES
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.platform.blobs.shards import LARGEST_FILE_BYTES, ShardWriter
from osmosis_ai.platform.runs.training_names import (
    KIND,
    SAMPLES_PATH,
    blobs_below,
    conversation_path,
    version_of,
)
from osmosis_ai.platform.runs.work.training_sink import TrainingSink
from osmosis_ai.redaction import Redactor, clean_json
from osmosis_ai.training.runs.run_directory import TrainingDirectory, ValidationSamples

_MOST_BYTES = 512 << 20
"""Of all conversations together; the list begins with the worst, so those that find no room are the best."""


class ValidationFiles:
    """Keeps a run's newest validation."""

    def __init__(
        self, sink: TrainingSink, version: str | None, redactor: Redactor, directory: TrainingDirectory
    ) -> None:
        self._sink = sink
        self._version = version
        self._redactor = redactor
        self._directory = directory
        # The publisher's thread and that of who ends the run may come at once.
        self._lock = Lock()

    def publish(self) -> None:
        """Make the run's files those of the validation that is in its directory; of none where there is none."""
        with self._lock:
            self._publish(self._directory.read_validation())

    def _publish(self, samples: ValidationSamples | None) -> None:
        written = samples.to_bytes() if samples is not None else b""
        listed = b"\n".join(clean_json(line, self._redactor) for line in written.splitlines())
        version = version_of(samples.step, listed) if samples is not None else None
        if version == self._version:
            return
        if samples is None or version is None:
            self._sink.send(TrainingNews(validation=ValidationPart(version=None)))
        else:
            with _Parcel(self._directory, version) as parcel:
                parcel.add(SAMPLES_PATH, listed, alone=True)
                self._add_conversations(parcel, samples)
                part = ValidationPart(version=version, files=parcel.files)
                self._sink.send(TrainingNews(validation=part), parcel.blobs)
        self._version = version

    def _add_conversations(self, parcel: _Parcel, samples: ValidationSamples) -> None:
        directory, room = RunDirectory(self._directory.path), _MOST_BYTES
        for record in samples.records:
            row, attempt = record.row_index, record.run_index
            most = min(room, LARGEST_CONVERSATION_BYTES)
            files = AttemptFiles(directory, record.rollout_id, row, attempt)
            content = files.conversation(max_bytes=most).content
            try:
                clean = clean_json(content, self._redactor) if content is not None else None
            except ValueError:
                continue  # a rollout's server was killed while it wrote
            if clean is not None:
                room -= len(clean)
                parcel.add(conversation_path(row, attempt), clean)


class _Parcel:
    """The files of one validation as they are sent: what is small in one blob."""

    def __init__(self, directory: TrainingDirectory, version: str) -> None:
        self._below = f"{blobs_below(version)}/{secrets.token_hex(4)}"
        self._open = ExitStack()
        self._shard = ShardWriter(directory.path)
        self._open.callback(self._shard.close)
        self.files: list[RunFilePart] = []
        self._alone: dict[str, BinaryIO] = {}

    def __enter__(self) -> _Parcel:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def blobs(self) -> dict[str, BinaryIO]:
        return {**self._alone, **({self._shard_name: self._shard.content()} if self._shard.size else {})}

    def add(self, path: str, content: bytes, *, alone: bool = False) -> None:
        """Add a file, ``alone`` in a blob of its own."""
        if alone or len(content) > LARGEST_FILE_BYTES:
            blob = f"{self._below}-{path.rpartition('/')[2]}"
            self._alone[blob] = BytesIO(content)
            self.files.append(RunFilePart(path=path, kind=KIND, size=len(content), blob=blob))
            return
        piece = self._shard.add(content)
        self.files.append(
            RunFilePart(
                path=path,
                kind=KIND,
                size=piece.size,
                blob=self._shard_name,
                shard_offset=piece.offset,
                shard_length=piece.length,
            )
        )

    @property
    def _shard_name(self) -> str:
        return f"{self._below}-conversations"
