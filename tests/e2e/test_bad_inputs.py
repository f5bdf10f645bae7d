"""What bad input gets: for every mistake one clear sentence, the right exit status, and nothing half-written.

Every test runs the real command in a workspace of its own. What people read on stderr is compared
whole, with the workspace's path written as ``WS`` and the run's directory as ``RUN``.
"""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.agent_workspace import CONFIG, KEY, Outcome, World
from tests.full_disk import NO_CACHED_CODE, limit_files
from tests.standin_model import Reply, StandInModel, error_reply
from tests.warm_osmosis import interrupt_twice

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


# The config


async def test_a_config_outside_configs_eval_is_refused_with_both_places(world: World) -> None:
    (world.root / CONFIG).rename(world.root / "agent.toml")
    outcome = await world.osmosis("eval", "run", "agent.toml")
    assert outcome == (
        1,
        "",
        "Error: An eval config must be inside configs/eval/ of the workspace directory.\n"
        "  found:    WS/agent.toml\n"
        "  expected: WS/configs/eval/agent.toml\n"
        "hint: move it there, and name it as configs/eval/agent.toml\n",
    )
    world.assert_not_begun()


async def test_a_toml_syntax_error_shows_its_line_and_column(world: World) -> None:
    (world.root / CONFIG).write_text('[experiment]\nrollout = "agent"\nentrypoint = main.py\n')
    outcome = await world.run()
    assert outcome == (
        1,
        "",
        "Error: Invalid TOML in configs/eval/agent.toml: invalid value (line 3, column 14)\n"
        "\n"
        "  3 | entrypoint = main.py\n"
        "    |              ^\n",
    )
    world.assert_not_begun()


async def test_everything_that_is_wrong_with_a_config_is_said_at_once(world: World) -> None:
    (world.root / CONFIG).write_text(
        '[experiment]\nrollout = "agnet"\nentrypoint = "main.py"\nmodel_path = "openai/stand-in"\n'
        'datset = "rows"\n[evaluation]\nlimit = 0\nn = "four"\n'
    )
    outcome = await world.run()
    assert outcome == (
        1,
        "",
        "Error: Invalid eval config: configs/eval/agent.toml\n"
        "  - secrets: Missing [secrets] section; write `required = []` in it when no key is needed\n"
        "  - experiment.dataset: Missing 'dataset' in [experiment] section (line 1)\n"
        "  - experiment.rollout: there is no directory rollouts/agnet/ (line 2; did you mean 'agent'?)\n"
        "  - experiment.datset: Unrecognized key (line 5; did you mean 'dataset'?)\n"
        "  - evaluation.limit: must be at least 1, got 0 (line 7)\n"
        '  - evaluation.n: must be an integer, got "four" (line 8)\n',
    )
    world.assert_not_begun()


@pytest.mark.parametrize(
    ("entrypoint", "problem"),
    [
        ("man.py", "there is no file rollouts/agent/man.py (line 3; did you mean 'main.py'?)"),
        ("../../main.py", "must not leave the rollout's directory (line 3)"),
        ("/main.py", "must be a path inside the rollout's directory, not an absolute path (line 3)"),
    ],
)
async def test_an_entrypoint_that_is_missing_or_outside_the_rollout_is_refused(
    world: World, entrypoint: str, problem: str
) -> None:
    world.config(entrypoint=entrypoint)
    outcome = await world.run()
    assert outcome == (
        1,
        "",
        f"Error: Invalid eval config: configs/eval/agent.toml\n  - experiment.entrypoint: {problem}\n",
    )
    world.assert_not_begun()


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


@pytest.mark.parametrize(
    ("status", "words", "sentence"),
    [
        (401, f"Incorrect API key provided: {KEY}.", "Incorrect API key provided: [redacted]."),
        (404, "The model `stand-in` does not exist.", "The model `stand-in` does not exist."),
    ],
)
async def test_what_the_provider_refuses_ends_the_run_before_the_first_row_in_its_own_words(
    world: World, status: int, words: str, sentence: str
) -> None:
    world.model.respond = lambda _: error_reply(status, words)
    outcome = await world.run()
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.error.startswith(f"Error: `openai/stand-in` (HTTP {status}): ")
    assert sentence in outcome.error
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


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "import osmosis_ai\nimport nowhere\n",
            "ModuleNotFoundError: No module named 'nowhere' (main.py, line 2)",
        ),
        ("x = (\n", "SyntaxError: '(' was never closed (main.py, line 1)"),
    ],
)
async def test_an_entrypoint_that_fails_on_import_is_explained_by_its_own_exception(
    world: World, source: str, reason: str
) -> None:
    (world.agent / "main.py").write_text(source)
    outcome = await world.run()
    assert (outcome.status, outcome.out) == (1, "")
    first, second, *quoted = outcome.error.splitlines()
    assert first == (
        "Error: the rollout server `main.py` ended before it was ready (exit status 1): " + reason
    )
    assert second == "last lines of RUN/rollout-server.log:"
    assert quoted[-1] == "  " + reason.partition(" (main.py, line")[0]
    world.assert_stopped_before_the_first_row()


