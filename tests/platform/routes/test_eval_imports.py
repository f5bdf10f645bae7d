"""Evaluations that ran elsewhere, over HTTP: the sequence of the public wire, what becomes of it, what is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.runs import imported_run
from osmosis_ai.platform.viewer.source import PlatformSource
from tests.platform.conftest import ManualClock, Member, World, assert_flat_error
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
        *("artifacts/row_1_run_0/empty", "artifacts/row_1_run_0/maps/path.txt", "metrics.json"),
        *("summary.jsonl", "trajectories/row_1_run_0.json", "trajectories/row_1_run_1.json"),
        "trajectories/row_2_run_1.json",
    ]
    items = [{"path": "trajectories/row_2_run_1.json"}, {"path": "summary.jsonl"}]
    urls = api.post(f"{where}/download-urls", json={"items": items}).json()["items"]
    assert api.get(urls[0]["url"]).json() == trajectory(2, 1)
    summary = [json.loads(line) for line in api.get(urls[1]["url"]).text.splitlines()]
    assert summary == run.index()
    log = api.get(f"/api/cli/eval-runs/{run.name}/logs").json()["logs"]
    assert "imported by mara@fern.example" in log[0]["message"]


def test_a_run_of_a_newer_protocol_brings_its_log(api: TestClient, run: LocalRun) -> None:
    run.files["logs.txt"] = (
        b'2026-11-02T08:01:00.5Z WARNING [run] the model is slow {"row_index": 0, "run_index": 1}\n'
        b"9999-99-99T00:00 INFO [run] when\n2026-11-02T08:00:00 INFO [r\0un] in no time zone "
        b'{"x": NaN, "y": "\\u0000"}\n' + b"no format \xff\n" * 10_000
    )
    versions = {"rollout_protocol": "0.4", "dataset_normalization": 1, "state_schema": 1}
    assert run.upload(api, schema_versions=versions, reimport=False).json()["status"] == "finalized"
    page = {"limit": 2, "direction": "newer"}
    log = api.get(f"/api/cli/eval-runs/{run.name}/logs", params=page).json()["logs"]
    assert all("no format" in line["message"] for line in log), "the last lines are kept"
    run.files["logs.txt"] = run.files["logs.txt"][:300]
    other = LocalRun(name="maze-2", files=run.files)
    other.upload(api, local_run_id="2" * 32)
    first, second, third, *_ = api.get(f"/api/cli/eval-runs/{other.name}/logs").json()["logs"]
    assert (first["level"], first["step"], first["timestamp"]) == (
        "warning",
        "run",
        "2026-11-02T08:01:00.500Z",
    )
    assert first["message"] == "the model is slow (row 0, attempt 1)" and second["message"] == "when"
    assert third["message"] == "in no time zone" and "\0" not in third["step"]
    assert third["details"] == {"x": "NaN", "y": "\N{REPLACEMENT CHARACTER}"}


CALL = {
    "prompt_tokens": 10,
    "completion_tokens": 2,
    "cost_usd": 0.25,
    "extra": {"latency_ms": 5.5, "finish_reason": "length"},
}


def imported_samples(world: World) -> list[DbSample]:
    with world.services.db.session() as session:
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
    api: TestClient, world: World, run: LocalRun
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
    whole, _, loose, *_ = imported_samples(world)
    assert (whole.tokens, whole.prompt_tokens, whole.completion_tokens, whole.model_calls) == (10, 20, 4, 2)
    assert (whole.cost_usd, whole.model_latency_ms) == (0.5, 11.0)
    assert whole.finish_reasons == loose.finish_reasons == {"length": 2}
    assert (whole.input, whole.output) == ("two \N{REPLACEMENT CHARACTER}times two?", "four")
    assert (whole.notes, whole.parts) == ("right", {"all": 1.0})
    assert (loose.model_calls, loose.cost_usd, loose.model_latency_ms, loose.output) == (2, None, 11.0, None)


@pytest.mark.parametrize(
    ("stated", "imported"),
    [
        (
            {"source": "agent", "code": "exception", "error": "it\0broke"},
            ("agent", "exception", "it\ufffdbroke"),
        ),
        ({"source": "moon", "code": 7, "error": []}, (None, None, None)),
        ("x", (None, None, None)),
    ],
)
def test_cause_of_a_failure(
    api: TestClient, world: World, run: LocalRun, stated: object, imported: tuple[str | None, ...]
) -> None:
    def of_row_0(**changed: object) -> bytes:
        entries = [json.loads(line) for line in run.files["index.jsonl"].splitlines()]
        return b"".join(
            json.dumps({**each, **changed} if each is entries[0] else each).encode() + b"\n"
            for each in entries
        )

    run.files["index.jsonl"] = of_row_0(status="failed", reward=None, error_type="callback_timeout")
    with_trajectories(run, {"told": {"failure": stated}}).upload(api)
    sample = imported_samples(world)[0]
    assert (sample.status, sample.boundary, sample.category, sample.error) == ("failed", *imported)


def test_journal_of_an_imported_run(api: TestClient, run: LocalRun) -> None:
    run.files["index.jsonl"] = run.files["index.jsonl"].replace(b'"duration_ms": 1200', b'"duration_ms": 0.5')
    step = {"step_id": 1, "source": "agent", "message": "north", "metrics": CALL}
    with_trajectories(run, {"steps": [step], "told": {"row_digest": "ab" * 16}}).upload(api)
    where = f"/api/cli/eval-runs/{run.name}/samples"
    assert api.get(f"{where}/manifest", params={"types": "journal"}).json()["totals"]["files"] == 1
    items = {"items": [{"path": "events.jsonl"}]}
    (journal,) = api.post(f"{where}/download-urls", json=items).json()["items"]
    records = [TerminalRecord.from_line(line) for line in api.get(journal["url"]).content.splitlines(True)]
    assert [record.status for record in records] == ["success"] * 4 + ["failed", "success"]
    first = records[0]
    assert (first.row_digest, first.cost_usd, first.finish_reasons) == ("ab" * 16, 0.25, {"length": 1})
    assert (first.source_row_index, first.total_tokens, first.reward) == (0, 10, 1.0)


def test_times_and_rows_of_imported_runs(api: TestClient, world: World) -> None:
    """The later run is uploaded first. It paused for seven of its ten minutes."""
    for name, hour, digest in (("later", 8, "1" * 64), ("earlier", 7, "2" * 64)):
        run = LocalRun(name=name)
        told = [{"row_digest": "ab" * 16, "run_duration_ms": ms} for ms in (180_000, 60_000)]
        with_trajectories(run, *({"told": each} for each in told))
        announced = run.start()["run"] | {"started_at": f"2026-11-02T0{hour}:00:00Z"}
        run.upload(api, manifest_digest=digest, local_run_id=digest[:32], run=announced)
    listed = api.get("/api/cli/eval-runs").json()["eval_runs"]
    assert [(each["name"], each["started_at"][11:16]) for each in listed] == [
        ("later", "08:00"),
        ("earlier", "07:00"),
    ]
    assert api.get("/api/cli/eval-runs/later/metrics").json()["overview"]["duration_ms"] == 180_000

    with world.services.db.session() as session:
        source = PlatformSource(world.services, session.scalars(select(DbRun.workspace_id)).first() or "")
    detail = source.run("eval", "later")
    assert detail.summary.duration_s == 180
    assert detail.previous is not None and detail.previous.name == "earlier"
    assert source.run("eval", "earlier").previous is None
    found = source.elsewhere("ab" * 16, limit=9)
    assert [(run.name, sample.row) for run, sample in found] == [
        ("later", 0),
        ("later", 1),
        ("earlier", 0),
        ("earlier", 1),
    ]


@pytest.mark.parametrize(
    "told", [{"row_digest": "AB" * 16, "run_duration_ms": -1}, {"row_digest": 7, "run_duration_ms": 10**18}]
)
def test_hostile_facts_of_a_trajectory_are_left_out(
    api: TestClient, world: World, run: LocalRun, told: dict[str, Any]
) -> None:
    assert with_trajectories(run, {"told": told}).upload(api).status_code == 200
    assert imported_samples(world)[0].row_digest is None
    overview = api.get(f"/api/cli/eval-runs/{run.name}/metrics").json()["overview"]
    assert overview["duration_ms"] == 600_000


def test_hostile_numbers_of_a_trajectory_are_left_out(api: TestClient, world: World, run: LocalRun) -> None:
    huge = {"prompt_tokens": 10**12, "completion_tokens": 1, "cost_usd": 1e308, "extra": {"latency_ms": -1}}
    steps = [{"step_id": place, "source": "agent", "message": "north", "metrics": huge} for place in (1, 2)]
    assert with_trajectories(run, {"steps": steps}).upload(api).status_code == 200
    sample = imported_samples(world)[0]
    assert (sample.model_calls, sample.prompt_tokens, sample.cost_usd) == (2, None, None)
    assert sample.output == "north"


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


def test_changed_files(api: TestClient, world: World, run: LocalRun) -> None:
    session = started(api, run)["session_id"]
    run.send(api, session)
    artifact = f"rollout_trials/{rollout_id(1)}/artifacts/maps/path.txt"
    run.files[artifact] = b"S S W"
    hostile = {"sdk_version": "9" * 256, "git_head": "a\nb", "git_branch": ""}
    again = api.post(IMPORTS, json=run.start(provenance=hostile)).json()
    assert again["session_id"] == session
    assert [file["path"] for file in again["files"] if file["state"] == "pending"] == [artifact]
    run.send(api, session)
    assert api.post(f"{IMPORTS}/{session}/finalize", json={}).status_code == 200
    (listed,) = api.get("/api/cli/eval-runs").json()["eval_runs"]
    assert not {*hostile} & listed["imported"].keys()
    run.files[artifact] = b"E E W"
    refused = assert_flat_error(api.post(IMPORTS, json=run.start()), 409, "CONFLICT")
    assert "with other files" in refused["error"] and "eval upload --replace" in refused["error"]
    other = world.member("tom", role="member")
    theirs = api.post(IMPORTS, json=run.start(reimport=True), headers=other.headers)
    assert_flat_error(theirs, 409, "CONFLICT")
    assert run.upload(api, reimport=True).json()["eval_run_name"] == run.name
    (replaced,) = api.get("/api/cli/eval-runs").json()["eval_runs"]
    assert replaced["name"] == listed["name"] and replaced["id"] != listed["id"]
    assert run.upload(api, reimport=True).json()["eval_run_id"] == replaced["id"], "it has not changed"


def test_a_large_file_arrives_in_parts_with_the_names_of_this_part_of_the_wire(
    api: TestClient, run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("MULTIPART_FROM_BYTES", 1000), ("PART_BYTES", 700)):
        monkeypatch.setattr(f"osmosis_ai.platform.runs.run_imports.{name}", size)
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
    api: TestClient, world: World, clock: ManualClock, run: LocalRun
) -> None:
    session = started(api, run)["session_id"]
    run.send(api, session, "index.jsonl")
    api.post(f"{IMPORTS}/{session}/uploads", json={"paths": ["progress.json"]})
    assert len(world.stored("runs")) == 1 and len(list(world.services.blobs.unfinished_uploads())) == 1
    clock.advance(DAY_S - 1)
    world.services.eval_imports.tidy()
    assert len(world.stored("runs")) == 1
    clock.advance(2)
    gone = assert_flat_error(api.post(f"{IMPORTS}/{session}/finalize", json={}), 404, "NOT_FOUND")
    assert "its time is over" in gone["error"]
    world.services.eval_imports.tidy()
    assert world.stored("runs") == [] and list(world.services.blobs.unfinished_uploads()) == []
    assert started(api, run)["session_id"] != session


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


def test_another_workspace_imports_the_same_run_for_itself(
    client: TestClient, member: Member, stranger: Member, run: LocalRun
) -> None:
    client.headers.update(member.headers)
    session = started(client, run)["session_id"]
    client.headers.update(stranger.headers)
    assert run.upload(client).json()["session_id"] != session
    client.headers.update(member.headers)
    assert client.get("/api/cli/eval-runs").json()["eval_runs"] == []


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
    ({"schema_versions": {"state_schema": 2}}, "newer format"),
    ({"local_run_id": "../../etc"}, "local_run_id"),
    ({"manifest_digest": "x"}, "manifest_digest"),
    ({"files": []}, "`index.jsonl` is missing"),
    (_with_file(f"{TRIAL}/artifacts/dump.bin", 10 * 1000**3), "10,000,000,000 bytes"),
    (_with_file(f"{TRIAL}/artifacts/../../../../etc/passwd"), "not below"),
    (_with_file("/etc/passwd"), "not below"),
    (_with_file(f"{TRIAL}/artifacts//x"), "not below"),
    (_with_file(f"{TRIAL}/artifacts/a\\b"), "characters that are not allowed"),
    (_with_file(f"{TRIAL}/artifacts/a\u0000b"), "characters that are not allowed"),
    (_with_file(f"{TRIAL}/artifacts/manifest.json"), "not a file of an uploaded run"),
    (_with_file(f"{TRIAL}/artifacts/" + "x/" * 600 + "y"), "longer than 1024 bytes"),
    (_with_file("manifest.json"), "not a file of an uploaded run"),
    (_with_file("events.jsonl"), "not a file of an uploaded run"),
    (_with_file("index.jsonl"), "named twice"),
    (_with_file(f"{TRIAL}/trajectory.json/x"), "not a file of an uploaded run"),
    (_with_run(name="../maze"), "not a valid directory name"),
    (_with_run(name="a\nb"), "printable characters"),
    (_with_run(completed_at="2026-11-01T08:00:00Z"), "ends before it starts"),
    (_with_run(started_at="0001-06-01T00:00:00Z"), "the year 1 is not that of any run"),
    (_with_run(started_at="0001-01-01T00:00:00+14:00"), "no moment of a calendar in UTC"),
    (_with_run(evaluation_config={"n": 10**9, "pass_threshold": 1.0}), "attempts; this platform accepts"),
    (_with_run(evaluation_config={"n": 0, "pass_threshold": 1.0}), "n"),
    (_with_rows("5-1"), "ends before it starts"),
    (_with_rows("0-999999999"), "uses more than 100,000 rows"),
    (_with_rows("all"), "row numbers from 0 and ranges"),
]


def test_what_cannot_be_uploaded_is_refused_before_a_byte_is_sent(api: TestClient, world: World) -> None:
    for changes, said in CANNOT_BE_ANNOUNCED:
        reply = api.post(IMPORTS, json=LocalRun().start(**changes))
        assert reply.status_code == 400, (said, reply.text)
        assert said in reply.json()["error"] and "key" not in reply.json()
    assert list(world.services.blobs.unfinished_uploads()) == []


def test_a_path_cannot_be_a_file_and_a_directory(api: TestClient, run: LocalRun) -> None:
    run.files[f"{TRIAL}/artifacts/a"] = run.files[f"{TRIAL}/artifacts/a/b"] = b"x"
    body = assert_flat_error(api.post(IMPORTS, json=run.start()), 400, "VALIDATION")
    assert "a file and a directory at once" in body["error"]


@pytest.mark.parametrize(
    ("limit", "size", "said"),
    [
        ("MOST_FILES", 3, "this platform takes 3 of a run"),
        ("MOST_TOTAL_BYTES", 100, "this platform takes 100 of a run"),
        ("MOST_SAMPLES", 5, "the run has 6 attempts; this platform accepts 1 to 5"),
        ("MOST_TRAJECTORY_BYTES", 10, "10 are the most"),
    ],
)
def test_files_and_their_bytes_are_bounded_in_all(
    api: TestClient, run: LocalRun, monkeypatch: pytest.MonkeyPatch, limit: str, size: int, said: str
) -> None:
    monkeypatch.setattr(imported_run, limit, size)
    assert said in assert_flat_error(api.post(IMPORTS, json=run.start()), 400, "VALIDATION")["error"]


# What arrives and is not what was announced


def test_bytes_of_another_digest_are_not_kept_and_can_be_sent_again(
    api: TestClient, world: World, run: LocalRun
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
    assert world.stored("runs") == []
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
    (_spoilt(rollout_id=rollout_id(0)), "two attempts have the rollout ID"),
    (_spoilt(trajectory_filename=None), "the index names another trajectory"),
    (_having("progress.json", {"total_runs": 7, "sampled_rows": 3, "total_dataset_rows": 9}), "7 attempts"),
    (
        _having("progress.json", {"total_runs": 6, "sampled_rows": 3, "total_dataset_rows": 5}),
        "row 5 was used",
    ),
    (_having("progress.json", b"[]"), "progress.json"),
    (_without(FIRST), "the trajectory of row 0, attempt 0, is missing"),
    (_having(FIRST, b"{"), "no valid JSON"),
    (_having(FIRST, {**trajectory(0), "steps": []}), "no valid trajectory: steps"),
    (_having(FIRST, trajectory(1)), "the trajectory of another rollout"),
    (_having(f"rollout_trials/{rollout_id(9)}/artifacts/x", b"x"), "the index has no such attempt"),
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
    api: TestClient, run: LocalRun, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = started(api, run)["session_id"]
    run.send(api, session)
    with monkeypatch.context() as patch:
        patch.setattr(
            world.services.logs.__class__, "add", lambda *_: (_ for _ in ()).throw(OSError(28, "full"))
        )
        assert_flat_error(api.post(f"{IMPORTS}/{session}/finalize", json={}), 507, "STORAGE_FULL")
    assert api.get("/api/cli/eval-runs").json()["eval_runs"] == []
    assert api.post(f"{IMPORTS}/{session}/finalize", json={}).json()["status"] == "finalized"
