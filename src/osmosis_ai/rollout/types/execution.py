"""Requests and results exchanged by a server and its backend."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from .protocol import BudgetS, RolloutErrorCategory, RolloutId, ServerStatus
from .sample import Messages, RolloutSample


class ExecutionRequest(BaseModel):
    """One rollout to execute.

    Attributes:
        id: The rollout's id, a single path segment.
        prompt: The initial messages, passed to the workflow unchanged; may be empty.
        label: The ground truth for the grader.
        metadata: Fields of the dataset row, for the workflow and the grader.
        agent_timeout_sec: Time budget of the workflow in seconds; None is unlimited, zero has expired.
        grader_timeout_sec: Time budget of the grader in seconds, with the same special values.
        extra_fields: Data from the controller, such as the row's index.
    """

    id: RolloutId
    prompt: Messages
    label: str | None = None
    metadata: dict[str, Any] | None = None
    agent_timeout_sec: BudgetS | None = None
    grader_timeout_sec: BudgetS | None = None
    extra_fields: dict[str, Any] | None = None


class ExecutionResult(BaseModel):
    """Result of a workflow or a grader.

    ``extra_fields`` are the backend's diagnostics; they are archived but never sent.
    """

    status: ServerStatus
    sample: RolloutSample | None = None
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None
    extra_fields: dict[str, Any] | None = None
