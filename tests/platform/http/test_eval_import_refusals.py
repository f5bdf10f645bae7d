"""Uploads of evaluations that cannot be: what is announced, what arrives, and results that do not fit together."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.runs.imports.announcement import ImportLimits
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import assert_flat_error
from tests.platform.local_runs import IMPORTS, LocalRun, rollout_id, started, trajectory


@pytest.fixture
def run() -> LocalRun:
    return LocalRun()


# What is announced and cannot be


def _with_file(path: str, size: int = 3) -> dict[str, Any]:
    file = {"path": path, "size": size, "sha256": hashlib.sha256(b"abc").hexdigest()}
    return {"files": [*LocalRun().start()["files"], file]}


def _with_run(**changes: Any) -> dict[str, Any]:
    return {"run": {**LocalRun().start()["run"], **changes}}


def _with_rows(rows: str) -> dict[str, Any]:
    run = LocalRun().start()["run"]
    run["experiment_config"]["dataset"]["selected_source_rows"] = rows
    return {"run": run}


TRIAL = f"rollout_trials/{rollout_id(0)}"
CANNOT_BE_ANNOUNCED: list[tuple[dict[str, Any], str]] = [
    ({"schema_version": 2}, "of a newer format than this platform reads: `schema_version` is 2"),
    ({"schema_versions": {"rollout_protocol": "0.4"}}, "newer format"),
    ({"schema_versions": {"state_schema": 2}}, "newer format"),
    ({"local_run_id": "../../etc"}, "local_run_id"),
    ({"manifest_digest": "x"}, "manifest_digest"),
    ({"files": []}, "`index.jsonl` is missing"),
    (_with_file(f"{TRIAL}/artifacts/dump.bin", 10 * 1000**3), "10,000,000,000 bytes"),
    (_with_file(f"{TRIAL}/artifacts/../../../../etc/passwd"), "no path below"),
    (_with_file("/etc/passwd"), "no path below"),
    (_with_file(f"{TRIAL}/artifacts//x"), "no path below"),
    (_with_file(f"{TRIAL}/artifacts/a\\b"), "characters that are not allowed"),
    (_with_file(f"{TRIAL}/artifacts/a\u0000b"), "characters that are not allowed"),
    (_with_file(f"{TRIAL}/artifacts/manifest.json"), "no file of a run that is uploaded"),
    (_with_file(f"{TRIAL}/artifacts/" + "x/" * 600 + "y"), "longer than 1024 bytes"),
    (_with_file("manifest.json"), "no file of a run that is uploaded"),
    (_with_file("events.jsonl"), "no file of a run that is uploaded"),
    (_with_file("index.jsonl"), "named twice"),
    (_with_file(f"{TRIAL}/trajectory.json/x"), "no file of a run"),
    (_with_run(name="../maze"), "no name of a directory"),
    (_with_run(name="a\nb"), "printable characters"),
    (_with_run(completed_at="2026-11-01T08:00:00Z"), "ends before it starts"),
    (_with_run(started_at="0001-06-01T00:00:00Z"), "the year 1 is not that of any run"),
    (_with_run(started_at="0001-01-01T00:00:00+14:00"), "no moment of a calendar in UTC"),
    (_with_run(evaluation_config={"n": 10**9, "pass_threshold": 1.0}), "samples; this platform takes"),
    (_with_run(evaluation_config={"n": 0, "pass_threshold": 1.0}), "n"),
    (_with_rows("5-1"), "rows and ranges"),
    (_with_rows("0-999999999"), "uses more than 100,000 rows"),
    (_with_rows("all"), "rows and ranges"),
]


def test_what_cannot_be_uploaded_is_refused_before_a_byte_is_sent(
    api: TestClient, services: PlatformServices
) -> None:
    for changes, said in CANNOT_BE_ANNOUNCED:
        reply = api.post(IMPORTS, json=LocalRun().start(**changes))
        assert reply.status_code == 400, (said, reply.text)
        assert said in reply.json()["error"]
    assert list(services.blobs.unfinished_uploads()) == []


def test_a_path_cannot_be_a_file_and_a_directory(api: TestClient, run: LocalRun) -> None:
    run.files[f"{TRIAL}/artifacts/a"] = run.files[f"{TRIAL}/artifacts/a/b"] = b"x"
    body = assert_flat_error(api.post(IMPORTS, json=run.start()), 400, "VALIDATION")
    assert "a file and a directory at once" in body["error"]


def test_files_and_their_bytes_are_bounded_in_all(
    api: TestClient, services: PlatformServices, run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limits, said in (
        (ImportLimits(max_files=3), "this platform takes 3 of a run"),
        (ImportLimits(max_total_bytes=100), "this platform takes 100 of a run"),
        (ImportLimits(max_samples=5), "a run of 6 samples; this platform takes 1 to 5"),
        (ImportLimits(max_trajectory_bytes=10), "10 are the most"),
    ):
        monkeypatch.setattr(services.eval_imports, "limits", limits)
        assert said in assert_flat_error(api.post(IMPORTS, json=run.start()), 400, "VALIDATION")["error"]


# What arrives and is not what was announced


def test_bytes_of_another_digest_are_not_kept_and_can_be_sent_again(
    api: TestClient, services: PlatformServices, run: LocalRun
) -> None:
    session = started(api, run)["session_id"]
    right = run.files["progress.json"]
    asked = api.post(f"{IMPORTS}/{session}/uploads", json={"paths": ["progress.json"]}).json()["files"][0]
    api.put(asked["upload"]["presigned_url"], content=b"x" * len(right))
    complete = {"path": "progress.json"}
    body = assert_flat_error(
        api.post(f"{IMPORTS}/{session}/uploads/complete", json=complete), 400, "VALIDATION"
    )
    assert "not those that were announced" in body["error"]
    assert list(services.blobs.keys("runs")) == []
    run.send(api, session)
    assert api.post(f"{IMPORTS}/{session}/finalize", json={}).status_code == 200


def test_files_that_were_not_announced_or_not_sent_are_refused(api: TestClient, run: LocalRun) -> None:
    session = started(api, run)["session_id"]
    for path, body, said in (
        ("uploads", {"paths": ["logs.txt"]}, "'logs.txt' was not announced"),
        ("uploads", {"paths": []}, "1 to 100"),
        ("uploads", {"paths": ["index.jsonl"] * 101}, "1 to 100"),
        ("uploads/complete", {"path": "../x"}, "was not announced"),
    ):
        reply = assert_flat_error(api.post(f"{IMPORTS}/{session}/{path}", json=body), 400, "VALIDATION")
        assert said in reply["error"]
    unsent = api.post(f"{IMPORTS}/{session}/uploads/complete", json={"path": "index.jsonl"})
    assert "nothing has been sent" in assert_flat_error(unsent, 409, "CONFLICT")["error"]


def _spoilt(**changes: Any) -> LocalRun:
    """A run with the third line of its index changed."""
    run = LocalRun()
    entries = run.index()
    entries[2] |= changes
    run.files["index.jsonl"] = b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)
    return run


def test_a_run_that_noted_no_durations_is_imported_without_them(api: TestClient) -> None:
    run = _spoilt(duration_ms=None)
    ended = run.upload(api).json()
    assert ended["status"] == "finalized"
    where = f"/api/cli/eval-runs/{ended['eval_run_id']}/samples/download-urls"
    links = api.post(where, json={"items": [{"path": "summary.jsonl"}]}).json()["items"]
    lines = api.get(links[0]["url"], headers={"Authorization": ""}).text.splitlines()
    assert ["duration_ms" in json.loads(line) for line in lines] == [True, True, False, True, True, True]


def _without(path: str) -> LocalRun:
    run = LocalRun()
    del run.files[path]
    return run


def _having(path: str, content: Any) -> LocalRun:
    run = LocalRun()
    run.files[path] = content if isinstance(content, bytes) else json.dumps(content).encode()
    return run


FIRST = f"rollout_trials/{rollout_id(0)}/trajectory.json"
INCONSISTENT: list[tuple[LocalRun, str]] = [
    (_spoilt(rollout_id=rollout_id(0)), "two samples have the rollout id"),
    (_spoilt(trajectory_filename=None), "the index names another trajectory"),
    (
        _having("progress.json", {"total_runs": 7, "sampled_rows": 3, "total_dataset_rows": 9}),
        "7 samples",
    ),
    (
        _having("progress.json", {"total_runs": 6, "sampled_rows": 3, "total_dataset_rows": 5}),
        "row 5 was used",
    ),
    (_having("progress.json", b"[]"), "progress.json"),
    (_without(FIRST), "the trajectory of row 0, attempt 1, is missing"),
    (_having(FIRST, b"{"), "no valid JSON"),
    (_having(FIRST, {**trajectory(0), "steps": []}), "no valid trajectory: steps"),
    (_having(FIRST, trajectory(1)), "the trajectory of another rollout"),
    (_having(f"rollout_trials/{rollout_id(9)}/artifacts/x", b"x"), "the index has no sample of it"),
    (
        _having(
            FIRST,
            {
                **trajectory(1),
                "extra": {"osmosis": {**trajectory(1)["extra"]["osmosis"], "rollout_id": rollout_id(0)}},
            },
        ),
        "the trajectory of another row or attempt",
    ),
]


def test_results_are_not_believed_and_a_run_that_does_not_fit_together_is_none(api: TestClient) -> None:
    for number, (run, said) in enumerate(INCONSISTENT):
        body = assert_flat_error(run.upload(api, manifest_digest=f"{number:064x}"), 400, "VALIDATION")
        assert said in body["error"]
    assert api.get("/api/cli/eval-runs").json()["eval_runs"] == []


def test_a_run_is_written_whole_or_not_at_all(
    api: TestClient, run: LocalRun, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = started(api, run)["session_id"]
    run.send(api, session)
    with monkeypatch.context() as patch:
        patch.setattr(services.logs.__class__, "add", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        assert_flat_error(api.post(f"{IMPORTS}/{session}/finalize", json={}), 507, "STORAGE_FULL")
    assert api.get("/api/cli/eval-runs").json()["eval_runs"] == []
    assert api.post(f"{IMPORTS}/{session}/finalize", json={}).json()["status"] == "finalized"
