"""Interface of rollout drivers."""

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

    ``messages`` may be empty when ``metadata`` is set. ``rollout_id`` is a fresh path segment. The agent's timeout includes
    the time in the server's queue, and ``extra_fields`` are echoed into the stored trajectory.
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
