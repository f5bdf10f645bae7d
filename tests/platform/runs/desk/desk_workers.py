"""A worker at the desk that the test moves by hand: it claims, says what it is told to say, and lets go."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import select

from osmosis_ai._version import __version__
from osmosis_ai.api.wire.workers import (
    Assignment,
    EndRequest,
    JournalPart,
    LogPart,
    ReleaseRequest,
    RunClosed,
    SentUpload,
    SyncReply,
    SyncRequest,
    UploadGrant,
    WantedUpload,
    WorkerLogLine,
    WorkerOffer,
)
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.platform.blobs.local import LocalBlobStore
from osmosis_ai.platform.blobs.signing import BLOBS_PATH
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.log_lines import storable
from osmosis_ai.platform.runs.desk.claims import ClaimScope
from osmosis_ai.platform.services import PlatformServices
from tests.evaluation.builders import record

ANY = ClaimScope()


def offer(**said: Any) -> WorkerOffer:
    """Return a claim of its own."""
    return WorkerOffer(claim_id=secrets.token_hex(16), sdk_version=__version__, **said)


def journal_of(records: Iterable[TerminalRecord]) -> bytes:
    return b"".join(each.to_line() for each in records)


def records(count: int, *, first: int = 0, **changes: Any) -> list[TerminalRecord]:
    return [record(row, 0, **changes) for row in range(first, first + count)]


class DeskWorker:
    """The owner of a run, until somebody else is.

    Attributes:
        journal: what it has written so far.
        generation: under which it says that.
    """

    def __init__(self, services: PlatformServices, assignment: Assignment) -> None:
        self.services = services
        self.assignment = assignment
        self.run_id = assignment.run.id
        self.token = assignment.lease.token
        self.journal = b""
        self.generation = assignment.journal.generation
        self._lines_sent = 0

    @classmethod
    def claims(cls, services: PlatformServices, scope: ClaimScope = ANY, **said: Any) -> DeskWorker:
        assignment = services.desk.claim(offer(**said), scope)
        assert assignment is not None
        return cls(services, assignment)

    def sync(self, **news: Any) -> SyncReply:
        return self.services.desk.sync(self.run_id, SyncRequest(lease=self.token, **news))

    def write(self, written: Sequence[TerminalRecord]) -> bytes:
        """Add to the journal."""
        lines = journal_of(written)
        self.journal += lines
        return lines

    def part(self, offset: int = 0, end: int | None = None, **changes: Any) -> JournalPart:
        described = {
            "generation": self.generation,
            "offset": offset,
            "lines": self.journal[offset:end].decode(),
        }
        return JournalPart(**{**described, **changes})

    def say(self, *messages: str, first: int | None = None) -> SyncReply:
        at = self.services.clock.now()
        lines = [WorkerLogLine(timestamp=at, message=storable(message)) for message in messages]
        return self.sync(log=LogPart(first=self._lines_sent if first is None else first, lines=lines))

    def wants(self, name: str, content: bytes) -> UploadGrant:
        wanted = WantedUpload(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        (grant,) = self.sync(wanted=[wanted]).uploads
        return grant

    def puts(self, grant: UploadGrant, content: bytes) -> SentUpload:
        """Send bytes where the grant says, as the route of signed URLs does."""
        store = self.services.blobs
        assert isinstance(store, LocalBlobStore)
        allowed = store.signer.part(grant.url.removeprefix(f"{BLOBS_PATH}/"))
        with store.receive_part(allowed) as incoming:
            incoming.write(content)
            incoming.seal()
            etag = store.keep_part(allowed, incoming).etag
        digest = hashlib.sha256(content).hexdigest()
        return SentUpload(name=grant.name, id=grant.id, etag=etag, size=len(content), sha256=digest)

    def sends(self, name: str, content: bytes) -> SentUpload:
        return self.puts(self.wants(name, content), content)

    def ends(self, outcome: str = "finished", **said: Any) -> RunClosed:
        return self.services.desk.end(self.run_id, EndRequest(lease=self.token, outcome=outcome, **said))

    def releases(self, **said: Any) -> RunClosed:
        return self.services.desk.release(self.run_id, ReleaseRequest(lease=self.token, **said))

    @property
    def run(self) -> DbRun:
        with self.services.db.session() as session:
            return session.get_one(DbRun, self.run_id)

    def samples(self) -> list[DbSample]:
        with self.services.db.session() as session:
            mine = select(DbSample).where(DbSample.run_id == self.run_id)
            return list(session.scalars(mine.order_by(DbSample.row_index, DbSample.run_index)))

    def messages(self) -> list[str]:
        page = self.services.logs.page(self.run_id, limit=500, direction="newer")
        return [line.message or "" for line in page.logs]

    def blob(self, url: str) -> bytes:
        """Return what a URL of an assignment serves."""
        store = self.services.blobs
        assert isinstance(store, LocalBlobStore)
        assert url.startswith(f"{BLOBS_PATH}/"), "workers know where their platform is"
        with store.open(store.signer.download(url.removeprefix(f"{BLOBS_PATH}/")).key) as blob:
            return blob.read()
