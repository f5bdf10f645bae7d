"""`osmosis train show`: conversations of a validation, of a training directory and of a platform."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.training.runs.validation_samples import ValidationSamples
from tests.cli import train_replies
from tests.cli.maze import Maze
from tests.cli.test_eval_show import trajectory
from tests.cli.test_train_here import trained_here
from tests.viewer.source_contract import leave_validation, sample_record

OURS = {"X-Osmosis-Capabilities": "training-validation"}


def validated_here(maze: Maze) -> Path:
    """Leave a training directory that validated four samples after its third step, and has of two what was said."""
    directory = trained_here(maze.workspace.root / "trained" / "walks")
    records = [
        sample_record(0, 0, 1.0),
        sample_record(0, 1, 0.25, notes="Nearly.", parts={"format": 1.0}),
        sample_record(1, 0, error="ValueError: \x1b[31mno\x1b]0;owned\x07"),
        sample_record(2, 0, 0.0),
    ]
    samples = ValidationSamples.of(records, step=3, pass_threshold=1.0)
    said = {(0, 1): trajectory("seven"), (2, 0): trajectory("\x1b[31meight")}
    leave_validation(TrainingDirectory(directory), samples, said)
    return directory


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


def test_scripts_get_the_step_and_how_many_samples_are_kept(here: Maze) -> None:
    data = here.osmosis("train", "show", "trained/walks", "--row", "0", "--limit", "1", "--json").json["data"]
    assert data["validation"] == {"step": 3, "samples": 4, "kept": 4}
    (sample,) = data["samples"]
    assert (data["run"], sample["reward"], sample["notes"], sample["passed"]) == (
        "walks",
        0.25,
        "Nearly.",
        False,
    )
    assert [each["role"] for each in sample["messages"]] == ["user", "assistant", "tool", "assistant"]


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


def test_two_outcomes_at_once_are_a_wrong_command_line(here: Maze) -> None:
    outcome = here.osmosis("train", "show", "trained/walks", "--failed", "--passed")
    assert outcome.status == 2 and "mutually exclusive" in outcome.err


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


def test_of_a_platforms_run_its_own_page_has_the_rest(maze: Maze) -> None:
    offers(maze, page(told(0, 0.5), told(1, 0.75)))
    other = maze.get("/training-runs/tr_8f0c1d2e3a4b/validation/1/0")
    other.respond(404, json={"error": "there is none", "code": "NOT_FOUND"}, headers=OURS)
    outcome = maze.osmosis("train", "show", "copper finch/9", "--limit", "1")
    assert "prints more of them, its page on the platform shows all." in outcome.out + outcome.err


def test_of_a_platforms_conversation_that_is_too_large_its_page_is_named(maze: Maze) -> None:
    asked = offers(maze, page(told(0, 0.5)))
    asked.respond(json={"text": None, "size": 40_000_000}, headers=OURS)
    (sample,) = maze.osmosis("train", "show", "copper finch/9", "--json").json["data"]["samples"]
    assert sample["problems"] == [
        "The conversation has 38.1 MB: above 32.0 MB it is not read, its page on the platform has it."
    ]


def test_the_hosted_service_does_not_keep_them_and_it_is_said(maze: Maze) -> None:
    maze.get("/training-runs/tr_8").respond(json=train_replies.DETAIL)
    error = maze.osmosis("train", "show", "tr_8", "--json").error
    assert (
        error["code"] == "PLATFORM_ERROR"
        and "does not support the validation samples of training runs" in error["message"]
    )


def test_a_platform_run_without_a_validation_is_told_so(maze: Maze) -> None:
    offers(maze, {})
    outcome = maze.osmosis("train", "show", "copper finch/9")
    assert outcome.status == 1 and "has no record of a validation" in outcome.err


def test_a_platform_that_turns_in_a_circle_is_left(maze: Maze) -> None:
    round_and_round = page(told(0, 0.5), next_cursor="again")
    offers(maze, round_and_round, round_and_round)
    assert (
        json.loads(maze.osmosis("train", "show", "copper finch/9", "--json").out)["data"]["validation"][
            "kept"
        ]
        == 1
    )
