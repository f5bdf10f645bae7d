"""Channel of one claimed run between its worker and the platform.

Each exchange carries the lease's token and renews the lease. The lease's expiry is measured with this machine's
monotonic clock: after a whole term without an answer, another worker may have the run.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from osmosis_ai.api.retrying import Transient, Waits
from osmosis_ai.api.wire.workers import (
    MOST_WANTED,
    AgentPlace,
    AssignedRun,
    Assignment,
    EndRequest,
    InputDownload,
    ReleaseRequest,
    RunClosed,
    SentUpload,
    SyncReply,
    SyncRequest,
    UploadGrant,
    WantedUpload,
)
from osmosis_ai.platform.runs.work.platform_link import (
    PlatformLink,
    PlatformUnreachableError,
    held_at_most_s,
)

Said = TypeVar("Said")
_WAITS = Waits((0.25, 1.0))
_BLOCK_BYTES = 1 << 20
_THREADS = 4
_WORTH_SAYING = 64
"""Uploads that were sent and not said so, which the next request for more says along: few stay open on the platform."""


@dataclass(frozen=True, slots=True)
class OutgoingBlob:
    """Bytes that are to become a blob of the run: ``name`` is below the run's own. ``content`` is read from its beginning."""

    name: str
    content: BinaryIO
    size: int
    sha256: str

    @classmethod
    def of(cls, name: str, content: BinaryIO) -> OutgoingBlob:
        """Return everything ``content`` has, measured."""
        content.seek(0)
        digest, size = hashlib.sha256(), 0
        while block := content.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
        return cls(name, content, size, digest.hexdigest())


