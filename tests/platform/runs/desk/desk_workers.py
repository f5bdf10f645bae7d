"""A worker that the test moves by hand, over HTTP: it claims, says what it is to say, and lets go."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import httpx
from fastapi.testclient import TestClient
from sqlalchemy import select

from osmosis_ai._version import __version__
from osmosis_ai.api.wire.base import WireModel
from osmosis_ai.api.wire.workers import (
    CLAIM,
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
    run_route,
)
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.platform.app import create_worker_app
from osmosis_ai.platform.blobs.signing import BLOBS_PATH
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.log_lines import storable
from osmosis_ai.platform.runs.leases import LEASE
from osmosis_ai.platform.services import PlatformServices
from tests.evaluation.builders import MeasuredResults, record
from tests.platform.conftest import ManualClock
from tests.platform.evaluations import Submits, submit_body

RUNS = "/api/cli/eval-runs"
LEASE_S = LEASE.total_seconds()
GPU = {"execution": {"pool": "gpu"}}
submitted = Submits(RUNS, submit_body).taken
_platforms: WeakKeyDictionary[Database, TestClient] = WeakKeyDictionary()


class Refused(Exception):
    """What a platform answers to a worker that it does not do as it says."""

    def __init__(self, reply: httpx.Response) -> None:
        self.status, self.body = reply.status_code, reply.json()
        super().__init__(f"{self.body['code']}: {self.body['error']}")


def platform(services: PlatformServices) -> TestClient:
    """Return what workers of the platform speak to."""
    if services.db not in _platforms:
        _platforms[services.db] = TestClient(create_worker_app(services))
    return _platforms[services.db]


def posted(services: PlatformServices, bearer: str, route: str, said: Any) -> httpx.Response:
    """Say something with a token or ticket; a refusal is raised."""
    is_model = isinstance(said, WireModel)
    content = said.model_dump_json(by_alias=True, exclude_unset=True) if is_model else json.dumps(said)
    headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
    reply = platform(services).post(route, content=content, headers=headers)
    if reply.status_code >= 400:
        raise Refused(reply)
    return reply


def offer(**said: Any) -> WorkerOffer:
    """Return a claim of its own."""
    return WorkerOffer(claim_id=secrets.token_hex(16), sdk_version=__version__, **said)


def claim(services: PlatformServices, bearer: str, asked: WorkerOffer | None = None) -> Assignment | None:
    """Claim with a token or ticket; None where there is no run for that."""
    reply = posted(services, bearer, CLAIM, asked or offer())
    return None if reply.status_code == 204 else Assignment.model_validate(reply.json())


def pool_token(services: PlatformServices, pool: str = "gpu", **only: Any) -> str:
    """Return a token of a machine of a pool."""
    return services.worker_access.create_token(pool, **only)[1]


def journal_of(records: Iterable[TerminalRecord]) -> bytes:
    return b"".join(each.to_line() for each in records)


def records(count: int, *, first: int = 0, **changes: Any) -> list[TerminalRecord]:
    return [record(row, 0, **changes) for row in range(first, first + count)]


def measured(written: Sequence[TerminalRecord], *, rows: int, n: int) -> dict[str, Any]:
    """Return what the engine says of these records."""
    metrics = MeasuredResults(rows, n)
    for each in written:
        metrics.set_result(each)
        if each.row_digest:
            metrics.set_row_digest(each.row_index, each.row_digest)
    found = metrics.summary()
    return {"summary": found.summary, "estimates": found.estimates.model_dump(mode="json")}


def has_expired(clock: ManualClock) -> None:
    clock.advance(LEASE_S + 1)


class DeskWorker:
    """The owner of a run, until somebody else is.

    Attributes:
        journal: what it has written so far.
        generation: under which it says that.
    """

    def __init__(self, services: PlatformServices, assignment: Assignment, bearer: str | None = None) -> None:
        self.services = services
        self.assignment = assignment
        self.run_id = assignment.run.id
        self.bearer = bearer or pool_token(services, self.run.pool or "")
        self.token = assignment.lease.token
        self.journal = b""
        self.generation = assignment.journal.generation
        self._lines_sent = 0

    @classmethod
    def claims(
        cls, services: PlatformServices, pool: str | None = None, run_id: str | None = None, **said: Any
    ) -> DeskWorker:
        """Claim the run of a ticket, or one of a pool; by default the oldest run of no pool that may be claimed."""
        if pool is not None:
            bearer = pool_token(services, pool)
            assignment = claim(services, bearer, offer(**said))
            assert assignment is not None
            return cls(services, assignment, bearer)
        for known in [run_id] if run_id is not None else _open_runs(services):
            bearer = services.worker_access.issue_ticket(known)
            if (assignment := claim(services, bearer, offer(**said))) is not None:
                return cls(services, assignment, bearer)
        raise AssertionError("no run can be claimed")

    def _post(self, exchange: Any, said: Any) -> httpx.Response:
        return posted(self.services, self.bearer, run_route(self.run_id, exchange), said)

    def sync(self, **news: Any) -> SyncReply:
        return SyncReply.model_validate(self._post("sync", SyncRequest(lease=self.token, **news)).json())

    def say_raw(self, said: dict[str, Any]) -> None:
        """Say in an exchange what no worker of ours would."""
        self._post("sync", {"lease": self.token.get_secret_value(), **said})

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

    def records(self, count: int, **changes: Any) -> None:
        """Record and send so many rows more."""
        sent = len(self.journal)
        self.write(records(count, first=self.journal.count(b"\n"), **changes))
        self.sync(journal=self.part(sent))

    def say(self, *messages: str, first: int | None = None) -> SyncReply:
        at = self.services.clock.now()
        lines = [WorkerLogLine(timestamp=at, message=storable(message)) for message in messages]
        return self.sync(log=LogPart(first=self._lines_sent if first is None else first, lines=lines))

    def wants(self, name: str, content: bytes) -> UploadGrant:
        wanted = WantedUpload(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        (grant,) = self.sync(wanted=[wanted]).uploads
        return grant

    def puts(self, grant: UploadGrant, content: bytes) -> SentUpload:
        """Send bytes where the grant says."""
        reply = platform(self.services).put(grant.url, content=content)
        assert reply.status_code == 200, reply.text
        etag, digest = reply.headers["etag"].strip('"'), hashlib.sha256(content).hexdigest()
        return SentUpload(name=grant.name, id=grant.id, etag=etag, size=len(content), sha256=digest)

    def sends(self, name: str, content: bytes) -> SentUpload:
        return self.puts(self.wants(name, content), content)

    def ends(self, outcome: str = "finished", **said: Any) -> RunClosed:
        said = EndRequest(lease=self.token, outcome=outcome, **said)
        return RunClosed.model_validate(self._post("end", said).json())

    def releases(self, **said: Any) -> RunClosed:
        return RunClosed.model_validate(
            self._post("release", ReleaseRequest(lease=self.token, **said)).json()
        )

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
        assert url.startswith(f"{BLOBS_PATH}/"), "workers know where their platform is"
        reply = platform(self.services).get(url)
        assert reply.status_code == 200, reply.text
        return reply.content


def _open_runs(services: PlatformServices) -> list[str]:
    waiting = select(DbRun.id).where(DbRun.status.in_(("pending", "running")), DbRun.pool.is_(None))
    with services.db.session() as session:
        return list(session.scalars(waiting.order_by(DbRun.created_at, DbRun.id)))
