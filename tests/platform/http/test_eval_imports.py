"""Evaluations that ran elsewhere, over HTTP: the sequence of the public wire, what becomes of it, what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from osmosis_ai.platform.blobs.store import BlobUpload, Part
from osmosis_ai.platform.db.tables import DbSample
from osmosis_ai.platform.runs.imports.announcement import ImportLimits
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.viewer.source import PlatformSource
from tests.platform.conftest import ManualClock, Member, assert_flat_error
from tests.platform.local_runs import IMPORTS, LocalRun, rollout_id, started, trajectory

DAY_S = 24 * 3600


@pytest.fixture
def run() -> LocalRun:
    return LocalRun()


# The sequence, step by step


def test_the_replies_have_the_shapes_of_the_contract_at_every_step(api: TestClient, run: LocalRun) -> None:
    begun = started(api, run)
    declared = [(file["path"], file["size"], file["sha256"]) for file in run.start()["files"]]
    assert begun["status"] == "uploading" and begun["session_id"]
    assert begun["expires_at"] == "2026-11-03T09:30:00.000Z"
    assert (begun["expected_files"], begun["uploaded_files"]) == (len(run.files), 0)
    assert [(file["path"], file["size"], file["sha256"]) for file in begun["files"]] == declared
    assert {file["state"] for file in begun["files"]} == {"pending"}

    session = begun["session_id"]
    asked = api.post(f"{IMPORTS}/{session}/uploads", json={"paths": ["progress.json"]}).json()
    (file,) = asked["files"]
    assert set(file) == {"path", "size", "sha256", "upload"} and file["upload"]["method"] == "simple"

    run.send(api, session)
    nothing_missing = api.post(f"{IMPORTS}/{session}/uploads", json={"paths": ["progress.json"]})
    assert nothing_missing.json() == {"files": []}
    ended = api.post(f"{IMPORTS}/{session}/finalize", json={}).json()
    assert ended["status"] == "finalized" and ended["uploaded_files"] == ended["expected_files"]
    assert {file["state"] for file in ended["files"]} == {"uploaded"}
    assert ended["eval_run_name"] == run.name and ended["eval_run_id"].startswith("run_")
    assert ended["platform_url"].endswith(f"/fern/evals/{run.name}")


def test_an_imported_run_is_listed_described_and_downloaded_with_numbers_of_our_own(
    api: TestClient, run: LocalRun
) -> None:
    ended = run.upload(api).json()
    listed = api.get("/api/cli/eval-runs").json()["eval_runs"]
    detail = api.get(f"/api/cli/eval-runs/{run.name}").json()
    metrics = api.get(f"/api/cli/eval-runs/{ended['eval_run_id']}/metrics").json()

    assert [row["name"] for row in listed] == [run.name]
    origin = {
        "local_run_id": run.start()["local_run_id"],
        "local_run_name": run.name,
        "imported_at": "2026-11-02T09:30:00.000Z",
        "sdk_version": "0.3.11",
        "git_head": "1a2b3c4" + "0" * 33,
        "git_dirty": True,
    }
    assert listed[0]["imported"] == detail["eval_run"]["imported"] == origin
    assert detail["eval_run"]["status"] == "finished"
    assert len(detail["dataset_sha256"]) == 64
    assert "request" not in detail
    assert detail["eval_run"]["started_at"] == "2026-11-02T08:00:00.000Z"
    assert detail["config"] == {"model_path": "openai/gpt-5-mini", "n": 2, "pass_threshold": 1.0}
    results = detail["results"]
    assert results["score"] == pytest.approx(0.7)
    assert (results["graded"], results["passed"], results["failed"], results["total_runs"]) == (5, 3, 1, 6)
    assert results["pass_rate"] == pytest.approx(3 / 6) and results["total_dataset_rows"] == 40
    assert results["rows_drawn"]["kind"] == "chosen"
    assert metrics["overview"]["duration_ms"] == 600_000
    assert metrics["estimates"]["pass_rate"]["value"] == pytest.approx((0.5 + 1 + 0) / 3)
    assert metrics["reward_stats"]["mean"] == pytest.approx(0.7)

    where = f"/api/cli/eval-runs/{run.name}/samples"
    manifest = api.get(f"{where}/manifest", params={"types": "trajectories,artifacts,metrics", "rows": "1,5"})
    paths = [file["path"] for file in manifest.json()["files"]]
    assert paths == [
        "artifacts/row_1_run_0/empty",
        "artifacts/row_1_run_0/maps/path.txt",
        "metrics.json",
        "summary.jsonl",
        "trajectories/row_1_run_0.json",
        "trajectories/row_1_run_1.json",
        "trajectories/row_2_run_1.json",
    ]
    items = [{"path": "trajectories/row_2_run_1.json"}, {"path": "summary.jsonl"}]
    urls = api.post(f"{where}/download-urls", json={"items": items}).json()["items"]
    assert api.get(urls[0]["url"]).json() == trajectory(2, 1)
    summary = [json.loads(line) for line in api.get(urls[1]["url"]).text.splitlines()]
    assert summary == run.index()
    log = api.get(f"/api/cli/eval-runs/{run.name}/logs").json()["logs"]
    assert "imported by mara@fern.example" in log[0]["message"]


def test_a_run_without_any_score_has_a_null_pass_rate(api: TestClient) -> None:
    run = LocalRun(rewards={(row, attempt): None for row in range(3) for attempt in range(2)})
    run.upload(api)
    (listed,) = api.get("/api/cli/eval-runs").json()["eval_runs"]
    detail = api.get(f"/api/cli/eval-runs/{run.name}").json()
    overview = api.get(f"/api/cli/eval-runs/{run.name}/metrics").json()["overview"]
    for numbers in (listed["results"], detail["results"], overview):
        assert (numbers["graded"], numbers["failed"], numbers["pass_rate"]) == (0, 6, None)


def test_finish_reasons_of_uploaded_conversations_are_counted(api: TestClient, run: LocalRun) -> None:
    cut = trajectory(0)
    cut["steps"][1]["metrics"] = {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "cost_usd": 0.5,
        "extra": {"finish_reason": "length"},
    }
    run.files[f"rollout_trials/{rollout_id(0)}/trajectory.json"] = json.dumps(cut).encode()
    run.upload(api)
    estimates = api.get(f"/api/cli/eval-runs/{run.name}/metrics").json()["estimates"]
    finish = estimates["finish"]
    assert (finish["truncated"], finish["known_samples"], finish["recorded_samples"]) == (1, 1, 6)
    assert estimates["cost_usd"] == {"total": 0.5, "known_samples": 1, "recorded_samples": 6}


CALL = {
    "prompt_tokens": 10,
    "completion_tokens": 2,
    "cost_usd": 0.25,
    "extra": {"latency_ms": 5.5, "finish_reason": "length"},
}


def imported_samples(services: PlatformServices) -> list[DbSample]:
    with services.db.session() as session:
        return list(session.scalars(select(DbSample).order_by(DbSample.row_index, DbSample.run_index)))


def with_trajectories(run: LocalRun, *changes: Mapping[str, Any]) -> LocalRun:
    """Change the trajectories of the first rows' first attempts."""
    for row, change in enumerate(changes):
        path = f"rollout_trials/{rollout_id(row)}/trajectory.json"
        changed = trajectory(row)
        changed["extra"]["osmosis"] |= change.get("told", {})
        changed["steps"] = change.get("steps", changed["steps"])
        run.files[path] = json.dumps(changed).encode()
    return run


