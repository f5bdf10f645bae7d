"""What an evaluation run leaves, over HTTP: its files, metrics and log."""

from __future__ import annotations

import gzip
import hashlib
import io
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from osmosis_ai.api.transfer import BlobClient, TransferError, download
from osmosis_ai.api.wire.eval_runs import ManifestFile
from osmosis_ai.evaluation.journal_chain import BEFORE_THE_FIRST, sealed
from osmosis_ai.platform.db.tables import DbRun, DbRunFile, DbSample, new_id
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.runs.leases import Leases
from osmosis_ai.platform.runs.read.derived_files import DerivedFiles
from osmosis_ai.platform.runs.stored_journal import pack_journal
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.redaction import Redactor
from osmosis_ai.viewer.source import RunQuery
from tests.evaluation.builders import record
from tests.platform.conftest import ManualClock, Member, assert_flat_error
from tests.platform.evaluations import Submits, submit_body
from tests.platform.viewer.runs_world import source_of

RUNS = "/api/cli/eval-runs"
submitted = Submits(RUNS, submit_body).taken


@pytest.fixture
def finished(api: TestClient, services: PlatformServices) -> dict[str, Any]:
    """A run whose two rows (4 and 9 of the dataset) have two attempts each, with files."""
    run = submitted(api)
    leases = Leases(services.db, services.clock)
    lease = leases.claim(run["id"], "w")
    assert lease is not None
    with leases.writing(lease) as (session, row):
        for row_index, source in enumerate((4, 9)):
            for run_index in range(2):
                name = f"row_{row_index}_run_{run_index}"
                session.add(
                    DbSample(
                        run_id=row.id,
                        row_index=row_index,
                        run_index=run_index,
                        source_row_index=source,
                        rollout_id=f"{row_index}{run_index}" * 16,
                        status="success",
                        reward=1.0,
                        tokens=7,
                        duration_ms=12,
                    )
                )
                for path, kind in (
                    (f"trajectories/{name}.json", "trajectories"),
                    (f"artifacts/{name}/out/note.txt", "artifacts"),
                ):
                    key = f"runs/{row.id}/files/{new_id('f')}"
                    info = services.blobs.put(key, io.BytesIO(path.encode()))
                    session.add(
                        DbRunFile(
                            run_id=row.id,
                            path=path,
                            kind=kind,
                            source_row_index=source,
                            size=info.size,
                            blob_key=key,
                        )
                    )
        leases.end(row, "finished")
    return run


def paths(api: TestClient, run: dict[str, Any], **asked: str) -> list[str]:
    manifest = api.get(f"{RUNS}/{run['name']}/samples/manifest", params=asked).json()
    assert manifest["totals"]["files"] == len(manifest["files"])
    return [file["path"] for file in manifest["files"]]


def test_a_manifest_has_exactly_the_types_and_rows_asked_for(
    api: TestClient, finished: dict[str, Any]
) -> None:
    assert paths(api, finished, types="metrics") == ["metrics.json"]
    assert paths(api, finished, types="logs") == ["logs.txt"]
    trajectories = [f"trajectories/row_{row}_run_{run}.json" for row in (0, 1) for run in (0, 1)]
    assert paths(api, finished) == ["metrics.json", "summary.jsonl", *trajectories]
    assert paths(api, finished, types="trajectories", rows="0-5,7") == ["summary.jsonl", *trajectories[:2]]
    assert paths(api, finished, types="artifacts", rows="9") == [
        "artifacts/row_1_run_0/out/note.txt",
        "artifacts/row_1_run_1/out/note.txt",
    ]
    assert len(paths(api, finished, types="metrics,trajectories,artifacts,logs")) == 11
    many = ",".join(str(row) for row in range(0, 8000, 2))
    assert len(paths(api, finished, types="artifacts", rows=many)) == 2


