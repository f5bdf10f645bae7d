"""The example of an agent loop is what its users get: it runs, is validated, served and rewarded as it stands."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import uvicorn

from osmosis_ai.rollout import CompletionsResult, validate_agent_loop
from osmosis_ai.rollout.testing import RolloutCompletionTracker, create_mock_trainer_app
from tests.rollout.loop.agents import CannedModel, context, request
from tests.standin_model import Reply, StandInModel
from tests.warm_osmosis import warm_osmosis

EXAMPLE = Path(__file__).parents[2] / "examples" / "agent_loop"


@pytest.fixture(scope="module")
def example() -> Iterator[dict[str, ModuleType]]:
    """The example's modules; their short names are free again afterwards."""
    names = ("tools", "rewards", "server")
    before = {name: sys.modules.pop(name, None) for name in names}
    sys.path.insert(0, str(EXAMPLE))
    try:
        yield {name: __import__(name) for name in names}
    finally:
        sys.path.remove(str(EXAMPLE))
        for name in names:
            del sys.modules[name]
        sys.modules.update({name: module for name, module in before.items() if module})


class ScriptedModel(CannedModel):
    """Gives one reply after the other."""

    def __init__(self, *replies: CompletionsResult) -> None:
        super().__init__()
        self.replies = list(replies)

    async def chat_completions(self, messages: list[dict[str, Any]], **kwargs: Any) -> CompletionsResult:
        await super().chat_completions(messages, **kwargs)
        return self.replies.pop(0)


