"""Complete runs of `osmosis eval run`, with a real rollout server, a stand-in model and real files."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal import Journal
from tests.cli import eval_world
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from tests.cli.conftest import fleet as fleet
from tests.cli.conftest import logging_as_it_was as logging_as_it_was
from tests.cli.eval_world import CONFIG
from tests.evaluation.recorded_runs import foreign_line
from tests.evaluation.rollouts import AGENT, agent_with, write_rollout, write_rows
from tests.standin_model import Reply, StandInModel, error_reply
from tests.workspace.builders import MINIMAL_EVAL, make_workspace


class World(eval_world.World):
    """A workspace whose runs are called `run`."""

    def configure(self, **evaluation: float) -> None:
        settings = "".join(f"{name} = {value}\n" for name, value in evaluation.items())
        (self.workspace.root / CONFIG).write_text(f"{MINIMAL_EVAL}\n[evaluation]\n{settings}")

    def rollout(self, source: str) -> None:
        write_rollout(self.workspace.rollouts_dir / "multiply", source)

    async def evaluate(self, *options: str) -> dict[str, Any]:
        """Run a session and return its result."""
        outcome = await self.run("--name", "run", *options)
        assert outcome.out, outcome.err
        return outcome.resource

    async def notes(self, *options: str) -> str:
        """Run a session and return what it tells users meanwhile."""
        outcome = await self.osmosis("run", CONFIG, "--yes", "--plain", "--name", "run", *options)
        assert outcome.status == 0, outcome.err
        return outcome.err

    async def refused(self, *options: str) -> dict[str, Any]:
        return (await self.run("--name", "run", *options)).error

    @property
    def directory(self) -> Path:
        return self.workspace.evals_dir / "run"

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / "events.jsonl").read_text().splitlines()]

    def read(self, name: str) -> Any:
        return json.loads((self.directory / name).read_text())

    def metrics(self) -> Any:
        return self.read("metrics.json")

    def index(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / "index.jsonl").read_text().splitlines()]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with StandInModel() as model:
        yield World(tmp_path, model)


@pytest.mark.e2e
async def test_run_directory(world: World) -> None:
    world.rows(["write a note", "two", "three"])
    world.configure(n=2)
    summary = await world.evaluate("--rows", "0,2")

    assert (summary["total_work_items"], summary["dispatched"], summary["succeeded"]) == (4, 4, 4)
    index = world.index()
    assert [(entry["row_index"], entry["run_index"]) for entry in index] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert set(index[0]) == {
        *("row_index", "run_index", "rollout_id", "trajectory_filename"),
        *("status", "reward", "tokens", "duration_ms"),
    }
    lines = (world.directory / "conversations.jsonl").read_text().splitlines()
    conversations = {line["rollout_id"]: line["trajectory"] for line in map(json.loads, lines)}
    for entry in index:
        trajectory = world.read(f"trajectories/row_{entry['row_index']}_run_{entry['run_index']}.json")
        assert trajectory == conversations[entry["rollout_id"]]
        about = trajectory["extra"]["osmosis"]
        assert about["request_extra_fields"] == {
            "row_index": entry["row_index"],
            "run_index": entry["run_index"],
            "source_row_index": (0, 2)[entry["row_index"]],
        }
    assert (world.directory / "artifacts" / "row_0_run_0" / "note.txt").read_text() == "write a note"
    metrics = world.metrics()
    assert metrics["eval_run"]["status"] == "finished"
    assert metrics["eval_run"]["id"] == world.read("manifest.json")["local_run_id"]
    assert metrics["summary"]["pass_rate"] == 1.0
    assert metrics["estimates"]["counts"]["scored"] == 4
    assert {record["source_row_index"] for record in world.records()} == {0, 2}


@pytest.mark.e2e
async def test_row_failures_are_classified(world: World) -> None:
    said = ["raise", "number", "no reward", "nan", "remove", "right"]
    world.rows(said)
    summary = await world.evaluate()

    by_prompt = {said[record["row_index"]]: record for record in world.records()}
    found = {
        prompt: (record["status"], record.get("error_type"), record.get("boundary"))
        for prompt, record in by_prompt.items()
    }
    assert found == {
        "raise": ("failed", "agent_error", "agent"),
        "number": ("failed", "validation_error", "agent"),
        "no reward": ("failed", "validation_error", "grader"),
        "nan": ("failed", "validation_error", "grader"),
        "remove": ("skipped", None, None),
        "right": ("success", None, None),
    }
    assert "the agent broke" in by_prompt["raise"]["error"]
    assert [failure["row_index"] for failure in summary["failed_rows"]] == [0, 1, 2, 3]
    assert world.metrics()["estimates"]["counts"]["scored"] == 1


@pytest.mark.e2e
async def test_budget_and_resume(world: World) -> None:
    world.rows([f"row {row}" for row in range(12)])
    limited = ("--max-tokens", "10", "--max-in-flight", "2")
    first = await world.evaluate(*limited)
    assert first["stopped"]["kind"] == "budget" and "--max-tokens 10" in first["stopped"]["reason"]
    assert 0 < first["succeeded"] < 12
    assert first["succeeded"] + first["pending"] == 12
    assert world.metrics()["eval_run"]["status"] == "incomplete"

    stuck = await world.evaluate(*limited)  # what was spent before counts
    assert (stuck["dispatched"], stuck["succeeded"]) == (0, first["succeeded"])

    rest = await world.evaluate()
    assert (rest["pending"], rest["dispatched"]) == (0, 12 - first["succeeded"])


@pytest.fixture
def in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace for commands in this process, with a stand-in model in another."""
    workspace = make_workspace(tmp_path / "workspace")
    (workspace.root / CONFIG).write_text(MINIMAL_EVAL)
    write_rollout(workspace.rollouts_dir / "multiply")
    write_rows(workspace.data_dir / "multiply.jsonl", ["one", "two", "three"])
    monkeypatch.chdir(workspace.root)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-stand-in")
    root = Path(eval_world.__file__).parents[2]
    command = [sys.executable, "-m", "tests.standin_model"]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as model:
        assert model.stdout is not None
        monkeypatch.setenv("OPENAI_BASE_URL", model.stdout.readline().strip())
        yield workspace.evals_dir
        model.kill()