def test_samples_of_an_import_have_what_their_trajectories_state(
    api: TestClient, services: PlatformServices, run: LocalRun
) -> None:
    asks = {"step_id": 1, "source": "user", "message": "two\n\0times two?"}
    answers = [
        {"step_id": place, "source": "agent", "message": text, "metrics": CALL}
        for place, text in ((2, "four"), (3, ""))
    ]
    noted = {"sample_extra_fields": {"grader_notes": {"notes": "right", "parts": {"all": 1}}}}
    unmatched = {"unmatched_llm_call_metrics": [CALL, {**CALL, "cost_usd": None}, 3]}
    with_trajectories(
        run, {"steps": [asks, *answers], "told": noted}, {"steps": [asks], "told": unmatched}
    ).upload(api)
    whole, _, loose, *_ = imported_samples(services)
    assert (whole.tokens, whole.prompt_tokens, whole.completion_tokens, whole.model_calls) == (10, 20, 4, 2)
    assert (whole.cost_usd, whole.model_latency_ms) == (0.5, 11.0)
    assert whole.finish_reasons == loose.finish_reasons == {"length": 2}
    assert (whole.input, whole.output) == ("two \N{REPLACEMENT CHARACTER}times two?", "four")
    assert (whole.notes, whole.parts) == ("right", {"all": 1.0})
    assert (loose.model_calls, loose.cost_usd, loose.model_latency_ms, loose.output) == (2, None, 11.0, None)