@pytest.mark.parametrize("harm", ["changed", "cut", "emptied", "gone"])
def test_a_kept_manifest_that_somebody_harmed_is_made_again(
    api: TestClient, services: PlatformServices, finished: dict[str, Any], harm: str
) -> None:
    before = paths(api, finished)
    (key,) = (key for key in services.blobs.keys("runs") if key.endswith("manifest.gz"))
    with services.blobs.open(key) as stored:
        content = stored.read()
    if harm == "gone":
        services.blobs.delete(key)
    else:
        middle = len(content) // 2
        changed = content[:middle] + bytes(each ^ 0x5A for each in content[middle:])
        harmed = {"changed": changed, "cut": content[:middle], "emptied": b""}[harm]
        services.blobs.put(key, io.BytesIO(harmed))
    assert paths(api, finished) == before
    with services.blobs.open(key) as stored:
        assert stored.read() == content


@pytest.mark.parametrize("asked", [{"types": "everything"}, {"rows": "a"}, {"rows": "5-3"}, {"rows": "1,,2"}])
def test_a_manifest_of_nonsense_is_refused(
    api: TestClient, finished: dict[str, Any], asked: dict[str, str]
) -> None:
    assert_flat_error(api.get(f"{RUNS}/{finished['name']}/samples/manifest", params=asked), 400, "VALIDATION")


def test_a_pending_run_has_nothing_to_download(api: TestClient) -> None:
    run = submitted(api)
    assert_flat_error(api.get(f"{RUNS}/{run['name']}/samples/manifest"), 409, "CONFLICT")


def test_what_a_manifest_announced_is_what_is_fetched(
    api: TestClient, services: PlatformServices, finished: dict[str, Any]
) -> None:
    asked = {"types": "metrics,trajectories,artifacts,logs"}
    manifest = api.get(f"{RUNS}/{finished['name']}/samples/manifest", params=asked).json()
    wanted = [*manifest["files"], {"path": "trajectories/row_9_run_9.json"}, {"path": "../../platform.db"}]
    links = api.post(f"{RUNS}/{finished['id']}/samples/download-urls", json={"items": wanted}).json()
    assert links["expires_in"] == 900 and isinstance(links["expires_in"], int)  # 900.0 on the wire is none
    assert {item["path"] for item in links["items"]} == {file["path"] for file in manifest["files"]}
    sizes = {file["path"]: file["size"] for file in manifest["files"]}
    for item in links["items"]:
        assert len(api.get(item["url"], headers={"Authorization": ""}).content) == sizes[item["path"]]


@pytest.mark.parametrize("path", ["metrics.json", "summary.jsonl", "logs.txt"])
def test_a_made_file_of_which_other_bytes_are_stored_is_found_out(
    api: TestClient, services: PlatformServices, finished: dict[str, Any], path: str, tmp_path: Path
) -> None:
    asked = {"types": "metrics,trajectories,logs"}

    def announced() -> dict[str, Any]:
        files = api.get(f"{RUNS}/{finished['name']}/samples/manifest", params=asked).json()["files"]
        found: dict[str, Any] = next(file for file in files if file["path"] == path)
        return found

    def fetch() -> bytes:
        """Fetch the file as the client does, by what its manifest says now."""
        file = ManifestFile.model_validate(announced())
        items = {"items": [{"path": path, "token": file.token}]}
        (link,) = api.post(f"{RUNS}/{finished['id']}/samples/download-urls", json=items).json()["items"]
        content = api.get(link["url"], headers={"Authorization": ""}).content
        store = httpx.MockTransport(lambda _: httpx.Response(200, stream=httpx.ByteStream(content)))
        expected: dict[str, Any] = {"expected_size": file.size, "expected_sha256": file.sha256}
        with BlobClient(transport=store) as client:
            return download(
                "https://store.example/it", tmp_path / "it", client=client, **expected
            ).path.read_bytes()

    services.logs.append(finished["id"], [LogLine("four samples were graded", step="run")])
    content, token = fetch(), announced()["token"]
    assert len(content) > 10
    services.blobs.put(f"runs/{finished['id']}/derived/{token}/{path}", io.BytesIO(b"x" * len(content)))
    with pytest.raises(TransferError, match="has other bytes than announced"):
        fetch()


