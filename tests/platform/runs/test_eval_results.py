"""What an evaluation run leaves, over HTTP: its samples, files, metrics, journal and log."""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.evaluation.builders import record
from tests.platform.conftest import ManualClock, World, assert_flat_error
from tests.platform.evaluations import Samples, end_with
from tests.platform.fake_worker import EVALS, FakeWorker, expire_leases, settle

RUNS, submitted = EVALS.route, EVALS.taken
SECRET = "20260301"
PASSED: dict[str, Any] = {"status": "success", "reward": 1.0}
FAILED: dict[str, Any] = {"status": "failed", "boundary": "provider", "error_type": "timeout"}
SAMPLES: Samples = {(0, 0): PASSED, (0, 1): FAILED, (1, 0): PASSED, (1, 1): FAILED, (2, 1): PASSED}


@pytest.fixture
def worker(api: TestClient, world: World) -> FakeWorker:
    """The owner of a run whose two rows (4 and 9 of the dataset) have two attempts each, with files."""
    secrets = {"required": ["KEY"], "provided": {"KEY": SECRET}}
    submitted(api, evaluation_config={"limit": 2, "n": 2, "batch_size": 4}, secrets=secrets)
    worker = FakeWorker.claims(world)
    said = {"notes": f"right, {SECRET}", "duration_ms": int(SECRET)}
    worker.write([record(row, run, source_row_index=(4, 9)[row], **said) for row in (0, 1) for run in (0, 1)])
    files, sent = [], []
    for row in (0, 1):
        for run in (0, 1):
            name = f"row_{row}_run_{run}"
            for kind, path in (("trajectories", f"{name}.json"), ("artifacts", f"{name}/out/note.txt")):
                path = f"{kind}/{path}"
                sent.append(worker.uploads(f"files/{name}-{kind}", path.encode()))
                described = {"source_row_index": (4, 9)[row], "blob": f"files/{name}-{kind}"}
                files.append({"path": path, "kind": kind, "size": len(path), **described})
    worker.sync(journal=worker.part(), sent=sent, files=files)
    return worker


@pytest.fixture
def finished(worker: FakeWorker) -> str:
    """The id of that run after its end."""
    worker.finishes()
    return worker.run_id


def manifest(api: TestClient, run_id: str, **asked: str) -> list[dict[str, Any]]:
    found = api.get(f"{RUNS}/{run_id}/samples/manifest", params=asked).json()
    assert found["totals"]["files"] == len(found["files"])
    files: list[dict[str, Any]] = found["files"]
    return files


def paths(api: TestClient, run_id: str, **asked: str) -> list[str]:
    return [file["path"] for file in manifest(api, run_id, **asked)]


def links(api: TestClient, run_id: str, items: list[dict[str, Any]]) -> dict[str, str]:
    reply = api.post(f"{RUNS}/{run_id}/samples/download-urls", json={"items": items}).json()
    assert reply["expires_in"] == 900 and isinstance(reply["expires_in"], int)  # 900.0 on the wire is none
    return {item["path"]: item["url"] for item in reply["items"]}


def fetched(api: TestClient, url: str) -> bytes:
    """Return what a URL serves: the URL is the permission."""
    return bytes(api.get(url, headers={"Authorization": ""}).content)


def test_manifest_types_and_rows(api: TestClient, finished: str) -> None:
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


@pytest.mark.parametrize("asked", [{"types": "everything"}, {"rows": "a"}, {"rows": "5-3"}, {"rows": "1,,2"}])
def test_invalid_manifest_requests(api: TestClient, finished: str, asked: dict[str, str]) -> None:
    assert_flat_error(api.get(f"{RUNS}/{finished}/samples/manifest", params=asked), 400, "VALIDATION")
    pending = submitted(api)["name"]
    assert_flat_error(api.get(f"{RUNS}/{pending}/samples/manifest"), 409, "CONFLICT")


def test_downloads_match_their_manifest(api: TestClient, world: World, finished: str) -> None:
    world.log(finished, "four samples were graded", step="run")
    files = manifest(api, finished, types="metrics,trajectories,artifacts,logs")
    found = links(
        api, finished, [*files, {"path": "trajectories/row_9_run_9.json"}, {"path": "../../platform.db"}]
    )
    assert found.keys() == {file["path"] for file in files}
    for file in files:
        content = fetched(api, found[file["path"]])
        assert len(content) == file["size"]
        if "sha256" in file:
            assert hashlib.sha256(content).hexdigest() == file["sha256"], file["path"]
    assert {"metrics.json", "summary.jsonl", "logs.txt"} <= {
        file["path"] for file in files if "sha256" in file
    }


def test_lost_derived_file_is_stored_again(api: TestClient, world: World, finished: str) -> None:
    wanted = [file for file in manifest(api, finished) if file["path"] in ("metrics.json", "summary.jsonl")]
    for file in wanted:
        world.services.blobs.delete(f"runs/{finished}/derived/{file['token']}/{file['path']}")
    unknown = [{"path": "metrics.json", "token": number * 64} for number in "0123"]
    found = links(api, finished, [*wanted, *unknown])
    assert list(found) == [file["path"] for file in wanted]
    for file in wanted:
        assert hashlib.sha256(fetched(api, found[file["path"]])).hexdigest() == file["sha256"]


