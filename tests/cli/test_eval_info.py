"""`osmosis eval list` and `info` against replies written by hand."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.api.blob_server import BlobServer
from tests.cli.eval_downloads import offer_files
from tests.cli.eval_replies import DETAIL, ESTIMATES, METRICS, METRICS_FILE, OWN, ROW, run
from tests.cli.maze import Maze
from tests.evaluation.recorded_runs import write_results, write_run
from tests.workspace.builders import git


@pytest.fixture
def local(maze: Maze) -> Path:
    """A run on this machine that passes one of two rows; the platform has none."""
    maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0})
    return write_run(maze.workspace.evals_dir / "good", [[1.0], [0.0]])


def test_list_reward_is_per_row(maze: Maze) -> None:
    results = {**ROW["results"], "headline": {"pass_rate": 0.25, "reward": 0.125, "scored": 8, "planned": 8}}
    maze.get("/eval-runs").respond(json={"eval_runs": [{**ROW, "results": results}]})
    assert "\t0.125\t" in maze.osmosis("eval", "list", "--plain").out
    (item,) = maze.osmosis("eval", "list", "--json").json["items"]
    assert (item["summary"]["avg_reward"], item["headline"]["reward"]) == (0.5, 0.125)


@pytest.mark.parametrize("mode", [(), ("--plain",)])
def test_logs_without_terminal_sequences(maze: Maze, mode: tuple[str, ...]) -> None:
    message = "\x1b]8;;http://evil\x07a \x1b[31mlink"
    line = {"timestamp": "2026-10-02T07:00:00Z", "level": "info", "message": message}
    maze.get("/eval-runs/amber-otter-42/logs").respond(json={"logs": [line], "next_cursor": None})
    shown = maze.osmosis("eval", "logs", "amber-otter-42", *mode).out
    # A table may break the line between any two words.
    words = [word for word in shown.split() if word != "│"]
    assert "a link (1 terminal sequence removed)" in " ".join(words) and "evil" not in shown
    (item,) = maze.osmosis("eval", "logs", "amber-otter-42", "--json").json["items"]
    assert item["message"] == message


def test_info_plain_and_saved_metrics(maze: Maze, store: BlobServer) -> None:
    maze.get("/eval-runs/amber-otter-42").respond(json=DETAIL)
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": ESTIMATES})
    store.blobs["metrics.json"] = METRICS_FILE
    listed = [{"path": "metrics.json", "size": len(METRICS_FILE)}]
    offer_files(maze, store, "/eval-runs/er_8/samples", listed)
    short = maze.osmosis("eval", "info", "amber-otter-42", "--plain").out
    meaning = "mean over 5 rows: reward ≥ 1.0, 8 attempts scored, 1 failed"
    assert f"  Pass rate     50.0%        30.0–70.0%     {meaning}\n" in short
    assert "  Unscored, by code         1: 1 exception\n" in short
    plain = maze.osmosis("eval", "info", "amber-otter-42", "--plain", "--verbose").out
    assert "Result: pass rate 50.0% (30.0–70.0%) (reward >= 1.0, scored attempts only)" in plain
    assert "Secrets: OTHER (workspace), SEARCH_KEY (personal, overrides workspace)" in plain
    assert not store.seen

    rich = maze.osmosis("eval", "info", "amber-otter-42")
    saved = maze.workspace.evals_dir / "amber-otter-42" / "metrics.json"
    assert saved.read_bytes() == METRICS_FILE
    assert str(saved) in rich.out
    assert (maze.workspace.state_dir / ".gitignore").exists()


def test_info_slices_of_platform_run(maze: Maze, store: BlobServer) -> None:
    rows = "".join(f'{{"user_prompt": "{n}", "size": "{n % 2}"}}\n' for n in range(5)).encode()
    store.blobs["walks"] = rows
    dataset = {
        "id": "ds_31",
        "file_name": "maze-walks",
        "status": "uploaded",
        "file_format": "jsonl",
        "file_size": len(rows),
        "updated_at": "2026-10-02T07:00:00Z",
    }
    maze.get("/datasets/maze-walks").respond(json=dataset)
    maze.router.get(url__regex="/download$").respond(json={"presigned_url": store.signed("walks")})
    sha256 = hashlib.sha256(rows).hexdigest()
    offering = {"headers": {"X-Osmosis-Capabilities": "eval-samples"}}
    maze.get("/eval-runs/amber-otter-42").respond(
        json={**run("finished"), "dataset_sha256": sha256}, **offering
    )
    maze.get("/eval-runs/er_8/metrics").respond(json=METRICS, **offering)
    samples = [
        {"row": row, "attempt": 0, "status": "success", "source_row_index": row, "reward": float(row > 1)}
        for row in range(5)
    ]
    maze.get("/eval-runs/er_8/samples").respond(json={"samples": samples}, **offering)
    data = maze.osmosis("eval", "info", "amber-otter-42", "--slice", "size", "--json").data
    assert [(each["value"], each["rows"], each["pass_rate"]["value"]) for each in data["slices"]] == [
        ("0", 3, pytest.approx(2 / 3)),
        ("1", 2, 0.5),
    ]
    refused = maze.osmosis("eval", "info", "amber-otter-42", "--slice", "nope", "--json").error
    assert refused["message"] == "Dataset 'maze-walks' has no column 'nope'."
    assert refused["hint"].startswith("it has ") and "size" in refused["details"]["columns"]
    shown = maze.osmosis("eval", "info", "amber-otter-42", "--slice", "size", "--plain").out
    assert "By size:\n\tRows\tSamples\tPass rate" in shown and "\n1\t2\t2\t50.0%" in shown


def test_info_numbers_of_a_newer_release(maze: Maze) -> None:
    newer = json.loads(json.dumps(ESTIMATES))
    newer["spread"] = newer["counts"]["paused"] = newer["pass_rate"]["posterior"] = 1
    newer["limited_by"] = {"most": "the_moon", "the_moon": 1.0}
    maze.get("/eval-runs/x").respond(json=DETAIL)
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": newer})
    plain = maze.osmosis("eval", "info", "x", "--plain", "--verbose").out
    assert "Result: pass rate 50.0% (30.0–70.0%) (reward >= 1.0, scored attempts only)" in plain
    assert "Unscored, by code\t1: 1 exception" in plain and "Bottleneck" not in plain


@pytest.mark.parametrize(
    "detail",
    [
        {"eval_run": {"id": "er_1"}},
        {**dict.fromkeys(DETAIL), "eval_run": {**dict.fromkeys(OWN), "id": "er_1"}},
    ],
)
def test_info_missing_fields(maze: Maze, detail: dict[str, Any]) -> None:
    maze.get("/eval-runs/x").respond(json=detail)
    maze.get("/eval-runs/er_1/metrics").respond(json={})
    maze.get("/eval-runs/er_1/samples/manifest").respond(json={"files": []})
    data = maze.osmosis("eval", "info", "x", "--json").data
    assert (data["summary"], data["model"], data["eval_run"]["id"]) == ({}, None, "er_1")
    out = maze.osmosis("eval", "info", "x", "--plain").out
    assert out.startswith("Name: (unnamed)\nStatus: –\n") and "snapshot" not in out
    assert "has no metrics.json" in maze.osmosis("eval", "info", "x").err


def test_info_unknown_pass_count_is_not_zero(maze: Maze) -> None:
    maze.get("/eval-runs/amber-otter-42").respond(
        json={**run("finished"), "results": {"graded": 8, "failed": 1, "total_runs": 9}}
    )
    maze.get("/eval-runs/er_8/metrics").respond(404, json={"error": "none"})
    headline = maze.osmosis("eval", "info", "amber-otter-42", "--json").data["headline"]
    assert headline["brief"].startswith("pass rate unknown, 8 of 9 planned scored, failed 1")
    assert headline["words"].startswith(
        "pass rate – (reward >= 1.0, scored attempts only); scored 8 of 9 planned"
    )


def test_info_metrics_unavailable(maze: Maze) -> None:
    maze.get("/eval-runs/x").respond(json=DETAIL)
    metrics = maze.get("/eval-runs/er_8/metrics").respond(500, json={"error": "broken"})
    data = maze.osmosis("eval", "info", "x", "--json").data
    assert (data["metrics_available"], data["metrics_error"]) == (False, "broken")
    metrics.respond(json=METRICS)
    maze.get("/eval-runs/er_8/samples/manifest").respond(404, json={"error": "no route"})
    outcome = maze.osmosis("eval", "info", "x", "-o", "here", "--json")
    assert outcome.status == 0
    assert "The metrics could not be saved" in outcome.data["save_warning"]


@pytest.mark.parametrize("name", ["n" * 255, "é" * 255], ids=["ascii", "wide"])
@pytest.mark.parametrize("place", ["", "platform:"])
@pytest.mark.parametrize("command", ["info", "show", "logs"])
def test_long_run_names_are_sent_to_the_platform(
    maze: Maze, local: Path, command: str, place: str, name: str
) -> None:
    below = "/logs" if command == "logs" else ""
    request = maze.get(f"/eval-runs/{quote(name)}{below}").respond(404, json={"error": "deleted just now"})
    outcome = maze.osmosis("eval", command, place + name)
    assert outcome.status == 1 and request.called
    assert "Traceback" not in outcome.err and "Run name is invalid" not in outcome.err
    assert ("neither on this machine nor on the platform" in outcome.err) is (place == "")


@pytest.mark.parametrize("missing", ["login", "origin"])
def test_list_without_origin_or_login(maze: Maze, local: Path, missing: str) -> None:
    if missing == "login":
        maze.patch.setenv("OSMOSIS_PLATFORM_URL", "https://elsewhere.example")
    else:
        git(maze.workspace.root, "remote", "remove", "origin")
    listed = maze.osmosis("eval", "list", "--json")
    assert (listed.status, listed.json["items"]) == (0, [])
    (run,) = listed.json["local_runs"]
    assert (run["name"], run["status"], run["avg_reward"]) == ("good", "finished", 0.5)
    assert run["headline"]["scored"] == 2
    shown = maze.osmosis("eval", "list")
    assert "good" in shown.out and "Only local runs are listed" in shown.err
    (line,) = maze.osmosis("eval", "list", "--plain").out.splitlines()
    assert line.startswith("good\t[finished]\t") and line.endswith("\t(this machine)")


@pytest.mark.parametrize("missing", ["login", "origin"])
def test_hint_about_an_unknown_run(maze: Maze, local: Path, missing: str) -> None:
    if missing == "login":
        maze.patch.setenv("OSMOSIS_PLATFORM_URL", "https://elsewhere.example")
    else:
        git(maze.workspace.root, "remote", "remove", "origin")
    platform = "; to see a platform's runs: osmosis login" if missing == "login" else ""
    for verb in ("show", "export", "info", "watch", "logs"):
        error = maze.osmosis("eval", verb, "unheard-of", "--json").error
        assert (error["code"], error["message"]) == ("NOT_FOUND", "Run 'unheard-of' not found.")
        assert error["hint"] == f"latest local runs: good; all: osmosis eval list{platform}"
    shutil.rmtree(local)
    error = maze.osmosis("eval", "info", "unheard-of", "--json").error
    assert error["code"] == ("AUTH_REQUIRED" if missing == "login" else "NOT_FOUND")


def test_list_plain_with_local_runs(maze: Maze, local: Path) -> None:
    write_run(maze.workspace.evals_dir / "fine", [[1.0], [0.0]])
    maze.get("/eval-runs").respond(json={"eval_runs": [ROW]})
    platform, *runs = (row.split("\t") for row in maze.osmosis("eval", "list", "--plain").out.splitlines())
    assert (platform[0], len(platform)) == (ROW["name"], 7)
    assert sorted((row[0], row[-1], len(row)) for row in runs) == [
        ("fine", "(this machine)", 7),
        ("good", "(this machine)", 7),
    ]
    for limit in (1, 2):
        lines = maze.osmosis("eval", "list", "--plain", "--limit", str(limit)).out.splitlines()
        assert len(lines) == limit and lines[0].startswith(f"{ROW['name']}\t")


@pytest.mark.parametrize("reply", [None, 503, 404])
def test_list_if_the_platform_fails(maze: Maze, local: Path, reply: int | None) -> None:
    route = maze.get("/eval-runs")
    if reply is None:
        route.mock(side_effect=httpx.ConnectError("no route to host"))
    else:
        route.respond(reply, json={"error": "it is gone"})
    for mode in ((), ("--plain",)):
        outcome = maze.osmosis("eval", "list", *mode)
        assert outcome.status == 1 and "good" in outcome.out and "Error: " in outcome.err
    details = maze.osmosis("eval", "list", "--json").error["details"]
    (run,) = details["local_runs"]
    assert (run["name"], details["local_total_count"]) == ("good", 1)


def test_info_local_before_platform(maze: Maze, local: Path) -> None:
    request = maze.get("/eval-runs/good").respond(404, json={"error": "there is none"})
    assert maze.osmosis("eval", "info", "good").status == 0 and not request.called
    assert maze.osmosis("eval", "info", "platform:good").status == 1 and request.called
    maze.get("/eval-runs/nosuch").respond(404, json={"error": "there is none"})
    refused = maze.osmosis("eval", "info", "nosuch").err
    assert "neither on this machine nor on the platform" in refused
    assert "hint: `osmosis eval list` lists all runs" in refused


def test_next_commands_of_a_local_run(maze: Maze, local: Path) -> None:
    assert "osmosis eval info .osmosis/evals/good --verbose" in maze.osmosis("eval", "info", "good").out
    assert "eval info" not in maze.osmosis("eval", "info", "good", "--verbose").out


def test_list_damaged_run(maze: Maze, local: Path) -> None:
    write_run(maze.workspace.evals_dir / "intact", [[1.0], [0.0]])
    (local / "events.jsonl").write_bytes(b"no record\n")
    listed = {run["name"]: run for run in maze.osmosis("eval", "list", "--json").json["local_runs"]}
    assert "damaged at line 1" in listed["good"]["error"]
    assert (listed["intact"]["status"], listed["intact"]["avg_reward"]) == ("finished", 0.5)
    maze.patch.setenv("COLUMNS", "300")
    outcome = maze.osmosis("eval", "list")
    assert outcome.status == 0 and "is damaged at line 1" in outcome.out and "50.0% pass" in outcome.out
    data = maze.osmosis("eval", "info", "good", "--json").data
    assert [problem for problem in data["problems"] if "damaged at line 1" in problem]
    assert data["metrics"] == {"estimates": None}


@pytest.mark.parametrize("appended", [b"", b"no record\n"])
def test_list_stored_numbers_of_a_damaged_run(maze: Maze, local: Path, appended: bytes) -> None:
    journal = local / "events.jsonl"
    write_results(local)
    assert "good:" not in maze.osmosis("eval", "list", "--plain").err
    lines = journal.read_bytes().splitlines(keepends=True)
    changed = lines[1] if appended else lines[1].replace(b"row-1-run-0", b"row-1-run-7")
    journal.write_bytes(lines[0] + changed + appended)
    (local / "logs.txt").touch()
    listed = maze.osmosis("eval", "list", "--plain")
    place = f"damaged at line {3 if appended else 2}"
    assert listed.status == 0 and "50.0% pass" in listed.out
    assert place in listed.err and "--name good --salvage" in listed.err
    shown = maze.osmosis("eval", "info", "good", "--plain").out
    assert place in shown and "--name good --salvage" in shown


def test_logs_of_a_local_run(maze: Maze, local: Path) -> None:
    lines = [f"2026-10-02T07:00:{second:02}.000Z INFO [result] success {{}}" for second in range(50)]
    lines[3] = "2026-10-02T07:00:03.000Z WARNING [run] a server is late {}"
    lines[44] = "2026-10-02T07:00:44.000Z ERROR [run] a disk is full {}"
    (local / "logs.txt").write_text("\n".join(lines) + "\n")
    page = maze.osmosis("eval", "logs", "good", "--level", "warning", "--limit", "5", "--json").json
    assert [item["message"] for item in page["items"]] == ["a server is late", "a disk is full"]
    followed = maze.osmosis("eval", "logs", "good", "--follow", "--level", "error", "--limit", "5", "--plain")
    assert followed.out.splitlines() == ["2026-10-02T07:00:44Z\tERROR\trun\ta disk is full"]
    newest = maze.osmosis("eval", "logs", "good", "--limit", "2", "--json").json
    older = maze.osmosis("eval", "logs", "good", "--cursor", newest["next_cursor"], "--json").json
    assert len(older["items"]) == 48
    assert maze.osmosis("eval", "logs", "good", "--cursor", "x").status == 1
    assert maze.osmosis("eval", "logs", "good", "--follow", "--cursor", "x").status == 1


@pytest.mark.parametrize("file", ["manifest.json", "events.jsonl", "metrics.json", "logs.txt"])
@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_irregular_files(maze: Maze, local: Path, file: str, kind: str) -> None:
    path = write_run(maze.workspace.evals_dir / "odd", [[1.0]]) / file
    path.unlink(missing_ok=True)
    {"pipe": os.mkfifo, "folder": Path.mkdir, "link": lambda path: path.symlink_to("/dev/zero")}[kind](path)
    for command in ("info", "show", "logs", "watch", "export", "compare good"):
        outcome = maze.osmosis("eval", *command.split(), "odd")
        assert outcome.status == 1
        assert f"Run 'odd' cannot be read: '{path}' is not a regular file" in outcome.err, command
    assert [run["name"] for run in maze.osmosis("eval", "list", "--json").json["local_runs"]] == ["good"]


def test_invisible_characters_in_names(maze: Maze, local: Path) -> None:
    manifest = json.loads((local / "manifest.json").read_text())
    manifest["inputs"]["rollout"] = {"name": "\u202egood\u200b\x1b[31m\x9b"}
    (local / "manifest.json").write_text(json.dumps(manifest))
    maze.patch.setenv("COLUMNS", "200")
    for command in (("list",), ("info", "good", "--plain"), ("info", "good")):
        assert "‹U+202E›good‹U+200B›\\x1b[31m\\x9b" in maze.osmosis("eval", *command).out


def test_show_damaged_run(maze: Maze, local: Path) -> None:
    with (local / "events.jsonl").open("ab") as journal:
        journal.write(b"\0\xff\n")
    shown = maze.osmosis("eval", "show", "good", "--plain")
    assert (
        shown.status == 0
        and "is damaged at line" in shown.out
        and "row 1, attempt 0 (below threshold):" in shown.out
    )
    assert "is damaged at line" in maze.osmosis("eval", "show", "good", "--row", "7").err
    assert "is damaged at line" in maze.osmosis("eval", "show", "good", "--json").data["problems"][0]


@pytest.mark.parametrize(
    ("level", "least"), [("FATAL", "error"), ("err", "error"), ("warn", "warning"), ("notice", "info")]
)
def test_log_level_synonyms(maze: Maze, level: str, least: str) -> None:
    maze.get("/eval-runs/b/logs").respond(json={"logs": [{"level": level, "message": "the disk is full"}]})
    page = maze.osmosis("eval", "logs", "b", "--level", least, "--json").json
    assert [item["level"] for item in page["items"]] == [level]
