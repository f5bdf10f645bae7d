"""What a workflow's ``run`` may return, and how it is read."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from .sample import Messages


class AgentWorkflowOutput(BaseModel):
    """An explicit result of a workflow.

    Attributes:
        messages: the conversation; None means the rollout has no sample.
        metrics: finite numbers that become the sample's metrics.
        info: reserved; nobody reads it.
    """

    # Instances are validated again when they are read: a metric set to NaN in place is caught.
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, revalidate_instances="always")

    messages: Messages | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    info: dict[str, Any] = Field(default_factory=dict)


def coerce_output(value: Any) -> AgentWorkflowOutput | None:
    """Read what ``run`` returned; None means the rollout's sample source has the sample.

    Raises:
        TypeError: for anything but None, a list of messages or an AgentWorkflowOutput.
        pydantic.ValidationError: for messages that are no dicts, or metrics that are not finite.
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