class RunChannel:
    """Sends a worker's messages about its run and receives the answers; blocking and thread-safe."""

    def __init__(
        self, link: PlatformLink, assignment: Assignment, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._link = link
        self.assignment = assignment
        self._clock = clock
        self._lock = threading.Lock()
        self._answered_at = clock()
        self._term_s = assignment.lease.term_s
        self._next_s = self._pace(assignment.next_s)
        self._on_stop: Callable[[], None] = lambda: None
        self._unsaid: list[SentUpload] = []
        self.stop_asked = False
        self.answers = 0

    @property
    def run(self) -> AssignedRun:
        """The run, as it was when it was claimed."""
        return self.assignment.run

    @property
    def attempt(self) -> int:
        """How often the run has been claimed, this time included."""
        return self.assignment.lease.attempt

    @property
    def term_s(self) -> float:
        """How long the lease lasts from each answer on, in seconds."""
        return self._term_s

    @property
    def pace_s(self) -> float:
        """How long the platform wants to be left alone after an answer, in seconds."""
        return self._next_s

    def silence_s(self) -> float:
        """Return for how long the platform has said nothing, in seconds."""
        return self._clock() - self._answered_at

    def has_run_out(self) -> bool:
        """Tell whether the lease has, as far as this machine knows."""
        return self.silence_s() >= self._term_s

    def listen(self, on_stop: Callable[[], None]) -> None:
        """Call ``on_stop`` when the run is to end; at once when it is."""
        self._on_stop = on_stop
        if self.stop_asked:
            on_stop()

    def sync(self, **news: Any) -> SyncReply:
        """Keep the lease, and hand over what is new: the fields of a ``SyncRequest`` but the lease."""
        asked_at = self._clock()
        reply = self._link.sync(self.run.id, SyncRequest(lease=self.assignment.lease.token, **news))
        with self._lock:
            # A lease counts from when it was asked for, or as much later as the platform may have held its answer:
            # this may have been on its way for much longer.
            held_s = held_at_most_s(reply.term_s) if news.get("may_wait") else 0.0
            self._answered_at = max(self._answered_at, min(self._clock(), asked_at + held_s))
            self._term_s = reply.term_s
            self._next_s = self._pace(reply.next_s)
            self.answers += 1
            if said := {each.id for each in news.get("sent", ())}:
                self._unsaid = [each for each in self._unsaid if each.id not in said]
            is_news = reply.stop and not self.stop_asked
            self.stop_asked = self.stop_asked or reply.stop
        if is_news:
            self._on_stop()
        return reply

    def store(self, blobs: Sequence[OutgoingBlob]) -> list[SentUpload]:
        """Send bytes; what is returned goes into ``sent`` of the sync that says what they are for."""
        sent: list[SentUpload] = []
        for start in range(0, len(blobs), MOST_WANTED):
            some = blobs[start : start + MOST_WANTED]
            wanted = [WantedUpload(name=each.name, size=each.size, sha256=each.sha256) for each in some]
            granted = {grant.name: grant for grant in self.sync(wanted=wanted, **self._said_along()).uploads}
            if missing := [each.name for each in some if each.name not in granted]:
                raise PlatformUnreachableError(f"the platform does not say where to send `{missing[0]}`.")
            grants = [granted[each.name] for each in some]
            if len(some) == 1:
                done = [self._send(some[0], grants[0])]
            else:
                with ThreadPoolExecutor(_THREADS, thread_name_prefix="uploads") as threads:
                    done = list(threads.map(self._send, some, grants))
            sent += done
            with self._lock:
                self._unsaid += done
        return sent

    def fetch(self, download: InputDownload, target: Path) -> None:
        """Fetch bytes to a file, whole and of this digest, or not at all."""
        self._link.fetch(download, target)

    def find_agent(self) -> AgentPlace | None:
        """Return where the run's agent is served now; None when it is not there any more."""
        return self.insist(lambda: self.sync(find_agent=True)).agent

    def insist(self, say: Callable[[], Said]) -> Said:
        """Call ``say`` until it succeeds, while the platform is unavailable for less than a lease."""

        def attempt() -> Said:
            try:
                return say()
            except PlatformUnreachableError as error:
                raise Transient(error) from None

        return _WAITS.lasting(self._term_s).run(attempt)

    def end(self, outcome: str, error: str | None = None, *, ending: str | None = None) -> RunClosed:
        """Give the run its outcome; asked to stop, it is ``stopped`` whatever is said here."""
        said: dict[str, Any] = {"outcome": outcome, "error": error, "ending": ending}
        return self._link.end(self.run.id, EndRequest(lease=self.assignment.lease.token, **said))

    def release(
        self,
        *,
        setback: str | None = None,
        of_machine: bool = False,
        store_away: bool = False,
        ending: str | None = None,
    ) -> RunClosed:
        """Release the run unchanged. ``setback`` is an infrastructure failure, ``of_machine`` blames only this machine,
        and ``store_away`` reports an unavailable store.
        """
        said: dict[str, Any] = {"setback": setback, "of_machine": of_machine, "ending": ending}
        if store_away:
            said["store_away"] = True
        return self._link.release(self.run.id, ReleaseRequest(lease=self.assignment.lease.token, **said))

    def _pace(self, wanted_s: float) -> float:
        # A longer interval would lose the lease, whatever the platform asks for.
        return min(wanted_s, self._term_s / 3)

    def _said_along(self) -> dict[str, list[SentUpload]]:
        """Return what a request for more uploads says of those before, once: whose files they are may be said much later."""
        with self._lock:
            if len(self._unsaid) < _WORTH_SAYING:
                return {}
            sent, self._unsaid = self._unsaid, []
        return {"sent": sent}

    def _send(self, blob: OutgoingBlob, grant: UploadGrant) -> SentUpload:
        return send_blob(self._link, blob, grant)


def send_blob(link: PlatformLink, blob: OutgoingBlob, grant: UploadGrant) -> SentUpload:
    """Send a blob where it was granted, in one PUT or in parts."""
    etags: list[str] = []
    # Without a URL the platform has the bytes.
    for number, url in enumerate([grant.url, *grant.further_urls] if grant.url else []):
        if (received := grant.received.get(number + 1)) is not None:
            etags.append(received)
            continue
        offset = number * (grant.part_size or 0)
        size = min(grant.part_size or blob.size, blob.size - offset)
        part = grant.model_copy(update={"url": url})
        etags.append(link.send(part, cast(BinaryIO, _Stretch(blob.content, offset)), size))
    first, *further = etags or [""]
    told: dict[str, Any] = {"further_etags": further} if further else {}
    return SentUpload(name=blob.name, id=grant.id, etag=first, size=blob.size, sha256=blob.sha256, **told)


class _Stretch:
    """A file from some byte on, which counts as its beginning."""

    def __init__(self, whole: BinaryIO, offset: int) -> None:
        self._whole = whole
        self._offset = offset

    def seek(self, offset: int) -> int:
        return self._whole.seek(self._offset + offset) - self._offset

    def read(self, size: int = -1) -> bytes:
        return self._whole.read(size)
