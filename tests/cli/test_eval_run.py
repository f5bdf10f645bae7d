"""`osmosis eval run` and `osmosis eval watch` as a user meets them: real processes, real files."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.parquet import write_table

from osmosis_ai.sandbox.isolation import SandboxCapability, check_sandbox
from tests.cli.conftest import Cli
from tests.cli.eval_world import CONFIG, World
from tests.cli.maze import Maze
from tests.cli.outcome import Outcome, TerminalInput
from tests.decisions.builders import write_journalled_run
from tests.evaluation.rollouts import agent_with, write_rollout, write_rows
from tests.full_disk import limit_files
from tests.standin_model import Reply, StandInModel, error_reply
from tests.warm_osmosis import interrupt_twice
from tests.workspace.builders import MINIMAL_EVAL, git, make_workspace


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with StandInModel() as model:
        yield World(tmp_path, model)


@pytest.mark.e2e
async def test_reward_range_of_decide_file(world: World) -> None:
    decide = (world.workspace.root / CONFIG).with_suffix(".decide.toml")
    world.rows(["reward 0.5", "reward 0.25", "reward 0.4"])
    unranged = (await world.run("--name", "unranged")).resource["metrics"]["estimates"]
    assert (unranged["reward"]["low"], unranged["reward"]["high"]) == (0.25, 0.5)

    decide.write_text("[decide]\nreward_range = [0, 2]\n")
    ranged = await world.run("--name", "ranged", "--slice", "user_prompt")
    reward = ranged.resource["metrics"]["estimates"]["reward"]
    assert 0 < reward["low"] < 0.25 and 1 < reward["high"] < 2, reward
    [whole, *_] = [part["reward"] for part in ranged.resource["slices"]]
    assert 0 < whole["high"] <= 2 and whole["low"] < whole["value"], whole
    decide.unlink()
    read = await world.osmosis("info", "ranged", "--json")
    assert read.data["metrics"]["estimates"]["reward"] == reward

    decide.write_text("[decide]\nreward_range = [0, 0.4]\n")
    misfit = await world.run("--name", "misfit", "--slice", "user_prompt")
    assert misfit.resource["metrics"]["estimates"]["reward"] == unranged["reward"]
    [warning] = [
        text for text in misfit.resource["metrics"]["estimates"]["warnings"] if "reward_range" in text
    ]
    assert warning == "reward_range 0 to 0.4 is ignored: rewards range from 0.25 to 0.5"


@pytest.mark.e2e
async def test_grader_receives_numbers_unchanged(world: World) -> None:
    written = ["3.14159265358979323846", "1.10", "1e5", "-0.0", "12345678901234567890123", "true"]
    world.model.respond = lambda body: Reply(content=body["messages"][-1]["content"])
    rows = [f'{{"user_prompt": "{text}", "ground_truth": {text}}}\n' for text in written]
    (world.workspace.data_dir / "multiply.jsonl").write_text("".join(rows))
    metrics = (await world.run()).resource["metrics"]
    assert metrics["estimates"]["reward"]["value"] == 1.0
    assert metrics["estimates"]["counts"]["scored"] == len(written)


@pytest.mark.e2e
async def test_file_names_not_utf8(world: World) -> None:
    odd = os.fsdecode(b"caf\xe9")
    folder = world.workspace.rollouts_dir / "multiply" / odd
    folder.mkdir()
    for place in (folder, folder.parent, world.workspace.data_dir, (world.workspace.root / CONFIG).parent):
        (place / f"{odd}.txt").write_text("one")
    assert (await world.run("--name", "odd")).status == 0
    assert (await world.run("--name", "odd")).resource["resumed"] == 3
    (folder / f"{odd}.txt").write_text("two")
    changed = await world.run("--name", "odd")
    assert changed.status == 1 and "Changed: rollout." in changed.error["message"]


@pytest.mark.e2e
async def test_failed_attempts_and_stored_config(world: World) -> None:
    world.rows(["one", "raise", "three"])
    outcome = await world.run()
    assert (outcome.status, outcome.err) == (0, "")
    document = json.loads(outcome.out)
    assert document["resource"]["metrics"]["pass_rate"] == pytest.approx(2 / 3)
    assert document["resource"]["metrics"]["estimates"]["pass_rate"]["value"] == 1.0
    headline = document["resource"]["headline"]
    assert (headline["scored"], headline["planned"], headline["failed_by_boundary"]) == (2, 3, {"agent": 1})
    assert headline["rows"]["total"] == 3 and headline["warnings"]
    assert document["next_steps_structured"][0]["action"] == "retry_failed"
    kept = Path(document["resource"]["output_path"]) / "config.toml"
    assert kept.read_text() == MINIMAL_EVAL

    # The config is no input: a comment in it changes no result.
    (world.workspace.root / CONFIG).write_text(f"# told later\n{MINIMAL_EVAL}")
    again = await world.run("--name", document["resource"]["run_name"])
    assert (again.status, again.resource["dispatched"]) == (0, 0)
    assert kept.read_text() == MINIMAL_EVAL


@pytest.mark.e2e
async def test_resume_of_archived_and_copied_runs(world: World) -> None:
    world.rows(["one", "raise"])
    evals = world.workspace.evals_dir
    for arguments in ((), ("--fresh",)):
        assert (await world.run("--name", "walk", *arguments)).status == 0
    (aside,) = (path.name for path in evals.iterdir() if path.name.startswith("walk.archive-"))
    shutil.copytree(evals / "walk", evals / "copy")
    for name in (aside, "copy", "walk"):
        document = json.loads((await world.run("--name", name)).out)
        assert document["resource"]["output_path"] == str(evals / name)
        assert document["resource"]["run_name"] == name
        redo, view = (step["command"] for step in document["next_steps_structured"])
        assert f" --name {name} " in redo and redo.endswith("--retry-failed")
        assert view == f"osmosis view {name}"


@pytest.mark.e2e
async def test_provider_error_before_the_first_row(world: World) -> None:
    world.model.respond = lambda _: error_reply(401, "Incorrect API key provided.", code="invalid_api_key")
    outcome = await world.run()
    assert outcome.status == 1
    assert "Incorrect API key provided." in outcome.error["message"]
    assert "sk-stand-in" not in outcome.err


@pytest.mark.e2e
async def test_ctrl_c_and_resume(world: World) -> None:
    world.rows([f"row {row}" for row in range(12)])
    hold = asyncio.Event()
    world.model.respond = lambda body: Reply(wait_for=hold if world.model.calls > 6 else None)
    process = await world.start(
        "run", CONFIG, "--yes", "--json", "--max-in-flight", "2", "--max-tokens", "2000000"
    )
    await world.wait_for_records(5)
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), 300)
    stopped = Outcome(process.returncode or 0, out.decode(), err.decode())
    assert stopped.status == 1, stopped.err
    assert json.loads(stopped.out)["status"] == "partial"
    assert stopped.resource["cancelled"] is True
    assert stopped.resource["stopped"]["kind"] == "interrupted"
    assert stopped.json["next_steps_structured"][0]["command"].endswith(" --max-tokens 2000000")

    hold.set()
    rest = await world.run("--max-in-flight", "2")
    assert rest.status == 0
    assert rest.resource["run_name"] == stopped.resource["run_name"]
    assert rest.resource["resumed"] == stopped.resource["succeeded"]
    assert rest.resource["succeeded"] == 12


@pytest.mark.e2e
async def test_resume_of_a_run_whose_budget_is_spent(world: World) -> None:
    world.rows([f"row {row}" for row in range(12)])
    spent = await world.run("--max-in-flight", "1", "--max-tokens", "1")
    assert (spent.status, spent.resource["stopped"]["kind"]) == (1, "budget")
    assert "--max-tokens" not in spent.json["next_steps_structured"][0]["command"]


@pytest.mark.e2e
async def test_second_ctrl_c_quits(world: World) -> None:
    hold, called = asyncio.Event(), asyncio.Event()

    def respond(_: object) -> Reply:
        # The preflight is answered; the agents' calls are not, so a graceful stop has something to wait for.
        if world.model.calls < 2:
            return Reply()
        called.set()
        return Reply(wait_for=hold)

    world.model.respond = respond
    process = await world.start("run", CONFIG, "--yes", "--plain")
    await asyncio.wait_for(called.wait(), 300)
    interrupt_twice(process.pid)
    said = (await asyncio.wait_for(process.communicate(), 300))[1].decode()
    assert process.returncode == 1
    assert "press Ctrl-C again" in said and "Error: Interrupted." in said
    hold.set()
    assert (await world.run()).resource["succeeded"] == 3


@pytest.mark.e2e
async def test_full_disk_and_resume(world: World) -> None:
    world.rows([f"row {row}" for row in range(80)])
    # Few at once, so that the first write to the journal does not fill the disk by itself.
    few = ("--max-in-flight", "4")
    full = await world.run("--name", "full", *few, prepare=partial(limit_files, 9000))
    assert full.status == 1, full.err
    assert "the disk is full" in full.err
    kept = full.resource["succeeded"]
    assert 0 < kept < 80

    rest = await world.run("--name", "full")
    assert (rest.status, rest.resource["resumed"], rest.resource["succeeded"]) == (0, kept, 80)


READS_SECRETS = """
class Silent(AgentWorkflow):
    async def run(self, ctx):
        return ctx.prompt


