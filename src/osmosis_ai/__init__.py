"""Osmosis: evaluate and train LLM agents.

Agents are written against :mod:`osmosis_ai.rollout`; rewards, rubrics and agent loops use the names exported here.
These are imported on first use, so that importing the package is fast.
"""

from __future__ import annotations

from osmosis_ai._version import __version__

TYPE_CHECKING = False  # type checkers assume True; importing `typing` takes a third of the start-up time
if TYPE_CHECKING:
    from osmosis_ai.errors import OsmosisError as OsmosisError
    from osmosis_ai.rewards import osmosis_reward as osmosis_reward
    from osmosis_ai.rewards import osmosis_rubric as osmosis_rubric
    from osmosis_ai.rollout.client import OsmosisLLMClient as OsmosisLLMClient
    from osmosis_ai.rollout.context import RolloutContext as RolloutContext
    from osmosis_ai.rollout.core.base import CompletionsResult as CompletionsResult
    from osmosis_ai.rollout.core.base import RolloutAgentLoop as RolloutAgentLoop
    from osmosis_ai.rollout.core.base import RolloutResult as RolloutResult
    from osmosis_ai.rollout.core.exceptions import OsmosisRolloutError as OsmosisRolloutError
    from osmosis_ai.rollout.core.exceptions import OsmosisServerError as OsmosisServerError
    from osmosis_ai.rollout.core.exceptions import OsmosisTimeoutError as OsmosisTimeoutError
    from osmosis_ai.rollout.core.exceptions import OsmosisTransportError as OsmosisTransportError
    from osmosis_ai.rollout.core.exceptions import OsmosisValidationError as OsmosisValidationError
    from osmosis_ai.rollout.core.schemas import InitResponse as InitResponse
    from osmosis_ai.rollout.core.schemas import OpenAIFunctionToolSchema as OpenAIFunctionToolSchema
    from osmosis_ai.rollout.core.schemas import RolloutMetrics as RolloutMetrics
    from osmosis_ai.rollout.core.schemas import RolloutRequest as RolloutRequest
    from osmosis_ai.rollout.core.schemas import RolloutResponse as RolloutResponse
    from osmosis_ai.rollout.registry import get_agent_loop as get_agent_loop
    from osmosis_ai.rollout.registry import list_agent_loops as list_agent_loops
    from osmosis_ai.rollout.registry import register_agent_loop as register_agent_loop
    from osmosis_ai.rollout.server.agent_loop import create_app as create_app
    from osmosis_ai.rubric.api import aevaluate_rubric as aevaluate_rubric
    from osmosis_ai.rubric.api import evaluate_rubric as evaluate_rubric
    from osmosis_ai.rubric.types import MissingAPIKeyError as MissingAPIKeyError
    from osmosis_ai.rubric.types import ModelNotFoundError as ModelNotFoundError
    from osmosis_ai.rubric.types import ProviderRequestError as ProviderRequestError
    from osmosis_ai.rubric.types import RubricResult as RubricResult
    from osmosis_ai.rubric.types import UnscoredError as UnscoredError

# Public names, by the module that defines them.
_MODULES = {
    "osmosis_ai.errors": "OsmosisError",
    "osmosis_ai.rewards": "osmosis_reward osmosis_rubric",
    "osmosis_ai.rollout.client": "OsmosisLLMClient",
    "osmosis_ai.rollout.context": "RolloutContext",
    "osmosis_ai.rollout.core.base": "CompletionsResult RolloutAgentLoop RolloutResult",
    "osmosis_ai.rollout.core.exceptions": """
        OsmosisRolloutError OsmosisServerError OsmosisTimeoutError OsmosisTransportError OsmosisValidationError
    """,
    "osmosis_ai.rollout.core.schemas": """
        InitResponse OpenAIFunctionToolSchema RolloutMetrics RolloutRequest RolloutResponse
    """,
    "osmosis_ai.rollout.registry": "get_agent_loop list_agent_loops register_agent_loop",
    "osmosis_ai.rollout.server.agent_loop": "create_app",
    "osmosis_ai.rubric.api": "aevaluate_rubric evaluate_rubric",
    "osmosis_ai.rubric.types": """
        MissingAPIKeyError ModelNotFoundError ProviderRequestError RubricResult UnscoredError
    """,
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
