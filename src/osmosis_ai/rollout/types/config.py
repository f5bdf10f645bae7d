"""Configurations: what a project gives its workflow and its grader, typed and open to extension."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ConcurrencyConfig(BaseModel):
    """How many rollouts may run at once; None means as many as are asked for."""

    max_concurrent: int | None = Field(default=None, ge=1)


class BaseConfig(BaseModel):
    """The base of all configurations; a subclass adds fields of any type, tools and models included."""

    model_config = ConfigDict(extra="allow", validate_assignment=True, arbitrary_types_allowed=True)

    name: str
    description: str | None = None


class AgentWorkflowConfig(BaseConfig):
    """The configuration of an agent workflow. Every rollout gets its own deep copy."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)


class GraderConfig(BaseConfig):
    """The configuration of a grader, shared by all rollouts of a process."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)
