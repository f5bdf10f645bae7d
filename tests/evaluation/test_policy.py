from __future__ import annotations

import os

from osmosis_ai.evaluation.policy import open_policy


async def test_litellm_finds_a_runs_variables_but_none_that_start_programs() -> None:
    variables = {
        "ANTHROPIC_API_KEY": "k",
        "AWS_REGION_NAME": "eu-west-1",
        "LD_PRELOAD": "/evil.so",
        "AWS_CONFIG_FILE": "/evil",
        "GIT_SSH_COMMAND": "/evil",
    }
    before = dict(os.environ)
    async with open_policy("anthropic/claude-x", variables, lambda error: None) as endpoint:
        added = {name: value for name, value in os.environ.items() if before.get(name) != value}
    assert endpoint.api_key == "k"
    assert added == {"ANTHROPIC_API_KEY": "k", "AWS_REGION_NAME": "eu-west-1"}
    assert dict(os.environ) == before
