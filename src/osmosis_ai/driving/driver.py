"""Driving one rollout, whatever the transport: admit it, await its one terminal result, cancel it.

The interface knows nothing of callbacks or polling, so that every line of the rollout protocol
fits behind it. Whoever limits concurrency does so before calling :meth:`RolloutDriver.run`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.rollout.types import RolloutSample, RolloutStatus

__all__ = ["RolloutDriver", "RolloutOutcome", "RolloutRunRequest"]


DEFAULT_DEADLINE_S = 3600.0
CALLBACK_GRACE_S = 60.0


@dataclass(frozen=True)
class AttemptTimeouts:
    """Seconds that the agent and the grader of an attempt may take; None is unbounded."""

    agent_s: float | None
    grader_s: float | None

    @property
    def callback_s(self) -> float:
        """Seconds that an admitted attempt may take before nobody waits for its callback any more."""
        if self.agent_s is None or self.grader_s is None:
            return DEFAULT_DEADLINE_S
        total = self.agent_s + self.grader_s
        return total + CALLBACK_GRACE_S if total > 0 else DEFAULT_DEADLINE_S

    @property
    def completion_s(self) -> float:
        """Seconds that an attempt may take that nobody grades: an agent's served elsewhere, queueing there included."""
        return self.agent_s + CALLBACK_GRACE_S if self.agent_s else DEFAULT_DEADLINE_S


@dataclass(frozen=True)
class RolloutRunRequest:
    """One rollout to run.

    Attributes:
        messages: the prompt in the shape of OpenAI chat messages; may be empty when ``metadata`` is set.
        label: ground truth for the grader.
        metadata: the row's own object, handed to workflow and grader untouched.
        rollout_id: a fresh id, one path segment; ids are never reused.
        agent_timeout_sec: seconds the workflow may take, queueing in the server included.
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
    """How a rollout ended: its status, the graded sample if there is one, and what went wrong."""

    status: RolloutStatus
    sample: RolloutSample | None = None
    error: str | None = None
    rollout_id: str | None = None


class RolloutDriver(ABC):
    """Runs rollouts one call at a time; safe to call concurrently for different ids."""

    @abstractmethod
    async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
        """Run one rollout to its terminal result."""
