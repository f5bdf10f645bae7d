"""Complete runs with a real rollout server, a stand-in model and real files."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from osmosis_ai.cli.eval_runs.view import number_blocks
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.datasets import count_records, file_digest, select_rows
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.hooks import RunSummary
from osmosis_ai.evaluation.journal import Journal
from osmosis_ai.evaluation.local_results import read_local_results
from osmosis_ai.evaluation.metrics import Estimates
from osmosis_ai.evaluation.runner import EvalRunner
from osmosis_ai.evaluation.sources import ProjectSource
from osmosis_ai.evaluation.spec import Budget, DatasetInput, EvalRunOptions
from osmosis_ai.llm.providers import ModelEndpoint
from tests.evaluation.builders import spec
from tests.evaluation.recording_hooks import RecordingHooks
from tests.evaluation.rollouts import AGENT, agent_with, write_rollout, write_rows
from tests.standin_model import Reply, StandInModel, error_reply


class World:
    """A rollout, a dataset and a stand-in model; each call of :meth:`run` is a session."""

    def __init__(self, root: Path, model: StandInModel) -> None:
        self.root = root
        self.model = model
        self.rollout_dir = write_rollout(root / "rollouts" / "test")
        self.rows = write_rows(root / "rows.jsonl", ["one", "two", "three"])
        self.hooks = RecordingHooks()

    def runner(
        self, *, options: Mapping[str, Any] | None = None, rows: str | None = None, **changed: Any
    ) -> EvalRunner:
        @asynccontextmanager
        async def open_model(env: Mapping[str, str], lost: Any) -> AsyncIterator[ModelEndpoint]:
            yield ModelEndpoint(
                "openai/stand-in", "openai", "stand-in", "openai", self.model.base_url, "sk-model-key"
            )

        return EvalRunner(
            spec=spec(
                **{"rollout": "test", "agent_workflow_timeout_s": 600.0, "grader_timeout_s": 600.0, **changed}
            ),
            options=EvalRunOptions(**{"name": "run", **(options or {})}),
            dataset=DatasetInput(self.rows, "rows", file_digest(self.rows), "explicit"),
            selection=select_rows(count_records(self.rows), limit=None, rows=rows),
            rollout=ProjectSource(self.rollout_dir),
            output_root=self.root / "evals",
            hooks=self.hooks,
            open_model=open_model,
            cache_dir=self.root / "cache",
        )

    async def run(self, **changed: Any) -> RunSummary:
        summary = await asyncio.wait_for(self.runner(**changed).run(), 600)
        assert summary is not None
        return summary

    @property
    def directory(self) -> Path:
        return self.root / "evals" / "run"

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / "events.jsonl").read_text().splitlines()]

    def log(self) -> list[str]:
        return (self.directory / "logs.txt").read_text().splitlines()

    def read(self, name: str) -> Any:
        return json.loads((self.directory / name).read_text())

    def metrics(self) -> Any:
        return self.read("metrics.json")

    def index(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / "index.jsonl").read_text().splitlines()]


@pytest.fixture
async def cold_world(tmp_path: Path) -> AsyncIterator[World]:
    """Its rollout servers are children of this process, which learns of their end immediately."""
    async with StandInModel() as model:
        yield World(tmp_path, model)


@pytest.fixture
def world(cold_world: World, warm_children_without_torch: None) -> World:
    """Its rollout servers are forked from a warm process."""
    return cold_world


@pytest.mark.e2e
async def test_run_directory(world: World) -> None:
    write_rows(world.rows, ["write a note", "two", "three"])
    summary = await world.run(n=2, rows="0,2")

    assert (summary.total_work_items, summary.dispatched, summary.succeeded) == (4, 4, 4)
    assert summary.complete
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
    write_rows(world.rows, said)
    summary = await world.run()

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
    assert summary.complete
    assert [record.row_index for record in summary.failures] == [0, 1, 2, 3]
    assert world.metrics()["estimates"]["counts"]["scored"] == 1


@pytest.mark.e2e
async def test_budget_and_resume(world: World) -> None:
    write_rows(world.rows, [f"row {row}" for row in range(12)])
    limited = {"budget": Budget(max_tokens=10), "max_in_flight": 2}
    first = await world.run(options=limited)
    assert first.stop is not None
    assert first.stop.kind == "budget"
    assert "--max-tokens 10" in first.stop.reason
    assert 0 < first.succeeded < 12
    assert first.succeeded + first.pending == 12
    assert world.metrics()["eval_run"]["status"] == "incomplete"

    stuck = await world.run(options=limited)  # what was spent before counts
    assert (stuck.dispatched, stuck.succeeded) == (0, first.succeeded)

    rest = await world.run()
    assert rest.complete
    assert rest.dispatched == 12 - first.succeeded


@pytest.mark.e2e
async def test_budget_counts_unwritten_results(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Journal.append

    async def append_late(journal: Journal, record: TerminalRecord) -> int:
        await asyncio.sleep(1)
        return await append(journal, record)

    monkeypatch.setattr(Journal, "append", append_late)
    summary = await world.run(options={"budget": Budget(max_tokens=1), "max_in_flight": 1})
    assert (summary.dispatched, summary.succeeded, summary.pending) == (1, 1, 2)


@pytest.mark.e2e
async def test_retry_failed(world: World) -> None:
    write_rows(world.rows, ["one", "remove", "three"])
    refusing = True
    world.model.respond = lambda body: (
        error_reply(400, "no") if refusing and body["messages"][0]["content"] == "three" else Reply()
    )
    assert (await world.run()).failed == 1
    refusing = False
    assert [each["input"] for each in world.records() if each["status"] == "failed"] == ["three"]
    summary = await world.run(options={"retry_failed": True, "previews": False})
    assert (summary.dispatched, summary.resumed, summary.failed, summary.skipped) == (2, 1, 0, 1)
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
@pytest.mark.parametrize("servers", [1, 2])
async def test_row_that_kills_the_server_stops_the_run(cold_world: World, servers: int) -> None:
    write_rows(cold_world.rows, ["one", "die"])
    summary = await cold_world.run(options={"max_in_flight": servers, "servers": servers})
    assert summary.stop is not None
    assert summary.stop.kind == "fault"
    assert "about to die" in summary.stop.reason
    assert "row 1 was running" in summary.stop.reason
    assert isinstance(summary.stop.error, OsmosisError) and "'--rows 1'" in (summary.stop.error.hint or "")
    assert (summary.succeeded, summary.pending, summary.failed) == (1, 1, 0)
    assert [record["row_index"] for record in cold_world.records()] == [0]


@pytest.mark.e2e
async def test_resumed_metrics_cover_the_whole_journal(world: World) -> None:
    world.model.respond = lambda body: Reply("wrong" if body["messages"][0]["content"] == "two" else "ok")
    await world.run(options={"budget": Budget(max_tokens=1)}, n=2)
    await world.run(n=2)
    resumed = {name: world.metrics()[name] for name in ("summary", "estimates")}
    await world.run(n=2)
    last = [json.loads(line[line.index("{") :]) for line in world.log() if "continuing from" in line][-1]
    assert last == {"finished": 6}
    found = read_local_results(world.directory).metrics
    resumed["estimates"]["limited_by"] = None
    assert resumed == {"summary": found.summary, "estimates": found.estimates.model_dump(mode="json")}


@pytest.mark.e2e
@pytest.mark.parametrize(("row", "bottleneck"), [("one", "provider"), ("slow grader", None)])
async def test_model_bottleneck(world: World, row: str, bottleneck: str | None) -> None:
    write_rows(world.rows, [row])
    world.model.latency_s = 1.5 if bottleneck else 0.0
    await world.run(grader_timeout_s=2.0)
    limited = world.metrics()["estimates"]["limited_by"]
    assert (limited and limited["most"]) in (bottleneck, "this_machine")


@pytest.mark.e2e
async def test_secrets_reach_the_agent_and_no_file(world: World) -> None:
    world.hooks = RecordingHooks({"AGENT_KEY": "hunter2-hunter2"})
    write_rows(world.rows, ["raise", "two"])
    summary = await world.run(secret_names=("AGENT_KEY",))
    assert summary.failures[0].error is not None
    assert "key=[REDACTED]" in summary.failures[0].error
    for path in world.directory.rglob("*"):
        if path.is_file():
            assert b"hunter2" not in path.read_bytes(), path
            assert b"sk-model-key" not in path.read_bytes(), path


@pytest.mark.e2e
async def test_model_lost_during_server_start(world: World) -> None:
    runner = world.runner()
    opening, died = runner.open_model, OsmosisError("the model died")

    @asynccontextmanager
    async def dying(env: Mapping[str, str], lost: Any) -> AsyncIterator[ModelEndpoint]:
        async with opening(env, lost) as endpoint:
            asyncio.get_running_loop().call_soon(lost, died)
            yield endpoint

    runner.open_model = dying
    summary = await asyncio.wait_for(runner.run(), 600)
    assert summary is not None and summary.stop is not None and summary.stop.error is died
    assert (summary.pending, summary.dispatched) == (3, 0)


async def test_damaged_journal_and_salvage(world: World) -> None:
    first = await world.run(n=2)
    assert first.complete
    (world.directory / "metrics.json").write_text('{"eval_run": [], "duration_ms": {}}')
    events = world.directory / "events.jsonl"
    damaged = events.read_bytes().replace(b'"reward":1.0', b'"reward":0.0', 1)
    events.write_bytes(damaged)
    with pytest.raises(OsmosisError, match="damaged at line 1") as refused:
        await world.run(n=2)
    assert "--salvage" in (refused.value.hint or "")
    assert events.read_bytes() == damaged

    world.hooks = RecordingHooks()
    rest = await world.run(n=2, options={"salvage": True})
    assert (rest.resumed, rest.dispatched, rest.succeeded) == (5, 1, 6)
    assert any("5 results are intact. Dropped line 1 of the journal" in note for note in world.hooks.notes)
    assert world.metrics()["summary"]["pass_rate"] == 1.0
    assert len(list((world.directory / "trajectories").iterdir())) == 6
    assert (world.directory / "events.jsonl.damaged").read_bytes() == damaged

    # A result of another row at the same place, such as one of a copied journal.
    other = TerminalRecord.from_line(events.read_bytes().splitlines()[0])
    foreign = msgspec.structs.replace(other, row_digest="ab" * 32)
    events.write_bytes(events.read_bytes() + foreign.to_line())
    with pytest.raises(OsmosisError, match="not part of the run"):
        await world.run(n=2)
    await world.run(n=2, options={"salvage": True})

    victim = world.root / "victim.txt"
    (world.directory / "logs.txt").replace(victim)
    (world.directory / "logs.txt").symlink_to(victim)
    written = victim.read_bytes()
    with pytest.raises(OsmosisError, match="is a symbolic link"):
        await world.run(n=2)
    assert victim.read_bytes() == written


@pytest.mark.e2e
async def test_salvaged_older_result_has_its_conversation(world: World) -> None:
    world.rows = write_rows(world.root / "rows.jsonl", ["remove"])
    for answer in ("first", "second"):
        world.model.respond = lambda _, answer=answer: Reply(content=answer)  # type: ignore[misc]
        await world.run(options={"retry_failed": answer == "second"})
    events = world.directory / "events.jsonl"
    first, second = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(first + second.replace(b'"skipped"', b'"success"'))
    await world.run(options={"salvage": True})
    written = world.read("trajectories/row_0_run_0.json")
    assert written["session_id"] == world.records()[0]["rollout_id"]
    assert written["steps"][-1]["message"] == "first"


async def test_duplicate_rows_note_and_clusters(world: World) -> None:
    write_rows(world.rows, ["one", "two", "one", "three", "one"])
    await world.run()
    assert any("2 of 5 rows are duplicates of another" in note for note in world.hooks.notes)
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
    write_rollout(world.rollout_dir, _SAYS_WHO)
    write_rows(world.rows, [*(f"row {row}" for row in range(12)), "raise", "no reward", "number"])
    results = []
    for servers in (1, 4):
        summary = await world.run(options={"servers": servers, "fresh": True}, n=2)
        assert summary.complete
        numbers = world.metrics()
        results.append(without_times([world.index(), numbers["summary"], numbers["estimates"]]))
        assert len(set(pids(world).values())) == servers
        assert world.read("manifest.json")["provenance"]["servers"] == servers
        logs = sorted(path.name for path in world.directory.glob("rollout-server*.log"))
        assert logs == sorted(
            ["rollout-server.log", *(f"rollout-server-{n}.log" for n in range(2, servers + 1))]
        )
    assert results[0] == results[1]
    assert [plan.servers for plan in world.hooks.plans] == [1, 4]


@pytest.mark.e2e
async def test_kill_of_one_of_three_servers(cold_world: World) -> None:
    write_rollout(cold_world.rollout_dir, _SAYS_WHO)
    write_rows(cold_world.rows, [f"row {row}" for row in range(30)])
    answers = asyncio.Event()
    cold_world.model.respond = lambda _: Reply(wait_for=answers)
    options = {"servers": 3, "max_in_flight": 9, "preflight": False}
    run = asyncio.create_task(cold_world.run(options=options))
    before = await begun(cold_world, 9)
    assert sorted(list(before.values()).count(pid) for pid in set(before.values())) == [3, 3, 3]
    assert not cold_world.records(), "it falls in mid-run"
    killed = min(before.values())
    os.kill(killed, signal.SIGKILL)
    # The three that were lost are made again on the server that takes its place; nobody else is disturbed.
    after = await begun(cold_world, 12)
    assert set(before.items()) <= set(after.items())
    answers.set()
    summary = await run
    assert (summary.complete, summary.succeeded, summary.dispatched) == (True, 30, 33)
    kept = {name for name, pid in before.items() if pid != killed}
    assert kept <= {record["rollout_id"] for record in cold_world.records()}
    assert len({(record["row_index"], record["run_index"]) for record in cold_world.records()}) == 30
    assert len([note for note in cold_world.hooks.notes if "Starting it again" in note]) == 1


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
    write_rollout(world.rollout_dir, agent_with(judged, workflow="Done", grader="Judged"))


@pytest.mark.e2e
async def test_judge_explanation_and_cost(world: World) -> None:
    usage = {"prompt_tokens": 90, "completion_tokens": 10, "cost": 0.25}
    good = Reply('{"score": 0.5, "explanation": "Polite."}', usage=usage)
    outside = Reply('{"score": 4, "explanation": "Great."}', usage=usage)
    world.model.respond = lambda body: outside if "outside" in str(body["messages"]) else good
    write_judged(world)
    write_rows(world.rows, ["one", "keyless", "outside"])
    summary = await world.run()
    assert (summary.succeeded, summary.failed) == (2, 1)
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

    estimates = Estimates.model_validate(world.metrics()["estimates"])
    assert estimates.judges is not None
    expected = {"calls": 2, "tokens": 200, "cost_usd": 0.5, "outside_scale": 1}
    assert estimates.judges.model_dump() == expected
    (numbers,) = number_blocks(estimates, None)
    said = "  Judges                    $0.50, 2 calls, 200 tokens, 1 score outside the scale, clamped"
    assert said in numbers.text.splitlines()  # type: ignore[union-attr]

    write_rows(world.rows, [f"row {row}" for row in range(12)])
    limited = {"budget": Budget(max_cost_usd=0.5), "max_in_flight": 2, "name": "limited"}
    spent = await world.run(options=limited)
    assert spent.stop is not None and "--max-cost 0.5" in spent.stop.reason
    assert 2 <= spent.succeeded < 12
