"""Training directories of this machine: by `osmosis train info`, and as the viewer reads them."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from osmosis_ai.cli.runs import view
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from tests.cli import train_replies
from tests.cli.maze import Maze
from tests.cli.trained_runs import trained_here, trajectory, validated_here


def test_a_training_directory_of_this_machine_is_shown_without_a_platform(maze: Maze) -> None:
    directory = trained_here(maze.workspace.root / "trained" / "walks")
    outcome = maze.osmosis("train", "info", "trained/walks", "--json")
    data = outcome.json["data"]
    assert outcome.status == 0
    assert (data["local_run"]["status"], data["local_run"]["avg_reward"]) == ("finished", 0.5)
    assert data["local_run"]["output_path"] == str(directory)
    assert data["checkpoints"] == [{"name": "step-00000003", "step": 3, "reward": 0.5, "size_bytes": 5}]
    summaries = {each["key"]: each for each in data["metrics"]["overview"]["metric_summaries"]}
    assert (summaries["rollout/raw_reward"]["initial"], summaries["rollout/raw_reward"]["latest"]) == (
        0.25,
        0.75,
    )
    shown = maze.osmosis("train", "info", "trained/walks").out
    assert "3 of 3" in shown
    # What its newest validation stands on, as of a platform's run.
    assert (
        data["validation"]["words"]
        == "validation reward 0.500 (0.400 – 0.600) after step 3; scored 8 of 10 planned"
    )
    assert "0.500 (0.400 – 0.600) after step 3" in shown and "8 of 10 planned" in shown
    assert "only 8 of 10 finished attempts have a score (80.0 %)" in data["validation"]["warnings"][0]
    assert "validation: only 8 of 10" in shown
    assert "step-00000003" in shown
    assert maze.osmosis("train", "info", "trained/walks", "-o", "x").status == 1


@pytest.mark.parametrize("manifest", [b"", b"{}", b"[1]"])
def test_a_training_directory_that_can_not_be_read_is_refused_in_a_sentence(
    maze: Maze, manifest: bytes
) -> None:
    directory = trained_here(maze.workspace.root / "walks")
    (directory / "manifest.json").write_bytes(manifest)
    assert "is not a run's manifest" in maze.osmosis("train", "info", "./walks").err


def test_the_log_of_a_training_directory_is_read_without_a_login(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_PLATFORM_URL", "https://nobody.example")
    directory = trained_here(maze.workspace.root / "trained" / "walks")
    with (directory / "logs.txt").open("a") as log:
        log.write("2026-10-02T07:00:01.000Z WARNING [step] it is slow {}\n")
    outcome = maze.osmosis("train", "logs", "trained/walks", "--json")
    assert (outcome.status, len(outcome.json["items"])) == (0, 3)
    assert outcome.json["output_path"] == str(directory)
    slow = maze.osmosis("train", "logs", "./trained/walks", "--level", "warning")
    assert "it is slow" in slow.out and "training" not in slow.out
    older = maze.osmosis("train", "logs", "trained/walks", "--limit", "1")
    assert "osmosis train logs trained/walks --cursor" in older.out
    followed = maze.osmosis("train", "logs", "trained/walks", "--follow", "--limit", "2").out
    assert followed.count("training") == 1 and "it is slow" in followed


def test_the_log_of_a_training_directory_is_followed_until_nobody_trains_in_it(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = trained_here(maze.workspace.root / "walks")
    with ExitStack() as trains:
        trains.enter_context(TrainingDirectory(directory).held())

        def train_on() -> None:
            with (directory / "logs.txt").open("a") as log:
                log.write("2026-10-02T07:00:02.000Z INFO [end] that was all {}\n")
            trains.close()

        monkeypatch.setattr(view, "pause", train_on)
        outcome = maze.osmosis("train", "logs", "./walks", "--follow", "--limit", "1")
    assert outcome.status == 0 and "that was all" in outcome.out
    assert not maze.router.calls


def test_a_run_of_a_platform_is_watched_though_a_directory_here_has_its_name(maze: Maze) -> None:
    trained_here(maze.workspace.root / "walks")
    maze.get("/training-runs/walks").respond(404, json={"error": "no such run"})
    assert "no such run" in maze.osmosis("train", "watch", "walks").err
    assert "no such run" in maze.osmosis("train", "compare", "walks", "walks").err


OURS = {"X-Osmosis-Capabilities": "training-validation"}


@pytest.fixture
def here(maze: Maze) -> Maze:
    validated_here(maze)
    return maze


def shown(maze: Maze, *arguments: str) -> list[tuple[int, int]]:
    outcome = maze.osmosis("train", "show", *arguments, "--json")
    assert outcome.status == 0, outcome.err
    return [(each["row"], each["attempt"]) for each in outcome.json["data"]["samples"]]


@pytest.mark.parametrize(
    ("arguments", "samples"),
    [
        ([], [(1, 0), (2, 0), (0, 1), (0, 0)]),
        (["--limit", "1"], [(1, 0)]),
        (["--row", "0"], [(0, 1), (0, 0)]),
        (["--attempt", "1"], [(0, 1)]),
        (["--step", "3", "--failed"], [(2, 0), (0, 1)]),
        (["--passed"], [(0, 0)]),
        (["--unscored"], [(1, 0)]),
        (["--search", "SEVEN"], [(0, 1)]),
        (["--search", "nowhere said"], []),
    ],
)
def test_one_asks_for_those_one_wants_to_see_and_the_worst_come_first(
    here: Maze, arguments: list[str], samples: list[tuple[int, int]]
) -> None:
    assert shown(here, "trained/walks", *arguments) == samples


def test_conversations_are_printed_without_what_a_terminal_obeys(here: Maze) -> None:
    outcome = here.osmosis("train", "show", "trained/walks", "--plain")
    assert outcome.status == 0 and "\x1b" not in outcome.out
    lines = outcome.out.splitlines()
    assert lines[0] == (
        "Validation after step 3: 4 of 4 samples are kept, without a score first, then the worst."
    )
    assert "error: ValueError: no (1 terminal sequence removed)" in outcome.out
    assert "tool: eight" in lines
    assert "grader: Nearly." in lines and "grader: format: 1.000" in lines


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--row", "9"],
            "the validation of `walks` after step 3 (4 of 4 samples are kept) has no sample of row 9",
        ),
        (["--step", "2"], "of the validation after step 2 are not kept: the newest is that after step 3"),
    ],
)
def test_what_is_not_there_is_said_in_a_line(here: Maze, arguments: list[str], sentence: str) -> None:
    outcome = here.osmosis("train", "show", "trained/walks", *arguments)
    assert outcome.status == 1 and sentence in outcome.err and "Traceback" not in outcome.err


@pytest.mark.parametrize("left", ["nothing", "a pipe", "a link", "a folder", "something else", "half"])
def test_a_record_that_can_not_be_read_is_refused_in_a_sentence(here: Maze, left: str) -> None:
    file = TrainingDirectory(here.workspace.root / "trained" / "walks").validation
    content = file.read_bytes()
    file.unlink()
    if left == "a pipe":
        os.mkfifo(file)
    elif left == "a link":
        here.scratch.mkdir()
        (here.scratch / "elsewhere").write_bytes(content)
        file.symlink_to(here.scratch / "elsewhere")
    elif left == "a folder":
        file.mkdir()
    elif left != "nothing":
        file.write_bytes(b"\0\xff\n" if left == "something else" else content[:-30])
    outcome = here.osmosis("train", "show", "trained/walks")
    sentence = "has no record of a validation" if left == "nothing" else "can not be read"
    sentence = "is damaged" if left in ("something else", "half") else sentence
    assert outcome.status == 1 and sentence in outcome.err and "Traceback" not in outcome.err


# -- platforms -----------------------------------------------------------------------------


def told(row: int, reward: float | None, **known: Any) -> dict[str, Any]:
    status = "failed" if reward is None else "success"
    return {"row": row, "attempt": 0, "status": status, "reward": reward, **known}


def offers(maze: Maze, *pages: dict[str, Any]) -> Any:
    """Be a platform of ours with a run that has validated; return the route of the conversation of row 0."""
    maze.get("/training-runs/copper%20finch%2F9").respond(json=train_replies.DETAIL, headers=OURS)
    replies = [httpx.Response(200, json=page, headers=OURS) for page in pages]
    maze.get("/training-runs/tr_8f0c1d2e3a4b/validation").mock(side_effect=replies)
    text = trajectory("six").decode()
    route = maze.get("/training-runs/tr_8f0c1d2e3a4b/validation/0/0")
    return route.respond(json={"text": text, "size": len(text)}, headers=OURS)


def page(*samples: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"step": 40, "total": 9, "pass_threshold": 1.0, "samples": list(samples), **more}


def test_a_run_of_a_platform_of_ours_is_shown_page_after_page(maze: Maze) -> None:
    first = page(told(3, None, error="Timeout: no", boundary="agent"), next_cursor="40-1")
    asked = offers(maze, first, page(told(0, 0.5, notes="Almost.", parts={"format": 0.5})))
    gone = maze.get("/training-runs/tr_8f0c1d2e3a4b/validation/3/0")
    gone.respond(404, json={"error": "there is none", "code": "NOT_FOUND"}, headers=OURS)
    data = maze.osmosis("train", "show", "copper finch/9", "--json").json["data"]
    assert data["validation"] == {"step": 40, "samples": 9, "kept": 2}
    unscored, failed = data["samples"]
    assert (unscored["row"], unscored["error"], unscored["problems"]) == (
        3,
        "Timeout: no",
        ["A newer validation has replaced it."],
    )
    assert (failed["reward"], failed["passed"], failed["notes"]) == (0.5, False, "Almost.")
    assert failed["messages"][2]["content"] == "six" and asked.call_count == 1


def test_of_a_platform_only_what_is_shown_is_fetched(maze: Maze) -> None:
    asked = offers(maze, page(*(told(0, 0.5, attempt=0) for _ in range(1)), told(1, 0.75)))
    outcome = maze.osmosis("train", "show", "copper finch/9", "--row", "0", "--json")
    assert outcome.status == 0 and asked.call_count == 1


def test_the_hosted_service_does_not_keep_them_and_it_is_said(maze: Maze) -> None:
    maze.get("/training-runs/tr_8").respond(json=train_replies.DETAIL)
    error = maze.osmosis("train", "show", "tr_8", "--json").error
    assert (
        error["code"] == "PLATFORM_ERROR"
        and "does not support the validation samples of training runs" in error["message"]
    )


def test_a_platform_that_turns_in_a_circle_is_left(maze: Maze) -> None:
    round_and_round = page(told(0, 0.5), next_cursor="again")
    offers(maze, round_and_round, round_and_round)
    assert (
        json.loads(maze.osmosis("train", "show", "copper finch/9", "--json").out)["data"]["validation"][
            "kept"
        ]
        == 1
    )
