"""The rollout's model for frameworks that call LiteLLM.

A configuration exists before its rollout and therefore holds a placeholder model. The agent, which is created
in ``run``, replaces it with the rollout's model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ...context import RolloutContext, get_rollout_context

MODEL_ID = "openai/osmosis-rollout"
"""LiteLLM sends the part after the slash as ``model``. The run decides which model answers."""

NO_KEY = "none"
"""Stands in for a missing key, so that LiteLLM does not use another provider's key from the environment."""


def running_rollout(who: str) -> RolloutContext:
    """Return the active rollout and check that it has a model.

    Args:
        who: The calling class; starts the error message.

    Raises:
        RuntimeError: There is no active rollout, or it has no model.
    """
    context = get_rollout_context()
    if context is None:
        raise RuntimeError(
            f"{who} was made outside of a rollout context: make it in your workflow's `run`, where the rollout's "
            "model is known"
        )
    if not context.chat_completions_url:
        raise RuntimeError(
            f"{who} was made in a rollout without a model: its `chat_completions_url` is empty"
        )
    return context


def refuse_endpoint_options(options: Mapping[str, Any], reserved: Collection[str]) -> None:
    """Check that the options of a placeholder do not select a model.

    Raises:
        TypeError: They do. The run decides which model answers.
    """
    named = [f"`{name}`" for name in options if name in reserved]
    if named:
        raise TypeError(
            f"OsmosisRolloutModel takes no {', '.join(named)}: which model answers, and where, is decided by the run"
        )


def placeholder_called(agent: str) -> NotImplementedError:
    """Return the error for a call to a placeholder model.

    Args:
        agent: The class that replaces the placeholder.
    """
    return NotImplementedError(
        f"OsmosisRolloutModel is a placeholder and answers nothing: give it to `{agent}(model=...)`, made in your "
        "workflow's `run`, which puts the rollout's model in its place"
    )
