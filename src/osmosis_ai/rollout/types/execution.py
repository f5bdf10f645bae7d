"""What a server hands to a backend, and what it gets back."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from .protocol import BudgetS, RolloutErrorCategory, RolloutId, ServerStatus
from .sample import Messages, RolloutSample


class ExecutionRequest(BaseModel):
    """One rollout to execute.

    Attributes:
        id: the rollout's id, a single path segment.
        prompt: the initial messages, handed to the workflow as they are; may be empty.
        label: the ground truth for the grader.
        metadata: the dataset row's own fields, for the workflow and the grader.
        agent_timeout_sec: budget of the workflow in seconds; None is unbounded, zero has expired.
        grader_timeout_sec: budget of the grader in seconds, likewise.
        extra_fields: what the controller says of the rollout, such as which row it is.
    """

    id: RolloutId
    prompt: Messages
    label: str | None = None
    metadata: dict[str, Any] | None = None
    agent_timeout_sec: BudgetS | None = None
    grader_timeout_sec: BudgetS | None = None
    extra_fields: dict[str, Any] | None = None


class ExecutionResult(BaseModel):
    """How a workflow or a grader ended.

    ``extra_fields`` are the backend's diagnostics; they are archived and never sent.
    """

    status: ServerStatus
    sample: RolloutSample | None = None
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None
    extra_fields: dict[str, Any] | None = None