class Graded(Grader):
    async def grade(self, ctx):
        names = ("SEARCH_KEY", "MAP_KEY", "WEATHER_KEY", "UNLISTED_KEY")
        ctx.set_reward(float([os.environ.get(name) for name in names] == ["shell", "file", "given", None]))
"""


@pytest.mark.e2e
async def test_sources_of_secrets(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    root = world.workspace.root
    (root / CONFIG).write_text(MINIMAL_EVAL.replace("[]", '["SEARCH_KEY", "MAP_KEY", "WEATHER_KEY"]'))
    write_rollout(
        world.workspace.rollouts_dir / "multiply",
        agent_with(READS_SECRETS, workflow="Silent", grader="Graded"),
    )
    (root / ".env").write_text("SEARCH_KEY=file\nMAP_KEY=file\nWEATHER_KEY=file\nUNLISTED_KEY=file\n")
    (root / "secrets.env").write_text("WEATHER_KEY=given\n")
    for name, value in {"SEARCH_KEY": "shell", "MAP_KEY": "", "WEATHER_KEY": "shell"}.items():
        monkeypatch.setenv(name, value)
    outcome = await world.run("--secrets-file", "secrets.env")
    assert outcome.status == 0, outcome.err
    assert outcome.resource["metrics"]["reward_stats"]["mean"] == 1.0, outcome.resource["failed_rows"]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = make_workspace(tmp_path / "workspace")
    (found.root / CONFIG).write_text(MINIMAL_EVAL)
    write_rollout(found.rollouts_dir / "multiply")
    monkeypatch.chdir(found.root)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    return found.root


@pytest.mark.parametrize("option", ["--max-cost=-1", "--max-cost=nan", "--max-tokens=0"])
def test_invalid_budget(cli: Cli, workspace: Path, option: str) -> None:
    outcome = cli("eval", "run", CONFIG, "--yes", "--json", option)
    assert (outcome.status, outcome.error["code"]) == (2, "VALIDATION")
    assert f"'{option.partition('=')[0]}' must be a positive number" in outcome.error["message"]


def test_asks_before_spending(cli: Cli, workspace: Path) -> None:
    write_rows(workspace / "data/multiply.jsonl", ["one", "two", "three"])
    error = cli("eval", "run", CONFIG, "--json").error
    assert error["code"] == "INTERACTIVE_REQUIRED"
    assert error["details"]["prompt"] == "Run 3 attempts with model openai/gpt-5-mini?"
    assert not list(workspace.glob(".osmosis/evals/*/manifest.json"))


def asked(cli: Cli, *options: str) -> dict[str, Any]:
    """Return the details of the question that comes after every check of `eval run`."""
    error = cli("eval", "run", CONFIG, "--json", *options).error
    assert error["code"] == "INTERACTIVE_REQUIRED", error
    details: dict[str, Any] = error["details"]
    return details


def refused(cli: Cli, *options: str) -> dict[str, Any]:
    error = cli("eval", "run", CONFIG, "--json", *options).error
    assert error["code"] != "INTERACTIVE_REQUIRED"
    return error


@pytest.fixture
def filled(workspace: Path) -> Path:
    write_rows(workspace / "data/multiply.jsonl", ["1 * 1", "2 * 2", "3 * 3"])
    return workspace


def test_dataset_file_option(cli: Cli, filled: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "mine.jsonl", ["5 * 5"])
    assert asked(cli, "--dataset-file", str(rows))["summary"]["Rollouts"] == "1"
    assert refused(cli, "--dataset-file", "none.jsonl")["code"] == "NOT_FOUND"
    assert refused(cli, "--dataset-file", "data")["message"] == "Dataset file 'data' is a directory."
    assert refused(cli, "--output", str(rows))["message"] == f"'{rows}' is not a directory."


def test_missing_api_key(cli: Cli, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    assert "OPENAI_API_KEY is not set" in refused(cli)["message"]
    (filled / "secrets.env").write_text("OPENAI_API_KEY=sk-file\n")
    asked(cli, "--secrets-file", "secrets.env")
    (filled / CONFIG).write_text(MINIMAL_EVAL.replace("required = []", 'required = ["OPENAI_API_KEY"]'))
    asked(cli, "--secrets-file", "secrets.env")


def test_adapter_of_a_platform(cli: Cli, filled: Path) -> None:
    (filled / CONFIG).write_text(MINIMAL_EVAL.replace("openai/gpt-5-mini", "osmosis/tiny:copper-40"))
    assert f"osmosis eval submit {CONFIG}" in refused(cli)["hint"]


def test_cost_limit_needs_a_price(cli: Cli, filled: Path) -> None:
    asked(cli, "--max-cost", "1")
    (filled / CONFIG).write_text(MINIMAL_EVAL.replace("gpt-5-mini", "no-such-model-9"))
    asked(cli)
    error = refused(cli, "--max-cost", "1")
    assert "The price of 'openai/no-such-model-9' is unknown" in error["message"]


def test_unknown_slice(cli: Cli, filled: Path) -> None:
    error = refused(cli, "--slice", "ground_thruth")
    assert "has no column 'ground_thruth'" in error["message"]
    assert error["hint"] == "did you mean 'ground_truth'?"


def test_isolation_conflicts(cli: Cli, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works = SandboxCapability(Path("/usr/bin/bwrap"))
    monkeypatch.setattr("osmosis_ai.sandbox.isolation.check_sandbox", lambda: works)
    asked(cli, "--network", "none")
    error = refused(cli, "--network", "none", "--rollout-port", "9000")
    assert "'--rollout-port' and '--network none' are mutually exclusive" in error["message"]
    execution = '\n[advanced.execution]\nisolation = "required"\nnetwork = "none"\n'
    (filled / CONFIG).write_text(MINIMAL_EVAL + execution)
    (note,) = asked(cli)["notes"]
    assert "`--isolate` is for its `isolation` and `--network none` is for its `network`" in note
    assert "--isolate" not in asked(cli, "--isolate")["notes"][0]
    assert "--network" not in asked(cli, "--network", "none")["notes"][0]
    (filled / CONFIG).write_text(MINIMAL_EVAL.replace('"main.py"', '"server://127.0.0.1:9000"'))
    assert "127.0.0.1:9000 cannot be sandboxed on this machine" in refused(cli, "--isolate")["message"]


@pytest.mark.parametrize(("typed", "status", "said"), [(None, 0, "Cancelled."), ("", 1, "MY_KEY is not set")])
def test_no_answer_to_the_question_for_a_secret(
    cli: Cli, filled: Path, monkeypatch: pytest.MonkeyPatch, typed: str | None, status: int, said: str
) -> None:
    (filled / CONFIG).write_text(MINIMAL_EVAL.replace("required = []", 'required = ["MY_KEY"]'))
    monkeypatch.setattr("sys.stdin", TerminalInput())
    monkeypatch.setattr("osmosis_ai.cli.output.context.OutputContext.ask_hidden", lambda *_: typed)
    outcome = cli("eval", "run", CONFIG, "--yes")
    assert outcome.status == status
    assert said in outcome.out + outcome.err


def test_isolation_unavailable(cli: Cli, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = SandboxCapability(problem="bubblewrap is not installed", remedy="install it")
    monkeypatch.setattr("osmosis_ai.sandbox.isolation.check_sandbox", lambda: absent)
    assert "isolation is required, and rollouts cannot be" in refused(cli, "--isolate")["message"]
    asked(cli)


LOOKS_AROUND = """
import subprocess


