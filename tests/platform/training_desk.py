"""The platform's side of a training run's news alone, for tests of what becomes of them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from osmosis_ai.api.wire.workers import InputDownload, StoredTraining, TrainingNews
from osmosis_ai.files import replacing
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.runs.desk.training import apply_training, stored_training
from osmosis_ai.platform.runs.leases import Lease, Leases
from osmosis_ai.platform.runs.work.training_sink import NO_BLOBS


class DeskSink:
    """Takes a worker's news of training into the platform's rows, without a protocol in between.

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
        with self._leases.writing(self._lease) as (session, run):
            return stored_training(session, run, lambda key, _: key)

    def send(self, news: TrainingNews, blobs: Mapping[str, BinaryIO] = NO_BLOBS) -> Mapping[int, str]:
        below = f"runs/{self._lease.run_id}"
        sent = {name: self._blobs.put(f"{below}/{name}", content) for name, content in blobs.items()}
        with self._leases.writing(self._lease) as (session, run):
            applied = apply_training(session, run, news, sent, self._clock.now())
        for prefix in applied.obsolete:
            self._blobs.delete_below(prefix)
        return applied.checkpoints

    def fetch(self, download: InputDownload, target: Path) -> None:
        with self._blobs.open(download.url) as source, replacing(target, durable=False) as file:
            shutil.copyfileobj(source, file)
