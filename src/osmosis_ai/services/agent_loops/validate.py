"""`osmosis validate`: what is wrong with an agent loop, and on request whether it runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.evaluation.agent_loop.runner import LocalRunResult
    from osmosis_ai.rollout.loop.agent import RolloutAgentLoop
    from osmosis_ai.rollout.loop.validation import ValidationResult

TRIAL_MODEL = "osmosis/tiny"
"""The model of ours that a trial asks: it needs no key and no network."""

TRIAL_TIMEOUT_S = 120.0
"""How long a trial may take, in seconds."""

_TRIAL_TOKENS = 32


@dataclass(frozen=True)
class TrialRun:
    """One rollout of an agent, of one turn.

    Attributes:
        model: was asked.
        model_calls: how often.
        finish_reason: why the agent ended.
        duration_ms: how long it took, in milliseconds.
    """

    model: str
    model_calls: int
    finish_reason: str
    duration_ms: float


@dataclass(frozen=True)
class ValidatedAgent:
    """An agent loop that is valid: its name, how many tools it has, what is suspicious, and how its trial went."""

    name: str
    tool_count: int
    warnings: list[dict[str, Any]]
    trial: TrialRun | None


def validate(module: str, *, run: bool) -> ValidatedAgent:
    """Check the agent loop that ``module`` names.

    Args:
        module: ``module:attribute``.
        run: also run it once, for a single turn on :data:`TRIAL_MODEL`.

    Raises:
        OsmosisError: when it cannot be loaded, is not valid, or its run fails; ``details`` has what is wrong.
    """
    from osmosis_ai.rollout.loop.loading import load_agent_loop
    from osmosis_ai.rollout.loop.validation import validate_agent_loop

    agent = load_agent_loop(module)
    found = validate_agent_loop(agent)
    if not found.valid:
        raise _invalid(module, found)
    trial = _try(agent) if run else None
    return ValidatedAgent(agent.name, found.tool_count, [_problem(each) for each in found.warnings], trial)


def _try(agent: RolloutAgentLoop) -> TrialRun:
    result = asyncio.run(_run_once(agent))
    if not result.success:
        raise OsmosisError(
            f"agent loop '{agent.name}' looks valid, but its run failed: {result.raised or result.error}",
            details={"errors": [{"code": "RUN_FAILED", "message": result.error, "field": "run"}]},
        )
    ended = result.result
    return TrialRun(
        model=TRIAL_MODEL,
        model_calls=result.token_usage["num_llm_calls"],
        finish_reason="" if ended is None else ended.finish_reason,
        duration_ms=result.duration_ms,
    )


async def _run_once(agent: RolloutAgentLoop) -> LocalRunResult:
    from osmosis_ai.evaluation.agent_loop.llm_client import ExternalLLMClient, open_model
    from osmosis_ai.evaluation.agent_loop.runner import LocalRolloutRunner

    row = {"system_prompt": "You are a helpful assistant.", "user_prompt": "Hello.", "ground_truth": ""}
    async with open_model(TRIAL_MODEL) as model:
        runner = LocalRolloutRunner(
            agent,
            ExternalLLMClient.sharing(model),
            rollout_id_prefix="validation",
            request_metadata={"_validation": True},
            timeout_s=TRIAL_TIMEOUT_S,
        )
        return await runner.run_single(row, 0, max_turns=1, completion_params={"max_tokens": _TRIAL_TOKENS})


def _invalid(module: str, found: ValidationResult) -> OsmosisError:
    many = "1 error" if len(found.errors) == 1 else f"{len(found.errors)} errors"
    lines = [f"agent loop '{found.agent_name or module}' is not valid: {many}", *map(str, found.errors)]
    return OsmosisError(
        "\n  ".join(lines),
        details={
            "errors": [_problem(each) for each in found.errors],
            "warnings": [_problem(each) for each in found.warnings],
        },
    )


def _problem(found: Any) -> dict[str, Any]:
    return {"code": found.code, "message": found.message, "field": found.field}
