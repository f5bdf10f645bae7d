"""The interface of what runs rollouts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.rollout.types import RolloutSample, RolloutStatus

__all__ = ["RolloutDriver", "RolloutOutcome", "RolloutRunRequest"]


@dataclass(frozen=True)
class RolloutRunRequest:
    """One rollout to run.

    Attributes:
        messages: the prompt in the shape of OpenAI chat messages; may be empty when ``metadata`` is set.
        label: ground truth for the grader.
        metadata: the row's own object, passed to workflow and grader unchanged.
        rollout_id: a fresh id, one path segment; ids are never reused.
        agent_timeout_sec: seconds the workflow may take, including the time in the server's queue.
        grader_timeout_sec: seconds the grader may take.
        extra_fields: echoed into the stored trajectory.
    """

    messages: Sequence[Mapping[str, Any]]
    label: str | None = None
    metadata: Mapping[str, Any] | None = None
    rollout_id: str = ""
    agent_timeout_sec: float | None = None
    grader_timeout_sec: float | None = None
    extra_fields: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class RolloutOutcome:
    """How a rollout ended: its status, the graded sample if there is one, and the error."""

    status: RolloutStatus
    sample: RolloutSample | None = None
    error: str | None = None
    rollout_id: str | None = None


class RolloutDriver(ABC):
    """Runs rollouts one call at a time; safe to call concurrently for different ids."""

    @abstractmethod
    async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
        """Run one rollout to its terminal result."""
