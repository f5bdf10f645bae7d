"""A directory as a user of agent loops has it: an agent, eval functions, a dataset; no Git, no workspace, no login."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from tests.cli.outcome import Outcome
from tests.standin_model import StandInModel
from tests.warm_osmosis import warm_osmosis

AGENT = '''
import asyncio

from osmosis_ai.rollout import RolloutAgentLoop, RolloutContext, RolloutResult

print("this module prints")


class Echo(RolloutAgentLoop):
    """Answers with what the model says; the user's prompt makes it go wrong."""

    name = "echo"

    def get_tools(self, request):
        return []

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        order = messages[-1]["content"]
        if order == "hang":
            await asyncio.sleep(600)
        if order == "nothing":
            return None
        result = await ctx.chat(messages, **ctx.request.completion_params)
        messages.append(result.message)
        if order == "raise":
            raise ValueError("[bold]no[/bold] answer")
        if order == "error":
            return ctx.error("the agent gave up")
        ctx.log_event("answered", metadata=ctx.request.metadata, turns=ctx.request.max_turns)
        return ctx.complete(messages, reward=0.25 if order == "reward" else None)


agent_loop = Echo()
'''
REWARDS = """
import time

from osmosis_ai import osmosis_reward


@osmosis_reward
def exact(solution_str: str, ground_truth: str, extra_info: dict = None) -> float:
    return 1.0 if solution_str == ground_truth else 0.0


async def length(messages, ground_truth, metadata, **kwargs):
    return len(messages) + metadata.get("bonus", 0)


class Picky:
    async def __call__(self, solution_str, ground_truth, extra_info):
        order = extra_info["user_prompt"]
        if order == "unscored":
            raise KeyError("no such thing")
        return None if order == "reward" else 0.5


picky = Picky()


def no_truth(solution_str, extra_info):
    return 1.0


def wrong_first(answer, ground_truth):
    return 1.0


def sleeper(solution_str, ground_truth, extra_info):
    if extra_info["user_prompt"] == "sleep":
        time.sleep(600)
    return float("nan") if extra_info["user_prompt"] == "nan" else 1.0


value = 3
"""


class Project:
    """The directory, and commands as processes in it.

    Args:
        root: the directory; it is made.
        base_url: of the model.
    """

    def __init__(self, root: Path, base_url: str) -> None:
        root.mkdir()
        self.root = root
        self.base_url = base_url
        (root / "server.py").write_text(AGENT)
        (root / "rewards.py").write_text(REWARDS)
        self.rows({"user_prompt": "one"}, {"user_prompt": "two"})

    def rows(self, *rows: dict[str, Any]) -> None:
        """Write the dataset; each row has a system prompt and the right answer unless it says otherwise."""
        whole = ({"system_prompt": "Be brief.", "ground_truth": "ok", **row} for row in rows)
        (self.root / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in whole))

    def words(self, *more: str, fns: tuple[str, ...] = ("exact",)) -> list[str]:
        """Return the command without its program."""
        return [
            *("eval", "-m", "server:agent_loop", "-d", "data.jsonl", "--model", "org/model"),
            *("--base-url", self.base_url),
            *(word for fn in fns for word in ("--eval-fn", f"rewards:{fn}")),
            *more,
        ]

    async def start(self, *words: str, **environment: str) -> asyncio.subprocess.Process:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
        return await asyncio.create_subprocess_exec(
            *warm_osmosis(),
            *words,
            cwd=self.root,
            env={**kept, **environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def eval(self, *more: str, fns: tuple[str, ...] = ("exact",), **environment: str) -> Outcome:
        process = await self.start(*self.words(*more, fns=fns), **environment)
        out, err = await asyncio.wait_for(process.communicate(), 120)
        assert process.returncode is not None
        return Outcome(process.returncode, out.decode(), err.decode())

    @property
    def runs(self) -> list[Path]:
        return sorted(path for path in (self.root / ".osmosis" / "evals").glob("[!.]*"))

    def journal(self) -> list[dict[str, Any]]:
        (run,) = self.runs
        return [json.loads(line) for line in (run / "events.jsonl").read_bytes().split(b"\n")[:-1]]


def project_with(root: Path, model: StandInModel) -> Project:
    """Return a project whose model is the stand-in."""
    return Project(root / "project", model.base_url)