async def test_dependencies_that_do_not_resolve_are_told_in_uvs_words(world: World) -> None:
    (world.agent / "pyproject.toml").write_text(
        '[project]\nname = "agent"\nversion = "0"\ndependencies = ["no-such-thing-at-all>=3", "osmosis-ai"]\n'
    )
    outcome = await world.run(UV_OFFLINE="1", UV_CACHE_DIR=str(world.elsewhere / "uv"))
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.error.startswith(
        "Error: installing the dependencies of `WS/rollouts/agent/pyproject.toml` failed: "
        "No solution found when resolving dependencies\n"
        "  cause: Because no-such-thing-at-all was not found in the cache"
    )
    assert sorted(path.name for path in world.agent.iterdir()) == ["main.py", "pyproject.toml"]
    assert not list(world.root.parent.glob("cache/environments/*/bin"))
    world.assert_stopped_before_the_first_row()


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


async def test_a_server_that_keeps_dying_halts_the_run_and_shows_its_last_words(world: World) -> None:
    world.rows("one", "die")
    outcome = await world.run("--max-in-flight", "1")
    assert outcome.status == 1
    warning, *quoted = outcome.err[outcome.err.index("warning: ") :].splitlines()
    assert warning == (
        "warning: the run was halted: the rollout's server died 4 times while row 1 was under way. "
        "The last time: the rollout server `main.py` ended (exit status 7)."
    )
    assert quoted == ["last lines of RUN/rollout-server.log:", "  about to die"]
    assert "1 of 2 work items are pending." in outcome.out
    assert (
        "hint: see what row 1 makes the agent do: try it alone with `--rows 1`. What is finished is kept\n"
        in outcome.out
    )
    assert [record["source_row_index"] for record in world.records()] == [0]
    world.assert_nothing_half_written()


# What goes wrong in a row


async def test_what_goes_wrong_in_a_row_is_told_apart_and_never_scored_as_zero(world: World) -> None:
    world.rows("fine", "raise", "number", "no reward", "nan")
    outcome = await world.osmosis("eval", "run", CONFIG, "--yes", "--json")
    assert failed_rows(outcome) == {
        1: ("agent", "agent_error", "the agent broke, key=none"),
        2: (
            "agent",
            "validation_error",
            "`run` must return a list of messages, an AgentWorkflowOutput or None, but it returned int",
        ),
        3: (
            "grader",
            "validation_error",
            "Sample has no reward after grading: call `ctx.set_reward` in `grade`",
        ),
        4: ("grader", "validation_error", "reward: Input should be a finite number"),
    }
    estimates = outcome.resource["metrics"]["estimates"]
    assert estimates["reward"]["value"] == 1.0
    assert estimates["counts"]["scored"] == 1
    assert estimates["counts"]["unscored"] == {"agent_error": 1, "validation_error": 3}
    assert estimates["counts"]["infrastructure_failures"] == 0
    world.assert_nothing_half_written()


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

GOOD = b'{"user_prompt": "a", "ground_truth": "1"}\n'


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("rows.jsonl", b"", "the file is empty"),
        (
            "rows.jsonl",
            GOOD + b'{"user_prompt": "b"\n',
            "line 2: not valid JSON: unexpected end of data (column 20)",
        ),
        (
            "rows.jsonl",
            GOOD + b'{"metadata": {"a": 1}}\n',
            "line 2: columns differ from line 1: missing 'user_prompt', 'ground_truth'; extra 'metadata'",
        ),
        ("rows.csv", b"user_prompt,ground_truth\na,1\nb\n", "line 3: expected 2 columns, found 1"),
        (
            "rows.jsonl",
            GOOD + b'{"user_prompt": "\xff", "ground_truth": "1"}\n',
            "line 2: not UTF-8: byte 0xff at position 59 of the file; save the file as UTF-8",
        ),
        ("rows.txt", GOOD, "unsupported file extension '.txt'; supported: .csv, .jsonl, .json, .parquet"),
    ],
)
async def test_a_dataset_that_cannot_be_used_is_told_the_same_way_by_both_commands(
    world: World, name: str, content: bytes, problem: str
) -> None:
    (world.elsewhere / name).write_bytes(content)
    path = str(world.elsewhere / name)
    validated, ran = await asyncio.gather(
        world.osmosis("dataset", "validate", path), world.run("--dataset-file", path)
    )
    assert validated == (1, "", f"Error: Validation failed: {path}\n  - {problem}\n")
    assert ran == (1, "", f"Error: {path}: {problem}.\n")
    world.assert_not_begun()


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


# Going on


