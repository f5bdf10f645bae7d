"""`osmosis eval run` of an agent that is served elsewhere, by the server that `create_app` makes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.cli.test_eval_run import CONFIG, World
from tests.standin_model import Reply, StandInModel

pytestmark = pytest.mark.e2e
KEY = "osm_rollout_canary-4711"
AGENT = """
import socket
import sys

import uvicorn

from osmosis_ai.rollout import RolloutAgentLoop, create_app, execute_tool_calls, create_tool_result

ADD = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {
    "type": "object", "properties": {"a": {"type": "array", "items": {"type": "number"}}}, "required": ["a"]}}}


class Adder(RolloutAgentLoop):
    name = "adder"

    def get_tools(self, request):
        return [ADD]

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        while True:
            reply = await ctx.chat(messages, **ctx.request.completion_params)
            messages.append(reply.message)
            if not reply.has_tool_calls:
                right = reply.content == ctx.request.metadata["ground_truth"]
                return ctx.complete(messages, reward=float(right))
            messages += await execute_tool_calls(reply.tool_calls, self.answer)

    async def answer(self, call):
        return create_tool_result(call["id"], "3")


listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
app = create_app(Adder(), api_key=sys.argv[1])
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])
"""


@asynccontextmanager
async def adder(directory: Path) -> AsyncIterator[int]:
    """Serve the agent in a process of its own; gives its port."""
    (directory / "adder.py").write_text(AGENT)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "adder.py", KEY, cwd=directory, env=os.environ, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


async def test_an_agent_that_is_served_elsewhere_is_evaluated_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def respond(body: dict[str, object]) -> Reply:
        messages: list[dict[str, object]] = body["messages"]  # type: ignore[assignment]
        if messages[-1]["role"] == "tool":
            return Reply(content="one")
        return Reply(content=None, tool_calls=[("add", {"a": [1, 2]})], finish_reason="tool_calls")

    async with StandInModel(respond) as model, adder(tmp_path) as port:
        world = World(tmp_path, model)
        config = world.workspace.root / CONFIG
        written = config.read_text().replace('"main.py"', f'"server://127.0.0.1:{port}"')
        config.write_text(written.replace('rollout = "multiply"', 'rollout = "adder"'))
        refused = await world.run()
        assert refused.status == 1
        assert "asks for a key" in refused.err and "OSMOSIS_ROLLOUT_SERVER_KEY" in refused.err
        assert "Traceback" not in refused.err
        monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_KEY", KEY)
        model.requests.clear()
        outcome = await world.run("--name", "served")
        assert outcome.status == 0, outcome.err
        checked = await world.osmosis("run", CONFIG, "--yes", "--json", "--name", "served")
        assert checked.resource["dispatched"] == 0
    runs = world.workspace.evals_dir / "served"
    records = [json.loads(line) for line in (runs / "events.jsonl").read_bytes().splitlines()]
    assert len([record for record in records if "reward" in record]) == 3, records
    assert all(record.get("status") == "success" for record in records if "reward" in record), records
    called = [request.body for request in model.requests if request.body.get("tools")]
    assert len(called) == 6
    parameters = called[0]["tools"][0]["function"]["parameters"]
    assert parameters["properties"]["a"] == {"type": "array", "items": {"type": "number"}}
    assert (runs / "trajectories" / "row_0_run_0.json").exists()
    files = [path.read_bytes() for path in runs.rglob("*") if path.is_file()]
    assert not [1 for content in files if KEY.encode() in content]
