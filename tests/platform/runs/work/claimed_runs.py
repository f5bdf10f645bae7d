"""A run that is claimed, and the platform of the same process that its worker speaks to."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import BinaryIO

from fastapi.testclient import TestClient

from osmosis_ai._version import __version__
from osmosis_ai.api.wire.workers import (
    AssignedLease,
    Assignment,
    EndRequest,
    InputDownload,
    ReleaseRequest,
    RunClosed,
    StoredJournal,
    SyncReply,
    SyncRequest,
    UploadGrant,
    WorkerOffer,
)
from osmosis_ai.platform.app import create_worker_app
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.desk.assignment import assigned_run
from osmosis_ai.platform.runs.desk.claims import ClaimScope
from osmosis_ai.platform.runs.desk.training import stored_training
from osmosis_ai.platform.runs.leases import Lease
from osmosis_ai.platform.runs.work.run_channel import RunChannel
from osmosis_ai.platform.services import PlatformServices


class DeskLink:
    """A platform of this process, as a worker's link; bytes go by its URLs."""

    def __init__(self, services: PlatformServices) -> None:
        self._desk = services.desk
        self._http = TestClient(create_worker_app(services))

    def claim(self, offer: WorkerOffer) -> Assignment | None:
        raise NotImplementedError

    def sync(self, run_id: str, request: SyncRequest) -> SyncReply:
        return self._desk.sync(run_id, request)

    def end(self, run_id: str, request: EndRequest) -> RunClosed:
        return self._desk.end(run_id, request)

    def release(self, run_id: str, request: ReleaseRequest) -> RunClosed:
        return self._desk.release(run_id, request)

    def leave(self, offer: WorkerOffer) -> None:
        raise NotImplementedError

    def fetch(self, download: InputDownload, target: Path) -> None:
        target.write_bytes(self._http.get(download.url).raise_for_status().content)

    def send(self, grant: UploadGrant, content: BinaryIO, size: int) -> str:
        content.seek(0)
        reply = self._http.put(grant.url, content=content.read(size)).raise_for_status()
        return str(reply.headers["etag"]).strip('"')


def claimed(services: PlatformServices, run_id: str) -> RunChannel:
    """Claim a run as its worker does, and return what this speaks through."""
    offer = WorkerOffer(claim_id=secrets.token_hex(16), sdk_version=__version__)
    assignment = services.desk.claim(offer, ClaimScope(run_id=run_id))
    assert assignment is not None
    return RunChannel(DeskLink(services), assignment)


def held(services: PlatformServices, lease: Lease) -> RunChannel:
    """Return what the owner of ``lease`` speaks through; nothing of its run need be there but the row."""
    with services.db.session() as session:
        run = session.get_one(DbRun, lease.run_id)
        training = stored_training(session, run, lambda key, _: key) if run.kind == "training" else None
    selection = {"total_rows": 1, "limit": 1, "draw_seed": None, "sha256": "0" * 64, "extension": "jsonl"}
    assignment = Assignment(
        run=assigned_run(run).model_copy(update={"selection": run.selection or selection}),
        lease=AssignedLease.model_validate({"token": lease.token, "attempt": lease.attempt, "term_s": 30.0}),
        dataset=InputDownload(url="", size=0, sha256="0" * 64),
        dataset_extension="jsonl",
        journal=StoredJournal(generation=0, bytes=0),
        training=training,
        next_s=0.0,
    )
    return RunChannel(DeskLink(services), assignment)
