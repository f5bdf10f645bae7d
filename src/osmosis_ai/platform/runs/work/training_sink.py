"""Where a worker's news of its training run go, and the way there that leads into the platform's own database."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Protocol

from osmosis_ai.api.wire.workers import InputDownload, StoredTraining, TrainingNews
from osmosis_ai.files import replacing
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.runs.desk.training import apply_training, stored_training
from osmosis_ai.platform.runs.leases import Lease, Leases

NO_BLOBS: Mapping[str, BinaryIO] = MappingProxyType({})


class TrainingSink(Protocol):
    """Takes what is new of one training run. Blocks; may be called from any thread, by one at a time."""

    def stored(self) -> StoredTraining:
        """Return what the platform had of the run when this worker began with it."""
        ...

    def send(self, news: TrainingNews, blobs: Mapping[str, BinaryIO] = NO_BLOBS) -> Mapping[int, str]:
        """Hand over ``news`` and the blobs that it names, all or nothing; return the names of its checkpoints by step.

        Args:
            news: what is new.
            blobs: by the names of their uploads; each is sent from its beginning.

        Raises:
            LeaseLostError: the run has another owner, or has ended.
            OsmosisError, OSError: it could not be read, sent or stored.
        """
        ...

    def fetch(self, download: InputDownload, target: Path) -> None:
        """Fetch bytes to a file, whole and of this digest, or not at all.

        Raises:
            OsmosisError, OSError: other bytes came, none at all, or this disk did not take them.
        """
        ...


class DatabaseSink:
    """The sink of a worker that has the platform's database at hand.

    Args:
        lease, leases: the right to write the run.
        blobs: where files go.
        clock: dates the checkpoints.
    """

    def __init__(self, lease: Lease, leases: Leases, blobs: BlobStore, clock: Clock) -> None:
        self._lease = lease
        self._leases = leases
        self._blobs = blobs
        self._clock = clock

    def stored(self) -> StoredTraining:
        """As :meth:`TrainingSink.stored`."""
        with self._leases.writing(self._lease) as (session, run):
            return stored_training(session, run, lambda key, _: key)

    def send(self, news: TrainingNews, blobs: Mapping[str, BinaryIO] = NO_BLOBS) -> Mapping[int, str]:
        """As :meth:`TrainingSink.send`."""
        below = f"runs/{self._lease.run_id}"
        sent = {name: self._blobs.put(f"{below}/{name}", content) for name, content in blobs.items()}
        with self._leases.writing(self._lease) as (session, run):
            applied = apply_training(session, run, news, sent, self._clock.now())
        for prefix in applied.obsolete:
            self._blobs.delete_below(prefix)
        return applied.checkpoints

    def fetch(self, download: InputDownload, target: Path) -> None:
        """As :meth:`TrainingSink.fetch`."""
        with self._blobs.open(download.url) as source, replacing(target, durable=False) as file:
            shutil.copyfileobj(source, file)
