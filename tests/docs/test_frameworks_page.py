"""The frameworks of docs/guides/agents.md: its code runs, but for what needs an install."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.local_rollouts import execute, request
from tests.standin_model import Reply, StandInModel

from osmosis_ai.rollout import LocalBackend, RolloutContext
from osmosis_ai.rollout.model_client import close_shared_connections

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "agents.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(<!-- check-only: [^>]+ -->\n)?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(bool(mark), code) for mark, code in BLOCK.findall(PAGE)]


def workflow_of(heading: str) -> Any:
    """Return the workflow that a section defines, after the code of the page above it."""
    above, _, below = PAGE.partition(f"### {heading}\n")
    names: dict[str, Any] = {"__name__": "page"}
    for mark, code in BLOCK.findall(above) + BLOCK.findall(below)[:1]:
        if not mark:
            exec(compile(code, heading, "exec"), names)
    return names["MyWorkflow"]


@pytest.mark.parametrize("block", [code for _, code in BLOCKS])
def test_every_block_is_python(block: str) -> None:
    compile(block, "docs/guides/agents.md", "exec")


def test_only_what_needs_an_install_is_not_run() -> None:
    left_out = [code for mark, code in BLOCKS if mark]
    assert len(left_out) < len(BLOCKS) / 2
    assert {"langchain", "pydantic_ai"} <= {code.split()[1].partition(".")[0] for code in left_out}


@pytest.mark.imports_much
@pytest.mark.parametrize("heading", ["OpenAI Agents SDK", "Strands"])
async def test_an_agent_of_a_framework_as_the_page_has_it_gives_the_sample_it_says(heading: str) -> None:
    async with StandInModel(lambda body: Reply(content="42")) as model:
        with RolloutContext(model.base_url, "K2", "r1"):
            completion, _ = await execute(LocalBackend(workflow=workflow_of(heading)), request())
        await close_shared_connections()

    assert completion.sample is not None, completion.err_message
    assert completion.sample.messages[-1]["content"][0]["text"] == "42"
    assert completion.sample.trajectory_messages is not None