class Silent(AgentWorkflow):
    async def run(self, ctx):
        return ctx.prompt


class Looks(Grader):
    async def grade(self, ctx):
        command = ctx.sample.messages[0]["content"]
        seen = subprocess.run(command, shell=True, capture_output=True, text=True).stdout
        ctx.set_reward(float(seen == ctx.label))
"""


@pytest.mark.e2e
async def test_sandbox_view_of_the_workspace(world: World, tmp_path: Path) -> None:
    if not (found := check_sandbox()).works:
        pytest.skip(found.said)
    root = world.workspace.root
    (tmp_path / "outside").mkdir()
    for path in (root / ".env", root / "data/note.txt", tmp_path / "outside/secret"):
        path.write_text("here")
    earlier = await world.run("--name", "earlier")
    (root / "link").symlink_to(tmp_path / "outside")
    rollout = write_rollout(
        world.workspace.rollouts_dir / "multiply", agent_with(LOOKS_AROUND, workflow="Silent", grader="Looks")
    )
    hidden = (
        root / ".env",
        f"{earlier.resource['output_path']}/events.jsonl",
        root / "link/secret",
        tmp_path / "outside/secret",
    )
    looks = [(f"cat {root}/data/note.txt", "here"), *((f"cat {path}", "") for path in hidden)]
    looks += [(f"echo changed > {path}", "") for path in (rollout / "main.py", root / "data/note.txt")]
    rows = [
        json.dumps({"user_prompt": f"{command}; printf .", "ground_truth": f"{seen}."})
        for command, seen in looks
    ]
    (world.workspace.data_dir / "multiply.jsonl").write_text("\n".join(rows))
    outcome = await world.run("--isolate")
    assert outcome.status == 0, outcome.err
    assert [record["reward"] for record in records_of(outcome)] == [1.0] * len(looks)
    assert "changed" not in (rollout / "main.py").read_text() + (root / "data/note.txt").read_text()


def records_of(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the lines of a run's journal."""
    events = Path(outcome.resource["output_path"]) / "events.jsonl"
    return [json.loads(line) for line in events.read_text().splitlines()]


