"""History of recent steps, and the conditions under which a run stops early.

One bad step is reported and ignored. Several in a row have a cause that a user must know before more is spent.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from osmosis_ai.errors import OsmosisError
from osmosis_ai.training.runs.validation import significant_fall

if TYPE_CHECKING:
    from osmosis_ai.training.runs.rollout_batch import LearnerBatch, RolloutBatch

# Steps in a row in which every group agreed: worth a warning, and the end of the run.
SILENT_STEPS_WARNING = 3
SILENT_STEPS_END = 10
# Steps in a row in which no rollout got a reward: the rollout is broken, not the policy.
UNSCORED_STEPS_END = 3
# Steps in a row that the learner refused: one may be bad luck, this many are a cause.
REFUSED_STEPS_END = 3

EndedBecause = Literal["finished", "stopped", "nothing_to_learn"]


class NoRewardsError(OsmosisError):
    """Rollouts fail, or are never graded."""

    default_code = "INTERNAL"


class NothingToLearnError(OsmosisError):
    """From the first step on, all attempts on a prompt got the same reward."""


@dataclass(frozen=True)
class Ending:
    """Why a session ended, in a word and in a sentence; and what must not be overlooked about the policy."""

    because: EndedBecause
    message: str
    warning: str | None = None


@dataclass
class TrainingLoopState:
    """What the loop itself has to remember; it is part of every checkpoint."""

    step: int = 0
    silent: int = 0
    unscored: int = 0
    refused: int = 0
    reward: float | None = None
    start_rewards: list[float | None] | None = None
    fallen: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    def judge_rewards(self, batch: RolloutBatch, learnable: LearnerBatch) -> list[str]:
        """Count steps that teach nothing; return what to tell about this one."""
        statistics = learnable.statistics
        if statistics.samples_unscored == statistics.samples:
            self.unscored += 1
            return [self._without_rewards(batch)]
        self.unscored = 0
        self.reward = statistics.reward_mean
        self.silent = 0 if learnable.sequences else self.silent + 1
        if self.silent != SILENT_STEPS_WARNING:
            return []
        return [
            f"in {self.silent} steps in a row every group's rewards were equal (mean "
            f"{statistics.reward_mean:.3g}): there is nothing to learn from them. The run ends after "
            f"{SILENT_STEPS_END} such steps."
        ]

    def judge_validation(self, rewards: list[float | None], *, validations: int) -> str | None:
        """Compare a validation with the first one; return a warning if it is significantly lower."""
        if self.start_rewards is None:
            self.start_rewards = rewards
            return None
        self.fallen = significant_fall(self.start_rewards, rewards, validations=validations)
        return (
            f"{self.fallen}: the policy gets worse at rows that it does not learn from."
            if self.fallen
            else None
        )

    def end_without_signal(self, updates: int) -> Ending | None:
        """Return the end when there is nothing to learn any more."""
        if self.silent < SILENT_STEPS_END:
            return None
        what = f"in {self.silent} steps in a row all attempts on each prompt got equal rewards"
        if self.reward is not None:
            what += f" ({self.reward:.3g} on average in the last of them)"
        if updates == 0:
            raise NothingToLearnError(
                f"{what}, so there was nothing to learn from.",
                hint="the task is too hard or too easy for this model, or the grader is too coarse; look at "
                "some samples with `osmosis eval run`",
            )
        return Ending("nothing_to_learn", f"{what}: ended after step {self.step}.")

    def require_a_reward(self) -> None:
        """Fail a finished run that got no reward in any step, even if it had too few steps to stop early."""
        if self.reward is None:
            steps = "its one step" if self.step == 1 else f"any of its {self.step} steps"
            raise NoRewardsError(
                f"no rollout got a reward in {steps}, so nothing was learned.",
                hint="the log of the run says why; try the rollout with `osmosis eval run` and a few `--rows`",
            )

    def _without_rewards(self, batch: RolloutBatch) -> str:
        reasons = ", ".join(f"{count} x {reason}" for reason, count in batch.unscored().items())
        what = f"none of the {len(batch.samples)} rollouts of step {batch.step} got a reward ({reasons})"
        failure = batch.first_failure() or "no grader gave one"
        if self.unscored >= UNSCORED_STEPS_END:
            raise NoRewardsError(
                f"{what}, and so it was in {self.unscored} steps in a row. The first of them: {failure}",
                hint="try the rollout with `osmosis eval run` and a few `--rows`",
            )
        return f"{what}. The first of them: {failure}"
