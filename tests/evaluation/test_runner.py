"""A run as a whole: a real rollout server, a stand-in for the model, real files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.datasets import count_records, file_digest, select_rows
from osmosis_ai.driving.attempts import call_seed
from osmosis_ai.driving.machine import LimitedBy, LimitTally, MachineWatch
from osmosis_ai.errors import OsmosisError, ResumeRefusedError
from osmosis_ai.evaluation import journal as journal_module
from osmosis_ai.evaluation import journal_checkpoint
from osmosis_ai.evaluation.budget import Budget
from osmosis_ai.evaluation.rollout_source import ProjectSource
from osmosis_ai.evaluation.runner import EvalRunner
from osmosis_ai.evaluation.spec import DatasetInput, EvalRunOptions
from osmosis_ai.evaluation.summary import RunSummary
from osmosis_ai.llm.errors import ModelCallError
from osmosis_ai.llm.providers import ModelEndpoint
from tests.evaluation.builders import spec
from tests.evaluation.recording_hooks import RecordingHooks
from tests.evaluation.rollouts import LATE_AGENT, write_rollout, write_rows
from tests.standin_model import Reply, StandInModel, error_reply

pytestmark = pytest.mark.e2e


class World:
    """A rollout, a dataset and a stand-in model; every call of :meth:`run` is a new session."""

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

    def metrics(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "metrics.json").read_text())
        return found


@pytest.fixture
async def cold_world(tmp_path: Path) -> AsyncIterator[World]:
    """One whose rollout servers are children of this process: it is told of their deaths at once."""
    async with StandInModel() as model:
        yield World(tmp_path, model)


@pytest.fixture
def world(cold_world: World, warm_children_without_torch: None) -> World:
    """One whose rollout servers are forked warm."""
    return cold_world


async def test_a_run_leaves_a_directory_that_a_person_and_a_platform_can_read(world: World) -> None:
    write_rows(world.rows, ["write a note", "two", "three"])
    summary = await world.run(n=2, rows="0,2")

    assert (summary.total_work_items, summary.dispatched, summary.succeeded) == (4, 4, 4)
    assert summary.complete
    index = [json.loads(line) for line in (world.directory / "index.jsonl").read_text().splitlines()]
    assert [(entry["row_index"], entry["run_index"]) for entry in index] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert (world.directory / "summary.jsonl").read_bytes() == (world.directory / "index.jsonl").read_bytes()
    assert set(index[0]) == {
        *(
            "row_index",
            "run_index",
            "rollout_id",
            "trajectory_filename",
            "status",
            "reward",
            "tokens",
            "duration_ms",
        )
    }
    for entry in index:
        name = f"row_{entry['row_index']}_run_{entry['run_index']}"
        copy = world.directory / "trajectories" / f"{name}.json"
        raw = world.directory / "rollout_trials" / entry["rollout_id"] / entry["trajectory_filename"]
        assert copy.read_bytes() == raw.read_bytes()
        about = json.loads(copy.read_text())["extra"]["osmosis"]
        assert about["request_extra_fields"] == {
            "row_index": entry["row_index"],
            "run_index": entry["run_index"],
            "source_row_index": (0, 2)[entry["row_index"]],
        }
    assert (world.directory / "artifacts" / "row_0_run_0" / "note.txt").read_text() == "write a note"
    assert json.loads((world.directory / "progress.json").read_text()) == {
        "total_runs": 4,
        "sampled_rows": 2,
        "total_dataset_rows": 3,
    }
    metrics = world.metrics()
    assert metrics["eval_run"]["status"] == "finished"
    assert (
        metrics["eval_run"]["id"]
        == json.loads((world.directory / "manifest.json").read_text())["local_run_id"]
    )
    assert metrics["summary"]["pass_rate"] == 1.0
    assert metrics["estimates"]["counts"]["scored"] == 4
    assert {record["source_row_index"] for record in world.records()} == {0, 2}


async def test_every_model_call_carries_its_seed_and_the_agents_words(world: World) -> None:
    await world.run(options={"seed": 5}, n=2, rows="1")
    bodies = [
        request.body for request in world.model.requests if request.body["messages"][0]["content"] == "two"
    ]
    assert sorted(body["seed"] for body in bodies) == sorted(
        call_seed(5, 1, attempt, 0) for attempt in range(2)
    )
    assert {body["model"] for body in bodies} == {"stand-in"}


async def test_what_goes_wrong_in_one_row_is_told_apart_and_stops_nothing(world: World) -> None:
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
    assert [failure.record.row_index for failure in summary.failures] == [0, 1, 2, 3]
    assert world.metrics()["estimates"]["counts"]["scored"] == 1


@pytest.mark.parametrize(
    ("prompt", "limited", "boundary"),
    [("hang", "agent_workflow", "agent"), ("slow grader", "grader", "grader")],
)
async def test_who_takes_too_long_in_one_row_is_told_apart_and_stops_nothing(
    world: World, prompt: str, limited: str, boundary: str
) -> None:
    write_rows(world.rows, [prompt, prompt])
    summary = await world.run(**{f"{limited}_timeout_s": 1.0})
    found = [(each["status"], each.get("error_type"), each.get("boundary")) for each in world.records()]
    assert found == [("failed", "timeout", boundary)] * 2
    assert summary.complete and len(summary.failures) == 2
    assert world.metrics()["estimates"]["counts"]["scored"] == 0


async def test_a_row_that_failed_on_its_model_is_the_providers_failure(world: World) -> None:
    world.model.respond = lambda body: (
        error_reply(400, "This model refuses to talk about two.")
        if body["messages"][0]["content"] == "two"
        else Reply()
    )
    await world.run()
    failed = [record for record in world.records() if record["status"] == "failed"]
    assert [(record["row_index"], record["boundary"]) for record in failed] == [(1, "provider")]
    assert "refuses to talk about two" in failed[0]["error"]
    assert world.metrics()["estimates"]["counts"]["infrastructure_failures"] == 1


def say_when_asked(body: Mapping[str, Any]) -> Reply:
    """Leave the file that a prompt of the late agent names, and do not answer the call that is cut off then."""
    _, _, path = body["messages"][-1]["content"].partition(": ")
    if not path or Path(path).exists():
        return Reply()
    Path(path).touch()
    return Reply(wait_for=asyncio.Event())


async def test_what_a_late_machine_lost_is_made_again_and_counted_apart(world: World, tmp_path: Path) -> None:
    write_rollout(world.rollout_dir, LATE_AGENT)
    world.model.respond = say_when_asked
    write_rows(
        world.rows,
        [
            f"cut off: {tmp_path}/1",
            f"never heard once: {tmp_path}/2",
            f"always cut off: {tmp_path}/3",
            "on time",
        ],
    )
    # One at a time: what one stands still for is no other's lateness.
    summary = await world.run(options={"max_in_flight": 1})

    records = [record for _, record in sorted((record["row_index"], record) for record in world.records())]
    assert [record["status"] for record in records] == ["success", "success", "failed", "success"]
    assert [record.get("lost_attempts") for record in records] == [1, 1, 2, None]
    assert (records[2]["error_type"], records[2]["boundary"]) == ("timeout", "rollout_server")
    assert "cut off 3 times while this machine was late" in records[2]["error"]
    counts = world.metrics()["estimates"]["counts"]
    assert (counts["scored"], counts["lost_attempts"], counts["infrastructure_failures"]) == (3, 4, 1)
    assert summary.dispatched == 8
    log = (world.directory / "logs.txt").read_text()
    assert log.count("its model call was cut off by its client while this machine was late") == 3
    assert log.count("its model call never arrived while this machine was late") == 1


async def test_a_client_that_gives_up_on_a_slow_model_is_the_agents_failure(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def on_time(watch: MachineWatch, since: float, server: object) -> bool:
        return False

    # What else this machine does must not matter here.
    monkeypatch.setattr(MachineWatch, "was_late", on_time)
    write_rollout(world.rollout_dir, LATE_AGENT)
    world.model.respond = say_when_asked
    write_rows(world.rows, [f"impatient: {tmp_path}/1"])
    await world.run()
    (record,) = world.records()
    assert (record["status"], record["error_type"], record["boundary"]) == ("failed", "timeout", "agent")
    assert record["error"] == "no answer in time"
    assert "lost_attempts" not in record


async def test_the_result_says_what_held_the_run_back(world: World) -> None:
    world.model.latency_s = 0.5
    await world.run()
    limited = world.metrics()["estimates"]["limited_by"]
    assert limited["most"] in ("provider", "this_machine")
    assert limited["provider"] + limited["rate_limit"] + limited["this_machine"] == pytest.approx(1, abs=1e-3)


async def test_a_model_that_was_never_asked_held_nothing_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_the_model = LimitedBy(most="provider", provider=1.0, rate_limit=0.0, this_machine=0.0)
    monkeypatch.setattr(LimitTally, "limited_by", lambda tally: by_the_model)
    write_rows(world.rows, ["raise"])
    await world.run()
    assert world.records()[0]["status"] == "failed"
    assert world.metrics()["estimates"]["limited_by"] is None


async def test_a_key_that_is_refused_ends_the_run_before_the_first_row_in_the_providers_words(
    world: World,
) -> None:
    world.model.respond = lambda _: error_reply(401, "Incorrect API key provided.", code="invalid_api_key")
    with pytest.raises(ModelCallError, match="Incorrect API key provided"):
        await world.run()
    assert world.records() == []
    assert world.metrics()["eval_run"]["status"] == "incomplete"

    world.model.respond = lambda _: Reply()
    assert (await world.run()).complete


async def test_running_it_again_asks_nothing_and_starts_nothing(world: World) -> None:
    first = await world.run()
    calls = world.model.calls
    records = world.records()
    world.hooks = RecordingHooks()
    again = await world.run()
    assert (again.dispatched, again.resumed, again.local_run_id) == (0, 3, first.local_run_id)
    assert world.model.calls == calls
    assert world.records() == records
    assert world.hooks.asked == []
    index = [json.loads(line) for line in (world.directory / "index.jsonl").read_text().splitlines()]
    assert all(entry["resumed"] is True for entry in index)
    assert again.metrics.wire == first.metrics.wire


async def test_declining_writes_nothing(world: World) -> None:
    world.hooks = RecordingHooks(agrees=False)
    assert await world.runner().run() is None
    assert world.hooks.asked == [3]
    assert not world.directory.exists()


async def test_resume_refuses_when_the_rollouts_code_changed(world: World) -> None:
    await world.run()
    (world.rollout_dir / "extra.py").write_text("x = 1\n")
    with pytest.raises(ResumeRefusedError, match="Changed: rollout"):
        await world.run()


async def test_a_spent_budget_leaves_the_rest_pending_and_a_higher_one_goes_on(world: World) -> None:
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


async def test_retrying_redoes_failed_and_skipped_rows_and_keeps_the_rest(world: World) -> None:
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
    index = [json.loads(line) for line in (world.directory / "index.jsonl").read_text().splitlines()]
    assert [entry.get("resumed", False) for entry in index] == [True, False, False]
    trajectory = json.loads((world.directory / "trajectories" / "row_2_run_0.json").read_text())
    assert trajectory["session_id"] == index[2]["rollout_id"]
    [step] = [step for step in trajectory["steps"] if step["source"] == "agent"]
    assert step["extra"]["duration_ms"] == step["metrics"]["extra"]["latency_ms"] > 0
    started = step["metrics"]["extra"]["started_at"]
    assert datetime.fromisoformat(step["timestamp"]) == datetime.fromisoformat(started)


async def test_a_server_that_dies_is_started_again_and_its_rollouts_run_again(cold_world: World) -> None:
    write_rows(
        cold_world.rows, [f"row {row}" for row in range(6)] + [f"die once {cold_world.root / 'died'}", "last"]
    )
    summary = await cold_world.run(options={"max_in_flight": 3})
    assert summary.complete
    assert summary.succeeded == 8
    assert summary.dispatched > 8
    assert len(cold_world.records()) == 8
    assert len({record["rollout_id"] for record in cold_world.records()}) == 8
    assert any("Starting it again" in note for note in cold_world.hooks.notes)


async def test_a_row_that_always_kills_the_server_halts_the_run_with_the_servers_last_words(
    cold_world: World,
) -> None:
    write_rows(cold_world.rows, ["one", "die"])
    summary = await cold_world.run(options={"max_in_flight": 1})
    assert summary.stop is not None
    assert summary.stop.kind == "fault"
    assert "about to die" in summary.stop.reason
    assert (summary.succeeded, summary.pending, summary.failed) == (1, 1, 0)
    assert [record["row_index"] for record in cold_world.records()] == [0]


async def test_rows_that_go_down_together_are_named_together(cold_world: World) -> None:
    write_rows(cold_world.rows, ["one", "hang", "die"])
    summary = await cold_world.run(options={"max_in_flight": 2})
    assert summary.stop is not None
    reason, _, words = summary.stop.reason.partition("\n")
    assert reason == (
        "the rollout's server died 4 times while rows 1, 2 were under way. "
        "The last time: the rollout server `main.py` ended (exit status 7)."
    )
    assert "about to die" in words
    assert (
        summary.stop.error.hint
        == "one of these rows does it: try it alone with `--rows 1`. What is finished is kept"
    )
    assert summary.pending == 2


async def test_a_rollout_that_cannot_be_imported_fails_with_its_own_words(world: World) -> None:
    write_rollout(world.rollout_dir, "import no_such_module\n")
    with pytest.raises(OsmosisError, match="No module named 'no_such_module'"):
        await world.run()
    assert world.records() == []


async def test_an_interruption_leaves_the_rest_pending_and_the_same_command_goes_on(world: World) -> None:
    write_rows(world.rows, [f"row {row}" for row in range(30)])
    never = asyncio.Event()

    def answer_ten_rows(body: Mapping[str, Any]) -> Reply:
        kind, _, number = body["messages"][0]["content"].partition(" ")
        return Reply(wait_for=never if kind == "row" and int(number) >= 10 else None)

    world.model.respond = answer_ten_rows
    world.hooks.on_progress = lambda snapshot: world.hooks.interrupt() if snapshot.completed >= 10 else None
    summary = await world.run(options={"max_in_flight": 5})
    assert summary.stop is not None
    assert summary.stop.kind == "interrupted"
    assert (summary.succeeded, summary.pending) == (10, 20)

    world.model.respond = lambda _: Reply()
    world.hooks = RecordingHooks()
    rest = await world.run()
    assert (rest.dispatched, rest.resumed, rest.succeeded) == (20, 10, 30)


async def test_a_run_that_goes_on_from_a_checkpoint_tells_what_its_whole_journal_tells(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_checkpoint, "EVERY", 2)
    world.model.respond = lambda body: Reply("wrong" if body["messages"][0]["content"] == "two" else "ok")
    await world.run(options={"budget": Budget(max_tokens=1)}, n=2)
    await world.run(n=2)
    files = ("index.jsonl", "summary.jsonl")
    told = []
    for known in (6, None):
        await world.run(n=2)
        last = [json.loads(line[line.index("{") :]) for line in world.log() if "continuing from" in line][-1]
        assert last == {"finished": 6, **({"from_checkpoint": known} if known else {})}
        numbers = {name: world.metrics()[name] for name in ("summary", "estimates")}
        told.append((numbers, [(world.directory / name).read_bytes() for name in files]))
        (world.directory / "events.checkpoint").unlink()
    assert told[0] == told[1]


async def test_a_disk_that_fills_up_halts_the_run_and_loses_nothing_that_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(world.rows, [f"row {row}" for row in range(20)])
    flush = journal_module._flush_to_disk
    flushed = 0

    def fill_up(descriptor: int) -> None:
        nonlocal flushed
        flushed += 1
        if flushed > 3:
            raise OSError(28, "No space left on device")
        flush(descriptor)

    monkeypatch.setattr(journal_module, "_flush_to_disk", fill_up)
    summary = await world.run(options={"max_in_flight": 1})
    assert summary.stop is not None
    assert "the disk is full" in summary.stop.reason
    assert (summary.succeeded, summary.pending) == (3, 17)
    assert [record["row_index"] for record in world.records()] == [0, 1, 2]

    monkeypatch.undo()
    rest = await world.run()
    assert (rest.dispatched, rest.succeeded) == (17, 20)


async def test_secrets_reach_the_agent_and_no_file(world: World) -> None:
    world.hooks = RecordingHooks(secret_values={"AGENT_KEY": "hunter2-hunter2"})
    write_rows(world.rows, ["raise", "two"])
    summary = await world.run(secret_names=("AGENT_KEY",))
    assert summary.failures[0].record.error is not None
    assert "key=[REDACTED]" in summary.failures[0].record.error
    for path in world.directory.rglob("*"):
        if path.is_file():
            assert b"hunter2" not in path.read_bytes(), path
            assert b"sk-model-key" not in path.read_bytes(), path


async def test_the_last_progress_shows_the_numbers_of_the_results(world: World) -> None:
    world.model.respond = lambda body: Reply("wrong" if body["messages"][0]["content"] == "two" else "ok")
    summary = await world.run()
    estimates = summary.metrics.estimates
    assert estimates.pass_rate is not None
    assert estimates.pass_rate.value == pytest.approx(2 / 3)
    last = world.hooks.snapshots[-1]
    assert (last.total, last.completed, last.in_flight) == (3, 3, 0)
    assert last.passed / last.scored == estimates.pass_rate.value


async def test_a_damaged_run_is_refused_by_line_and_salvaged_on_request(world: World) -> None:
    first = await world.run(n=2)
    assert first.complete
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
    assert any("5 results are intact and kept; line 1 of the journal" in note for note in world.hooks.notes)
    assert world.metrics()["summary"]["pass_rate"] == 1.0
    assert len(list((world.directory / "trajectories").iterdir())) == 6
    assert (world.directory / "events.jsonl.damaged").read_bytes() == damaged


async def test_rows_that_are_copies_are_one_cluster_and_said_before_anything_is_spent(world: World) -> None:
    write_rows(world.rows, ["one", "two", "one", "three", "one"])
    await world.run()
    assert any("2 of 5 rows are copies of another" in note for note in world.hooks.notes)
    estimates = world.metrics()["estimates"]
    assert (estimates["pass_rate"]["clusters"], estimates["counts"]["copies"]) == (3, 2)