def test_hostile_numbers_of_a_trajectory_are_left_out(
    api: TestClient, services: PlatformServices, run: LocalRun
) -> None:
    huge = {"prompt_tokens": 10**12, "completion_tokens": 1, "cost_usd": 1e308, "extra": {"latency_ms": -1}}
    steps = [{"step_id": place, "source": "agent", "message": "north", "metrics": huge} for place in (1, 2)]
    assert with_trajectories(run, {"steps": steps}).upload(api).status_code == 200
    sample = imported_samples(services)[0]
    assert (sample.model_calls, sample.prompt_tokens, sample.cost_usd) == (2, None, None)
    assert sample.output == "north"


def test_details_are_left_out_when_reading_them_takes_too_long(
    api: TestClient, services: PlatformServices, run: LocalRun
) -> None:
    services.eval_imports.limits = ImportLimits(details_s=0)
    assert run.upload(api).status_code == 200
    found = imported_samples(services)
    assert {sample.input for sample in found} == {None} and {sample.tokens for sample in found} == {10}


def test_pages_say_that_a_run_was_imported(
    client: TestClient, services: PlatformServices, member: Member, run: LocalRun
) -> None:
    client.headers.update(member.headers)
    run.upload(client)
    source = PlatformSource(services, member.workspace.id, services.sample_counts)
    facts = dict(source.run("eval", run.name).facts)
    assert facts["Imported"] == "executed elsewhere, with 0.3.11 at 1a2b3c4 and uncommitted changes"
    assert "Seed" not in facts


def test_the_first_rows_of_a_dataset_are_said_to_be_so(api: TestClient) -> None:
    run = LocalRun(rows="0-2")
    run.upload(api)
    drawn = api.get(f"/api/cli/eval-runs/{run.name}").json()["results"]["rows_drawn"]
    assert drawn["words"] == "3 of 40 rows, the first"


# Again, and in between


def test_uploading_twice_changes_nothing_and_ends_in_the_same_run(api: TestClient, run: LocalRun) -> None:
    first = run.upload(api).json()
    again = started(api, run)
    assert again == first and again["status"] == "finalized"
    repeated = api.post(f"{IMPORTS}/{again['session_id']}/finalize", json={})
    assert repeated.json() == first
    assert api.get("/api/cli/eval-runs").json()["total_count"] == 1


def test_an_upload_that_was_cut_off_goes_on_with_what_is_missing(api: TestClient, run: LocalRun) -> None:
    session = started(api, run)["session_id"]
    run.send(api, session, "index.jsonl")
    early = assert_flat_error(api.post(f"{IMPORTS}/{session}/finalize", json={}), 409, "CONFLICT")
    assert "files have not arrived, the first is `progress.json`" in early["error"]
    assert api.get("/api/cli/eval-runs").json()["eval_runs"] == []

    again = started(api, run)
    assert (again["session_id"], again["uploaded_files"]) == (session, 1)
    assert next(file for file in again["files"] if file["path"] == "index.jsonl")["state"] == "uploaded"
    run.send(api, session)
    assert api.post(f"{IMPORTS}/{session}/finalize", json={}).json()["status"] == "finalized"


def test_bytes_that_were_sent_but_not_completed_are_still_there(api: TestClient, run: LocalRun) -> None:
    session = started(api, run)["session_id"]
    asked = api.post(f"{IMPORTS}/{session}/uploads", json={"paths": ["index.jsonl"]}).json()["files"][0]
    api.put(asked["upload"]["presigned_url"], content=run.files["index.jsonl"])
    again = api.post(f"{IMPORTS}/{session}/uploads", json={"paths": ["index.jsonl"]}).json()["files"][0]
    assert again["upload"]["upload_id"] == asked["upload"]["upload_id"]
    done = api.post(f"{IMPORTS}/{session}/uploads/complete", json={"path": "index.jsonl"})
    assert done.status_code == 200


