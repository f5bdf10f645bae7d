"""Programs as agents: real processes, a real model proxy, a stand-in model."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout import (
    CommandWorkflow,
    ExecutionResult,
    GraderContext,
    LocalBackend,
    RolloutContext,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_ai.rollout.model_client import close_shared_connections
from tests.controller.proxy_world import TOKEN, ProxyWorld, proxy_world
from tests.loop_clock import advance_loop_clock
from tests.standin_model import Reply, StandInModel, error_reply

from .local_rollouts import execute, grader, request, until

pytestmark = pytest.mark.e2e

# Asks the model once, or misbehaves as its prompt says.
AGENT = '''
import json, os, subprocess, sys, time, urllib.request

said = sys.stdin.read()
with open(os.environ["OSMOSIS_PROMPT_FILE"]) as prompt:
    messages = json.load(prompt)["messages"]


def ask(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "any", "messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]


def leave(seconds):
    """Start a process in another session, without our parent, group or environment."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve("/bin/sleep", ["sleep", seconds], {})
        os._exit(0)
    os.wait()


if said == "never asks":
    sys.exit(0)
if said == "exits 1":
    print("my key is", os.environ["OPENAI_API_KEY"], file=sys.stderr)
    sys.exit("no luck")
if said == "floods":
    while True:
        os.write(2, b"x" * 65536)
reply = ask(messages)
if said.startswith("hangs "):
    leave(said.split()[1])
    subprocess.Popen(["sleep", said.split()[1]])
    time.sleep(3600)
if said.startswith("leaves "):
    leave(said.split()[1])
    subprocess.Popen(["sleep", said.split()[1]], start_new_session=True)
if said == "uses a tool":
    messages = [*messages, reply, {"role": "tool", "tool_call_id": "c1", "content": "56"}]
    reply = ask(messages)
if said != "writes nothing":
    print(reply["content"])
