"""Uploads of local runs: what is cut off or asked for at once loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from osmosis_ai.platform.blobs.local import LocalBlobStore
from osmosis_ai.platform.blobs.signing import UrlSigner, load_signing_key
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbEvalImport, DbEvalImportFile, DbWorkspace
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.imports import sessions
from osmosis_ai.platform.runs.imports.sessions import EvalImportStore
from osmosis_ai.platform.runs.read.run_counts import RunCounts
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock
from tests.platform.databases import postgres_database
from tests.platform.local_runs import IMPORTS, LocalRun

DAY_S = 24 * 3600


class KilledError(BaseException):
    """The platform ends here and does nothing more."""


def test_files_of_an_upload_that_was_being_forgotten_when_the_platform_was_killed_go_later(
    api: TestClient, services: PlatformServices, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LocalRun()
    run.send(api, api.post(IMPORTS, json=run.start()).json()["session_id"])
    assert len(list(services.blobs.keys("runs"))) == len(run.files)
    clock.advance(DAY_S + 1)

    def killed(_: str) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(services.blobs, "delete_below", killed)
        with pytest.raises(KilledError):
            services.eval_imports.tidy()
    assert list(services.blobs.keys("runs"))
    services.eval_imports.tidy()
    services.run_deletion.finish()
    assert list(services.blobs.keys("runs")) == []


def test_an_upload_that_became_a_run_while_it_was_about_to_be_forgotten_keeps_its_files(
    api: TestClient, services: PlatformServices, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LocalRun()
    session = api.post(IMPORTS, json=run.start()).json()["session_id"]
    run.send(api, session)
    forget = EvalImportStore._forget

    def slowly(store: EvalImportStore, row: DbEvalImport) -> None:
        # Its end was asked for in time, and took until now.
        clock.jump(-60)
        assert api.post(f"{IMPORTS}/{session}/finalize", json={}).status_code == 200
        clock.jump(60)
        forget(store, row)

    clock.advance(DAY_S + 1)
    monkeypatch.setattr(EvalImportStore, "_forget", slowly)
    services.eval_imports.tidy()
    services.run_deletion.finish()
    assert len(list(services.blobs.keys("runs"))) >= len(run.files)
    asked = api.post(
        f"/api/cli/eval-runs/{run.name}/samples/download-urls", json={"items": [{"path": "summary.jsonl"}]}
    )
    assert len(api.get(asked.json()["items"][0]["url"]).text.splitlines()) == 6


@pytest.fixture
def imports(tmp_path: Path) -> Iterator[EvalImportStore]:
    """The uploads of a platform on PostgreSQL; one of them has two files, of which nothing was sent."""
    clock = SystemClock()
    signer = UrlSigner(load_signing_key(tmp_path / "blob-urls.key"), "https://osmosis.example/p", clock)
    with postgres_database() as url:
        db = Database(url)
        try:
            db.migrate()
            add_upload(db, clock)
            blobs = LocalBlobStore(tmp_path / "blobs", signer, clock)
            yield EvalImportStore(db, blobs, clock, LogStore(db, clock), RunCounts("eval", clock))
        finally:
            db.dispose()


def add_upload(db: Database, clock: SystemClock) -> None:
    now = clock.now()
    upload = DbEvalImport(
        id="imp_1",
        workspace_id="wsp_1",
        local_run_id="1" * 32,
        manifest_digest="2" * 64,
        status="uploading",
        announced={},
        run_id="run_1",
        created_at=now,
        expires_at=now + timedelta(hours=1),
    )
    with db.transaction() as session:
        session.add(DbWorkspace(id="wsp_1", name="fern", created_at=now))
        session.flush()
        session.add(upload)
        session.flush()
        for path in ("a", "b"):
            described = {"size": 1, "sha256": "0" * 64, "blob_key": f"runs/run_1/files/{path}"}
            session.add(DbEvalImportFile(import_id="imp_1", path=path, **described))


@pytest.mark.integration
def test_two_who_ask_for_the_same_files_in_another_order_both_hear_where_to_send_them(
    imports: EvalImportStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    current, first = sessions._current, threading.local()
    holding: list[None] = []

    def waiting() -> bool:
        with imports._db.session() as session:
            return bool(session.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")))

    def held(session: Any, file: DbEvalImportFile) -> DbEvalImportFile:
        """Once a request has the first of its files, wait until the other has one, too, or waits for this one."""
        row = current(session, file)
        if not hasattr(first, "file"):
            first.file = row.path
            holding.append(None)
            while len(holding) < 2 and not waiting():
                threading.Event().wait(0.01)
        return row

    monkeypatch.setattr(sessions, "_current", held)
    with ThreadPoolExecutor(2) as threads:
        asked = [
            threads.submit(imports.upload_instructions, "wsp_1", "imp_1", order) for order in ("ab", "ba")
        ]
        told = [{file.path: upload for file, upload in each.result(timeout=120)} for each in asked]
    assert [set(each) for each in told] == [{"a", "b"}] * 2
    with imports._db.session() as session:
        uploads = {session.get_one(DbEvalImportFile, ("imp_1", path)).upload["id"] for path in "ab"}  # type: ignore[index]
    assert {each.id for each, _ in imports._blobs.unfinished_uploads()} == uploads, (
        "one each, the others are over"
    )
