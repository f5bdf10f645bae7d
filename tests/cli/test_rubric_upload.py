"""`osmosis eval upload` and `eval delete` of results of judges: what is sent, what stays here, what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.maze import Maze
from tests.platform.rubric_documents import a_result

OURS = {"X-Osmosis-Capabilities": "rubric-results, eval-imports"}
URL = "https://platform.fern.example/fern/rubrics/answers"
STORED: dict[str, Any] = {
    "id": "rub_9",
    "name": "answers",
    "status": "finished",
    "sha256": "ab" * 32,
    "size": 900,
    "created_at": "2026-11-02T09:30:00.000Z",
    "creator_name": "Mara",
    "model": "openai/judge",
    "platform_url": URL,
    "is_new": True,
}


def verified(maze: Maze, headers: dict[str, str] | None = None) -> None:
    told = {"user": {"id": "u1", "email": "a@fern.example"}, "token_id": "t1"}
    maze.get("/verify").respond(json=told, headers=OURS if headers is None else headers)


@pytest.fixture
def results(maze: Maze) -> Path:
    """A directory with one result."""
    verified(maze)
    directory = maze.workspace.root / "judged"
    directory.mkdir()
    leave(directory / "answers.json")
    return directory


def leave(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(a_result(**changes)))
    return path


def body_of(route: Any) -> dict[str, Any]:
    request = route.calls.last.request
    assert request.headers["content-encoding"] == "gzip"
    found: dict[str, Any] = json.loads(gzip.decompress(request.content))
    return found


@pytest.mark.parametrize("named", ["judged/answers.json", "judged"])
def test_a_result_is_sent_by_its_file_or_the_directory_it_is_in_alone(
    maze: Maze, results: Path, named: str
) -> None:
    route = maze.post("/rubric-results").respond(json=STORED)
    outcome = maze.osmosis("eval", "upload", str(maze.workspace.root / named), "--json")
    assert outcome.status == 0, outcome.err
    assert body_of(route) == {"name": "answers", "document": a_result()}
    assert outcome.json["message"] == "Uploaded rubric result: answers"
    assert outcome.json["resource"] == {
        "rubric_result_id": "rub_9",
        "rubric_result_name": "answers",
        "local_path": str(results / "answers.json"),
        "sha256": "ab" * 32,
        "size": 900,
        "is_new": True,
        "platform_url": URL,
        **maze.resource,
    }
    assert outcome.json["next_steps_structured"] == [{"action": "open_url", "url": URL}]


def test_people_are_told_where_to_look_and_what_was_there_already(maze: Maze, results: Path) -> None:
    maze.post("/rubric-results").respond(json={**STORED, "is_new": False})
    told = maze.osmosis("--plain", "eval", "upload", str(results))
    assert told.status == 0 and f"View: {URL}" in told.out
    assert "This rubric result is there already: answers" in told.out
    assert "Uploading answers.json" in told.err


def test_a_file_name_with_a_line_break_and_an_escape_is_one_line_of_progress(
    maze: Maze, results: Path
) -> None:
    maze.post("/rubric-results").respond(json=STORED)
    named = leave(results / "two\nError: none \x1b[31mred.json")
    told = maze.osmosis("--plain", "eval", "upload", str(named))
    assert told.status == 0
    (line,) = [line for line in told.err.splitlines() if "Uploading" in line]
    assert line.startswith("Uploading two Error: none \\x1b[31mred.json (")
    assert "\x1b" not in told.err + told.out


def test_of_files_that_a_result_tells_of_their_names_alone_are_sent(maze: Maze, results: Path) -> None:
    route = maze.post("/rubric-results").respond(json=STORED)
    leave(
        results / "answers.json",
        data_path="/home/mara/secret-project/answers.jsonl",
        config_path="/home/mara/secret-project/rubric_configs.yaml",
        rubric_source="/home/mara/secret-project/RUBRIC.md",
        baseline_comparison={"source_path": "/home/mara/secret-project/before.json", "verdict": "better"},
    )
    assert maze.osmosis("eval", "upload", str(results), "--json").status == 0
    sent = body_of(route)["document"]
    assert "secret-project" not in json.dumps(sent)
    assert (sent["data_path"], sent["rubric_source"]) == ("answers.jsonl", "RUBRIC.md")
    assert sent["baseline_comparison"] == {"source_path": "before.json", "verdict": "better"}


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "GROQ_API_KEY", "MY_JUDGE_TOKEN"])
def test_a_result_that_holds_the_value_of_a_key_stays_here(
    maze: Maze, results: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    route = maze.post("/rubric-results").respond(json=STORED)
    monkeypatch.setenv(name, 'sk-canary-"4711"')
    records = a_result()["records"]
    records[1]["judgements"][0]["explanation"] = 'the key sk-canary-"4711" was used'
    leave(results / "answers.json", records=records)
    outcome = maze.osmosis("eval", "upload", str(results), "--json")
    assert outcome.status == 1 and f"holds the value of the secret {name}" in outcome.error["message"]
    assert "sk-canary" not in outcome.err and not route.called


def test_a_directory_with_several_results_asks_which_is_meant(maze: Maze, results: Path) -> None:
    leave(results / "more.json")
    outcome = maze.osmosis("eval", "upload", str(results), "--json")
    assert outcome.status == 1 and "has 2 rubric results" in outcome.error["message"]
    assert str(results / "more.json") in outcome.error["hint"]


def test_a_result_that_cannot_be_read_or_sent_is_refused_before_anything_is_said_of_it(
    maze: Maze, results: Path
) -> None:
    route = maze.post("/rubric-results").respond(json=STORED)
    answers = results / "answers.json"
    for content, said in (
        (b'{"generated_at": "2026', "cannot be read as a result"),
        (b'{"generated_at": ' + b"[" * 100_000, "cannot be read as a result"),
        (b'{"generated_at": "\\ud800"}', "cannot be read as a result"),
        (json.dumps(a_result(rubric="x" * (33 << 20))).encode(), "and 33,554,432 are the most"),
    ):
        answers.write_bytes(content)
        outcome = maze.osmosis("eval", "upload", str(answers), "--json")
        assert outcome.status == 1 and said in outcome.error["message"], outcome.err
    assert not route.called


def test_a_file_that_is_not_there_is_told_as_a_file_and_not_as_a_run(maze: Maze, results: Path) -> None:
    for named in ("none.json", str(results / "none.json")):
        outcome = maze.osmosis("eval", "upload", named, "--json")
        assert outcome.status == 1 and outcome.error["code"] == "NOT_FOUND"
        assert outcome.error["message"] == f"there is no file `{named}`."
        assert "osmosis eval rubric" in outcome.error["hint"]
    assert "there is no run `none`" in maze.osmosis("eval", "upload", "none", "--json").error["message"]
    assert "there is no run" in maze.osmosis("eval", "upload", "local:none.json", "--json").error["message"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.json", "", "is empty"),
        ("list.json", "[1, 2]", "holds no rubric result, and is no file of a run"),
        ("answers.jsonl", '{"messages": []}\n', "holds no rubric result, and is no file of a run"),
        ("judged-file", "judged", "holds no rubric result, and is no file of a run"),
    ],
)
def test_a_file_that_holds_no_result_says_so_and_what_makes_one(
    maze: Maze, results: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, said: str
) -> None:
    monkeypatch.chdir(maze.workspace.root)
    Path(name).write_text(content)
    outcome = maze.osmosis("eval", "upload", name, "--json")
    assert outcome.status == 1 and outcome.error["message"] == f"`{name}` {said}."
    assert "osmosis eval rubric" in outcome.error["hint"] and "--output FILE.json" in outcome.error["hint"]


def test_the_hosted_service_and_a_platform_without_the_route_are_not_asked(maze: Maze, results: Path) -> None:
    route = maze.post("/rubric-results").respond(json=STORED)
    for headers in ({}, {"X-Osmosis-Capabilities": "deletion, eval-imports"}):
        verified(maze, headers)
        for words in (("upload", str(results)), ("delete", "--rubric", "answers", "--yes")):
            outcome = maze.osmosis("eval", *words, "--json")
            assert outcome.status == 1, words
            assert "does not support rubric results" in outcome.error["message"]
            assert "osmosis platform start" in outcome.error["hint"]
    assert not route.called


def test_another_result_of_the_name_is_told_with_what_to_do(maze: Maze, results: Path) -> None:
    said = "this workspace has another rubric result of the name 'answers'; give the file another name"
    maze.post("/rubric-results").mock(
        return_value=httpx.Response(409, json={"error": said, "code": "CONFLICT"}, headers=OURS)
    )
    outcome = maze.osmosis("eval", "upload", str(results), "--json")
    assert outcome.status == 1 and outcome.error["message"] == said


def test_a_result_is_deleted_by_its_name(maze: Maze, results: Path) -> None:
    maze.get("/rubric-results/answers").respond(json=STORED, headers=OURS)
    route = maze.delete("/rubric-results/rub_9").respond(json={})
    outcome = maze.osmosis("eval", "delete", "--rubric", "answers", "--yes", "--json")
    assert outcome.status == 0, outcome.err
    assert route.called and outcome.json["message"] == 'Rubric result "answers" deleted.'
    assert outcome.json["resource"] == {"id": "rub_9", "name": "answers", **maze.resource}


@pytest.mark.parametrize(("name", "told"), [("my result", "'my result'"), ("-1", "-- -1")])
def test_a_deletion_that_is_not_answered_says_how_to_look_for_a_name_that_a_shell_would_take_apart(
    maze: Maze, results: Path, name: str, told: str
) -> None:
    maze.get("/rubric-results/rub_9").respond(json={**STORED, "name": name}, headers=OURS)
    maze.delete("/rubric-results/rub_9").mock(side_effect=httpx.ReadTimeout("slow"))
    outcome = maze.osmosis("eval", "delete", "--rubric", "rub_9", "--yes", "--json")
    assert outcome.status == 1
    assert f"look with `osmosis eval delete --rubric {told}`" in outcome.error["hint"]


def test_what_is_too_large_to_be_sent_is_named_as_a_shell_takes_it(maze: Maze, tmp_path: Path) -> None:
    verified(maze)
    (tmp_path / "my results").mkdir()
    answers = tmp_path / "my results" / "answers.json"
    leave(answers, rubric="x" * (33 << 20))
    outcome = maze.osmosis("eval", "upload", str(answers), "--json")
    assert outcome.status == 1 and f"osmosis view '{answers}' --report" in outcome.error["hint"]
