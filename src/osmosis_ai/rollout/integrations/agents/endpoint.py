"""The running rollout's model, as frameworks that call through LiteLLM want it.

A configuration is made before there is a rollout, so it holds a placeholder for the model. The agent, which is made
in ``run``, puts the rollout's own model in its place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ...context import RolloutContext, get_rollout_context

MODEL_ID = "openai/osmosis-rollout"
"""LiteLLM sends what follows the slash as ``model``; the run decides which model answers."""

NO_KEY = "none"
"""In place of a key that there is not: LiteLLM would look for another service's in the environment."""


def running_rollout(who: str) -> RolloutContext:
    """Return the rollout that runs, which has a model.

    Args:
        who: the class that asks; begins the sentence.

    Raises:
        RuntimeError: nothing runs, or it has no model.
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
    """Check that a placeholder is not told which model answers.

    Raises:
        TypeError: it is; the run decides that.
    """
    named = [f"`{name}`" for name in options if name in reserved]
    if named:
        raise TypeError(
            f"OsmosisRolloutModel takes no {', '.join(named)}: which model answers, and where, is decided by the run"
        )


def placeholder_called(agent: str) -> NotImplementedError:
    """Return the error of a placeholder that was asked for an answer.

    Args:
        agent: the class that puts a model in its place.
    """
    return NotImplementedError(
        f"OsmosisRolloutModel is a placeholder and answers nothing: give it to `{agent}(model=...)`, made in your "
        "workflow's `run`, which puts the rollout's model in its place"
    )
