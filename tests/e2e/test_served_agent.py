"""`osmosis serve` as a process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.rollout.loop.server.trainer import Trainer
from tests.warm_osmosis import warm_osmosis

pytestmark = pytest.mark.e2e

SERVER = """
import asyncio
from osmosis_ai.rollout import RolloutAgentLoop

class Calculator(RolloutAgentLoop):
    name = "calculator"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        ctx.log_event("start")
        reply = await ctx.chat(ctx.request.messages)
        if ctx.request.metadata.get("hold"):
            await asyncio.Event().wait()
        return ctx.complete([*ctx.request.messages, reply.message])

agent_loop = Calculator()
"""
SERVE = ["serve", "-m", "server:agent_loop", "--host", "127.0.0.1", "--port", "0", "--json"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "server.py").write_text(SERVER)
    return tmp_path


@asynccontextmanager
async def running(directory: Path, *words: str, **env: str) -> AsyncIterator[subprocess.Popen[str]]:
    with (directory / "stderr").open("a") as errors:
        process = await asyncio.to_thread(
            subprocess.Popen,
            words,
            cwd=directory,
            env={**os.environ, "OSMOSIS_CONFIG_DIR": str(directory / "config"), **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)
        assert process.stdout is not None
        process.stdout.close()


async def first_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = await asyncio.to_thread(process.stdout.readline)
    assert line, "the command ended before it served"
    resource: dict[str, Any] = json.loads(line)["resource"]
    return resource


async def until(name: str, url: str, process: subprocess.Popen[str], *, changed: Path | None = None) -> None:
    """Wait until an agent of this name replies; ``changed`` is the file to reload."""
    async with httpx.AsyncClient(trust_env=False) as client:
        for tries in range(6000):
            # The reloader misses a change that comes before it has looked at its files for the first time.
            if changed is not None and tries in (200, 600, 1800):
                changed.touch()
            if process.poll() is not None:
                break
            try:
                if (await client.get(f"{url}/health", timeout=300)).json()["agent_loop"] == name:
                    return
            except httpx.TransportError:
                pass  # not yet, or just restarting
            await asyncio.sleep(0.05)
    raise AssertionError(f"no agent {name} at {url}")


async def test_serve_until_sigterm(directory: Path) -> None:
    command = [*warm_osmosis(), *SERVE, "--skip-register", "--log", "log"]
    async with Trainer().serving() as trainer, running(directory, *command) as process:
        served = await first_line(process)
        key = {"Authorization": f"Bearer {served['api_key']}"}
        async with httpx.AsyncClient(base_url=served["url"], timeout=300, trust_env=False) as client:
            assert (await client.post("/v1/rollout/init", json=trainer.init())).status_code == 401
            accepted = await client.post("/v1/rollout/init", json=trainer.init(), headers=key)
            assert accepted.status_code == 202
            await trainer.completed()
            held = trainer.init("R2", metadata={"hold": True})
            assert (await client.post("/v1/rollout/init", json=held, headers=key)).status_code == 202
            await trainer.received(trainer.chats, 2)
        process.send_signal(signal.SIGTERM)
        out, _ = await asyncio.to_thread(process.communicate)
        ends = [(each["rollout_id"], each["status"]) for each in trainer.offers]
        assert ends == [("R1", "COMPLETED"), ("R2", "ERROR")]
    assert (process.returncode, out) == (0, "")
    told = (directory / "stderr").read_text()
    assert served["api_key"] not in told
    assert "Traceback" not in told
    (log,) = (directory / "log").iterdir()
    assert sorted(file.name for file in log.iterdir()) == ["R1.jsonl", "R2.jsonl"]


async def test_reload(directory: Path) -> None:
    command = [sys.executable, "-m", "osmosis_ai", *SERVE, "--api-key", "k", "--skip-register", "--reload"]
    async with running(directory, *command) as process:
        url = (await first_line(process))["url"]
        await until("calculator", url, process)
        (directory / "server.py").write_text(SERVER.replace('name = "calculator"', 'name = "computer"'))
        await until("computer", url, process, changed=directory / "server.py")
        async with httpx.AsyncClient(headers={"Authorization": "Bearer k"}, trust_env=False) as client:
            assert (await client.get(f"{url}/platform/health", timeout=300)).status_code == 200
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0
