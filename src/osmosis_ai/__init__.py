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
    from osmosis_ai.rollout.client import OsmosisLLMClient
    from osmosis_ai.rollout.context import RolloutContext
    from osmosis_ai.rollout.core.base import CompletionsResult, RolloutAgentLoop, RolloutResult
    from osmosis_ai.rollout.core.exceptions import (
        OsmosisRolloutError,
        OsmosisServerError,
        OsmosisTimeoutError,
        OsmosisTransportError,
        OsmosisValidationError,
    )
    from osmosis_ai.rollout.core.schemas import (
        InitResponse,
        OpenAIFunctionToolSchema,
        RolloutMetrics,
        RolloutRequest,
        RolloutResponse,
    )
    from osmosis_ai.rollout.registry import get_agent_loop, list_agent_loops, register_agent_loop
    from osmosis_ai.rollout.server.agent_loop import create_app
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
    "CompletionsResult": "osmosis_ai.rollout.core.base",
    "InitResponse": "osmosis_ai.rollout.core.schemas",
    "OpenAIFunctionToolSchema": "osmosis_ai.rollout.core.schemas",
    "OsmosisLLMClient": "osmosis_ai.rollout.client",
    "OsmosisRolloutError": "osmosis_ai.rollout.core.exceptions",
    "OsmosisServerError": "osmosis_ai.rollout.core.exceptions",
    "OsmosisTimeoutError": "osmosis_ai.rollout.core.exceptions",
    "OsmosisTransportError": "osmosis_ai.rollout.core.exceptions",
    "OsmosisValidationError": "osmosis_ai.rollout.core.exceptions",
    "RolloutAgentLoop": "osmosis_ai.rollout.core.base",
    "RolloutContext": "osmosis_ai.rollout.context",
    "RolloutMetrics": "osmosis_ai.rollout.core.schemas",
    "RolloutRequest": "osmosis_ai.rollout.core.schemas",
    "RolloutResponse": "osmosis_ai.rollout.core.schemas",
    "RolloutResult": "osmosis_ai.rollout.core.base",
    "create_app": "osmosis_ai.rollout.server.agent_loop",
    "get_agent_loop": "osmosis_ai.rollout.registry",
    "list_agent_loops": "osmosis_ai.rollout.registry",
    "register_agent_loop": "osmosis_ai.rollout.registry",
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