@pytest.mark.e2e
async def test_provenance_and_previews(world: World) -> None:
    root, decided = world.workspace.root, (world.workspace.root / CONFIG).with_suffix(".decide.toml")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "first")
    git(root, "remote", "add", "origin", "https://me:secret@example.org/a/b.git")
    advanced = "\n[advanced]\nx = 1\npreviews = false\n"
    pinned = MINIMAL_EVAL.replace("[secrets]", f'commit_sha = "0123456789"\n{advanced}\n[secrets]')
    for config, decide, previewed in (
        (MINIMAL_EVAL, "", True),
        (MINIMAL_EVAL, "previews = false", False),
        (pinned, "", False),
    ):
        (root / CONFIG).write_text(config)
        decided.write_text(f"[decide]\n{decide}\n")
        outcome = await world.run("--fresh", "--rows", "0")
        assert [("input" in record, "output" in record) for record in records_of(outcome)] == [
            (previewed,) * 2
        ]
    assert "pins commit 0123456789" in outcome.err and "[advanced]" in outcome.err
    assert outcome.resource["git"]["remote_url"] == "https://example.org/a/b.git"
    manifest = json.loads((Path(outcome.resource["output_path"]) / "manifest.json").read_text())
    found = {name: manifest["provenance"].get(name) for name in ("advanced", "git_head", "isolation")}
    assert found == {
        "advanced": {"x": 1, "previews": False},
        "git_head": git(root, "rev-parse", "HEAD"),
        "isolation": None,
    }


