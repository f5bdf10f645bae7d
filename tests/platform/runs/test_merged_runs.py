"""A run whose shards are merged, as whoever uses it meets it: downloads, signed URLs, backups, deletion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from osmosis_ai.platform.backup import create_backup, restore_backup
from osmosis_ai.platform.blobs.opening import open_blob_store
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.db.engine import opened_database
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.desk import shard_merging
from osmosis_ai.platform.runs.desk.shard_merging import ShardMerging
from osmosis_ai.platform.runs.desk.shard_policy import FAN
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock
from tests.platform.evaluations import Submits, end_with, submit_body
from tests.platform.runs.desk.desk_workers import DeskWorker
from tests.platform.runs.desk.sharded_runs import ShardedRun

RUNS = "/api/cli/eval-runs"


@pytest.fixture
def run(api: TestClient, services: PlatformServices, clock: ManualClock, tmp_path: Path) -> ShardedRun:
    """A run that somebody works on, and that has sent as many shards as are merged at a time."""
    Submits(RUNS, submit_body).taken(api)
    worker = DeskWorker.claims(services)
    sent = ShardedRun(services.db, services.blobs, tmp_path, worker.run_id, clock)
    sent.merging = services.shard_merging
    sent.shards(FAN)
    return sent


def urls(api: TestClient, run: ShardedRun) -> dict[str, str]:
    asked = {"items": [{"path": path} for path in run.contents]}
    reply = api.post(f"{RUNS}/{run.id}/samples/download-urls", json=asked)
    assert reply.status_code == 200, reply.text
    return {item["path"]: item["url"] for item in reply.json()["items"]}


def fetched(api: TestClient, found: dict[str, str]) -> dict[str, bytes]:
    content = {}
    for path, url in found.items():
        reply = api.get(url, headers={"Authorization": ""})
        assert reply.status_code == 200, reply.text
        content[path] = reply.content
    return content


def test_urls_and_manifests_are_as_good_as_before(
    api: TestClient, services: PlatformServices, run: ShardedRun, clock: ManualClock
) -> None:
    before = urls(api, run)
    wanted = {"types": "trajectories"}
    listed = api.get(f"{RUNS}/{run.id}/samples/manifest", params=wanted).json()
    run.merging.merge_due()
    assert len(run.named()) == 1
    assert fetched(api, before) == run.contents, "somebody who is downloading goes on"
    assert fetched(api, urls(api, run)) == run.contents
    assert api.get(f"{RUNS}/{run.id}/samples/manifest", params=wanted).json() == listed
    end_with(services, run.id, {})
    clock.advance(14 * 60)  # an URL's time is not over
    run.merging.merge_due()
    assert fetched(api, before) == run.contents
    run.settle()
    ended = api.get(f"{RUNS}/{run.id}/samples/manifest", params=wanted).json()
    assert ended["files"] == listed["files"] and ended["totals"] == listed["totals"]
    assert fetched(api, urls(api, run)) == run.contents


@pytest.mark.parametrize("merged", ["before", "while files move", "after"])
def test_a_backup_holds_each_conversation_whenever_it_is_made(
    services: PlatformServices,
    run: ShardedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    merged: str,
) -> None:
    if not services.db.is_sqlite:
        pytest.skip("restored into a directory, whose database is SQLite")
    target = tmp_path / "backup.tar"
    reports = []
    if merged == "while files move":
        monkeypatch.setattr(shard_merging, "_ROWS", 10)
        moving, calls = ShardMerging._set, []

        def backed_up(merging: ShardMerging, session: Session, keys: Sequence[str], state: str) -> None:
            moving(merging, session, keys, state)
            calls.append(state)
            if len(calls) == 3:  # some files are found in the merged shard, and more are not
                session.commit()
                reports.append(create_backup(services.config, target))

        monkeypatch.setattr(ShardMerging, "_set", backed_up)
        run.merging.merge_due()
    else:
        if merged == "after":
            run.merging.merge_due()
            run.later()
            run.merging.merge_due()
        reports.append(create_backup(services.config, target))
    assert reports[0].missing_blobs == 0
    elsewhere = replace(services.config, home=tmp_path / "restored", database_url="", blobs_url="")
    assert restore_backup(elsewhere, target).missing_blobs == 0
    with opened_database(elsewhere.database_url) as db:
        blobs = open_blob_store(elsewhere, SystemClock())
        restored = ShardedRun(db, blobs, tmp_path, run.id, run.clock)
        restored.contents = run.contents
        restored.merging = ShardMerging(db, blobs, run.clock)
        restored.check()
        restored.end()
        restored.settle()
        restored.check()
        kept = {key for key in restored.kept() if "/source" not in key}
        assert len(restored.named()) == 1 and restored.named() <= kept
        assert not [key for key in kept if "/shards/" in key]


def test_a_run_that_is_deleted_takes_all_of_its_shards_with_it(
    api: TestClient, services: PlatformServices, run: ShardedRun
) -> None:
    run.merging.merge_due()
    run.shards(3)
    run.end()
    with services.db.session() as session:
        workspace = session.get_one(DbRun, run.id).workspace_id
    found = services.eval_runs.get(workspace, run.id).run
    services.run_deletion.delete(found)
    assert run.kept() == set()
    run.clock.advance(timedelta(hours=1).total_seconds())
    run.merging.merge_due()
    run.merging.tidy()
    assert run.states() == {}