def test_a_made_file_that_is_lost_in_the_store_is_made_again_once_a_request(
    api: TestClient, services: PlatformServices, finished: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, route = {"types": "metrics,trajectories"}, f"{RUNS}/{finished['id']}/samples"
    files = api.get(f"{route}/manifest", params=asked).json()["files"]
    wanted = [file for file in files if file["path"] in ("metrics.json", "summary.jsonl")]
    assert len(wanted) == 2
    for file in wanted:
        services.blobs.delete(f"runs/{finished['id']}/derived/{file['token']}/{file['path']}")
    made: list[str] = []
    make = DerivedFiles.make

    def make_one(derived: DerivedFiles, run: DbRun, path: str) -> tuple[str, int]:
        made.append(path)
        return make(derived, run, path)

    monkeypatch.setattr(DerivedFiles, "make", make_one)
    unknown = [{"path": "metrics.json", "token": number * 64} for number in "0123"]
    links = api.post(f"{route}/download-urls", json={"items": [*wanted, *unknown]}).json()["items"]
    assert [link["path"] for link in links] == [file["path"] for file in wanted]
    for file, link in zip(wanted, links, strict=True):
        content = api.get(link["url"], headers={"Authorization": ""}).content
        assert hashlib.sha256(content).hexdigest() == file["sha256"]
    assert sorted(made) == ["metrics.json", "summary.jsonl"]


def test_a_file_that_has_changed_since_its_manifest_is_fetched_as_announced(
    api: TestClient, services: PlatformServices
) -> None:
    run = submitted(api)
    leases = Leases(services.db, services.clock)
    lease = leases.claim(run["id"], "w")
    assert lease is not None

    def metrics() -> dict[str, Any]:
        asked = {"types": "metrics"}
        files = api.get(f"{RUNS}/{run['name']}/samples/manifest", params=asked).json()["files"]
        assert [file["path"] for file in files] == ["metrics.json"]
        found: dict[str, Any] = files[0]
        return found

    early = metrics()
    with leases.writing(lease) as (_, row):
        row.metrics = {"duration_ms": 5, "summary": {"total_samples": 3}, "estimates": {}}
    late = metrics()
    assert early["token"] != late["token"]
    links = api.post(f"{RUNS}/{run['name']}/samples/download-urls", json={"items": [early, late]}).json()
    for announced, item in zip((early, late), links["items"], strict=True):
        assert len(api.get(item["url"]).content) == announced["size"]


@pytest.mark.parametrize("count", [0, 501])
def test_urls_are_given_for_1_to_500_files(api: TestClient, finished: dict[str, Any], count: int) -> None:
    body = {"items": [{"path": "metrics.json"}] * count}
    reply = api.post(f"{RUNS}/{finished['name']}/samples/download-urls", json=body)
    assert_flat_error(reply, 400, "VALIDATION_FAILED")


def test_metrics_of_a_run_that_has_not_begun_are_empty_but_there(api: TestClient) -> None:
    run = submitted(api)
    metrics = api.get(f"{RUNS}/{run['name']}/metrics").json()
    assert metrics["status"] == "pending"
    assert metrics["eval_run_id"] == run["id"]
    assert metrics["pass_at_k"] == []
    assert metrics["overview"]["total_samples"] == 0
    assert metrics["reward_stats"] is None


def test_a_page_of_the_log_goes_on_at_its_cursor(api: TestClient, services: PlatformServices) -> None:
    from osmosis_ai.platform.log_lines import LogLine

    run = submitted(api)
    services.logs.append(run["id"], [LogLine(f"line {number}") for number in range(5)])
    first = api.get(f"{RUNS}/{run['name']}/logs", params={"limit": 3}).json()
    assert [line["message"] for line in first["logs"]] == ["line 2", "line 3", "line 4"]
    rest = api.get(f"{RUNS}/{run['name']}/logs", params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert [line["message"] for line in rest["logs"]] == ["line 0", "line 1"]
    assert rest["next_cursor"] is None


def test_nothing_was_written_that_nobody_asked_for(api: TestClient, services: PlatformServices) -> None:
    submitted(api)
    with services.db.session() as session:
        assert session.scalar(select(func.count()).select_from(DbRunFile)) == 0


def test_the_manifest_of_a_run_that_has_ended_is_written_once_but_for_its_log(
    api: TestClient, services: PlatformServices, finished: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    where, asked = f"{RUNS}/{finished['name']}/samples/manifest", {"types": "metrics,trajectories,logs"}
    first = api.get(where, params=asked).json()
    made: list[str] = []
    make = DerivedFiles.make

    def counted(self: DerivedFiles, run: DbRun, path: str) -> tuple[str, int]:
        made.append(path)
        return make(self, run, path)

    monkeypatch.setattr(DerivedFiles, "make", counted)
    services.logs.append(finished["id"], [LogLine("resubmitted by somebody", step="run")])
    again = api.get(where, params=asked).json()
    assert made == ["logs.txt"]
    log, same = ({file["path"]: file for file in found["files"]} for found in (first, again))
    assert log.pop("logs.txt") != same.pop("logs.txt") and log == same


def test_the_journal_is_downloaded_by_name_alone_and_as_it_was_written(
    api: TestClient, services: PlatformServices, finished: dict[str, Any]
) -> None:
    assert paths(api, finished, types="journal") == []  # a run of a release that kept none
    line, last = sealed(record(0, notes="right").to_line(), BEFORE_THE_FIRST)
    journal = line + sealed(record(1).to_line(), last)[0]
    key = pack_journal(journal.splitlines(keepends=True), finished["id"], services.blobs, Redactor())
    with services.db.transaction() as session:
        session.get_one(DbRun, finished["id"]).journal_blob = key
    assert "events.jsonl" not in paths(api, finished, types="metrics,trajectories,artifacts,logs")
    asked = {"types": "journal", "rows": "0"}
    (file,) = api.get(f"{RUNS}/{finished['id']}/samples/manifest", params=asked).json()["files"]
    for item in (file, {"path": "events.jsonl"}):
        links = api.post(f"{RUNS}/{finished['id']}/samples/download-urls", json={"items": [item]}).json()
        assert api.get(links["items"][0]["url"], headers={"Authorization": ""}).content == journal
    assert key is not None
    services.blobs.put(key, io.BytesIO(gzip.compress(journal.replace(b"right", b"wrong"))))
    damaged = api.get(f"{RUNS}/{finished['id']}/samples/manifest", params={"types": "journal"})
    assert "damaged" in assert_flat_error(damaged, 409, "CONFLICT")["error"]


def test_the_duration_of_a_run_is_how_long_it_was_worked_on_while_it_goes_on_and_when_it_has_ended(
    api: TestClient, services: PlatformServices, member: Member, clock: ManualClock
) -> None:
    run = submitted(api)
    leases = Leases(services.db, services.clock)

    def told() -> tuple[float | None, float | None]:
        overview = api.get(f"{RUNS}/{run['id']}/metrics").json()["overview"]
        (entry,) = source_of(services, member).runs(RunQuery(kind="eval"), limit=9).items
        return overview.get("duration_ms"), entry.duration_s

    assert told() == (None, None)
    lease = leases.claim(run["id"], "w")
    assert lease is not None
    clock.advance(20)
    assert told() == (20_000.0, 20.0), "until its engine has measured any"
    leases.renew(lease)
    with leases.writing(lease) as (_, row):
        row.metrics = {"duration_ms": 27_200.0}
    clock.advance(150)  # its worker is gone: it waits for another one
    assert told() == (27_200.0, 27.2)
    lease = leases.claim(run["id"], "another")
    assert lease is not None
    with leases.writing(lease) as (_, row):
        row.metrics = {"duration_ms": 54_800.0}
        assert row.status == "running"
    assert told() == (54_800.0, 54.8)
    with leases.writing(lease) as (_, row):
        leases.end(row, "finished")
    assert told() == (54_800.0, 54.8)
