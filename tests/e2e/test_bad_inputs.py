"""What bad input gets: for every mistake one clear sentence, the right exit status, and nothing half-written.

Every test runs the real command in a workspace of its own. What people read on stderr is compared
whole, with the workspace's path written as ``WS`` and the run's directory as ``RUN``.
"""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.agent_workspace import CONFIG, KEY, Outcome, World
from tests.standin_model import StandInModel, error_reply

pytestmark = pytest.mark.e2e


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with StandInModel() as model:
        yield World(tmp_path, model)


# The workspace


async def test_outside_a_git_repository_it_says_how_to_make_a_workspace(world: World) -> None:
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


async def test_a_missing_scaffold_directory_is_named_and_doctor_makes_it(world: World) -> None:
    (world.root / "data").rename(world.elsewhere / "data")
    outcome = await world.run()
    assert outcome == (
        1,
        "",
        "Error: WS is not laid out as an Osmosis workspace. Missing:\n"
        "  - data/\n"
        "Run `osmosis doctor --fix` in this Git repository to create them.\n",
    )
    assert (await world.osmosis("doctor", "--fix")).status == 0
    assert (world.root / "data").is_dir()


# The model


@pytest.mark.parametrize(
    ("model_path", "sentence"),
    [
        ("opnai/gpt-5-mini", "`opnai/gpt-5-mini` names no known model; did you mean `openai/gpt-5-mini`?"),
        ("osmosis/tyni", "there is no built-in model `osmosis/tyni`; built in: `osmosis/tiny`."),
    ],
)
async def test_a_model_that_nobody_serves_is_refused_with_a_suggestion(
    world: World, model_path: str, sentence: str
) -> None:
    world.config(model_path=model_path)
    assert await world.run() == (1, "", f"Error: {sentence}\n")
    world.assert_not_begun()


async def test_a_missing_key_is_named_with_the_line_that_sets_it(world: World) -> None:
    outcome = await world.run(OPENAI_API_KEY=None, OPENAI_BASE_URL=None)
    assert outcome == (
        1,
        "",
        "Error: `openai/stand-in` needs a key, and `OPENAI_API_KEY` is not set.\n"
        "hint: export OPENAI_API_KEY=...\n",
    )
    world.assert_not_begun()


async def test_what_the_provider_refuses_ends_the_run_before_the_first_row_in_its_own_words(
    world: World,
) -> None:
    world.model.respond = lambda _: error_reply(401, f"Incorrect API key provided: {KEY}.")
    outcome = await world.run()
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.error.startswith("Error: `openai/stand-in` (HTTP 401): ")
    assert "Incorrect API key provided: [redacted]." in outcome.error
    assert "\nhint: " in outcome.error
    assert KEY not in outcome.err
    assert world.model.calls == 1
    world.assert_stopped_before_the_first_row()


async def test_an_endpoint_that_does_not_answer_ends_the_run_before_the_first_row(world: World) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # so that nobody else gets it, and nobody listens
        port = taken.getsockname()[1]
        base_url = f"http://127.0.0.1:{port}/v1"
        outcome = await world.run(OPENAI_BASE_URL=base_url)
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.error == (
        "Error: `openai/stand-in`: the provider could not be reached: "
        f"cannot connect to 127.0.0.1:{port} (connection refused)\n"
        f"hint: check that a server answers at `{base_url}`\n"
    )
    world.assert_stopped_before_the_first_row()


# The rollout


async def test_a_server_that_never_becomes_healthy_is_ended_and_the_wait_can_be_set(world: World) -> None:
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
async def test_who_takes_too_long_in_a_row_is_told_apart_and_never_scored_as_zero(
    world: World, prompt: str, limited: str, failed: tuple[str, str]
) -> None:
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
    """Return boundary, kind and sentence of each failure of an evaluation that came to its end."""
    assert (outcome.status, outcome.err) == (0, "")
    return {
        row["source_row_index"]: (row["boundary"], row["error_type"], row["error"])
        for row in outcome.resource["failed_rows"]
    }


# The dataset


async def test_a_dataset_that_is_nowhere_is_told_with_the_names_it_could_have(world: World) -> None:
    world.config(dataset="nothing")
    outcome = await world.run()
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err.startswith(
        "Error: the config names the dataset `nothing`, and there is no `data/nothing.jsonl`, `.csv`, `.json` or "
        "`.parquet` in WS.\nhint: put the file there, or pass `--dataset-file FILE`"
    )
    world.config(dataset="multipl")
    assert (await world.run()).err.endswith("hint: did you mean `multiply`?\n")
    world.assert_not_begun()
