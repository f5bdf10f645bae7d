"""One run on several rollout servers: the same results, and what a death among them costs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.driving.server_process import MAX_RESTARTS
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.spec import EvalRunOptions
from tests.evaluation.rollouts import AGENT, write_rollout, write_rows
from tests.evaluation.test_runner import World, cold_world, world
from tests.standin_model import Reply

__all__ = ["cold_world", "world"]

pytestmark = pytest.mark.e2e

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


def samples(world: World) -> list[Any]:
    lines = (world.directory / "index.jsonl").read_text().splitlines()
    return [without_times(json.loads(line)) for line in lines]


def pids(world: World) -> dict[str, int]:
    """Return which process made each rollout that has begun."""
    found = world.directory.glob("rollout_trials/*/artifacts/pid")
    return {path.parent.parent.name: int(path.read_text() or 0) for path in found}


async def begun(world: World, count: int) -> dict[str, int]:
    """Wait until so many rollouts are under way, each with its process known."""

    async def enough() -> dict[str, int]:
        while len(found := {name: pid for name, pid in pids(world).items() if pid}) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return found

    return await asyncio.wait_for(enough(), 60)


async def test_several_servers_give_the_results_of_one(world: World) -> None:
    write_rollout(world.rollout_dir, _SAYS_WHO)
    write_rows(world.rows, [*(f"row {row}" for row in range(12)), "raise", "no reward", "number"])
    results = []
    for servers in (1, 4):
        summary = await world.run(options={"servers": servers, "fresh": True}, n=2)
        assert summary.complete
        numbers = world.metrics()
        results.append(
            (samples(world), without_times(numbers["summary"]), without_times(numbers["estimates"]))
        )
        assert len(set(pids(world).values())) == servers
        manifest = json.loads((world.directory / "manifest.json").read_text())
        assert manifest["provenance"]["servers"] == servers
        logs = sorted(path.name for path in world.directory.glob("rollout-server*.log"))
        assert logs == sorted(
            ["rollout-server.log", *(f"rollout-server-{n}.log" for n in range(2, servers + 1))]
        )
    assert results[0] == results[1]
    assert [plan.servers for plan in world.hooks.plans] == [1, 4]


async def test_kill_9_of_one_of_three_loses_its_attempts_alone(cold_world: World) -> None:
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


async def test_servers_that_die_one_after_the_other_end_the_run_with_the_reason_and_another_number_goes_on(
    cold_world: World,
) -> None:
    write_rollout(cold_world.rollout_dir, AGENT.replace('if said == "die"', 'if os.environ.get("DIES")'))
    write_rows(cold_world.rows, [f"row {row}" for row in range(6)])
    runner = cold_world.runner(options={"servers": 3})
    runner._environ["DIES"] = "1"
    summary = await runner.run()
    assert summary is not None
    assert summary.stop is not None
    assert (summary.stop.kind, summary.pending) == ("fault", 6)
    assert "exit status 7" in summary.stop.reason
    assert "about to die" in summary.stop.reason
    logged = "".join(path.read_text() for path in cold_world.directory.glob("rollout-server*.log"))
    assert logged.count("about to die") <= 3 * (MAX_RESTARTS + 3)

    summary = await cold_world.run(options={"servers": 2})
    assert (summary.complete, summary.succeeded) == (True, 6)
    assert cold_world.hooks.plans[-1].servers == 2


def test_a_port_is_that_of_one_server_and_there_are_eight_at_most() -> None:
    with pytest.raises(OsmosisError, match="`--rollout-port` is the port of one server"):
        EvalRunOptions(servers=2, rollout_port=9999)
    for servers in (0, 9):
        with pytest.raises(OsmosisError, match="`--servers` must be"):
            EvalRunOptions(servers=servers)
    assert EvalRunOptions(servers=1, rollout_port=9999).servers == 1


def test_secrets_are_blotted_out_of_the_log_of_every_server(tmp_path: Path) -> None:
    from osmosis_ai.evaluation.run_log import redact_server_logs
    from osmosis_ai.redaction import Redactor

    for name in ("rollout-server.log", "rollout-server-2.log", "other.log"):
        (tmp_path / name).write_text("key=sk-very-secret-value\n")
    redact_server_logs(tmp_path / "rollout-server.log", Redactor(["sk-very-secret-value"]))
    assert "sk-very" in (tmp_path / "other.log").read_text()
    for name in ("rollout-server.log", "rollout-server-2.log"):
        assert "sk-very" not in (tmp_path / name).read_text()