@pytest.mark.e2e
@pytest.mark.usefixtures("in_process", "warm_children_without_torch")
def test_budget_counts_unwritten_results(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Journal.append

    async def append_late(journal: Journal, record: Any) -> int:
        await asyncio.sleep(1)
        return await append(journal, record)

    monkeypatch.setattr(Journal, "append", append_late)
    run = ("eval", "run", CONFIG, "--yes", "--json", "--max-tokens", "1", "--max-in-flight", "1")
    summary = cli(*run).resource
    assert (summary["dispatched"], summary["succeeded"], summary["pending"]) == (1, 1, 2)


@pytest.mark.e2e
@pytest.mark.usefixtures("in_process", "warm_children_without_torch")
def test_model_lost_during_server_start(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from osmosis_ai.evaluation import sources

    open_policy = sources.open_policy

    @asynccontextmanager
    async def dying(path: str, env: Mapping[str, str], lost: Any) -> AsyncIterator[Any]:
        async with open_policy(path, env, lost) as endpoint:
            asyncio.get_running_loop().call_soon(lost, OsmosisError("the model died"))
            yield endpoint

    monkeypatch.setattr(sources, "open_policy", dying)
    summary = cli("eval", "run", CONFIG, "--yes", "--json").resource
    assert "the model died" in summary["stopped"]["reason"]
    assert (summary["pending"], summary["dispatched"]) == (3, 0)


@pytest.mark.e2e
async def test_retry_failed(world: World) -> None:
    world.rows(["one", "remove", "three"])
    refusing = True
    world.model.respond = lambda body: (
        error_reply(400, "no") if refusing and body["messages"][0]["content"] == "three" else Reply()
    )
    assert (await world.evaluate())["failed"] == 1
    refusing = False
    assert [each["input"] for each in world.records() if each["status"] == "failed"] == ["three"]
    summary = await world.evaluate("--retry-failed", "--no-previews")
    counts = {"dispatched": 2, "resumed": 1, "failed": 0, "skipped": 1}
    assert {**summary, **counts} == summary
    assert [record["row_index"] for record in world.records()[-2:]] in ([1, 2], [2, 1])
    previews = {
        record["row_index"]: (record.get("input"), record.get("output")) for record in world.records()
    }
    assert previews == {0: ("one", Reply().content), 1: (None, None), 2: (None, None)}
    index = world.index()
    assert [entry.get("resumed", False) for entry in index] == [True, False, False]
    trajectory = world.read("trajectories/row_2_run_0.json")
    assert trajectory["session_id"] == index[2]["rollout_id"]
    [step] = [step for step in trajectory["steps"] if step["source"] == "agent"]
    assert step["extra"]["duration_ms"] == step["metrics"]["extra"]["latency_ms"] > 0
    started = step["metrics"]["extra"]["started_at"]
    assert datetime.fromisoformat(step["timestamp"]) == datetime.fromisoformat(started)


@pytest.mark.e2e
@pytest.mark.parametrize("servers", ["1", "2"])
async def test_row_that_kills_the_server_stops_the_run(world: World, servers: str) -> None:
    world.rows(["one", "die"])
    options = ("--name", "run", "--max-in-flight", servers, "--servers", servers)
    outcome = await world.osmosis("run", CONFIG, "--yes", "--plain", *options)
    shown = outcome.out + outcome.err
    assert outcome.status == 1
    assert "about to die" in shown and "row 1 was running" in shown and "'--rows 1'" in shown
    assert [(record["row_index"], record["status"]) for record in world.records()] == [(0, "success")]


@pytest.mark.e2e
async def test_resumed_metrics_cover_the_whole_journal(world: World) -> None:
    world.model.respond = lambda body: Reply("wrong" if body["messages"][0]["content"] == "two" else "ok")
    world.configure(n=2)
    await world.evaluate("--max-tokens", "1")
    await world.evaluate()
    resumed = world.metrics()
    again = await world.evaluate()
    assert (again["resumed"], again["dispatched"]) == (6, 0)
    resumed["estimates"]["limited_by"] = None
    found = (await world.osmosis("info", "run", "--json")).data["metrics"]
    found["estimates"]["limited_by"] = None
    assert found == {**resumed["summary"], "estimates": resumed["estimates"]}


@pytest.mark.e2e
@pytest.mark.parametrize(("row", "bottleneck"), [("one", "provider"), ("slow grader", None)])
async def test_model_bottleneck(world: World, row: str, bottleneck: str | None) -> None:
    world.rows([row])
    world.model.latency_s = 1.5 if bottleneck else 0.0
    world.configure(grader_timeout_s=2.0)
    await world.evaluate()
    limited = world.metrics()["estimates"]["limited_by"]
    assert (limited and limited["most"]) in (bottleneck, "this_machine")


@pytest.mark.e2e
async def test_secrets_reach_the_agent_and_no_file(world: World) -> None:
    (world.workspace.root / CONFIG).write_text(MINIMAL_EVAL.replace("[]", '["AGENT_KEY"]'))
    (world.workspace.root / "secrets.env").write_text("AGENT_KEY=hunter2-hunter2\n")
    world.rows(["raise", "two"])
    summary = await world.evaluate("--secrets-file", "secrets.env")
    assert "key=[REDACTED]" in summary["failed_rows"][0]["error"]
    for path in world.directory.rglob("*"):
        if path.is_file():
            assert b"hunter2" not in path.read_bytes(), path
            assert b"sk-stand-in" not in path.read_bytes(), path


async def test_damaged_journal_and_salvage(world: World) -> None:
    world.configure(n=2)
    assert (await world.evaluate())["succeeded"] == 6
    (world.directory / "metrics.json").write_text('{"eval_run": [], "duration_ms": {}}')
    events = world.directory / "events.jsonl"
    damaged = events.read_bytes().replace(b'"reward":1.0', b'"reward":0.0', 1)
    events.write_bytes(damaged)
    error = await world.refused()
    assert "damaged at line 1" in error["message"] and "--salvage" in error["hint"]
    assert events.read_bytes() == damaged

    assert "5 results are intact. Dropped line 1 of the journal" in await world.notes("--salvage")
    assert sorted(entry.get("resumed", False) for entry in world.index()) == [False, *[True] * 5]
    assert world.metrics()["summary"]["pass_rate"] == 1.0
    assert len(list((world.directory / "trajectories").iterdir())) == 6
    assert (world.directory / "events.jsonl.damaged").read_bytes() == damaged

    # A result of another row at the same place, such as one of a copied journal.
    content = events.read_bytes()
    events.write_bytes(content + foreign_line(content.splitlines()[0]))
    assert "not part of the run" in (await world.refused())["message"]
    await world.evaluate("--salvage")

    victim = world.workspace.root / "victim.txt"
    (world.directory / "logs.txt").replace(victim)
    (world.directory / "logs.txt").symlink_to(victim)
    written = victim.read_bytes()
    assert "is a symbolic link" in (await world.refused())["message"]
    assert victim.read_bytes() == written


@pytest.mark.e2e
async def test_salvaged_older_result_has_its_conversation(world: World) -> None:
    world.rows(["remove"])
    for answer, options in (("first", ()), ("second", ("--retry-failed",))):
        world.model.respond = lambda _, answer=answer: Reply(content=answer)  # type: ignore[misc]
        await world.evaluate(*options)
    events = world.directory / "events.jsonl"
    first, second = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(first + second.replace(b'"skipped"', b'"success"'))
    await world.evaluate("--salvage")
    written = world.read("trajectories/row_0_run_0.json")
    assert written["session_id"] == world.records()[0]["rollout_id"]
    assert written["steps"][-1]["message"] == "first"


async def test_duplicate_rows_note_and_clusters(world: World) -> None:
    world.rows(["one", "two", "one", "three", "one"])
    assert "2 of 5 rows are duplicates of another" in await world.notes()
    estimates = world.metrics()["estimates"]
    assert (estimates["pass_rate"]["clusters"], estimates["counts"]["copies"]) == (3, 2)


# A busy machine that is late loses attempts, which are made again.
_TIMES_AND_IDS = frozenset({"rollout_id", "duration_ms", "limited_by", "lost_attempts"})
# Every attempt says in its artifacts which process made it.
_SAYS_WHO = AGENT.replace(
    "        said = ctx.prompt",
    '        (ctx.artifacts_dir / "pid").write_text(str(os.getpid()))\n        said = ctx.prompt',
    1,
)


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: without_times(each)
            for key, each in value.items()
            if key not in _TIMES_AND_IDS
            and "latency" not in key
            and "duration" not in key
            and "_ms" not in key
        }
    return [without_times(each) for each in value] if isinstance(value, list) else value


def pids(world: World) -> dict[str, int]:
    """Return the process of each rollout that has begun."""
    found = world.directory.glob("rollout_trials/*/artifacts/pid")
    return {path.parent.parent.name: int(path.read_text() or 0) for path in found}


async def begun(world: World, count: int) -> dict[str, int]:
    """Wait until so many rollouts have begun; return their processes."""

    async def enough() -> dict[str, int]:
        while len(found := {name: pid for name, pid in pids(world).items() if pid}) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return found

    return await asyncio.wait_for(enough(), 60)


@pytest.mark.e2e
async def test_several_servers_equal_one(world: World) -> None:
    world.rollout(_SAYS_WHO)
    world.rows([*(f"row {row}" for row in range(12)), "raise", "no reward", "number"])
    world.configure(n=2)
    results = []
    for servers in (1, 4):
        assert (await world.evaluate("--servers", str(servers), "--fresh"))["pending"] == 0
        numbers = world.metrics()
        results.append(without_times([world.index(), numbers["summary"], numbers["estimates"]]))
        assert len(set(pids(world).values())) == servers
        assert world.read("manifest.json")["provenance"]["servers"] == servers
        logs = sorted(path.name for path in world.directory.glob("rollout-server*.log"))
        assert logs == sorted(
            ["rollout-server.log", *(f"rollout-server-{n}.log" for n in range(2, servers + 1))]
        )
    assert results[0] == results[1]


@pytest.mark.e2e
async def test_kill_of_one_of_three_servers(world: World) -> None:
    world.rollout(_SAYS_WHO)
    world.rows([f"row {row}" for row in range(30)])
    answers = asyncio.Event()
    # The preflight is answered.
    world.model.respond = lambda _: Reply(wait_for=answers if world.model.calls > 1 else None)
    options = ("--name", "run", "--servers", "3", "--max-in-flight", "9")
    running = await world.start("run", CONFIG, "--yes", "--plain", *options)
    before = await begun(world, 9)
    assert sorted(list(before.values()).count(pid) for pid in set(before.values())) == [3, 3, 3]
    assert not world.records(), "it falls in mid-run"
    killed = min(before.values())
    os.kill(killed, signal.SIGKILL)
    # The three that were lost are made again on the server that takes its place; nobody else is disturbed.
    after = await begun(world, 12)
    assert set(before.items()) <= set(after.items())
    answers.set()
    _, err = await asyncio.wait_for(running.communicate(), 300)
    assert running.returncode == 0, err
    assert (len(world.records()), len(await begun(world, 33))) == (30, 33)
    kept = {name for name, pid in before.items() if pid != killed}
    assert kept <= {record["rollout_id"] for record in world.records()}
    assert len({(record["row_index"], record["run_index"]) for record in world.records()}) == 30
    assert err.count(b"Starting it again") == 1


# Asks no model of its own: every call is the grader's.
JUDGED = """
from osmosis_ai import evaluate_rubric

os.environ["OPENAI_BASE_URL"] = "{base_url}"


class Done(AgentWorkflow):
    async def run(self, ctx):
        return [*ctx.prompt, {{"role": "assistant", "content": "done"}}]


class Judged(Grader):
    async def grade(self, ctx):
        said = ctx.sample.messages[0]["content"]
        key = None if said == "keyless" else "sk-judge"
        model = "anthropic/judge" if said == "keyless" else "openai/judge"
        result = await evaluate_rubric(solution_str=said, rubric="Be kind.", model=model, api_key=key)
        ctx.set_reward(result.score)
"""


def write_judged(world: World) -> None:
    judged = JUDGED.format(base_url=world.model.base_url)
    world.rollout(agent_with(judged, workflow="Done", grader="Judged"))


@pytest.mark.e2e
async def test_judge_explanation_and_cost(world: World) -> None:
    usage = {"prompt_tokens": 90, "completion_tokens": 10, "cost": 0.25}
    good = Reply('{"score": 0.5, "explanation": "Polite."}', usage=usage)
    outside = Reply('{"score": 4, "explanation": "Great."}', usage=usage)
    world.model.respond = lambda body: outside if "outside" in str(body["messages"]) else good
    write_judged(world)
    world.rows(["one", "keyless", "outside"])
    summary = await world.evaluate()
    assert (summary["succeeded"], summary["failed"]) == (2, 1)
    scored, keyless, clamped = sorted(world.records(), key=lambda record: int(record["row_index"]))
    judgement = {"model": "openai/judge", "score": 0.5, "explanation": "Polite."}
    assert scored["reward"] == 0.5
    assert scored["judgements"] == [judgement]
    assert (scored["judge_calls"], scored["judge_tokens"], scored["judge_cost_usd"]) == (1, 100, 0.25)
    assert keyless["boundary"] == "grader" and "ANTHROPIC_API_KEY" in keyless["error"]
    assert "judge_calls" not in keyless
    assert (clamped["reward"], clamped["judgements"][0]["stated_score"]) == (1.0, 4.0)
    assert clamped["judgements"][0]["score"] == 1.0

    trajectory = world.read("trajectories/row_0_run_0.json")
    kept = trajectory["extra"]["osmosis"]["sample_extra_fields"]["judge_calls"]
    assert kept["judgements"] == [judgement]

    judges = {"calls": 2, "tokens": 200, "cost_usd": 0.5, "outside_scale": 1}
    assert world.metrics()["estimates"]["judges"] == judges
    shown = (await world.osmosis("info", "run", "--plain")).out
    assert (
        "  Judges                    $0.50, 2 calls, 200 tokens, 1 score outside the scale, clamped\n"
        in shown
    )

    world.rows([f"row {row}" for row in range(12)])
    limited = await world.run("--name", "limited", "--max-cost", "0.5", "--max-in-flight", "2")
    assert "--max-cost 0.5" in limited.resource["stopped"]["reason"]
    assert 2 <= limited.resource["succeeded"] < 12
