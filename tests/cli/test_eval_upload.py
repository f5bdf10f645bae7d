"""`osmosis eval upload`: a finished run of this machine, sent to a platform that speaks the public wire."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.blob_server import BlobServer
from tests.cli.maze import Maze, sent
from tests.evaluation.recorded_runs import in_use
from tests.evaluation.rollouts import write_rollout, write_rows
from tests.platform.local_runs import LocalRun, rollout_id, trajectory
from tests.workspace.builders import MINIMAL_EVAL

SESSION = "imp 1/2"
IMPORTS = "/eval-runs/imports"
AT = f"{IMPORTS}/imp%201%2F2"
URL = "https://platform.fern.example/fern/evals/maze-20261102"


class Importer:
    """A platform that takes uploads, by replies written from the contract; ``wrong`` changes one before it is sent."""

    def __init__(self, maze: Maze, store: BlobServer, directory: Path) -> None:
        self.maze, self.store, self.directory = maze, store, directory
        self.announced: list[dict[str, Any]] = []
        self.uploaded: set[str] = set()
        self.status = "uploading"
        self.wrong: Callable[[dict[str, Any]], object] = lambda reply: None
        maze.get("/verify").respond(json={"user": {"id": "u1", "email": "a@fern.example"}, "token_id": "t1"})
        self.start = maze.post(IMPORTS).mock(side_effect=self._start)
        self.uploads = maze.post(f"{AT}/uploads").mock(side_effect=self._uploads)
        self.complete = maze.post(f"{AT}/uploads/complete").mock(side_effect=self._complete)
        self.finalize = maze.post(f"{AT}/finalize").mock(side_effect=self._finalize)

    def osmosis(self, *arguments: str) -> Any:
        return self.maze.osmosis("eval", "upload", *(arguments or (str(self.directory),)), "--json")

    def _start(self, request: httpx.Request) -> httpx.Response:
        self.announced = json.loads(request.content)["files"]
        return self._session()

    def _uploads(self, request: httpx.Request) -> httpx.Response:
        paths = json.loads(request.content)["paths"]
        assert 1 <= len(paths) <= 100
        files = [
            {
                **file,
                "upload": {
                    "method": "simple",
                    "presigned_url": self.store.signed(file["path"].replace("/", "_")),
                },
            }
            for file in self.announced
            if file["path"] in paths and file["path"] not in self.uploaded
        ]
        return httpx.Response(200, json={"files": files})

    def _complete(self, request: httpx.Request) -> httpx.Response:
        self.uploaded.add(json.loads(request.content)["path"])
        return httpx.Response(204)

    def _finalize(self, request: httpx.Request) -> httpx.Response:
        assert request.content == b"{}"
        self.status = "finalized"
        return self._session()

    def _session(self) -> httpx.Response:
        ended = {"eval_run_id": "er_9", "eval_run_name": "maze-20261102", "platform_url": URL}
        reply: dict[str, Any] = {
            "session_id": SESSION,
            "status": self.status,
            "expected_files": len(self.announced),
            "uploaded_files": len(self.uploaded),
            "files": [
                {**file, "state": "uploaded" if file["path"] in self.uploaded else "pending"}
                for file in self.announced
            ],
            "expires_at": None,
            **(ended if self.status == "finalized" else dict.fromkeys(ended)),
        }
        self.wrong(reply)
        return httpx.Response(200, json=reply)


@pytest.fixture
def run() -> LocalRun:
    return LocalRun()


@pytest.fixture
def importer(maze: Maze, run: LocalRun, store: BlobServer) -> Importer:
    return Importer(maze, store, run.write(maze.workspace.evals_dir))


def test_what_is_not_uploaded_is_named(importer: Importer) -> None:
    shown = importer.maze.osmosis("eval", "upload", str(importer.directory))
    assert "Not uploaded: the errors of 1 failed attempt without a conversation" in shown.out


def test_request_sequence(importer: Importer, run: LocalRun) -> None:
    outcome = importer.osmosis()
    assert outcome.status == 0, outcome.err
    assert outcome.json["operation"] == "eval.upload" and outcome.json["status"] == "success"
    resource = outcome.resource
    assert (resource["eval_run_id"], resource["uploaded_files"]) == ("er_9", len(run.files))
    manifest = hashlib.sha256((importer.directory / "manifest.json").read_bytes()).hexdigest()
    expected = run.start(manifest_digest=manifest)
    expected["run"]["experiment_config"]["rollout"]["branch"] = "main"
    expected["provenance"]["config_branch"] = "main"
    announced = sent(importer.start)
    announced["run"]["completed_at"] = announced["run"]["completed_at"].replace(".000Z", "Z")
    assert announced == expected
    assert importer.store.blobs == {path.replace("/", "_"): data for path, data in run.files.items()}
    assert all("authorization" not in map(str.lower, seen.headers) for seen in importer.store.seen)
    assert importer.osmosis(str(importer.directory), "--replace").status == 0
    assert json.loads(importer.start.calls.last.request.content)["reimport"] is True


def test_resume(importer: Importer) -> None:
    importer.store.answers = [None, lambda handler: handler.reply(403)]
    cut = importer.osmosis()
    assert cut.status == 1 and cut.error["code"] == "PLATFORM_ERROR"
    assert importer.finalize.call_count == 0
    there = set(importer.uploaded)
    assert there

    importer.store.seen.clear()
    assert importer.osmosis().status == 0
    again = {seen.path.partition("?")[0].strip("/") for seen in importer.store.seen}
    assert again.isdisjoint({path.replace("/", "_") for path in there})

    importer.store.seen.clear()
    once_more = importer.osmosis()
    assert once_more.status == 0 and once_more.resource["status"] == "finalized"
    assert importer.store.seen == [] and importer.finalize.call_count == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda reply: reply["files"].pop(), "its list of files is different"),
        (lambda reply: reply["files"][0].update(sha256="0" * 64), "its list of files is different"),
        (lambda reply: reply.pop("session_id"), "session_id"),
        (lambda reply: reply.update(status="half"), "status"),
        (lambda reply: reply.update(eval_run_id=None, platform_url=None), "does not name the new run"),
    ],
)
def test_invalid_replies(importer: Importer, wrong: Callable[[dict[str, Any]], object], said: str) -> None:
    importer.wrong = wrong
    outcome = importer.osmosis()
    assert outcome.status == 1 and outcome.error["code"] == "PLATFORM_ERROR"
    assert said in outcome.error["message"]


def test_platform_without_capability(importer: Importer, maze: Maze) -> None:
    maze.get("/verify").respond(
        json={"user": {"id": "u1", "email": "a@fern.example"}, "token_id": "t1"},
        headers={"X-Osmosis-Capabilities": "deletion"},
    )
    outcome = importer.osmosis()
    assert outcome.status == 1
    assert "does not support uploading evaluations" in outcome.error["message"]
    assert not importer.start.called


def _rewrite(name: str, **changes: Any) -> Callable[[Path], object]:
    def change(directory: Path) -> None:
        document = json.loads((directory / name).read_text())
        for key, value in changes.items():
            (document["eval_run"] if name == "metrics.json" else document)[key] = value
        (directory / name).write_text(json.dumps(document))

    return change


def _edit(name: str, change: Callable[[str], str]) -> Callable[[Path], object]:
    return lambda directory: (directory / name).write_text(change((directory / name).read_text()))


def _link(path: str, target: str) -> Callable[[Path], object]:
    def link(directory: Path) -> None:
        (directory / path).unlink(missing_ok=True)
        (directory / path).symlink_to(target)

    return link


FIRST = f"rollout_trials/{rollout_id(0)}/trajectory.json"
ARTIFACTS = f"rollout_trials/{rollout_id(1)}/artifacts"


def _second_entry(**changes: Any) -> Callable[[Path], object]:
    """Return a function that changes the second line of the index."""

    def change(text: str) -> str:
        first, second, *others = text.splitlines()
        return "\n".join([first, json.dumps({**json.loads(second), **changes}), *others]) + "\n"

    return _edit("index.jsonl", change)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_second_entry(row_index=7), "line 2 is of row 7, attempt 1, and the run has 3 rows and 2 attempts"),
        (_second_entry(run_index=2), "line 2 is of row 0, attempt 2"),
        (_second_entry(run_index=0), "row 0, attempt 0 is listed twice"),
        (_second_entry(rollout_id=rollout_id(0)), "two attempts have the rollout ID"),
        (_second_entry(rollout_id="../../../etc"), "`$.rollout_id`"),
        (_second_entry(status="perfect"), "`$.status`"),
        (_second_entry(status=None), "`$.status`"),
        (_second_entry(reward="1e9"), "`$.reward`"),
        (_second_entry(reward=True), "`$.reward`"),
        (_second_entry(reward=float("nan")), "line 2 cannot be read"),
        (_second_entry(duration_ms=-1), "`$.duration_ms`"),
        (_second_entry(tokens=2**40), "`$.tokens`"),
        (_second_entry(trajectory_filename="../../x.json"), "`$.trajectory_filename`"),
        (_second_entry(error_type="a\nb"), "`$.error_type`"),
        (_second_entry(more=" " * 70_000), "line 2 is longer than 65536 bytes"),
        (_edit("index.jsonl", lambda text: text.replace("\n", "\n[]\n", 1)), "Expected `object`"),
        (
            _edit("index.jsonl", lambda text: text.partition("\n")[0] + "\n"),
            "5 of 6 attempts are missing, the first is row 0, attempt 1",
        ),
        (_rewrite("manifest.json", schema_version=2), "has schema version 2; this release supports 1"),
        (_rewrite("manifest.json", local_run_id="x"), "is not a run's manifest"),
        (_rewrite("manifest.json", run_name="other"), "holds the run 'other'"),
        (_rewrite("metrics.json", status="incomplete"), "is incomplete, not finished"),
        (_rewrite("metrics.json", id="f" * 32), "is not that of the run"),
        (
            _edit("events.jsonl", lambda text: text[: text.rindex("\n", 0, -1) + 1]),
            "1 of 6 attempts are pending",
        ),
        (lambda directory: (directory / "events.jsonl").unlink(), "events.jsonl' is missing"),
        (
            _edit("index.jsonl", lambda text: text.replace('"reward": 0.5', '"reward": 1.0')),
            "does not match the journal for row 2, attempt 1",
        ),
        (_edit("index.jsonl", lambda _: "{"), "cannot be read"),
        (lambda directory: (directory / "metrics.json").unlink(), "metrics.json' cannot be read"),
        (lambda directory: (directory / FIRST).unlink(), "row_0_run_0.json' is missing"),
        (_edit(FIRST, lambda _: "{"), "is no valid JSON"),
        (_edit(FIRST, lambda _: json.dumps(trajectory(2))), "of another rollout"),
        (_link(FIRST, "/etc/passwd"), "is a symbolic link"),
        (_link(f"{ARTIFACTS}/maps/path.txt", "/etc/passwd"), "is a symbolic link"),
        (_link(f"{ARTIFACTS}/more", "/etc"), "is a symbolic link"),
        (lambda directory: os.mkfifo(directory / ARTIFACTS / "pipe"), "is not a regular file"),
        (
            lambda directory: (directory / ARTIFACTS / "a\\b").write_text("x"),
            "characters that are not allowed",
        ),
    ],
)
def test_damaged_runs(importer: Importer, damage: Callable[[Path], object], said: str) -> None:
    damage(importer.directory)
    outcome = importer.osmosis()
    assert outcome.status == 1
    assert said in outcome.error["message"]
    assert not importer.start.called


def test_run_in_use(importer: Importer) -> None:
    (importer.directory / ARTIFACTS / "manifest.json").write_text("{}")
    assert importer.osmosis().status == 0
    assert not any(file["path"].endswith("artifacts/manifest.json") for file in importer.announced)

    with in_use(importer.directory):
        outcome = importer.osmosis()
    assert outcome.status == 1 and outcome.error["code"] == "CONFLICT"
    assert "Another process is using the run" in outcome.error["message"]


def test_secret_in_artifacts(importer: Importer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-4711")
    told = importer.directory / ARTIFACTS / "told.txt"
    told.write_bytes(b"x" * ((1 << 20) - 5) + b"sk-canary-4711")
    outcome = importer.osmosis()
    assert outcome.status == 1 and "holds the value of the secret OPENAI_API_KEY" in outcome.error["message"]
    assert "sk-canary" not in outcome.err and not importer.start.called
    told.unlink()
    assert importer.osmosis().status == 0


def test_changed_file(importer: Importer) -> None:
    asked = importer.uploads.side_effect

    def changing(request: httpx.Request) -> httpx.Response:
        (importer.directory / FIRST).write_text("{}")
        reply: httpx.Response = asked(request)
        return reply

    importer.uploads.mock(side_effect=changing)
    outcome = importer.osmosis()
    assert outcome.status == 1 and "changed while the run was being uploaded" in outcome.error["message"]


@pytest.mark.e2e
def test_failed_upload_after_a_run(maze: Maze, importer: Importer) -> None:
    maze.patch.chdir(importer.directory.parents[2])
    config = MINIMAL_EVAL.replace("openai/gpt-5-mini", "osmosis/tiny")
    (maze.workspace.root / "configs/eval/multiply.toml").write_text(config)
    write_rollout(maze.workspace.rollouts_dir / "multiply")
    write_rows(maze.workspace.data_dir / "multiply.jsonl", ["one"])
    importer.start.mock(return_value=httpx.Response(403, json={"error": "you may not upload here"}))
    words = ("eval", "run", "configs/eval/multiply.toml", "--name", "walk", "--yes", "--upload")
    outcome = maze.osmosis(*words, "--json")
    resource = outcome.resource
    assert (outcome.status, outcome.json["status"]) == (1, "partial")
    assert (resource["succeeded"], resource["metrics"]["estimates"]["counts"]["scored"]) == (1, 1)
    assert (maze.workspace.evals_dir / "walk" / "metrics.json").exists()
    assert "you may not upload here" in resource["upload"]["error"]["message"]
    assert "osmosis eval upload .osmosis/evals/walk" in maze.osmosis(*words).out
