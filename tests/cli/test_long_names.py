"""Names of 300 characters in the terminal; of a run, those that a directory can have."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.cli.maze import Maze
from tests.evaluation.comparison.builders import write_journalled_run

LONG = "läufe✓名" * 42 + "ende12"


def unbroken(text: str) -> str:
    """Return what a table says without its frame and its line ends."""
    return "".join(line.strip("│╭╮╰╯─ ").split("│")[-1].strip() for line in text.splitlines())


def require_fits(text: str) -> None:
    """Check that the lines of tables are those of a terminal of 80 columns, and that there are some."""
    widths = [cell_len(line) for line in text.splitlines() if line.startswith("│")]
    assert widths and max(widths) <= 80


def long_run(maze: Maze, name: str) -> Path:
    rollout = {"name": LONG, "entrypoint": "main.py", "source_digest": "5" * 64}
    return write_journalled_run(
        maze.workspace.evals_dir / name,
        [[1.0], [0.0]],
        name="long",
        digests=["a" * 32, "b" * 32],
        inputs={"model_path": LONG, "rollout": rollout},
        provenance={"dataset_name": LONG},
    )


@pytest.mark.parametrize("name", ["n" * 255, "ü" * 127, "名 " * 63], ids=["one word", "bytes", "wide"])
def test_a_run_of_a_long_name_is_listed_and_told_in_lines_that_fit(
    maze: Maze, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name.strip()
    # A run has been made here: its lock lies beside it, and this name leaves no room for one.
    (maze.workspace.evals_dir / ".locks").mkdir(parents=True)
    assert len(LONG) == 300
    long_run(maze, name)
    monkeypatch.setenv("COLUMNS", "80")
    info = maze.osmosis("eval", "info", name)
    assert info.status == 0, info.err
    assert name.replace(" ", "") in unbroken(info.out).replace(" ", "")
    require_fits(info.out)
    (listed,) = maze.osmosis("eval", "list", "--json").json["local_runs"]
    assert (listed["name"], listed["rollout"]) == (name, LONG), sorted(listed.items())
    shown = maze.osmosis("eval", "list")
    assert shown.status == 0 and name[:5] in shown.out
    require_fits(shown.out)
    found = maze.osmosis("eval", "show", name, "--json")
    assert found.status == 0 and [each["row"] for each in found.json["data"]["samples"]] == [0, 1], found.err
