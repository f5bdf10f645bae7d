"""Which key reaches a server whose address is from a `.env`: real calls of `eval rubric` and `test`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.rubric_judging import KEY, configure, score, texts
from tests.rubric.judge_server import JudgeServer

AGENT = """\
from osmosis_ai.rollout import RolloutAgentLoop, RolloutRequest

class Agent(RolloutAgentLoop):
    name = "agent"

    def get_tools(self, request: RolloutRequest):
        return []

    async def run(self, ctx):
        return ctx.complete((await ctx.chat(ctx.request.messages)).message)

agent = Agent()
"""


@pytest.fixture(autouse=True)
def stranger(judge: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> JudgeServer:
    """A server whose address the `.env` chose; the shell has a key of the user and no address."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    del os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    os.environ["MINE"] = KEY
    texts("fine")
    return judge


def env_file(judge: JudgeServer, *lines: str, address: str = "OPENAI_BASE_URL") -> None:
    Path(".env").write_text("\n".join([f"{address}={judge.base_url}", *lines]) + "\n")


def test_key_and_address_from_the_same_source(cli: Cli, judge: JudgeServer) -> None:
    env_file(judge, "OPENAI_API_KEY=of-the-file")
    assert score(cli).status == 0
    assert judge.key_seen == "of-the-file"

    Path(".env").write_text("OPENAI_BASE_URL=https://elsewhere.example\nOPENAI_API_KEY=bait\n")
    assert score(cli, "--api-base", judge.base_url, "--api-key", KEY).status == 0
    assert judge.key_seen == KEY


def test_rubric_names_a_variable_of_the_file(cli: Cli, judge: JudgeServer) -> None:
    env_file(judge, "JUDGE_KEY=of-the-file", "OPENAI_API_KEY=other")
    configure(model_info={"provider": "openai", "model": "judge", "api_key_env": "JUDGE_KEY"})
    assert cli("eval", "rubric", "-d", "data.jsonl", "-r", "clarity").status == 0
    assert judge.key_seen == "of-the-file"


@pytest.mark.parametrize("own", [(), ("OPENAI_API_KEY=bait",)])
def test_rubric_names_a_variable_of_the_shell(cli: Cli, judge: JudgeServer, own: tuple[str, ...]) -> None:
    env_file(judge, *own)
    configure(model_info={"provider": "openai", "model": "judge", "api_key_env": "MINE"})
    refused = cli("eval", "rubric", "-d", "data.jsonl", "-r", "clarity")
    assert (refused.status, judge.calls) == (1, 0)
    assert f"OPENAI_BASE_URL in {Path.cwd() / '.env'} is accepted only with a key from the same file." in (
        refused.err
    )
    assert KEY not in refused.err


@pytest.mark.parametrize("command", ["eval rubric", "test"])
def test_key_from_the_command_line(cli: Cli, judge: JudgeServer, command: str) -> None:
    env_file(judge, "OPENAI_API_KEY=bait")
    Path("agent.py").write_text(AGENT)
    Path("rows.jsonl").write_text('{"user_prompt": "hi", "system_prompt": "s", "ground_truth": "g"}\n')
    words = ("test", "-m", "agent:agent", "-d", "rows.jsonl", "--model", "openai/m")
    refused = cli(*words, "--api-key", KEY) if command == "test" else score(cli, "--api-key", KEY)
    assert (refused.status, judge.calls) == (1, 0)
    assert "is accepted only with a key from the same file" in refused.err


@pytest.mark.parametrize(
    "address, key, model",
    [
        ("OPENAI_BASE_URL", "OPENAI_API_KEY", "openai/judge"),
        ("HOSTED_VLLM_API_BASE", "HOSTED_VLLM_API_KEY", "hosted_vllm/judge"),
    ],
)
def test_local_server_receives_no_shell_key(
    cli: Cli, judge: JudgeServer, address: str, key: str, model: str
) -> None:
    env_file(judge, address=address)
    os.environ[key] = KEY
    scored = score(cli, model=model)
    assert f"{key} from the environment is not used" in scored.err
    assert (scored.status, judge.calls) == (0, 1)
    assert KEY not in judge.key_seen
