"""Bad input gets a clear error message and the right exit status, and leaves no incomplete file.

In stderr, the workspace's path is written as ``WS`` and the run's directory as ``RUN``.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.agent_workspace import CONFIG, Outcome, World
from tests.standin_model import StandInModel

pytestmark = pytest.mark.e2e


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with StandInModel() as model:
        yield World(tmp_path, model)


# The workspace


async def test_outside_a_git_repository(world: World) -> None:
    outcome = await world.run(cwd=world.elsewhere)
    assert outcome == (
        1,
        "",
        f"Error: Run this command from an Osmosis workspace directory: {world.elsewhere} is not inside a Git "
        "work tree.\nhint: to make one here: git init, then osmosis doctor --fix\n",
    )
    assert list(world.elsewhere.iterdir()) == []
    for_scripts = await world.osmosis("eval", "run", CONFIG, "--json", cwd=world.elsewhere)
    assert (for_scripts.status, for_scripts.out, for_scripts.envelope["code"]) == (
        1,
        "",
        "WORKSPACE_REQUIRED",
    )


# The rollout


async def test_server_start_timeout(world: World) -> None:
    (world.agent / "main.py").write_text("import threading\nprint('loading')\nthreading.Event().wait()\n")
    outcome = await world.run(OSMOSIS_ROLLOUT_START_TIMEOUT_S="1")
    assert (outcome.status, outcome.out) == (1, "")
    first, *rest = outcome.error.splitlines()
    assert re.fullmatch(
        r"Error: the rollout server `main.py` was not ready after 1 s \(`GET /health` on its socket and port \d+: no answer\)\.",
        first,
    )
    *quoted, hint = rest
    # A machine with much to do has not even begun to load it.
    assert quoted in ([], ["last lines of RUN/rollout-server.log:", "  loading"])
    assert hint == (
        "hint: the entrypoint must serve on the port in `_OSMOSIS_ROLLOUT_PORT` and keep running; "
        "if it only needs longer, set OSMOSIS_ROLLOUT_START_TIMEOUT_S (seconds)"
    )
    world.assert_stopped_before_the_first_row()


# What goes wrong in a row


@pytest.mark.parametrize(
    ("prompt", "limited", "failed"),
    [
        ("hang", "agent_workflow", ("agent", "the workflow did not finish within its 1s deadline")),
        ("slow grader", "grader", ("grader", "the grader did not finish within its 1s deadline")),
    ],
)
async def test_row_timeouts(world: World, prompt: str, limited: str, failed: tuple[str, str]) -> None:
    world.rows(prompt)
    world.config()
    config = world.root / CONFIG
    config.write_text(config.read_text().replace(f"{limited}_timeout_s = 60", f"{limited}_timeout_s = 1"))
    outcome = await world.osmosis("eval", "run", CONFIG, "--yes", "--json")
    boundary, error = failed
    assert failed_rows(outcome) == {0: (boundary, "timeout", error)}
    counts = outcome.resource["metrics"]["estimates"]["counts"]
    assert (counts["scored"], counts["unscored"]) == (0, {"timeout": 1})
    assert counts["infrastructure_failures"] == 0
    world.assert_nothing_half_written()


def failed_rows(outcome: Outcome) -> dict[int, tuple[str, str, str]]:
    """Return source, type and message of each failure of a finished evaluation."""
    assert (outcome.status, outcome.err) == (0, "")
    return {
        row["source_row_index"]: (row["boundary"], row["error_type"], row["error"])
        for row in outcome.resource["failed_rows"]
    }


# The dataset


async def test_unknown_dataset(world: World) -> None:
    world.config(dataset="nothing")
    outcome = await world.run()
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err.startswith(
        "Error: Dataset 'nothing' of the config not found in WS/data.\n"
        "hint: put the file there, or pass '--dataset-file FILE'"
    )
    world.config(dataset="multipl")
    assert (await world.run()).err.endswith("hint: did you mean 'multiply'?\n")
    world.assert_not_begun()