'''


# Of this process alone: the tests of another checkout may run next to these.
SLEEPS = [str(10**9 + 10 * os.getpid() + number) for number in range(4, 7)]


def running(*seconds: str) -> list[str]:
    """The `sleep`s of these lengths that are alive, wherever they are."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0") if process.name.isdigit() else []
        except OSError:
            continue
        if words[:1] == [b"sleep"] and words[1].decode() in seconds:
            found.append(words[1].decode())
    return found


class World:
    def __init__(self, root: Path, proxy: ProxyWorld) -> None:
        self.root = root
        self.proxy = proxy
        self.model = proxy.model
        self.samples: list[Any] = []

    async def run(
        self, said: str, workflow: CommandWorkflow | None = None, **changed: Any
    ) -> tuple[ExecutionResult, ExecutionResult]:
        async def grade(ctx: GraderContext) -> None:
            self.samples.append(ctx.sample)
            ctx.set_reward(1.0)

        backend = LocalBackend(workflow=workflow or self.workflow(), grader=grader(grade))
        prompt = [{"role": "user", "content": said}]
        with RolloutContext(f"{self.proxy.url}/v1/rollouts/r1", TOKEN, "r1"):
            return await execute(backend, request("r1", prompt=prompt, **changed))

    def workflow(self, *command: str, **options: Any) -> CommandWorkflow:
        return CommandWorkflow(list(command) or ["python", "agent.py"], directory=self.root, **options)


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    (tmp_path / "agent.py").write_text(AGENT)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    async with StandInModel(lambda _: Reply("ok")) as model, proxy_world(model) as proxy:
        yield World(tmp_path, proxy)
    await close_shared_connections()
    assert list(temporary.iterdir()) == [], "no working directory is left"


async def test_conversation_of_a_program(world: World) -> None:
    _, graded = await world.run("hello")
    assert (graded.status, graded.err_message) == (RolloutStatus.SUCCESS, None)
    (sample,) = world.samples
    assert sample.messages == [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "ok"}]
    assert sample.extra_fields["command"] == {"exit_status": 0, "stdout": "ok\n", "stderr": ""}
    assert sample.reward == 1.0


async def test_conversation_with_tools(world: World) -> None:
    world.model.script(Reply("", tool_calls=[("multiply", {"a": 7})]), Reply("56"))
    await world.run("uses a tool")
    roles = [message["role"] for message in world.samples[0].messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert world.samples[0].messages[1]["tool_calls"][0]["function"]["name"] == "multiply"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("never asks", "`python agent.py` ended without an answer of the model"),
        ("exits 1", "`python agent.py` ended with exit status 1: my key is [REDACTED] no luck"),
        ("floods", "`python agent.py` wrote more than 1,000,000 bytes, and was ended: …xxx"),
    ],
)
async def test_a_failing_program(world: World, said: str, words: str) -> None:
    completion, graded = await world.run(said, world.workflow(max_output_bytes=1_000_000))
    assert completion.err_category is graded.err_category is RolloutErrorCategory.AGENT_ERROR
    assert completion.err_message is not None and completion.err_message.startswith(words)
    assert len(completion.err_message) < 600 and "\n" not in completion.err_message
    assert world.samples == []


async def test_a_program_without_a_working_model(world: World) -> None:
    world.model.respond = lambda _: error_reply(400, "no such thing")
    completion, _ = await world.run("hello")
    assert completion.err_message is not None
    assert "ended with exit status 1" in completion.err_message and "HTTP Error 400" in completion.err_message


async def test_a_program_that_cannot_be_executed_says_so(world: World) -> None:
    script = world.root / "broken"
    script.write_text("#!/nowhere/interpreter\n")
    script.chmod(0o755)
    completion, _ = await world.run("hello", world.workflow("broken"))
    assert completion.err_message is not None and "cannot be started" in completion.err_message


async def test_what_forks_and_leaves_ends_with_its_program(world: World) -> None:
    _, graded = await world.run(f"leaves {SLEEPS[0]}")
    assert graded.status is RolloutStatus.SUCCESS
    assert running(SLEEPS[0]) == []


async def test_a_hanging_program_is_killed_with_its_children(world: World) -> None:
    hanging = asyncio.create_task(world.run(f"hangs {SLEEPS[1]}", agent_timeout_sec=3600.0))
    await until(lambda: len(running(SLEEPS[1])) == 2)
    advance_loop_clock(3600.0)
    completion, _ = await hanging
    assert completion.err_category is RolloutErrorCategory.TIMEOUT
    assert running(SLEEPS[1]) == []


async def test_cancellation_kills_the_children(world: World) -> None:
    task = asyncio.create_task(world.run(f"hangs {SLEEPS[2]}"))
    await until(lambda: len(running(SLEEPS[2])) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert running(SLEEPS[2]) == []


async def test_environment_of_a_program(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OSMOSIS_TOKEN", "MY_SECRET", "AWS_PROFILE"):
        monkeypatch.setenv(name, "a-secret-of-the-users")
    (world.root / "shows.py").write_text(
        "import json, os, sys\nprint(json.dumps([dict(os.environ), os.getcwd(), os.listdir()]))\nsys.exit(3)\n"
    )
    shown = world.workflow(sys.executable, "shows.py", env={"TAVILY_API_KEY": "tvly-123456"})
    monkeypatch.setattr("osmosis_ai.rollout.command_workflow._MOST_QUOTED_CHARS", 100_000)
    completion, _ = await world.run("hello", shown, metadata={"k": "v"})
    assert completion.err_message is not None
    env, place, files = json.loads(completion.err_message.partition("3: ")[2])
    assert "a-secret-of-the-users" not in env.values()
    assert env["OPENAI_BASE_URL"] == f"{world.proxy.url}/v1/rollouts/r1/recorded"
    assert env["TAVILY_API_KEY"] == env["OPENAI_API_KEY"] == "[REDACTED]"
    assert env["PATH"].startswith(os.path.dirname(sys.executable)) and "127.0.0.1" in env["no_proxy"]
    assert (
        sorted(files) == ["prompt.json", "prompt.txt"]
        and env["OSMOSIS_PROMPT_FILE"] == f"{place}/prompt.json"
    )


async def test_prompt_on_stdin_and_in_the_file(world: World) -> None:
    workflow = world.workflow("sh", "-c", "cat; cat prompt.json >&2; exit 4")
    prompt = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What?"}, {"type": "image_url"}]},
    ]
    backend = LocalBackend(workflow=workflow)
    with RolloutContext(f"{world.proxy.url}/v1/rollouts/r1", TOKEN, "r1"):
        completion, _ = await execute(backend, request("r1", prompt=prompt, metadata={"k": 1}))
    written = (completion.err_message or "").partition("status 4: ")[2]
    assert json.loads(written) == {"messages": prompt, "metadata": {"k": 1}}


@pytest.mark.parametrize(
    ("command", "error", "words"),
    [
        ("python agent.py", TypeError, "must be a list of strings"),
        (["python", 3], TypeError, "must be a list of strings"),
        ([], ValueError, "names no program"),
        (["no-such-program-here"], ValueError, "no program `no-such-program-here`"),
        (["python", "missing.py"], ValueError, "no `missing.py` in"),
    ],
)
def test_invalid_commands(tmp_path: Path, command: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        CommandWorkflow(command, directory=tmp_path)
