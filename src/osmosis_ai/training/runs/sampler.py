"""Sample rollouts of the policy, keeping the sampled tokens.

Every attempt yields one :class:`Sample`. An attempt that failed, timed out or was removed by its grader has no reward
but a reason. An attempt that was lost with its server, or because this machine was too slow, is repeated under a new id
with the same seeds. Samples keep the order of the requests, so results do not depend on which finished first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from osmosis_ai.controller.attempt import Attempt, AttemptResults, RunningAttempt
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.evaluation.metrics import NO_REWARD

if TYPE_CHECKING:
    from osmosis_ai.controller.dispatcher import RolloutRunner
    from osmosis_ai.controller.model_proxy import RolloutUsage
    from osmosis_ai.rollout.types import GraderCompleteRequest
    from osmosis_ai.training.engines.recording import RecordedRollout

REMOVED = "removed"


class RecordingBridge(Protocol):
    """Keeps what was sampled (:class:`osmosis_ai.training.engines.policy_bridge.PolicyBridge`)."""

    def take(self, rollout_id: str) -> RecordedRollout:
        """Return what a rollout recorded, and forget it."""

    def discard(self, rollout_id: str) -> None:
        """Forget what a rollout recorded."""


@dataclass(frozen=True)
class Sample:
    """What became of an attempt."""

    record: TerminalRecord
    recorded: RecordedRollout
    grader_reward: float | None = None

    @property
    def reward(self) -> float | None:
        """What the grader gave; None where there is nothing to learn from."""
        return self.record.reward if self.record.status == "success" else None

    @property
    def unscored_because(self) -> str | None:
        """Why there is no reward, in a machine-readable word; None where there is one."""
        if self.reward is not None:
            return None
        if self.record.status == "skipped":
            return REMOVED
        return self.record.error_type or NO_REWARD


@dataclass(frozen=True)
class RolloutSampler:
    """Makes the rollouts of a training run."""

    runner: RolloutRunner
    bridge: RecordingBridge

    async def sample(
        self, attempts: Sequence[Attempt], *, finished: Callable[[Sample], None] = lambda _: None
    ) -> list[Sample]:
        """Make all ``attempts``, as many at once as the server takes; return their samples in order."""
        recorder = _SampleRecorder(self.bridge, finished)
        await self.runner.run_all(attempts, recorder)
        return [recorder.samples[attempt] for attempt in attempts]


class _SampleRecorder(AttemptResults):
    """Keeps results with their tokens. Nothing is durable here: a batch counts when its step does."""

    def __init__(self, bridge: RecordingBridge, finished: Callable[[Sample], None]) -> None:
        self.samples: dict[Attempt, Sample] = {}
        self._bridge = bridge
        self._finished = finished

    async def record(self, record: TerminalRecord, running: RunningAttempt) -> None:
        sample = Sample(record, self._bridge.take(record.rollout_id), _grader_reward(running.grader))
        self.samples[running.attempt] = sample
        self._finished(sample)

    def unrecorded(self, rollout_id: str, usage: RolloutUsage) -> None:
        self._bridge.discard(rollout_id)


def _grader_reward(grader: GraderCompleteRequest | None) -> float | None:
    if grader is None or grader.status.value != "success" or grader.sample is None:
        return None
    reward = grader.sample.reward
    return reward if reward is not None and math.isfinite(reward) else None
