"""Where a worker's news of its training run go."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Protocol

from osmosis_ai.api.wire.workers import InputDownload, StoredTraining, SyncReply, TrainingNews
from osmosis_ai.platform.runs.work.run_channel import OutgoingBlob, RunChannel

NO_BLOBS: Mapping[str, BinaryIO] = MappingProxyType({})


class TrainingSink(Protocol):
    """Takes what is new of one training run. Blocks; may be called from any thread, by one at a time."""

    def stored(self) -> StoredTraining:
        """Return what the platform has of the run: what it had when it was claimed, and what was sent since."""
        ...

    def send(self, news: TrainingNews, blobs: Mapping[str, BinaryIO] = NO_BLOBS) -> Mapping[int, str]:
        """Send ``news`` and the blobs it names, atomically; return the checkpoint names by step."""
        ...

    def fetch(self, download: InputDownload, target: Path) -> None:
        """Fetch bytes to a file, whole and of this digest, or not at all."""
        ...


class ChannelSink:
    """The sink of a worker: its run's channel to the platform; remembers what it has sent."""

    def __init__(self, channel: RunChannel) -> None:
        self._channel = channel
        self._stored = channel.assignment.training or StoredTraining()
        # The publisher's thread and that of who ends the run may come at once.
        self._lock = threading.Lock()

    def stored(self) -> StoredTraining:
        """As :meth:`TrainingSink.stored`."""
        return self._stored

    def send(self, news: TrainingNews, blobs: Mapping[str, BinaryIO] = NO_BLOBS) -> Mapping[int, str]:
        """As :meth:`TrainingSink.send`."""
        with self._lock:
            outgoing = [OutgoingBlob.of(name, content) for name, content in blobs.items()]
            reply = self._channel.insist(lambda: self._say(news, outgoing))
            self._note(news)
        return reply.checkpoints

    def _say(self, news: TrainingNews, outgoing: Sequence[OutgoingBlob]) -> SyncReply:
        sent = self._channel.store(outgoing) if outgoing else []
        return self._channel.sync(training=news, **({"sent": sent} if sent else {}))

    def fetch(self, download: InputDownload, target: Path) -> None:
        """As :meth:`TrainingSink.fetch`."""
        self._channel.fetch(download, target)

    def _note(self, news: TrainingNews) -> None:
        stored, sent = self._stored, news.checkpoints
        kept = {part.step for part in sent if not part.is_resume}
        resumes = [part.step for part in sent if part.is_resume]
        self._stored = stored.model_copy(
            update={
                "checkpoint_steps": sorted({*stored.checkpoint_steps, *kept}),
                "validation": news.validation.version if news.validation is not None else stored.validation,
                "resume_step": max([*resumes, stored.resume_step or 0]) or None,
            }
        )
