"""The conversations of a training run's newest validation, from a worker's disk to blobs.

Invariant: a run has the files of one validation, or of none. They are stored below a name of their own first and become
the run's in one transaction; those of the validation before go after it. Who is killed in between leaves a whole one
and, at worst, blobs that nobody reads until their run is deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from threading import Lock

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.conversation import LARGEST_CONVERSATION_BYTES
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.trajectory_export import item_name
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.db.tables import DbRunFile
from osmosis_ai.platform.runs.leases import Lease, Leases
from osmosis_ai.redaction import Redactor, clean_json
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.training.runs.validation_samples import ValidationSamples
from osmosis_ai.viewer.local.conversation_files import read_conversation

KIND = "validation"
SAMPLES_PATH = f"{KIND}/samples.jsonl"
_MOST_BYTES = 512 << 20
"""Of all conversations together; the list begins with the worst, so those that find no room are the best."""


def conversation_path(row: int, attempt: int) -> str:
    """Return what the conversation of a sample is called among the run's files."""
    return f"{KIND}/{item_name(row, attempt)}.json"


class ValidationFiles:
    """Keeps a run's newest validation.

    Args:
        lease, leases: the right to write the run.
        blobs: where files go.
        redactor: blanks the run's secrets.
        directory: the run's.
    """

    def __init__(
        self, lease: Lease, leases: Leases, blobs: BlobStore, redactor: Redactor, directory: TrainingDirectory
    ) -> None:
        self._lease = lease
        self._leases = leases
        self._blobs = blobs
        self._redactor = redactor
        self._directory = directory
        # The publisher's thread and that of who ends the run may come at once.
        self._lock = Lock()

    def publish(self) -> None:
        """Make the run's files those of the validation that is in its directory; of none where there is none.

        Raises:
            OsmosisError, OSError: what is on the disk can not be read or stored; the validation before stays.
            LeaseLostError: the run has another owner.
        """
        with self._lock:
            self._publish(self._directory.read_validation())

    def _publish(self, samples: ValidationSamples | None) -> None:
        written = samples.to_bytes() if samples is not None else b""
        listed = b"\n".join(clean_json(line, self._redactor) for line in written.splitlines())
        version = f"{samples.step}-{hashlib.sha256(listed).hexdigest()[:16]}" if samples is not None else None
        with self._leases.writing(self._lease) as (session, _):
            before = self._stored(session)
        if before == version:
            return
        files = self._store(samples, listed, f"{self._root}/{version}") if samples is not None else []
        with self._leases.writing(self._lease) as (session, run):
            session.execute(delete(DbRunFile).where(DbRunFile.run_id == run.id, DbRunFile.kind == KIND))
            session.add_all(files)
        if before is not None:
            self._blobs.delete_below(f"{self._root}/{before}")

    @property
    def _root(self) -> str:
        return f"runs/{self._lease.run_id}/{KIND}"

    def _stored(self, session: Session) -> str | None:
        """Return the name of the validation that the run has."""
        at = (DbRunFile.run_id == self._lease.run_id, DbRunFile.path == SAMPLES_PATH)
        key = session.scalar(select(DbRunFile.blob_key).where(*at))
        return key.split("/")[-2] if key is not None else None

    def _store(self, samples: ValidationSamples, listed: bytes, below: str) -> list[DbRunFile]:
        """Store all of a validation, or nothing."""
        try:
            return list(self._stored_files(samples, listed, below))
        except (OSError, OsmosisError):
            with suppress(OSError, OsmosisError):
                self._blobs.delete_below(below)
            raise

    def _stored_files(self, samples: ValidationSamples, listed: bytes, below: str) -> Iterator[DbRunFile]:
        yield self._file(SAMPLES_PATH, listed, below)
        directory, room = RunDirectory(self._directory.path), _MOST_BYTES
        for record in samples.records:
            row, attempt = record.row_index, record.run_index
            most = min(room, LARGEST_CONVERSATION_BYTES)
            content = read_conversation(directory, record.rollout_id, row, attempt, max_bytes=most).content
            try:
                clean = clean_json(content, self._redactor) if content is not None else None
            except ValueError:
                continue  # a rollout's server was killed while it wrote
            if clean is not None:
                room -= len(clean)
                yield self._file(conversation_path(row, attempt), clean, below)

    def _file(self, path: str, content: bytes, below: str) -> DbRunFile:
        key = f"{below}/{path.rpartition('/')[2]}"
        self._blobs.put(key, BytesIO(content))
        return DbRunFile(run_id=self._lease.run_id, path=path, kind=KIND, size=len(content), blob_key=key)