@pytest.mark.e2e
async def test_watch_run_of_this_machine(world: World) -> None:
    world.rows(["one", "two", "raise", "four", "five"])
    hold = asyncio.Event()
    world.model.respond = lambda body: Reply(
        "no" if "one" in str(body) else "ok", wait_for=hold if "f" in str(body["messages"]) else None
    )
    running = await world.start("run", CONFIG, "--yes", "--json", "--name", "mine")
    await world.wait_for_records(3)
    watching = await world.start("watch", "mine", "--plain")
    assert watching.stderr is not None
    line = (await watching.stderr.readline()).decode()
    assert "mine: 3/5 attempts (60%)" in line and "1 of 2 scored attempts pass" in line
    hold.set()
    await asyncio.wait_for(running.communicate(), 300)
    out, _ = await asyncio.wait_for(watching.communicate(), 300)
    assert watching.returncode == 0 and "mine" in out.decode()


NAN_TAG = [{"item": {"tags": [None]}}, {"item": {"tags": [float("nan")]}}]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"question": ["q"], "answer": ["a"]},
            "missing 'user_prompt', 'ground_truth' (found 'question', 'answer')",
        ),
        (
            {"user_prompt": ["a", "b"], "ground_truth": [1.5, float("nan")]},
            "row 2: no value for 'ground_truth'",
        ),
        (
            {"user_prompt": ["a", "b"], "ground_truth": ["a", "b"], "metadata": NAN_TAG},
            "row 2: 'metadata.item.tags[]' is nan, which JSON cannot hold",
        ),
    ],
    ids=["columns", "answer", "metadata"],
)
def test_invalid_rows(cli: Cli, workspace: Path, columns: dict[str, Any], message: str) -> None:
    write_table(pa.table(columns), "rows.parquet")
    outcome = cli("--plain", "eval", "run", CONFIG, "--yes", "--dataset-file", "rows.parquet")
    assert (outcome.status, outcome.out) == (1, "") and message in outcome.err
    assert not list(workspace.glob(".osmosis/evals/[!.]*"))


