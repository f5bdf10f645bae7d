"""Return values of a workflow's ``run``."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from .sample import Messages


class AgentWorkflowOutput(BaseModel):
    """An explicit result of a workflow.

    Attributes:
        messages: The conversation; None means that the rollout has no sample.
        metrics: Finite numbers that become the sample's metrics.
        info: Reserved and not read.
    """

    # Revalidation catches a metric that was set to NaN in place.
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, revalidate_instances="always")

    messages: Messages | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    info: dict[str, Any] = Field(default_factory=dict)


def coerce_output(value: Any) -> AgentWorkflowOutput | None:
    """Parse the return value of ``run``. None means that the rollout's sample source has the sample.

    Raises TypeError, or pydantic's ValidationError for an invalid message or metric.
    """
    if value is None:
        return None
    if isinstance(value, AgentWorkflowOutput):
        return AgentWorkflowOutput.model_validate(value)
    if isinstance(value, list):
        return AgentWorkflowOutput(messages=value)
    raise TypeError(
        "`run` must return a list of messages, an AgentWorkflowOutput or None, "
        f"but it returned {type(value).__name__}"
    )
