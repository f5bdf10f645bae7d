"""`dataset delete`, `eval delete` and `train delete` against replies written by hand."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.cli.eval_replies import OWN as EVAL
from tests.cli.eval_replies import run as eval_run
from tests.cli.maze import Maze
from tests.cli.train_replies import offer

OURS = {"X-Osmosis-Capabilities": "deletion"}
DATASET: dict[str, Any] = {"id": "ds_31", "file_name": "maze walks", "row_count": 1200, "file_size": 1536}
NAMED = {
    ("dataset", "maze walks"): ("/datasets/ds_31", "Dataset", "ds_31", 'dataset "maze walks"'),
    ("eval", "amber-otter-42"): (
        f"/eval-runs/{EVAL['id']}",
        "Evaluation run",
        EVAL["id"],
        'evaluation run "amber-otter-42"',
    ),
}


def there(maze: Maze, headers: dict[str, str] = OURS, status: str = "finished") -> None:
    """Let the platform have a dataset and a run."""
    maze.get("/datasets/maze%20walks").respond(json=DATASET, headers=headers)
    maze.get("/eval-runs/amber-otter-42").respond(json=eval_run(status), headers=headers)


@pytest.mark.parametrize(("group", "name"), NAMED)
def test_deleting_asks_first_and_the_answer_is_no_where_nobody_can_be_asked(
    group: str, name: str, maze: Maze
) -> None:
    there(maze)
    path, noun, id, what = NAMED[group, name]
    route = maze.delete(path).respond(json={})
    refused = maze.osmosis(group, "delete", name, "--json")
    assert (refused.status, refused.error["code"]) == (1, "INTERACTIVE_REQUIRED")
    assert refused.error["details"]["prompt"] == f"Delete {what}? This cannot be undone."
    assert not route.called
    assert "Confirmation required" in maze.osmosis(group, "delete", name, "--plain").err
    done = maze.osmosis(group, "delete", name, "--yes", "--json")
    assert (done.status, done.json["operation"], done.json["status"]) == (0, f"{group}.delete", "success")
    assert done.json["message"] == f'{noun} "{name}" deleted.'
    assert done.json["resource"] == {"id": id, "name": name, **maze.resource}
    assert route.call_count == 1 and route.calls[0].request.content == b""
    assert maze.osmosis(group, "delete", name, "-y", "--plain").out == f'{noun} "{name}" deleted.\n'
    assert f'"{name}" deleted.' in maze.osmosis(group, "delete", name, "-y").out


def test_a_training_run_goes_with_its_adapters_which_are_counted_before(maze: Maze) -> None:
    offer(maze, "finished")
    maze.get("/training-runs/copper").respond(
        json={"training_run": {"id": "tr_8", "name": "copper", "status": "crashed"}}, headers=OURS
    )
    maze.get("/training-runs/tr_8/checkpoints").respond(json={"checkpoints": [{"id": "a"}, {"id": "b"}]})
    route = maze.delete("/training-runs/tr_8").respond(204)
    details = maze.osmosis("train", "delete", "copper", "--json").error["details"]
    assert details["prompt"].startswith('Delete training run "copper" with the 2 adapters that it has made?')
    assert details["summary"] == {"Run": "copper", "Status": "crashed", "Adapters": "2"}
    assert maze.osmosis("train", "delete", "copper", "--yes", "--json").json["operation"] == "train.delete"
    assert route.called


def test_a_run_that_goes_on_is_to_be_stopped_first_and_nobody_is_asked(maze: Maze) -> None:
    there(maze, status="running")
    error = maze.osmosis("eval", "delete", "amber-otter-42", "--json").error
    assert error["code"] == "CONFLICT" and "only a run that has ended can be deleted" in error["message"]
    assert "osmosis eval stop amber-otter-42" in error["hint"]


@pytest.mark.parametrize("headers", [{}, {"X-Osmosis-Capabilities": "quickstart"}])
@pytest.mark.parametrize(("group", "name"), NAMED)
def test_a_platform_that_deletes_nothing_is_told_in_a_sentence(
    group: str, name: str, headers: dict[str, str], maze: Maze
) -> None:
    there(maze, headers)
    error = maze.osmosis(group, "delete", name, "--yes", "--json").error
    assert "does not support deleting datasets and runs" in error["message"]


def test_what_the_platform_refuses_is_said_as_it_says_it_and_a_lost_answer_leaves_doubt(maze: Maze) -> None:
    there(maze)
    route = maze.delete("/datasets/ds_31").respond(
        409, json={"error": "the run 'x' uses it", "code": "CONFLICT"}
    )
    error = maze.osmosis("dataset", "delete", "maze walks", "--yes", "--json").error
    assert error["code"] == "CONFLICT" and "the run 'x' uses it" in error["message"]
    route.mock(side_effect=httpx.ReadTimeout("late"))
    error = maze.osmosis("dataset", "delete", "maze walks", "--yes", "--json").error
    assert "it may be deleted all the same: look with `osmosis dataset list`" in error["hint"]
    for word in ("dataset", "eval", "train"):
        maze.get("/datasets/gone").respond(404, json={"error": "there is none"})
        maze.get("/eval-runs/gone").respond(404, json={"error": "there is none"})
        maze.get("/training-runs/gone").respond(404, json={"error": "there is none"})
        assert maze.osmosis(word, "delete", "gone", "--yes", "--json").error["code"] == "NOT_FOUND"