REMOTE = "https://elsewhere.example/v1"
SAME_FILE = "is accepted only with {} from the same file"


@pytest.mark.parametrize(
    ("required", "env_file", "shell", "given", "message"),
    [
        ("NODE_OPTIONS", "NODE_OPTIONS=/evil.js", "", "", "NODE_OPTIONS"),
        (
            "OPENAI_API_KEY",
            "OPENAI_BASE_URL=http://127.0.0.1:8000/v1",
            "OPENAI_API_KEY=mine",
            "",
            "OPENAI_API_KEY",
        ),
        (
            "SEARCH_BASE_URL",
            f"SEARCH_KEY=bait SEARCH_BASE_URL={REMOTE}",
            "SEARCH_TOKEN=mine",
            "",
            "SEARCH_TOKEN",
        ),
        *(
            (
                f"{name}_API_KEY {name}_BASE_URL",
                f"{name}_API_KEY=bait {name}_BASE_URL={REMOTE}",
                "",
                f"{name}_API_KEY=mine",
                SAME_FILE.format(f"{name}_API_KEY"),
            )
            for name in ("OPENAI", "SEARCH")
        ),
    ],
)
def test_key_and_address_from_different_sources(
    cli: Cli,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    required: str,
    env_file: str,
    shell: str,
    given: str,
    message: str,
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, **dict(each.split("=") for each in shell.split())})
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        if name not in shell:
            os.environ.pop(name, None)
    config = MINIMAL_EVAL.replace("openai/gpt-5-mini", "osmosis/tiny")
    (workspace / CONFIG).write_text(config.replace("[]", json.dumps(required.split())))
    write_rows(workspace / "data/multiply.jsonl", ["one"])
    (workspace / ".env").write_text(env_file.replace(" ", "\n"))
    (workspace / "secrets.env").write_text(given)
    options = ("--secrets-file", "secrets.env") if given else ()
    error = cli("eval", "run", CONFIG, "--yes", "--json", *options).error
    conflict = REMOTE in env_file
    assert error["code"] == ("CONFLICT" if conflict else "INTERACTIVE_REQUIRED")
    assert conflict or error["details"]["flags"] == ["--secrets-file"]
    assert message in error["message"] + str(error.get("details"))


OPENAI_AGENT = """
class Asks(AgentWorkflow):
    async def run(self, ctx):
        model = get_rollout_context().openai().chat.completions
        if ctx.prompt[-1]["content"].startswith("stream"):
            text = ""
            async for chunk in await model.create(model="m", messages=ctx.prompt, stream=True):
                text += "".join(choice.delta.content or "" for choice in chunk.choices)
        else:
            text = (await model.create(model="m", messages=ctx.prompt)).choices[0].message.content
        return [*ctx.prompt, {"role": "assistant", "content": text or ""}]
"""


def end_early(body: dict[str, Any]) -> Reply:
    prompt = body["messages"][-1]["content"]
    if "cut" in prompt:
        return Reply(content="half an", finish_reason="length")
    if "filter" in prompt:
        return Reply(content="", finish_reason="content_filter")
    if "refuse" in prompt and body.get("stream"):
        deltas = [{"role": "assistant", "content": ""}, {"refusal": "I cannot"}, {"refusal": " help."}]
        return Reply(chunks=[*({"choices": [{"index": 0, "delta": delta}]} for delta in deltas), END, DONE])
    if "refuse" in prompt:
        refusal = {"role": "assistant", "content": None, "refusal": "I cannot help with that."}
        return Reply(choice_extra={"message": refusal})
    return Reply(content="ok", finish_reason="MAX_TOKENS" if "old" in prompt else None)


