"""Configurations of workflows and graders, typed and extensible."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ConcurrencyConfig(BaseModel):
    """Maximum number of concurrent rollouts; None means unlimited."""

    max_concurrent: int | None = Field(default=None, ge=1)


class BaseConfig(BaseModel):
    """Base of all configurations. Subclasses may add fields of any type, including tools and models."""

    model_config = ConfigDict(extra="allow", validate_assignment=True, arbitrary_types_allowed=True)

    name: str
    description: str | None = None


class AgentWorkflowConfig(BaseConfig):
    """Configuration of an agent workflow. Every rollout gets a deep copy."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)


class GraderConfig(BaseConfig):
    """Configuration of a grader, shared by all rollouts of a process."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)
