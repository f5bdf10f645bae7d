"""Agent frameworks, one module each, and what they share: the rollout's model for frameworks that call LiteLLM.

A configuration exists before its rollout and therefore holds a placeholder model. The agent, which is created in ``run``,
replaces it with the rollout's model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ...context import RolloutContext, get_rollout_context
from ...types import Messages, RolloutSample, snapshot

logger = logging.getLogger(__name__)

MODEL_ID = "openai/osmosis-rollout"
"""LiteLLM sends the part after the slash as ``model``. The run decides which model answers."""

NO_KEY = "none"
"""Stands in for a missing key, so that LiteLLM does not use another provider's key from the environment."""


def running_rollout(who: str) -> RolloutContext:
    """Return the active rollout. Raises RuntimeError, naming the caller ``who``, without a rollout or a model."""
    context = get_rollout_context()
    if context is None:
        raise RuntimeError(
            f"{who} was created outside of a rollout context: create it in your workflow's `run`"
        )
    if not context.chat_completions_url:
        raise RuntimeError(
            f"{who} was created in a rollout without a model: its `chat_completions_url` is empty"
        )
    return context


def refuse_endpoint_options(options: Mapping[str, Any], reserved: Collection[str]) -> None:
    """Raise TypeError if the options of a placeholder select a model, which only the run may do."""
    if named := [f"`{name}`" for name in options if name in reserved]:
        raise TypeError(f"OsmosisRolloutModel does not accept {', '.join(named)}: the run selects the model")


def placeholder_called(agent: str) -> NotImplementedError:
    """Return the error for a call to a placeholder model, which the class ``agent`` replaces."""
    return NotImplementedError(
        f"OsmosisRolloutModel is a placeholder: pass it to `{agent}(model=...)` in your workflow's `run`, "
        "which replaces it with the rollout's model"
    )


def framework_sample(messages: Sequence[Any], to_chat: Callable[[], Messages]) -> RolloutSample:
    """Return a conversation in the framework's format, with the chat messages of ``to_chat`` for the archive."""
    try:
        archived = to_chat()
    except Exception:
        # Messages come from any tool and model. One that cannot be archived must not cost the sample.
        logger.warning("the conversation has no chat format, so no trajectory is archived", exc_info=True)
        archived = None
    return RolloutSample(messages=[snapshot(each) for each in messages], trajectory_messages=archived)
