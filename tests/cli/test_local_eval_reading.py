"""`osmosis eval list`, `info` and `logs` where runs of this machine are read, alone or beside those of the platform."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import httpx
import pytest

from osmosis_ai.evaluation.headline import Headline
from osmosis_ai.evaluation.local_results import read_local_results
from tests.cli.eval_replies import (
    ROW,
)
from tests.cli.maze import Maze
from tests.cli.test_train_here import trained_here
from tests.evaluation.recorded_runs import write_run
from tests.workspace.builders import git


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
    assert "Only the runs of this machine" in shown.err


def test_without_a_run_of_this_machine_a_list_says_why_no_platform_was_asked_and_what_makes_the_first(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_PLATFORM_URL", "https://elsewhere.example")
    outcome = maze.osmosis("eval", "list", "--json")
    assert (outcome.status, outcome.error["code"]) == (1, "AUTH_REQUIRED")
    assert "osmosis template list" in outcome.error["hint"]
    (maze.workspace.root / "configs" / "eval" / "a b.toml").write_text("")
    (maze.workspace.root / "configs" / "eval" / "a b.decide.toml").write_text("")
    assert "osmosis eval run configs/eval/'a b.toml'" in maze.osmosis("eval", "list").err


@pytest.mark.parametrize("reply", [None, 500, 503, 404])
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


def test_a_list_of_all_and_of_some_is_refused_though_nobody_is_logged_in(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(maze.workspace.evals_dir / "good", [[1.0]])
    monkeypatch.setenv("OSMOSIS_PLATFORM_URL", "https://elsewhere.example")
    outcome = maze.osmosis("eval", "list", "--all", "--limit", "2")
    assert (outcome.status, outcome.out) == (1, "") and "mutually exclusive" in outcome.err


def test_a_run_that_was_put_aside_is_in_no_list_but_named_and_read_by_its_name(maze: Maze) -> None:
    archives = [f"good.archive-2026010{day}T000000Z" for day in range(1, 6)]
    for name in ("good", *archives):
        write_run(maze.workspace.evals_dir / name, [[1.0]])
    maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0})
    listed = maze.osmosis("eval", "list", "--json").json
    assert [run["name"] for run in listed["local_runs"]] == ["good"]
    assert sorted(listed["local_archived"]) == archives
    assert re.search(
        r"5 runs were put aside by --fresh: good\.archive-\w+, .* and 2 more",
        maze.osmosis("eval", "list").out,
    )
    for command in ("info", "show", "logs"):
        assert maze.osmosis("eval", command, archives[0], "--json").status == 0
    assert (
        maze.osmosis("eval", "info", "good.archive-20260103", "--json").json["data"]["local_run"]["name"]
        == archives[2]
    )


def test_runs_of_this_machine_stand_beside_those_of_the_platform(maze: Maze) -> None:
    write_run(maze.workspace.evals_dir / "good", [[1.0]])
    maze.get("/eval-runs").respond(json={"eval_runs": [ROW], "total_count": 1})
    listed = maze.osmosis("eval", "list", "--json").json
    assert [item["name"] for item in listed["items"]] == [ROW["name"]]
    assert [item["name"] for item in listed["local_runs"]] == ["good"]
    # Whoever cuts columns out of it gets what they always got.
    assert "good" not in maze.osmosis("eval", "list", "--plain").out


def test_a_copy_of_a_run_has_the_name_of_its_own_directory(maze: Maze, tmp_path: Path) -> None:
    evals = maze.workspace.evals_dir
    shutil.copytree(write_run(evals / "good", [[1.0, 0.0]]), evals / "copy")
    assert json.loads((evals / "copy" / "manifest.json").read_text())["run_name"] == "good"
    maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0})
    listed = maze.osmosis("eval", "list", "--json").json["local_runs"]
    assert sorted(each["name"] for each in listed) == ["copy", "good"]
    for named in ("copy", str(evals / "copy")):
        info = maze.osmosis("eval", "info", named, "--json").json["data"]
        assert info["local_run"]["name"] == "copy"
        assert maze.osmosis("eval", "show", named, "--json").json["data"]["run"] == "copy"
        gated = maze.osmosis("eval", "gate", named, "--min", "pass_rate=0", "--json").json
        assert gated["resource"]["run"]["name"] == "copy"
        assert maze.osmosis("eval", "watch", named, "--json").json["resource"]["run_name"] == "copy"
        export = ("eval", "export", named, "-o", str(tmp_path / "out.jsonl"), "--overwrite", "--json")
        assert maze.osmosis(*export).json["resource"]["run"] == "copy"
        assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["run"] == "copy"


def test_a_run_of_this_machine_is_shown_with_the_numbers_of_its_journal_and_needs_no_platform(
    maze: Maze,
) -> None:
    directory = write_run(maze.workspace.evals_dir / "good", [[1.0, 0.0], [0.0, "agent"], [1.0, ""]])
    metrics = read_local_results(directory).metrics
    found = maze.osmosis("eval", "info", "goo", "--json")
    data = found.json["data"]
    assert found.status == 0
    assert data["metrics"] == metrics.to_json()
    assert data["headline"]["words"] == Headline.of(metrics.estimates).words
    assert data["local_run"]["status"] == "incomplete"
    assert data["local_run"]["output_path"] == str(directory)
    shown = maze.osmosis("eval", "info", "@last").out
    assert "40.0 %" in shown or "50.0 %" in shown
    assert "osmosis view" in shown


def test_a_run_is_asked_of_the_platform_when_this_machine_has_none_or_it_is_named_so(maze: Maze) -> None:
    write_run(maze.workspace.evals_dir / "good", [[1.0]])
    asked = maze.get("/eval-runs/good").respond(404, json={"error": "there is none"})
    assert maze.osmosis("eval", "info", "good").status == 0
    assert not asked.called
    assert maze.osmosis("eval", "info", "platform:good").status == 1
    assert asked.called
    maze.get("/eval-runs/nosuch").respond(404, json={"error": "there is none"})
    assert "neither on this machine nor on the platform" in maze.osmosis("eval", "info", "nosuch").err


@pytest.mark.parametrize("command", ["info", "show", "logs", "watch", "export"])
def test_of_a_misspelt_run_both_the_platform_s_and_this_machine_s_are_suggested(
    maze: Maze, command: str
) -> None:
    write_run(maze.workspace.evals_dir / "cobalt-fern", [[1.0]])
    said = {"error": "there is no such run; did you mean cobalt-island-21?", "suggestion": "cobalt-island-21"}
    maze.get("/eval-runs/cobalt-iland-21").respond(404, json=said)
    maze.get("/eval-runs/cobalt-iland-21/logs").respond(404, json=said)
    maze.get("/eval-runs").respond(json={"eval_runs": [{"id": "er_1", "name": "cobalt-island-21"}]})
    error = maze.osmosis("eval", command, "cobalt-iland-21", "--json").error
    assert "neither on this machine nor on the platform" in error["message"]
    assert error["hint"] == (
        "did you mean cobalt-island-21?; `osmosis eval list` lists the platform's; of the runs of this machine, "
        "did you mean cobalt-fern? the latest are: cobalt-fern"
    )


def test_a_run_of_this_machine_that_can_not_be_read_is_listed_and_says_why(maze: Maze) -> None:
    directory = write_run(maze.workspace.evals_dir / "good", [[1.0]])
    (directory / "events.jsonl").write_bytes(b"no record\n")
    maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0})
    assert "damaged at line 1" in maze.osmosis("eval", "list", "--json").json["local_runs"][0]["error"]
    data = maze.osmosis("eval", "info", "good", "--json").json["data"]
    assert [problem for problem in data["problems"] if "damaged at line 1" in problem]
    assert data["metrics"] == {"estimates": None}


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
        assert f"the run `odd` can not be read: `{path}` is no regular file" in outcome.err, command
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


def test_a_run_whose_journal_may_not_be_read_is_refused_and_written_into_no_report(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    from osmosis_ai.viewer.local import run_index

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    write_run(maze.workspace.evals_dir / "good", [[1.0], [0.0]])
    monkeypatch.setattr(run_index, "parsed_lines", refused)
    report = maze.workspace.root / "a.html"
    for words in (["eval", "show", "good"], ["view", "good", "--report", str(report)]):
        outcome = maze.osmosis(*words)
        assert (outcome.status, outcome.out) == (1, "")
        assert "can not be read (Permission denied)" in " ".join(outcome.err.split())
    assert not report.exists()


def test_a_directory_that_may_not_be_read_is_said_to_be_left_out_of_the_list(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    (maze.workspace.evals_dir / "closed").mkdir(parents=True)
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "closed" and allowed(path, mode))
    maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0})
    assert maze.osmosis("eval", "list", "--json").json["local_unreadable"] == ["closed"]
    assert "you may not read them: closed" in maze.osmosis("eval", "list").err


@pytest.mark.parametrize("kind", ["eval", "train"])
def test_a_log_without_a_line_of_the_level_says_so_and_how_many_lines_it_has(maze: Maze, kind: str) -> None:
    logged = [f"2026-10-02T07:00:{second:02}.000Z INFO [step] all is well {{}}\n" for second in range(12)]
    if kind == "eval":
        place = write_run(maze.workspace.evals_dir / "good", [[1.0]])
    else:
        place = trained_here(maze.workspace.root / "walks")
    (place / "logs.txt").write_text("".join(logged))
    told = "No line of level error or above: 12 lines looked through."
    asked = (kind, "logs", str(place), "--level", "error", "--limit", "5")
    assert maze.osmosis(*asked).out.strip() == told
    followed = maze.osmosis(*asked, "--follow")
    assert (followed.out, followed.err.strip()) == ("", told)
    assert maze.osmosis(kind, "logs", str(place), "--level", "info", "--follow").err == ""
    (place / "logs.txt").write_text("")
    assert maze.osmosis(*asked).out.strip() == "Nothing here yet."