def calls(*arguments: tuple[str, str]) -> CompletionsResult:
    """Return a reply that calls tools; each has a name, and arguments as text."""
    tool_calls = [
        {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": text}}
        for number, (name, text) in enumerate(arguments)
    ]
    return CompletionsResult({"role": "assistant", "content": None, "tool_calls": tool_calls})


def says(text: str, finish_reason: str = "stop") -> CompletionsResult:
    return CompletionsResult({"role": "assistant", "content": text}, finish_reason=finish_reason)


async def test_the_agent_runs_its_tools_and_tells_the_model_what_goes_wrong(
    example: dict[str, ModuleType], tmp_path: Path
) -> None:
    model = ScriptedModel(
        calls(("add", '{"a": 5, "b": 3}'), ("divide", '{"a": 1, "b": 0}')),
        calls(("power", "{}"), ("add", "{"), ("add", '{"a": 5}'), ("add", '{"a": "x", "b": 1}')),
        says("#### 8"),
    )
    given = context(llm=model, request=request(completion_params={"temperature": 0}), _debug_dir=tmp_path)

    result = await example["server"].agent_loop.run(given)

    told = [message["content"] for message in result.final_messages if message["role"] == "tool"]
    assert told[:2] == ["8", "Error: a number cannot be divided by zero"]
    assert "there is no tool 'power'" in told[2] and "Invalid JSON" in told[3]
    assert "'b' is missing" in told[4] and told[5].startswith("Error: ")
    assert (result.finish_reason, result.metrics.num_tool_calls) == ("stop", 6)
    assert model.calls[0][1] == {"temperature": 0}
    assert len((tmp_path / "r1.jsonl").read_text().splitlines()) == 3


def test_a_row_may_name_the_tools_that_it_is_offered(example: dict[str, ModuleType]) -> None:
    agent = example["server"].agent_loop
    offered = [tool.function.name for tool in agent.get_tools(request(metadata={"tools": ["multiply"]}))]
    assert (offered, len(agent.get_tools(request()))) == (["multiply"], 4)


async def test_the_agent_stops_at_the_turns_and_tokens_it_may_have(example: dict[str, ModuleType]) -> None:
    agent = example["server"].agent_loop
    again = [calls(("add", '{"a": 1, "b": 1}')) for _ in range(2)]

    stopped = await agent.run(context(llm=ScriptedModel(*again), request=request(max_turns=2)))
    cut_off = await agent.run(context(llm=ScriptedModel(says("so lo", "length"))))

    assert (stopped.finish_reason, cut_off.finish_reason) == ("max_turns", "max_tokens")
    assert validate_agent_loop(agent) and not validate_agent_loop(agent).warnings


@pytest.mark.parametrize(
    ("text", "reward", "exact", "partial"),
    [
        ("It is 42.\n#### 42", 1.0, 1.0, 1.0),
        ("#### 41\n#### 42.0", 1.0, 0.0, 1.0),
        ("The result is 42", 0.0, 0.0, 0.5),
        ("#### 7, or 42", 0.0, 0.0, 0.5),
        ("The result is 420 or 42.5", 0.0, 0.0, 0.0),
        ("", 0.0, 0.0, 0.0),
    ],
)
def test_rewards_find_the_marked_number(
    text: str, reward: float, exact: float, partial: float, example: dict[str, ModuleType]
) -> None:
    rewards = example["rewards"]
    given = {"solution_str": text, "ground_truth": "42", "extra_info": {}}

    assert rewards.compute_reward(**given) == reward
    assert (rewards.exact_match(**given), rewards.partial_match(**given)) == (exact, partial)
    assert rewards.compute_reward("#### 1,000.50", "1000.5") == 1.0


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serve an application in this event loop; yields its address."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # who connects before the server accepts waits here
        running = asyncio.create_task(server.serve([listening]))
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        await running


@pytest.mark.e2e
@pytest.mark.parametrize("words", ["server", "uvicorn server:app --port {port}"])
async def test_python_m_server_serves_the_agent_and_uvicorn_does(words: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    key = {"Authorization": "Bearer of-this-server"}
    tracker = RolloutCompletionTracker()
    environment = {
        **os.environ,
        "ROLLOUT_SERVER_PORT": port,
        "ROLLOUT_SERVER_API_KEY": "of-this-server",
        "PYTHONPATH": "",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *words.format(port=port).split(),
        cwd=EXAMPLE,
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        while b"running on" not in (line := await asyncio.wait_for(process.stderr.readline(), 300)):
            assert line, "it ended at once"
        async with (
            served(create_mock_trainer_app(tracker)) as trainer,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300) as client,
        ):
            body = request(server_url=trainer, messages=[{"role": "user", "content": "add 5 and 3"}])
            refused = await client.post("/v1/rollout/init", json=body.model_dump())
            accepted = await client.post("/v1/rollout/init", json=body.model_dump(), headers=key)
            assert (refused.status_code, accepted.status_code) == (401, 202)
            assert accepted.json()["tools"][0]["function"]["name"] == "add"
            assert await asyncio.to_thread(tracker.wait, 300)
    finally:
        process.terminate()
        await process.communicate()
    (end,) = tracker.responses
    assert end["status"] == "COMPLETED"
    assert [message.get("content") for message in end["final_messages"]][-2:] == [
        "8",
        "The calculation is complete.",
    ]


async def osmosis(command: str, directory: Path, **environment: str) -> str:
    """Run a command of the published guide; return what it says on stdout."""
    process = await asyncio.create_subprocess_exec(
        *warm_osmosis(),
        *shlex.split(command),
        cwd=directory,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode == 0, f"{out.decode()}\n{err.decode()}"
    return out.decode()


@pytest.mark.e2e
async def test_the_commands_of_the_published_guide_run_on_the_example(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__", ".osmosis"))
    common = "eval -m server:agent_loop -d test_data.jsonl"
    async with StandInModel(lambda body: Reply(content="#### 42")) as model:
        served = f"--model org/calculator --base-url {model.base_url}"
        assert "calculator" in await osmosis("validate -m server:agent_loop", project)
        await osmosis(
            f"{common} --eval-fn rewards:exact_match --eval-fn rewards:partial_match --n 5 --pass-threshold 0.5 "
            f"--batch-size 5 {served} -o results.json",
            project,
        )
        asked = {request.body["model"] for request in model.requests}
        await osmosis(
            f"{common} --eval-fn rewards:compute_reward --model openai/gpt-5-mini -q",
            project,
            OPENAI_API_KEY="key",
            OPENAI_BASE_URL=model.base_url,
        )
        await osmosis(f"test -m server:agent_loop -d test_data.jsonl {served} --limit 2", project)
    await osmosis(
        f"{common} --eval-fn rewards:compute_reward --model osmosis/tiny --n 4 --limit 4 -o first.json -q",
        project,
    )
    first_try = json.loads((project / "first.json").read_text())["summary"]["eval_fns"][
        "rewards:compute_reward"
    ]
    assert 0 < first_try["mean"] < 1, "without a key, somebody sees the example at work"
    results = json.loads((project / "results.json").read_text())
    assert asked == {"org/calculator"}
    assert results["config"]["eval_fns"] == ["rewards:exact_match", "rewards:partial_match"]
    assert (results["summary"]["total_rows"], results["summary"]["total_runs"]) == (12, 60)
    exact = results["summary"]["eval_fns"]["rewards:exact_match"]
    assert (exact["mean"], exact["pass_at_1"], exact["pass_at_5"]) == pytest.approx((1 / 6,) * 3)
    (first, *_) = results["rows"][4]["runs"]
    assert first["success"] and first["scores"] == {"rewards:exact_match": 1.0, "rewards:partial_match": 1.0}
