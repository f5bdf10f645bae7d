"""The examples run as their own documentation says, against a judge on this machine."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rubric.judge_server import JudgeServer
from tests.rubric.serving import serving

REPOSITORY = Path(__file__).parents[2]
KEYS = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "xai": "XAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "cerebras": "CEREBRAS_API_KEY",
}
CANARY = "sk-canary-7f3a9b2c"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def judge() -> Iterator[JudgeServer]:
    server = JudgeServer(score=0.8)
    with serving(server):
        yield server


@pytest.mark.e2e
def test_the_reward_functions_run_without_a_model() -> None:
    result = run("examples/reward_functions.py")
    assert (result.returncode, result.stderr) == (0, "")
    scores = {tuple(line.split()[:2]) for line in result.stdout.splitlines()}
    assert scores == {
        ("case_insensitive_match", "1.00"),
        ("case_insensitive_match", "0.50"),
        ("numeric_tolerance", "1.00"),
        ("final_number", "1.00"),
        ("within_length", "0.50"),
    }


@pytest.mark.e2e
def test_the_rubric_function_asks_every_documented_provider(judge: JudgeServer) -> None:
    keys = dict.fromkeys(KEYS.values(), CANARY)
    result = run("examples/rubric_functions.py", "--api-base", judge.base_url, **keys)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("score 0.80") == len(KEYS)
    assert [line.split("/")[0] for line in result.stdout.splitlines() if "/" in line[:12]] == list(KEYS)
    assert CANARY not in result.stdout
    assert {request.headers["Authorization"] for request in judge.requests} == {f"Bearer {CANARY}"}
    assert '"policy": "Returns within 30 days' in judge.requests[0].body["messages"][1]["content"]


@pytest.mark.e2e
def test_a_missing_key_is_one_line_with_the_export() -> None:
    result = run("examples/rubric_functions.py", "--provider", "openai")
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert 'export OPENAI_API_KEY="..."' in result.stderr


async def test_the_async_rubric_function_gives_the_same_score(judge: JudgeServer) -> None:
    example = runpy.run_path(str(REPOSITORY / "examples" / "rubric_functions.py"))
    extra_info = {"provider": "openai", "model": "m", "rubric": "Be kind.", "api_base": judge.base_url}
    assert await example["support_reply_async"]("hello [score 0.3]", None, extra_info) == 0.3