def test_changed_file_is_served_as_announced(api: TestClient, worker: FakeWorker) -> None:
    settle(worker.world)
    (early,) = manifest(api, worker.run_id, types="metrics")
    worker.sync(worked_s=5e6)
    worker.finishes()
    (late,) = manifest(api, worker.run_id, types="metrics")
    assert early["token"] != late["token"]
    for announced in (early, late):
        content = fetched(api, links(api, worker.run_id, [announced])["metrics.json"])
        assert hashlib.sha256(content).hexdigest() == announced["sha256"]


@pytest.mark.parametrize("count", [0, 501])
def test_number_of_urls(api: TestClient, finished: str, count: int) -> None:
    body = {"items": [{"path": "metrics.json"}] * count}
    reply = api.post(f"{RUNS}/{finished}/samples/download-urls", json=body)
    assert_flat_error(reply, 400, "VALIDATION_FAILED")


def test_journal_download(api: TestClient, world: World, finished: str) -> None:
    assert "events.jsonl" not in paths(api, finished, types="metrics,trajectories,artifacts,logs")
    (file,) = manifest(api, finished, types="journal", rows="0")
    for item in (file, {"path": "events.jsonl"}):
        journal = fetched(api, links(api, finished, [item])["events.jsonl"])
        assert len(journal) == file["size"]
    lines = [json.loads(line) for line in journal.splitlines()]
    assert [(line["row_index"], line["run_index"]) for line in lines] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {line["notes"] for line in lines} == {"right, [REDACTED]"}
    assert {line["duration_ms"] for line in lines} == {int(SECRET)}, "a number is none"
    [key] = [key for key in world.stored(f"runs/{finished}") if "journal" in key]
    damages = (gzip.compress(journal.replace(b"right", b"wrong")), gzip.compress(journal)[:-20], b"no gzip")
    for damaged in damages:
        world.store(key, damaged)
        reply = api.get(f"{RUNS}/{finished}/samples/manifest", params={"types": "journal"})
        assert "damaged" in assert_flat_error(reply, 409, "CONFLICT")["error"]


def test_duration(api: TestClient, world: World, clock: ManualClock) -> None:
    run = submitted(api)

    def duration() -> float | None:
        overview = api.get(f"{RUNS}/{run['id']}/metrics").json()["overview"]
        return overview.get("duration_ms")  # type: ignore[no-any-return]

    assert duration() is None
    worker = FakeWorker.claims(world)
    clock.advance(20)
    assert duration() == 20_000.0, "the time since the start, before any sample is counted"
    worker.records(1)
    worker.sync(worked_s=27.2)
    settle(world)
    clock.advance(25)
    assert duration() == 27_200.0
    expire_leases(clock)
    worker = FakeWorker.claims(world)
    assert worker.assignment.shard.worked_s == 27.2
    worker.sync(worked_s=54.8)
    worker.finishes()
    assert duration() == 54_800.0


# -- samples, page by page -------------------------------------------------------------------------


@pytest.fixture
def sampled(api: TestClient, world: World) -> dict[str, Any]:
    """A finished run of which the attempt (2, 0) was never made."""
    made = submitted(api)
    end_with(world, made["id"], SAMPLES)
    return made


def test_sample_details(api: TestClient, world: World) -> None:
    values = {"tokens": 12, "cost_usd": 0.5, "model_latency_ms": 3.0}
    noted: dict[str, Any] = {"input": "2 * 3?", "output": "6", "notes": "Nearly.", "parts": {"format": 1.0}}
    submitted(api)
    worker = FakeWorker.claims(world)
    worker.write(
        [record(0, 0, row_digest="ab" * 16, **values, **noted), record(0, 1, **{**FAILED, "reward": None})]
    )
    worker.sync(journal=worker.part())
    worker.finishes()
    plain, failed = api.get(f"{RUNS}/{worker.run_id}/samples", params={"limit": 2}).json()["samples"]
    assert plain == {
        "row": 0,
        "attempt": 0,
        "status": "success",
        "source_row_index": 0,
        "row_digest": "ab" * 16,
        "reward": 1.0,
        "duration_ms": 12.0,
        **values,
    }
    assert (failed["status"], "reward" in failed) == ("failed", False)
    asked = {"limit": 2, "details": "true"}
    told, failed = api.get(f"{RUNS}/{worker.run_id}/samples", params=asked).json()["samples"]
    assert {**plain, **noted} == told and failed["boundary"] == "provider"


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_sample_pages(api: TestClient, sampled: dict[str, Any], limit: int) -> None:
    query: dict[str, Any] = {"limit": limit}
    found: list[tuple[int, int]] = []
    while len(found) < len(SAMPLES):
        page = api.get(f"{RUNS}/{sampled['id']}/samples", params=query).json()
        found += [(sample["row"], sample["attempt"]) for sample in page["samples"]]
        query["cursor"] = page.get("next_cursor")
        assert len(page["samples"]) == limit or query["cursor"] is None
    assert found == sorted(SAMPLES) and query["cursor"] is None


@pytest.mark.parametrize("cursor", ["x", "-1-2", "1-2-3", "٣-٣", "9" * 60])
def test_invalid_sample_cursors(api: TestClient, sampled: dict[str, Any], cursor: str) -> None:
    reply = api.get(f"{RUNS}/{sampled['name']}/samples", params={"cursor": cursor})
    assert "`cursor` did not come from a page" in assert_flat_error(reply, 400, "VALIDATION")["error"]