@pytest.mark.e2e
async def test_finish_reason_counts(world: World) -> None:
    write_rollout(world.workspace.rollouts_dir / "multiply", agent_with(OPENAI_AGENT, workflow="Asks"))
    world.model.respond = end_early
    streamed = ("stream fine", "stream cut", "stream filter", "stream refuse")
    world.rows(["fine", "cut", "filter", "refuse", "old", *streamed])
    outcome = await world.run("--name", "seen")
    assert (outcome.status, outcome.resource["succeeded"]) == (0, 9), outcome.err
    counted = {
        "truncated": 3,
        "filtered": 2,
        "refused": 2,
        "affected": 7,
        "known_samples": 9,
        "recorded_samples": 9,
    }
    warning = "7 of 9 attempts (77.8%) have a model reply that was truncated (3), filtered (2), refused (2)"
    assert outcome.resource["metrics"]["estimates"]["finish"] == counted
    assert outcome.resource["headline"]["warnings"] == [warning]
    directory = Path(outcome.resource["output_path"])
    assert json.loads((directory / "metrics.json").read_text())["estimates"]["finish"] == counted
    trajectory = json.loads((directory / "trajectories" / "row_1_run_0.json").read_text())
    calls = [step["metrics"]["extra"] for step in trajectory["steps"] if "metrics" in step]
    assert [call["finish_reason"] for call in calls] == ["length"]

    seen = await world.osmosis("info", "seen", "--plain")
    for line in (
        "  Truncated (token limit)   3 of 9 attempts",
        "  Filtered                  2 of 9 attempts",
        "  Refused                   2 of 9 attempts",
    ):
        assert line in seen.out
    assert warning in seen.out
    rows = {
        finish: [each["row"] for each in found.data["samples"]]
        for finish in ("length", "content_filter", "refusal")
        for found in [await world.osmosis("show", "seen", "--finish", finish, "--json")]
    }
    assert rows == {"length": [1, 4, 6], "content_filter": [2, 7], "refusal": [3, 8]}


@pytest.mark.parametrize(("flagged", "warns"), [(["length"], False), (["length", "refusal"], True)])
def test_finish_reason_warning(maze: Maze, flagged: list[str], warns: bool) -> None:
    """The warning appears above 5% of the attempts."""
    reasons = {
        (row, 0): {finish: 1} for row, finish in enumerate([*flagged, *["stop"] * (20 - len(flagged))])
    }
    write_journalled_run(maze.workspace.evals_dir / "fern", [[1.0]] * 20, finish_reasons=reasons)
    outcome = maze.osmosis("eval", "info", "fern", "--json")
    assert outcome.data["metrics"]["estimates"]["finish"]["affected"] == len(flagged)
    assert ("have a model reply that was" in outcome.out) == warns


def test_finish_reasons_of_one_attempt(maze: Maze) -> None:
    several = {(0, 0): {"length": 3, "refusal": 1, "stop": 5}, (1, 0): {"stop": 2}}
    write_journalled_run(maze.workspace.evals_dir / "fern", [[1.0], [0.0], [0.0]], finish_reasons=several)
    estimates = json.loads(maze.osmosis("eval", "info", "fern", "--json").out)["data"]["metrics"]["estimates"]
    assert estimates["finish"] == {
        "truncated": 1,
        "filtered": 0,
        "refused": 1,
        "affected": 1,
        "known_samples": 2,
        "recorded_samples": 3,
    }
    shown = maze.osmosis("eval", "show", "fern", "--finish", "refusal", "--json").data["samples"]
    assert [each["finish_reasons"] for each in shown] == [several[0, 0]]
    call = {"prompt_tokens": 9, "extra": {"finish_reason": "length"}}
    said = {"steps": [{"source": "agent", "message": "half an", "metrics": call}]}
    directory = maze.workspace.evals_dir / "fern"
    (directory / "trajectories").mkdir()
    (directory / "trajectories" / "row_0_run_0.json").write_text(json.dumps(said))
    report = maze.workspace.root / "page.html"
    assert maze.osmosis("view", "fern", "--report", str(report)).status == 0
    assert "Truncated (token limit)" in report.read_text() and "1 of 2 attempts" in report.read_text()
    assert report.read_text().count(" · truncated</span>") == 1


END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
DONE = b"data: [DONE]\n\n"