async def test_resume_with_changed_inputs_is_refused_and_says_which(world: World) -> None:
    assert (await world.run("--name", "kept")).status == 0
    before = (world.runs[0] / "events.jsonl").read_bytes()
    world.config(timeout_s=61)
    with (world.agent / "main.py").open("a") as source:
        source.write("# edited\n")
    world.rows("one", "two", "three")
    outcome = await world.run("--name", "kept", "--seed", "3")
    assert outcome == (
        1,
        "",
        "Error: the run `kept` cannot be continued: its inputs have changed since it was started. "
        "Changed: dataset, rollout, seed, timeouts.\n"
        "  - dataset: the selected rows: was 0-1, now 0-2\n"
        "  - dataset: the file's content is another\n"
        "  - rollout: its files were edited\n"
        "  - seed: was 0, now 3\n"
        "  - timeouts: agent_workflow_timeout_s: was 60, now 61\n"
        "  - timeouts: grader_timeout_s: was 60, now 61\n"
        "hint: undo the change, or start a new run: under another `--name`, or with `--fresh`, which puts the old one "
        "aside\n",
    )
    assert (world.runs[0] / "events.jsonl").read_bytes() == before
    for_scripts = await world.osmosis("eval", "run", CONFIG, "--yes", "--json", "--name", "kept")
    assert (for_scripts.status, for_scripts.out) == (1, "")
    assert for_scripts.envelope["code"] == "CONFLICT"
    assert for_scripts.envelope["details"]["changed"] == ["dataset", "rollout", "timeouts"]
    assert "--fresh" in for_scripts.envelope["hint"]


async def read_until(process: asyncio.subprocess.Process, words: str) -> str:
    assert process.stderr is not None
    said = ""
    while words not in said:
        line = await asyncio.wait_for(process.stderr.readline(), 300)
        assert line, f"it ended before it said {words!r}: {said}"
        said += line.decode()
    return said


async def test_ctrl_c_once_stops_gracefully_and_tells_how_to_go_on(world: World) -> None:
    world.rows(*(f"row {row}" for row in range(6)))
    hold = asyncio.Event()
    # The preflight and three agents are answered; the others wait until they are cancelled.
    world.model.respond = lambda _: Reply(wait_for=hold if world.model.calls > 4 else None)
    process = await world.start(
        "eval", "run", CONFIG, "--yes", "--plain", "--name", "kept", "--max-in-flight", "2"
    )
    await read_until(process, "running 6 rollouts")
    await asyncio.wait_for(world.three_records(), 300)
    process.send_signal(signal.SIGINT)
    outcome = await world.end_of(process)
    assert outcome.status == 1
    assert "stopping: what is in flight is cancelled; press Ctrl-C again to quit at once\n" in outcome.err
    assert outcome.out.startswith("Evaluation run interrupted: RUN. 3 of 6 work items are pending.\n")
    assert "Resume: osmosis eval run configs/eval/agent.toml --name kept --max-in-flight 2\n" in outcome.out
    world.assert_nothing_half_written()
    hold.set()
    rest = await world.osmosis("eval", "run", CONFIG, "--yes", "--json", "--name", "kept")
    assert (rest.status, rest.resource["resumed"], rest.resource["succeeded"]) == (0, 3, 6)


async def test_ctrl_c_twice_quits_at_once_and_loses_nothing(world: World) -> None:
    hold = asyncio.Event()
    world.model.respond = lambda _: Reply(wait_for=hold if world.model.calls > 1 else None)
    process = await world.start("eval", "run", CONFIG, "--yes", "--plain", "--name", "kept")
    await read_until(process, "running 2 rollouts")
    interrupt_twice(process.pid)
    outcome = await world.end_of(process)
    assert "press Ctrl-C again" in outcome.err
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.error == "Error: Interrupted. Re-run the same command to resume the pending work items.\n"
    world.assert_nothing_half_written()
    hold.set()
    rest = await world.osmosis("eval", "run", CONFIG, "--yes", "--json", "--name", "kept")
    assert (rest.status, rest.resource["succeeded"]) == (0, 2)


async def test_a_full_disk_halts_the_run_keeps_what_counts_and_goes_on_when_there_is_room(
    world: World,
) -> None:
    world.rows(*(f"row {row}" for row in range(60)))
    full = await world.run("--name", "kept", prepare=partial(limit_files, 9000), **NO_CACHED_CODE)
    assert full.status == 1
    assert (
        "warning: the run was halted: the disk is full: a result could not be written to `RUN/events.jsonl` "
        "(File too large). Everything finished before is safe; what was not written stays pending.\n"
    ) in full.err
    assert "hint: free some space, then start the run again: what is finished is kept\n" in full.out
    kept = len(world.records())
    assert 0 < kept < 60
    world.assert_nothing_half_written()

    rest = await world.osmosis("eval", "run", CONFIG, "--yes", "--json", "--name", "kept")
    assert (rest.status, rest.resource["resumed"], rest.resource["succeeded"]) == (0, kept, 60)