@pytest.mark.parametrize("sent", [False, True])
def test_two_who_ask_at_once_where_to_send_a_file_send_it_to_one_place(
    api: TestClient,
    services: PlatformServices,
    run: LocalRun,
    sent: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = started(api, run)["session_id"]
    begin, others = services.blobs.begin_upload, list[dict[str, Any]]()

    def ask() -> dict[str, Any]:
        reply = api.post(f"{IMPORTS}/{session}/uploads", json={"paths": ["index.jsonl"]})
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def be_second(key: str) -> BlobUpload:
        if not others:
            others.append({})
            others[0] = ask()
            if sent:
                run.send(api, session, "index.jsonl")
        return begin(key)

    monkeypatch.setattr(services.blobs, "begin_upload", be_second)
    mine = ask()
    if sent:
        assert mine == {"files": []}
    else:
        place = mine["files"][0]["upload"]
        assert place["upload_id"] == others[0]["files"][0]["upload"]["upload_id"]
        api.put(place["presigned_url"], content=run.files["index.jsonl"])
        done = api.post(f"{IMPORTS}/{session}/uploads/complete", json={"path": "index.jsonl"})
        assert done.status_code == 200, done.text
    assert list(services.blobs.unfinished_uploads()) == []


@pytest.mark.parametrize("noted", [True, False])
def test_a_file_that_is_completed_twice_at_once_is_complete_for_both(
    api: TestClient,
    services: PlatformServices,
    run: LocalRun,
    noted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other request has made a file of the bytes, and has noted that or is about to."""
    session = started(api, run)["session_id"]
    asked = api.post(f"{IMPORTS}/{session}/uploads", json={"paths": ["index.jsonl"]}).json()["files"][0]
    api.put(asked["upload"]["presigned_url"], content=run.files["index.jsonl"])
    body = {"path": "index.jsonl"}
    look, others = services.blobs.parts, list[int]()

    def be_second(upload: BlobUpload) -> Mapping[int, Part]:
        if not others:
            others.append(0)
            if noted:
                others[0] = api.post(f"{IMPORTS}/{session}/uploads/complete", json=body).status_code
            else:
                services.blobs.complete_upload(upload, [part.etag for part in look(upload).values()])
        return look(upload)

    monkeypatch.setattr(services.blobs, "parts", be_second)
    done = api.post(f"{IMPORTS}/{session}/uploads/complete", json=body)
    assert done.status_code == 200, done.text
    assert others == [200 if noted else 0]
    run.send(api, session)
    assert api.post(f"{IMPORTS}/{session}/finalize", json={}).json()["status"] == "finalized"


def test_files_that_changed_before_the_end_are_sent_again_and_the_others_are_not(
    api: TestClient, run: LocalRun
) -> None:
    session = started(api, run)["session_id"]
    run.send(api, session)
    artifact = f"rollout_trials/{rollout_id(1)}/artifacts/maps/path.txt"
    run.files[artifact] = b"S S W"
    again = started(api, run)
    assert again["session_id"] == session
    assert [file["path"] for file in again["files"] if file["state"] == "pending"] == [artifact]
    run.send(api, session)
    assert api.post(f"{IMPORTS}/{session}/finalize", json={}).status_code == 200


def test_a_run_that_went_on_after_it_was_imported_is_another_one(api: TestClient, run: LocalRun) -> None:
    run.upload(api)
    retried = LocalRun(rewards={**run.rewards, (2, 0): 1.0})
    body = assert_flat_error(api.post(IMPORTS, json=retried.start()), 409, "CONFLICT")
    assert "with other files" in body["error"] and body["eval_run_name"] == run.name


def test_a_large_file_arrives_in_parts_with_the_names_of_this_part_of_the_wire(
    api: TestClient, run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("MULTIPART_FROM_BYTES", 1000), ("PART_BYTES", 700)):
        monkeypatch.setattr(f"osmosis_ai.platform.runs.imports.sessions.{name}", size)
    artifact = f"rollout_trials/{rollout_id(0)}/artifacts/large.bin"
    run.files[artifact] = bytes(range(256)) * 5
    session = started(api, run)["session_id"]
    (file,) = api.post(f"{IMPORTS}/{session}/uploads", json={"paths": [artifact]}).json()["files"]
    upload = file["upload"]
    assert (upload["method"], upload["part_size"], upload["total_parts"]) == ("multipart", 700, 2)
    etags = []
    for part in upload["presigned_urls"]:
        first = (part["part_number"] - 1) * 700
        reply = api.put(part["presigned_url"], content=run.files[artifact][first : first + 700])
        etags.append(reply.headers["etag"].strip('"'))
    complete = f"{IMPORTS}/{session}/uploads/complete"
    unnamed = assert_flat_error(api.post(complete, json={"path": artifact}), 400, "VALIDATION")
    assert "`parts` is missing" in unnamed["error"]
    parts = [{"part_number": number, "etag": etag} for number, etag in enumerate(etags, 1)]
    assert api.post(complete, json={"path": artifact, "parts": parts}).status_code == 200


def test_an_upload_that_nobody_ends_is_forgotten_with_its_bytes(
    api: TestClient, services: PlatformServices, clock: ManualClock, run: LocalRun
) -> None:
    session = started(api, run)["session_id"]
    run.send(api, session, "index.jsonl")
    api.post(f"{IMPORTS}/{session}/uploads", json={"paths": ["progress.json"]})
    assert len(list(services.blobs.keys("runs"))) == 1 and len(list(services.blobs.unfinished_uploads())) == 1
    clock.advance(DAY_S - 1)
    services.eval_imports.tidy()
    assert len(list(services.blobs.keys("runs"))) == 1
    clock.advance(2)
    gone = assert_flat_error(api.post(f"{IMPORTS}/{session}/finalize", json={}), 404, "NOT_FOUND")
    assert "its time is over" in gone["error"]
    services.eval_imports.tidy()
    assert list(services.blobs.keys("runs")) == [] and list(services.blobs.unfinished_uploads()) == []
    assert started(api, run)["session_id"] != session


def test_a_deleted_run_can_be_imported_again(
    api: TestClient, services: PlatformServices, member: Member, run: LocalRun
) -> None:
    first = run.upload(api).json()
    services.run_deletion.delete(services.eval_runs.get(member.workspace.id, run.name).run)
    again = run.upload(api).json()
    assert again["eval_run_name"] == run.name and again["eval_run_id"] != first["eval_run_id"]


def test_a_name_that_is_taken_or_means_something_else_gets_a_number(api: TestClient) -> None:
    for digest, name, expected in (
        ("1", "maze", "maze"),
        ("2", "maze", "maze-2"),
        ("3", "maze", "maze-3"),
        ("4", "imports", "imports-2"),
        ("5", "run_" + "0" * 24, "run_" + "0" * 24 + "-2"),
    ):
        run = LocalRun(name=name)
        assert run.upload(api, manifest_digest=digest * 64).json()["eval_run_name"] == expected


# Of another workspace


def test_another_workspace_sees_nothing_of_an_upload_and_imports_the_same_run_for_itself(
    client: TestClient, member: Member, stranger: Member, run: LocalRun
) -> None:
    client.headers.update(member.headers)
    session = started(client, run)["session_id"]
    client.headers.update(stranger.headers)
    for path, body in (
        ("uploads", {"paths": ["index.jsonl"]}),
        ("uploads/complete", {"path": "index.jsonl"}),
        ("finalize", {}),
    ):
        assert_flat_error(client.post(f"{IMPORTS}/{session}/{path}", json=body), 404, "NOT_FOUND")
    theirs = run.upload(client).json()
    assert theirs["session_id"] != session
    client.headers.update(member.headers)
    assert client.get("/api/cli/eval-runs").json()["eval_runs"] == []


def test_only_who_is_logged_in_and_of_the_workspace_imports(client: TestClient, run: LocalRun) -> None:
    assert_flat_error(client.post(IMPORTS, json=run.start()), 401, "AUTH_HEADER_MISSING")
