"""Osmosis: evaluate and train LLM agents.

Agents are written against :mod:`osmosis_ai.rollout`; rewards, rubrics and agent loops use the names exported here.
These are imported on first use, so that importing the package is fast.
"""

from __future__ import annotations

from osmosis_ai._version import __version__

TYPE_CHECKING = False  # type checkers assume True; importing `typing` takes a third of the start-up time
if TYPE_CHECKING:
    from osmosis_ai.errors import OsmosisError
    from osmosis_ai.rewards import osmosis_reward, osmosis_rubric
    from osmosis_ai.rollout.context import RolloutContext
    from osmosis_ai.rollout.loop.agent import CompletionsResult, RolloutAgentLoop, RolloutResult
    from osmosis_ai.rollout.loop.client import OsmosisLLMClient
    from osmosis_ai.rollout.loop.exceptions import (
        OsmosisRolloutError,
        OsmosisServerError,
        OsmosisTimeoutError,
        OsmosisTransportError,
        OsmosisValidationError,
    )
    from osmosis_ai.rollout.loop.registry import get_agent_loop, list_agent_loops, register_agent_loop
    from osmosis_ai.rollout.loop.schemas import (
        InitResponse,
        OpenAIFunctionToolSchema,
        RolloutMetrics,
        RolloutRequest,
        RolloutResponse,
    )
    from osmosis_ai.rollout.loop.server.app import create_app
    from osmosis_ai.rubric.api import aevaluate_rubric, evaluate_rubric
    from osmosis_ai.rubric.types import (
        MissingAPIKeyError,
        ModelNotFoundError,
        ProviderRequestError,
        RubricResult,
        UnscoredError,
    )

__all__ = [
    "CompletionsResult",
    "InitResponse",
    "MissingAPIKeyError",
    "ModelNotFoundError",
    "OpenAIFunctionToolSchema",
    "OsmosisError",
    "OsmosisLLMClient",
    "OsmosisRolloutError",
    "OsmosisServerError",
    "OsmosisTimeoutError",
    "OsmosisTransportError",
    "OsmosisValidationError",
    "ProviderRequestError",
    "RolloutAgentLoop",
    "RolloutContext",
    "RolloutMetrics",
    "RolloutRequest",
    "RolloutResponse",
    "RolloutResult",
    "RubricResult",
    "UnscoredError",
    "__version__",
    "aevaluate_rubric",
    "create_app",
    "evaluate_rubric",
    "get_agent_loop",
    "list_agent_loops",
    "osmosis_reward",
    "osmosis_rubric",
    "register_agent_loop",
]

_HOMES = {
    "MissingAPIKeyError": "osmosis_ai.rubric.types",
    "ModelNotFoundError": "osmosis_ai.rubric.types",
    "OsmosisError": "osmosis_ai.errors",
    "ProviderRequestError": "osmosis_ai.rubric.types",
    "RubricResult": "osmosis_ai.rubric.types",
    "UnscoredError": "osmosis_ai.rubric.types",
    "aevaluate_rubric": "osmosis_ai.rubric.api",
    "evaluate_rubric": "osmosis_ai.rubric.api",
    "osmosis_reward": "osmosis_ai.rewards",
    "osmosis_rubric": "osmosis_ai.rewards",
    "CompletionsResult": "osmosis_ai.rollout.loop.agent",
    "InitResponse": "osmosis_ai.rollout.loop.schemas",
    "OpenAIFunctionToolSchema": "osmosis_ai.rollout.loop.schemas",
    "OsmosisLLMClient": "osmosis_ai.rollout.loop.client",
    "OsmosisRolloutError": "osmosis_ai.rollout.loop.exceptions",
    "OsmosisServerError": "osmosis_ai.rollout.loop.exceptions",
    "OsmosisTimeoutError": "osmosis_ai.rollout.loop.exceptions",
    "OsmosisTransportError": "osmosis_ai.rollout.loop.exceptions",
    "OsmosisValidationError": "osmosis_ai.rollout.loop.exceptions",
    "RolloutAgentLoop": "osmosis_ai.rollout.loop.agent",
    "RolloutContext": "osmosis_ai.rollout.context",
    "RolloutMetrics": "osmosis_ai.rollout.loop.schemas",
    "RolloutRequest": "osmosis_ai.rollout.loop.schemas",
    "RolloutResponse": "osmosis_ai.rollout.loop.schemas",
    "RolloutResult": "osmosis_ai.rollout.loop.agent",
    "create_app": "osmosis_ai.rollout.loop.server.app",
    "get_agent_loop": "osmosis_ai.rollout.loop.registry",
    "list_agent_loops": "osmosis_ai.rollout.loop.registry",
    "register_agent_loop": "osmosis_ai.rollout.loop.registry",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
