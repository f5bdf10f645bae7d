"""`osmosis eval list`, `info` and `rollout list` against replies written by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from osmosis_ai.evaluation.local_results import read_local_results
from osmosis_ai.services.datasets import CachedDataset
from tests.api.blob_server import BlobServer, serve
from tests.cli.eval_replies import DETAIL, ESTIMATES, METRICS, METRICS_FILE, OWN, ROW, run
from tests.cli.maze import Maze
from tests.evaluation.recorded_runs import write_run
from tests.workspace.builders import git


@pytest.fixture
def store() -> Iterator[BlobServer]:
    with serve() as store:
        yield store


def offer_metrics_file(maze: Maze, store: BlobServer) -> None:
    store.blobs["m"] = METRICS_FILE
    maze.get("/eval-runs/er_8/samples/manifest").respond(
        json={"files": [{"path": "metrics.json", "size": len(METRICS_FILE)}], "totals": {}}
    )
    maze.post("/eval-runs/er_8/samples/download-urls").respond(
        json={"items": [{"path": "metrics.json", "url": store.signed("m")}]}
    )


# Lists


def test_the_reward_of_a_list_is_over_rows_as_the_pass_rate_beside_it(maze: Maze) -> None:
    results = {**ROW["results"], "headline": {"pass_rate": 0.25, "reward": 0.125, "scored": 8, "planned": 8}}
    maze.get("/eval-runs").respond(json={"eval_runs": [{**ROW, "results": results}]})
    assert "\t0.125\t" in maze.osmosis("eval", "list", "--plain").out
    (item,) = maze.osmosis("eval", "list", "--json").json["items"]
    assert (item["summary"]["avg_reward"], item["headline"]["reward"]) == (0.5, 0.125)


@pytest.mark.parametrize("mode", [(), ("--plain",)])
def test_a_log_has_lost_its_terminal_sequences_which_are_counted(maze: Maze, mode: tuple[str, ...]) -> None:
    line = {
        "timestamp": "2026-10-02T07:00:00Z",
        "level": "info",
        "message": "\x1b]8;;http://evil\x07a \x1b[31mlink",
    }
    maze.get("/eval-runs/amber-otter-42/logs").respond(json={"logs": [line], "next_cursor": None})
    shown = maze.osmosis("eval", "logs", "amber-otter-42", *mode).out
    # A table may break the line between any two words.
    words = [word for word in shown.split() if word != "│"]
    assert "a link (1 terminal sequence removed)" in " ".join(words) and "evil" not in shown
    told = maze.osmosis("eval", "logs", "amber-otter-42", "--json").json["items"][0]
    assert told["message"] == line["message"]


# One run


def test_a_run_in_full_for_people_with_its_numbers_and_their_denominators(
    maze: Maze, store: BlobServer
) -> None:
    maze.get("/eval-runs/amber-otter-42").respond(json=DETAIL)
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": ESTIMATES})
    offer_metrics_file(maze, store)
    plain = maze.osmosis("eval", "info", "amber-otter-42", "--plain").out
    assert "Pass rate: 50.0% (30.0 – 70.0%) (reward >= 1.0, scored attempts only)" in plain
    assert "Secrets: OTHER (workspace), SEARCH_KEY (personal, overrides workspace)" in plain
    assert not store.seen

    rich = maze.osmosis("eval", "info", "amber-otter-42")
    saved = maze.workspace.evals_dir / "amber-otter-42" / "metrics.json"
    assert saved.read_bytes() == METRICS_FILE
    assert str(saved) in rich.out
    assert (maze.workspace.state_dir / ".gitignore").exists()


def test_a_run_is_shown_by_the_values_of_a_column(
    maze: Maze, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dataset = tmp_path / "walks.jsonl"
    dataset.write_text("".join(f'{{"user_prompt": "{n}", "size": "{n % 2}"}}\n' for n in range(5)))
    fetched = CachedDataset(dataset, "d" * 64, "cache")
    monkeypatch.setattr("osmosis_ai.services.datasets.fetch_dataset", lambda *_: fetched)
    offering = {"headers": {"X-Osmosis-Capabilities": "eval-samples"}}
    maze.get("/eval-runs/amber-otter-42").respond(
        json={**run("finished"), "dataset_sha256": "d" * 64}, **offering
    )
    maze.get("/eval-runs/er_8/metrics").respond(json=METRICS, **offering)
    samples = [
        {"row": row, "attempt": 0, "status": "success", "source_row_index": row, "reward": float(row > 1)}
        for row in range(5)
    ]
    maze.get("/eval-runs/er_8/samples").respond(json={"samples": samples}, **offering)
    data = maze.osmosis("eval", "info", "amber-otter-42", "--slice", "size", "--json").json["data"]
    assert [(each["value"], each["rows"], each["pass_rate"]["value"]) for each in data["slices"]] == [
        ("0", 3, pytest.approx(2 / 3)),
        ("1", 2, 0.5),
    ]
    shown = maze.osmosis("eval", "info", "amber-otter-42", "--slice", "size", "--plain").out
    assert "By size:\n\tRows\tSamples\tPass rate" in shown and "\n1\t2\t2\t50.0%" in shown


def test_numbers_of_a_newer_release_are_shown_as_far_as_they_are_known_here(maze: Maze) -> None:
    newer = json.loads(json.dumps(ESTIMATES))
    newer["spread"] = newer["counts"]["paused"] = newer["pass_rate"]["posterior"] = 1
    newer["limited_by"] = {"most": "the_moon", "the_moon": 1.0}
    maze.get("/eval-runs/x").respond(json=DETAIL)
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": newer})
    plain = maze.osmosis("eval", "info", "x", "--plain").out
    assert "Pass rate: 50.0% (30.0 – 70.0%) (reward >= 1.0, scored attempts only)" in plain
    assert "Unscored\t1: 1 exception" in plain and "Bottleneck" not in plain


@pytest.mark.parametrize(
    "detail",
    [
        {"eval_run": {"id": "er_1"}},
        {**dict.fromkeys(DETAIL), "eval_run": {**dict.fromkeys(OWN), "id": "er_1"}},
    ],
)
def test_what_a_platform_leaves_out_breaks_nothing(maze: Maze, detail: dict[str, Any]) -> None:
    maze.get("/eval-runs/x").respond(json=detail)
    maze.get("/eval-runs/er_1/metrics").respond(json={})
    maze.get("/eval-runs/er_1/samples/manifest").respond(json={"files": []})
    data = maze.osmosis("eval", "info", "x", "--json").json["data"]
    assert (data["summary"], data["model"], data["eval_run"]["id"]) == ({}, None, "er_1")
    out = maze.osmosis("eval", "info", "x", "--plain").out
    assert out.startswith("Name: (unnamed)\nStatus: –\n") and "under way" not in out
    assert "keeps no metrics.json" in maze.osmosis("eval", "info", "x").err


def test_metrics_that_cannot_be_had_or_saved_are_a_warning(maze: Maze, store: BlobServer) -> None:
    maze.get("/eval-runs/x").respond(json=DETAIL)
    metrics = maze.get("/eval-runs/er_8/metrics").respond(500, json={"error": "broken"})
    data = maze.osmosis("eval", "info", "x", "--json").json["data"]
    assert (data["metrics_available"], data["metrics_error"]) == (False, "broken")
    metrics.respond(json=METRICS)
    maze.get("/eval-runs/er_8/samples/manifest").respond(404, json={"error": "no route"})
    outcome = maze.osmosis("eval", "info", "x", "-o", "here", "--json")
    assert outcome.status == 0
    assert "The metrics could not be saved" in outcome.json["data"]["save_warning"]


@pytest.mark.parametrize("name", ["n" * 255, "é" * 255], ids=["ascii", "wide"])
@pytest.mark.parametrize("place", ["", "platform:"])
@pytest.mark.parametrize("command", ["info", "show", "logs"])
def test_a_run_of_the_platform_whose_name_no_file_can_have_is_asked_of_it(
    maze: Maze, command: str, place: str, name: str
) -> None:
    write_run(maze.workspace.evals_dir / "good", [[1.0]])
    below = "/logs" if command == "logs" else ""
    asked = maze.get(f"/eval-runs/{quote(name)}{below}").respond(
        404, json={"error": "it was deleted just now"}
    )
    maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0})
    outcome = maze.osmosis("eval", command, place + name)
    assert outcome.status == 1 and asked.called
    assert "Traceback" not in outcome.err and "invalid run name" not in outcome.err
    assert ("neither on this machine nor on the platform" in outcome.err) is (place == "")


@pytest.mark.parametrize("missing", ["login", "origin"])
def test_without_an_origin_or_a_login_the_runs_of_this_machine_are_listed(
    maze: Maze, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    write_run(maze.workspace.evals_dir / "good", [[1.0], [0.0]])
    if missing == "login":
        monkeypatch.setenv("OSMOSIS_PLATFORM_URL", "https://elsewhere.example")
    else:
        git(maze.workspace.root, "remote", "remove", "origin")
    listed = maze.osmosis("eval", "list", "--json")
    assert listed.status == 0
    assert listed.json["items"] == []
    (run,) = listed.json["local_runs"]
    assert (run["name"], run["status"], run["avg_reward"]) == ("good", "finished", 0.5)
    assert run["headline"]["scored"] == 2
    shown = maze.osmosis("eval", "list")
    assert "good" in shown.out
    assert "Only local runs are listed" in shown.err
    (line,) = maze.osmosis("eval", "list", "--plain").out.splitlines()
    assert line.startswith("good\t[finished]\t") and line.endswith("\t(this machine)")


def test_plain_lists_local_runs_after_the_platforms_up_to_the_limit(maze: Maze) -> None:
    for name in ("good", "fine"):
        write_run(maze.workspace.evals_dir / name, [[1.0], [0.0]])
    maze.get("/eval-runs").respond(json={"eval_runs": [ROW]})
    platform, *local = (row.split("\t") for row in maze.osmosis("eval", "list", "--plain").out.splitlines())
    assert platform[0] == ROW["name"]
    assert {row[0] for row in local} == {"good", "fine"} and len(local) == 2
    assert {len(row) for row in (platform, *local)} == {7} and {row[-1] for row in local} == {
        "(this machine)"
    }
    for limit in (1, 2):
        lines = maze.osmosis("eval", "list", "--plain", "--limit", str(limit)).out.splitlines()
        assert len(lines) == limit and lines[0].startswith(f"{ROW['name']}\t")


@pytest.mark.parametrize("reply", [None, 503, 404])
def test_where_the_platform_can_not_be_read_what_is_here_is_listed_and_the_error_told(
    maze: Maze, reply: int | None
) -> None:
    write_run(maze.workspace.evals_dir / "good", [[1.0], [0.0]])
    route = maze.get("/eval-runs")
    if reply is None:
        route.mock(side_effect=httpx.ConnectError("no route to host"))
    else:
        route.respond(reply, json={"error": "it is gone"})
    for mode in ((), ("--plain",)):
        outcome = maze.osmosis("eval", "list", *mode)
        assert outcome.status == 1 and "good" in outcome.out and "Error: " in outcome.err
    error = maze.osmosis("eval", "list", "--json").error
    (run,) = error["details"]["local_runs"]
    assert (run["name"], error["details"]["local_total_count"]) == ("good", 1)


def test_a_run_is_asked_of_the_platform_when_this_machine_has_none_or_it_is_named_so(maze: Maze) -> None:
    write_run(maze.workspace.evals_dir / "good", [[1.0]])
    asked = maze.get("/eval-runs/good").respond(404, json={"error": "there is none"})
    assert maze.osmosis("eval", "info", "good").status == 0
    assert not asked.called
    assert maze.osmosis("eval", "info", "platform:good").status == 1
    assert asked.called
    maze.get("/eval-runs/nosuch").respond(404, json={"error": "there is none"})
    refused = maze.osmosis("eval", "info", "nosuch").err
    assert "neither on this machine nor on the platform" in refused
    assert "hint: the latest local runs are: good; `osmosis eval list` lists all runs" in refused


def test_a_run_of_this_machine_that_can_not_be_read_is_listed_and_says_why(maze: Maze) -> None:
    write_run(maze.workspace.evals_dir / "intact", [[1.0], [0.0]])
    directory = write_run(maze.workspace.evals_dir / "good", [[1.0]])
    (directory / "events.jsonl").write_bytes(b"no record\n")
    maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0})
    listed = {run["name"]: run for run in maze.osmosis("eval", "list", "--json").json["local_runs"]}
    assert "damaged at line 1" in listed["good"]["error"]
    assert (listed["intact"]["status"], listed["intact"]["avg_reward"]) == ("finished", 0.5)
    maze.patch.setenv("COLUMNS", "300")
    outcome = maze.osmosis("eval", "list")
    assert outcome.status == 0 and "is damaged at line 1" in outcome.out and "50.0% pass" in outcome.out
    data = maze.osmosis("eval", "info", "good", "--json").json["data"]
    assert [problem for problem in data["problems"] if "damaged at line 1" in problem]
    assert data["metrics"] == {"estimates": None}


@pytest.mark.parametrize("appended", [b"", b"no record\n"])
def test_stored_numbers_of_a_damaged_run_are_listed_with_a_warning(maze: Maze, appended: bytes) -> None:
    directory = write_run(maze.workspace.evals_dir / "good", [[1.0], [0.0]])
    journal = directory / "events.jsonl"
    found = read_local_results(directory).metrics
    numbers = {"estimates": found.estimates.model_dump(mode="json"), "summary": dict(found.summary)}
    known = {**numbers, "journal_bytes": journal.stat().st_size}
    (directory / "metrics.json").write_text(json.dumps(known))
    maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0})
    assert "good:" not in maze.osmosis("eval", "list", "--plain").err
    lines = journal.read_bytes().splitlines(keepends=True)
    changed = lines[1] if appended else lines[1].replace(b"row-1-run-0", b"row-1-run-7")
    journal.write_bytes(lines[0] + changed + appended)
    (directory / "logs.txt").touch()
    listed = maze.osmosis("eval", "list", "--plain")
    place = f"damaged at line {3 if appended else 2}"
    assert listed.status == 0 and "50.0% pass" in listed.out
    assert place in listed.err and "--name good --salvage" in listed.err
    shown = maze.osmosis("eval", "info", "good", "--plain").out
    assert place in shown and "--name good --salvage" in shown


def test_the_log_of_a_run_of_this_machine_is_shown_by_level_and_followed_to_its_end(maze: Maze) -> None:
    directory = write_run(maze.workspace.evals_dir / "good", [[1.0]])
    lines = [f"2026-10-02T07:00:{second:02}.000Z INFO [result] success {{}}" for second in range(50)]
    lines[3] = "2026-10-02T07:00:03.000Z WARNING [run] a server is late {}"
    lines[44] = "2026-10-02T07:00:44.000Z ERROR [run] a disk is full {}"
    (directory / "logs.txt").write_text("\n".join(lines) + "\n")
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
def test_a_run_whose_file_is_none_is_refused_by_its_path_and_nothing_waits_for_it(
    maze: Maze, file: str, kind: str
) -> None:
    write_run(maze.workspace.evals_dir / "good", [[1.0]])
    path = write_run(maze.workspace.evals_dir / "odd", [[1.0]]) / file
    path.unlink(missing_ok=True)
    {"pipe": os.mkfifo, "folder": Path.mkdir, "link": lambda path: path.symlink_to("/dev/zero")}[kind](path)
    for command in ("info", "show", "logs", "watch", "export", "compare good"):
        outcome = maze.osmosis("eval", *command.split(), "odd")
        assert outcome.status == 1
        assert f"the run `odd` cannot be read: `{path}` is not a regular file" in outcome.err, command
    maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0})
    assert [run["name"] for run in maze.osmosis("eval", "list", "--json").json["local_runs"]] == ["good"]


def test_what_is_not_seen_in_the_names_of_a_run_is_shown_as_marks(maze: Maze) -> None:
    directory = write_run(maze.workspace.evals_dir / "good", [[1.0]])
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["inputs"]["rollout"] = {"name": "\u202egood\u200b\x1b[31m\x9b"}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0})
    maze.patch.setenv("COLUMNS", "200")
    for command in (("list",), ("info", "good", "--plain"), ("info", "good")):
        shown = maze.osmosis("eval", *command).out
        assert "‹U+202E›good‹U+200B›\\x1b[31m\\x9b" in shown


def test_conversations_of_a_damaged_run_are_shown_with_what_is_wrong_with_it(maze: Maze) -> None:
    directory = write_run(maze.workspace.evals_dir / "good", [[1.0], [0.0]])
    with (directory / "events.jsonl").open("ab") as journal:
        journal.write(b"\0\xff\n")
    shown = maze.osmosis("eval", "show", "good", "--plain")
    assert shown.status == 0 and "is damaged at line" in shown.out and "row 1, attempt 0:" in shown.out
    assert "is damaged at line" in maze.osmosis("eval", "show", "good", "--row", "7").err
    assert "is damaged at line" in maze.osmosis("eval", "show", "good", "--json").json["data"]["problems"][0]


def test_rollouts_that_may_be_out_of_date_are_listed_with_the_reason(maze: Maze) -> None:
    reason = "fern/maze cannot be fetched from https://git.example/maze.git: could not resolve host."
    rollout = {"id": "ro_2", "name": "maze", "is_active": True}
    maze.get("/rollouts").respond(json={"rollouts": [rollout], "total_count": 1, "sync_error": reason})
    listed = maze.osmosis("rollout", "list", "--json")
    assert listed.status == 0 and listed.json["sync_error"] == reason
    assert json.loads(listed.err)["warning"]["code"] == "GIT_SYNC_FAILED"


@pytest.mark.parametrize(
    ("level", "least"), [("FATAL", "error"), ("err", "error"), ("warn", "warning"), ("notice", "info")]
)
def test_a_level_by_another_word_counts_as_what_it_means(maze: Maze, level: str, least: str) -> None:
    maze.get("/eval-runs/b/logs").respond(json={"logs": [{"level": level, "message": "the disk is full"}]})
    page = maze.osmosis("eval", "logs", "b", "--level", least, "--json").json
    assert [item["level"] for item in page["items"]] == [level]
