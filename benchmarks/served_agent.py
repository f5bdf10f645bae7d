"""How many rollouts per second a served agent takes through HTTP, against the ideal of a server that costs nothing.

A trainer in this process keeps so many rollouts in flight: it initiates each, answers its model calls after a set
latency, takes its completion, and initiates the next. The ideal is what that latency alone allows.

    python benchmarks/served_agent.py [--rollouts 2000] [--in-flight 64 ...] [--turns 2] [--latency-ms 100]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

AGENT = """
from osmosis_ai.rollout import RolloutAgentLoop

class Talker(RolloutAgentLoop):
    name = "talker"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        for _ in range(ctx.request.max_turns):
            reply = await ctx.chat(messages)
            messages += [reply.message, {"role": "user", "content": "Go on."}]
        return ctx.complete(messages)

agent_loop = Talker()
"""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Measurement:
    """What so many rollouts at once came to; processor time is the server's alone."""

    rollouts: int
    in_flight: int
    turns: int
    wall_s: float
    rollouts_per_s: float
    ideal_per_s: float
    ratio_to_ideal: float
    cpu_ms_per_rollout: float


class Trainer:
    """Plays the model and keeps rollouts in flight."""

    def __init__(self, latency_s: float) -> None:
        self.url = ""
        self._latency_s = latency_s
        self._ended: dict[str, asyncio.Future[str]] = {}

    async def measure(
        self, server: str, pid: int, *, rollouts: int, in_flight: int, turns: int
    ) -> Measurement:
        """Take ``rollouts`` through the server, ``in_flight`` at once."""
        numbers = iter(range(rollouts))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def work() -> None:
                for number in numbers:
                    await self._roll_out(session, server, f"{in_flight} at once, {rollouts}: {number}", turns)

            started, cpu_s = time.perf_counter(), cpu_s_of(pid)
            await asyncio.gather(*(work() for _ in range(in_flight)))
            wall_s, cpu_s = time.perf_counter() - started, cpu_s_of(pid) - cpu_s
        ideal = in_flight / (turns * self._latency_s)
        return Measurement(
            rollouts=rollouts,
            in_flight=in_flight,
            turns=turns,
            wall_s=round(wall_s, 2),
            rollouts_per_s=round(rollouts / wall_s, 1),
            ideal_per_s=round(ideal, 1),
            ratio_to_ideal=round(rollouts / wall_s / ideal, 3),
            cpu_ms_per_rollout=round(cpu_s / rollouts * 1000, 3),
        )

    async def _roll_out(self, session: aiohttp.ClientSession, server: str, name: str, turns: int) -> None:
        ended = self._ended[name] = asyncio.get_running_loop().create_future()
        body = {
            "rollout_id": name,
            "server_url": self.url,
            "messages": [{"role": "user", "content": "Begin."}],
            "completion_params": {},
            "max_turns": turns,
        }
        async with session.post(f"{server}/v1/rollout/init", json=body) as reply:
            assert reply.status == 202, await reply.text()
        assert await ended == "COMPLETED"

    async def _chat(self, request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(self._latency_s)
        message = {"role": "assistant", "content": "I am going on."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"id": "c", "object": "chat.completion", "created": 1, "choices": [choice]})

    async def _completed(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        self._ended.pop(body["rollout_id"]).set_result(body["status"])
        return web.json_response({})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Trainer]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/rollout/completed", self._completed)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
        self.url = "http://{}:{}".format(*runner.addresses[0][:2])
        try:
            yield self
        finally:
            await runner.cleanup()


def cpu_s_of(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


@asynccontextmanager
async def served_agent(directory: Path) -> AsyncIterator[tuple[str, int]]:
    """Serve the agent with the command, and yield its address and its process's id."""
    (directory / "talker.py").write_text(AGENT)
    command = [sys.executable, "-m", "osmosis_ai", "serve", "-m", "talker:agent_loop", "--local"]
    process = await asyncio.create_subprocess_exec(
        *command,
        *("--host", "127.0.0.1", "--port", "0", "--log-level", "error", "--json"),
        cwd=directory,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        resource = json.loads(await process.stdout.readline())["resource"]
        yield resource["url"], process.pid
    finally:
        process.terminate()
        await process.wait()


async def measure_all(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        async with (
            Trainer(arguments.latency_ms / 1000).serving() as trainer,
            served_agent(Path(directory)) as (server, pid),
        ):
            # The first ones pay for what is imported when it is used.
            await trainer.measure(server, pid, rollouts=8, in_flight=8, turns=1)
            for in_flight in arguments.in_flight:
                measured = await trainer.measure(
                    server, pid, rollouts=arguments.rollouts, in_flight=in_flight, turns=arguments.turns
                )
                print(json.dumps(asdict(measured)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=2000)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[64])
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--latency-ms", type=float, default=100.0)
    asyncio.run(measure_all(parser.parse_args()))


if __name__ == "__main__":
    main()
