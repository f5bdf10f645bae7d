"""`eval rubric` as a process: concurrent calls, Ctrl-C, kills and resume."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent_workspace import Outcome
from tests.e2e.kill_plan import KILLS, seed_of_kills
from tests.full_disk import NO_CACHED_CODE, limit_files
from tests.rubric.judge_server import JudgeServer
from tests.standin_model import Reply
from tests.warm_osmosis import interrupt_twice, warm_osmosis

pytestmark = pytest.mark.e2e

KEY = "sk-canary-0b7e4f21d3"


class World:
    """A judge, a file of records, and the command as a process."""

    def __init__(self, root: Path, judge: JudgeServer) -> None:
        self.root = root
        self.judge = judge
        self.output = root / "out.json"
        self.journal = root / "out.json.partial.jsonl"

    def records(self, count: int, text: str = "answer {} [noise 0.1]") -> None:
        lines = (json.dumps({"id": f"r{n}", "solution_str": text.format(n)}) for n in range(count))
        (self.root / "data.jsonl").write_text("\n".join(lines) + "\n")

    async def start(
        self, *arguments: str, prepare: Callable[[], None] | None = None
    ) -> asyncio.subprocess.Process:
        command = ["eval", "rubric", "-d", "data.jsonl", "-r", "Be good and clear.", "-o", "out.json"]
        return await asyncio.create_subprocess_exec(
            *([sys.executable, "-m", "osmosis_ai"] if prepare else warm_osmosis()),
            *(*command, "--model", "openai/judge-a", *arguments),
            cwd=self.root,
            env={
                **os.environ,
                "OPENAI_API_KEY": KEY,
                "OPENAI_BASE_URL": self.judge.base_url,
                "OSMOSIS_CACHE_DIR": str(self.root / "cache"),
                **(NO_CACHED_CODE if prepare else {}),
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=prepare,
        )

    async def run(self, *arguments: str, **how: Any) -> Outcome:
        return await finish(await self.start(*arguments, **how))

    def hold(self, until: Callable[[], asyncio.Event | None]) -> None:
        """Have each call wait for what ``until`` returns as it comes."""
        answer = self.judge.respond

        def respond(body: dict[str, Any]) -> Reply:
            reply = answer(body)
            reply.wait_for = until()
            return reply

        self.judge.respond = respond

    async def wait_for_calls(self, count: int) -> None:
        """Wait until the journal has so many calls."""

        async def look() -> None:
            while not self.journal.exists() or self.journal.read_bytes().count(b"\n") <= count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        await asyncio.wait_for(look(), 300)

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.output.read_text())
        return found

    def durable(self) -> list[tuple[int, int]]:
        """Return (record, run) of the complete lines in the journal."""
        calls = map(json.loads, self.journal.read_bytes().split(b"\n")[1:-1])
        return [(call["row_index"], call["run_index"]) for call in calls]


async def finish(process: asyncio.subprocess.Process) -> Outcome:
    out, err = await asyncio.wait_for(process.communicate(), 600)
    assert process.returncode is not None
    return Outcome(process.returncode, out.decode(), err.decode())


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with JudgeServer(latency_s=0.05) as judge:
        yield World(tmp_path, judge)


async def test_ctrl_c_and_resume(world: World) -> None:
    world.records(400)
    # The session cannot come to its end before Ctrl-C.
    over = asyncio.Event()
    world.hold(lambda: None if over.is_set() or world.judge.calls <= 60 else over)
    process = await world.start("--json", "--concurrency", "10")
    await world.wait_for_calls(30)
    process.send_signal(signal.SIGINT)
    outcome = await finish(process)
    over.set()
    assert outcome.status == 1
    result = json.loads(outcome.out)
    counts = result["resource"]["counts"]
    assert result["status"] == "partial" and counts["scored"] >= 30
    assert counts["pending"] == 400 - counts["scored"]
    assert world.document()["stopped"]["kind"] == "interrupted"
    assert len(world.document()["records"]) == 400
    assert result["next_steps_structured"][0]["command"].endswith("--resume")
    resumed = await world.run("--resume", "--verbose")
    assert resumed.status == 0 and "From earlier sessions" in resumed.out
    assert world.document()["complete"] is True and not world.journal.exists()
    # What was in flight at Ctrl-C is asked again, and nothing else.
    assert 400 <= world.judge.calls <= 410


async def test_second_ctrl_c_quits(world: World) -> None:
    world.records(50)
    world.hold(asyncio.Event)
    process = await world.start()
    await asyncio.wait_for(world.judge.arrived.wait(), 300)
    interrupt_twice(process.pid)
    outcome = await finish(process)
    assert outcome.status == 130 and world.journal.exists()


async def test_kills_and_resume(world: World) -> None:
    chosen = random.Random(seed_of_kills())
    world.records(300, "answer {0} [score 0.{0:03}]")
    kept: set[tuple[int, int]] = set()
    # A session comes as far as its kill, and never to the end.
    allowed, over = 0, asyncio.Event()
    world.hold(lambda: over if world.judge.calls > allowed else None)
    for kill in range(max(3, KILLS)):
        allowed = world.judge.calls + 30
        resume = ["--resume"] if world.journal.exists() else []
        process = await world.start("--concurrency", "12", "-n", "2", *resume)
        if kill % 3:
            await world.wait_for_calls(len(kept) + chosen.randrange(18))
        else:
            await asyncio.sleep(chosen.uniform(0.05, 0.8))
        process.kill()
        await process.wait()
        if world.journal.exists():
            now = world.durable()
            assert len(now) == len(set(now)) and set(now) >= kept
            kept = set(now)
    over.set()
    outcome = await world.run("-n", "2", *(["--resume"] if world.journal.exists() else []))
    assert outcome.status == 0
    scores = [record["scores"] for record in world.document()["records"]]
    assert scores == [[number / 1000] * 2 for number in range(300)]
    # Only what had no durable answer when a kill came is asked twice: 12 in flight, and 8 answers that were on
    # their way to the disk.
    assert 600 <= world.judge.calls <= 600 + max(3, KILLS) * (12 + 8)


async def test_full_disk(world: World) -> None:
    world.records(300)
    # Few at once, so that the first write to the journal does not fill the disk by itself.
    outcome = await world.run("--plain", "--concurrency", "8", prepare=partial(limit_files, 20_000))
    assert outcome.status == 1 and "the disk is full" in outcome.err and "--resume" in outcome.err
    kept = len(world.durable())
    assert kept > 20
    resumed = await world.run("--resume", "--json")
    assert resumed.status == 0 and world.document()["counts"]["scored"] == 300


async def test_concurrent_sessions_of_one_result(world: World) -> None:
    world.records(200)
    over = asyncio.Event()
    world.hold(lambda: over if world.judge.calls > 20 else None)
    first = await world.start("--concurrency", "4")
    await world.wait_for_calls(1)
    (world.root / "sub").mkdir()
    second = await world.run("-o", "sub/../out.json")
    assert second.status == 1 and "Another process is writing" in second.err
    first.send_signal(signal.SIGINT)
    assert (await finish(first)).status == 1
