"""The loop: sample, grade, compare, learn, publish, validate, record, checkpoint.

Step s learns from batch s, and batch s is begun when s - 1 - ``max_staleness`` steps are done: with 0 the
policy that learns is the one that sampled and nothing happens at the same time, so a run is a function
of its settings; with more, the next batches are sampled while the learner works, and no token is
older than ``max_staleness`` updates.

A step exists when its record is durable; its checkpoint follows. Whatever ends the process, a later
session goes on from the last checkpoint and computes the same steps again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from osmosis_ai.errors import OsmosisError
from osmosis_ai.training.hooks import SamplingProgress, SavedCheckpoint, TrainingHooks
from osmosis_ai.training.learner import StepRefusedError
from osmosis_ai.training.learner_metrics import StepMetrics
from osmosis_ai.training.metrics import MetricsHistory, StepRecord, finite
from osmosis_ai.training.rollout_batch import (
    Lesson,
    RolloutBatch,
    attempts_of_step,
    lesson_of,
    rollout_metrics,
)
from osmosis_ai.training.validation import ValidationPlan, validate, validation_metrics

if TYPE_CHECKING:
    from pathlib import Path

    from osmosis_ai.training.checkpoints import CheckpointStore
    from osmosis_ai.training.data_order import DataOrder
    from osmosis_ai.training.policy_engine import PolicyEngine
    from osmosis_ai.training.sampler import RolloutSampler, Sample
    from osmosis_ai.training.sequences import TokenSequence
    from osmosis_ai.training.settings import TrainingSettings
    from osmosis_ai.training.validation import SplitRows

T = TypeVar("T")

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


class PolicyLearner(Protocol):
    """What the loop needs of a learner (:class:`osmosis_ai.training.learner.Learner`)."""

    updates: int

    def step(
        self, sequences: list[TokenSequence], advantages: list[float], *, policy_version: int | None = None
    ) -> StepMetrics:
        """Update the policy once."""

    def merged_state(self) -> dict[str, Any]:
        """Return the weights to serve."""

    def save_adapter(self, directory: Path) -> None:
        """Write the adapter in PEFT's format."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that decides how learning goes on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from it."""


@dataclass
class LoopState:
    """What the loop itself has to remember; it is part of every checkpoint.

    Attributes:
        step: steps done.
        silent, unscored, refused: how many of the latest steps in a row were of that kind.
    """

    step: int = 0
    silent: int = 0
    unscored: int = 0
    refused: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return it as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Ending:
    """Why a session ended, in a word and in a sentence."""

    because: EndedBecause
    message: str


class _Stopped(Exception):
    """Somebody asked for the end."""


@dataclass(frozen=True)
class LoopParts:
    """What the loop puts together; ``provenance`` travels with every checkpoint."""

    settings: TrainingSettings
    rows: SplitRows
    order: DataOrder
    validation: ValidationPlan
    sampler: RolloutSampler
    learner: PolicyLearner
    engine: PolicyEngine
    history: MetricsHistory
    checkpoints: CheckpointStore
    hooks: TrainingHooks
    provenance: Mapping[str, Any] = field(default_factory=dict)


class TrainingLoop:
    """Runs the steps that are left.

    Args:
        parts: everything it works with; the engine serves the learner's policy already.
        state: where an earlier session ended.
        between_steps: called after each step, with its number.
    """

    def __init__(
        self, parts: LoopParts, state: LoopState, *, between_steps: Callable[[int], None] = lambda _: None
    ) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._hooks = parts.hooks
        self._between_steps = between_steps
        self.state = state
        self._stop = asyncio.Event()
        self._batches: dict[int, asyncio.Task[RolloutBatch]] = {}
        self._learner_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner")
        self._checkpoint_s: float | None = None

    def stop(self) -> None:
        """End after what can not be interrupted: an update that has begun is finished and kept."""
        self._stop.set()

    async def run(self) -> Ending:
        """Train to the end of the data, to a stop, or to where nothing is left to learn.

        Raises:
            OsmosisError: when there is no point in going on; the last checkpoint is usable.
        """
        try:
            ending = await self._run()
            await self._keep_last_checkpoint()
            return ending
        finally:
            await self._abandon_batches()
            await asyncio.to_thread(self._learner_thread.shutdown)

    async def _run(self) -> Ending:
        last = self._parts.order.total_steps
        try:
            if self.state.step == 0:
                await self._measure_base()
            for step in range(self.state.step + 1, last + 1):
                await self._take_step(step)
                if ending := self._ending_of_silence():
                    return ending
            return Ending("finished", f"all {last} steps are done.")
        except _Stopped:
            return Ending("stopped", f"stopped after step {self.state.step} of {last}.")

    # --- one step ---------------------------------------------------------------------------------

    async def _take_step(self, step: int) -> None:
        started = time.monotonic()
        batch = await self._unless_stopped(self._batch(step))
        version = self._parts.learner.updates
        lesson = lesson_of(batch, normalise=self._settings.normalise_advantages)
        metrics = rollout_metrics(batch, lesson.statistics, version)
        warnings = self._judge_rewards(batch, lesson)

        learned, learning_s, refusal = await self._learn(lesson, version)
        publishing_s = await self._publish(learned)
        warnings += [refusal] if refusal else list(learned.warnings)
        metrics |= learner_metrics(learned, learning_s)
        metrics |= await self._validate_if_due(step)
        metrics |= finite(
            {
                "time/publishing_s": publishing_s,
                "time/checkpoint_s": self._checkpoint_s,
                "time/step_s": time.monotonic() - started,
            }
        )
        self.state.step = step
        await self._record(step, metrics, batch.unscored(), warnings)
        await self._save_checkpoint({**self._parts.provenance, "metrics": metrics})
        self._between_steps(step)
        if self._stop.is_set():
            raise _Stopped

    async def _learn(self, lesson: Lesson, version: int) -> tuple[StepMetrics, float, str | None]:
        """Update the policy; return what came of it, the seconds it took, and why it was refused."""
        learner, started = self._parts.learner, time.monotonic()
        try:
            learned = await self._in_learner_thread(
                lambda: learner.step(lesson.sequences, lesson.advantages, policy_version=version)
            )
        except StepRefusedError as error:
            self.state.refused += 1
            if self.state.refused >= REFUSED_STEPS_END:
                raise
            return StepMetrics(updates=learner.updates), time.monotonic() - started, error.message
        self.state.refused = 0
        return learned, time.monotonic() - started, None

    async def _publish(self, learned: StepMetrics) -> float:
        """Serve the policy from now on; return the seconds it took."""
        started = time.monotonic()
        if learned.learned:
            await self._parts.engine.publish(self._parts.learner, learned.updates)
        return time.monotonic() - started

    def _judge_rewards(self, batch: RolloutBatch, lesson: Lesson) -> list[str]:
        """Keep count of steps that teach nothing; return what to tell about this one.

        Raises:
            NoRewardsError: when rollouts get no reward any more.
        """
        statistics, state = lesson.statistics, self.state
        scored = statistics.samples > statistics.samples_unscored
        state.unscored = 0 if scored else state.unscored + 1
        state.silent = state.silent + 1 if not lesson.sequences and scored else 0
        if not scored:
            failure = batch.first_failure() or "no grader gave a reward"
            reasons = ", ".join(f"{count} x {reason}" for reason, count in batch.unscored().items())
            what = f"none of the {statistics.samples} rollouts of step {batch.step} got a reward ({reasons})"
            if state.unscored >= UNSCORED_STEPS_END:
                raise NoRewardsError(
                    f"{what}, the {state.unscored}th step in a row. The first of them: {failure}",
                    hint="try the rollout with `osmosis eval run` and a small `--limit`",
                )
            return [f"{what}. The first of them: {failure}"]
        if state.silent == SILENT_STEPS_WARNING:
            return [
                f"in {state.silent} steps in a row every group's rewards were equal (mean "
                f"{statistics.reward_mean:.3g}): there is nothing to learn from them. The run ends after "
                f"{SILENT_STEPS_END} such steps."
            ]
        return []

    def _ending_of_silence(self) -> Ending | None:
        """Return the end when there is nothing to learn any more.

        Raises:
            NothingToLearnError: when there never was.
        """
        if self.state.silent < SILENT_STEPS_END:
            return None
        what = f"in {self.state.silent} steps in a row all attempts on each prompt got equal rewards"
        if self._parts.learner.updates == 0:
            raise NothingToLearnError(
                f"{what}, so there was nothing to learn from.",
                hint="the task is too hard or too easy for this model, or the grader is too coarse; look at "
                "some samples with `osmosis eval run`",
            )
        return Ending("nothing_to_learn", f"{what}: ended after step {self.state.step}.")

    # --- sampling -----------------------------------------------------------------------------------

    def _batch(self, step: int) -> asyncio.Task[RolloutBatch]:
        """Return batch ``step`` on its way, and begin as many behind it as staleness allows."""
        last = min(step + self._settings.max_staleness, self._parts.order.total_steps)
        for ahead in range(step, last + 1):
            if ahead not in self._batches:
                before = self._batches.get(ahead - 1)
                self._batches[ahead] = asyncio.create_task(self._sample_after(before, ahead))
        return self._batches.pop(step)

    async def _sample_after(self, before: asyncio.Task[RolloutBatch] | None, step: int) -> RolloutBatch:
        if before is not None:
            await asyncio.wait({before})
        settings, started = self._settings, time.monotonic()
        rows = [self._parts.rows.training[index] for index in self._parts.order.batch(step)]
        attempts = attempts_of_step(step, rows, settings.n_samples_per_prompt, settings.seed)
        progress = self._progress(step, "training", len(attempts))
        samples = await self._parts.sampler.sample(attempts, finished=progress)
        size = settings.n_samples_per_prompt
        samples_PG = [samples[start : start + size] for start in range(0, len(samples), size)]
        return RolloutBatch(step, samples_PG, time.monotonic() - started)

    def _progress(self, step: int, kind: str, total: int) -> Callable[[Sample], None]:
        rewards: list[float] = []
        finished = 0

        def tell(sample: Sample) -> None:
            nonlocal finished
            finished += 1
            if sample.reward is not None:
                rewards.append(sample.reward)
            mean = sum(rewards) / len(rewards) if rewards else None
            self._hooks.progress(SamplingProgress(step, kind, finished, total, mean))

        return tell

    async def _abandon_batches(self) -> None:
        for batch in self._batches.values():
            batch.cancel()
        await asyncio.gather(*self._batches.values(), return_exceptions=True)
        self._batches.clear()

    # --- validation, records, checkpoints -------------------------------------------------------------

    async def _measure_base(self) -> None:
        """Record step 0: how the policy does before it learned anything."""
        if self._parts.rows.held_out:
            self._hooks.stage("validating the policy before the first step")
            await self._record(0, await self._unless_stopped(self._validate(0)), {}, [])

    async def _validate_if_due(self, step: int) -> dict[str, float]:
        due = step % self._settings.eval_interval == 0 or step == self._parts.order.total_steps
        if not due or not self._parts.rows.held_out:
            return {}
        try:
            return await self._unless_stopped(self._validate(step))
        except _Stopped:
            return {}  # the update counts all the same

    async def _validate(self, step: int) -> dict[str, float]:
        parts, started = self._parts, time.monotonic()
        total = len(parts.rows.held_out) * parts.validation.attempts
        evaluation = await validate(
            parts.sampler,
            parts.rows.held_out,
            parts.validation,
            seed=self._settings.seed,
            step=step,
            finished=self._progress(step, "validation", total),
        )
        return validation_metrics(evaluation) | {"time/validation_s": time.monotonic() - started}

    async def _record(
        self, step: int, metrics: dict[str, float], unscored: dict[str, int], warnings: list[str]
    ) -> None:
        record = StepRecord(step, round(time.time() * 1000), metrics, unscored, warnings)
        await asyncio.to_thread(self._parts.history.append, record)
        for warning in warnings:
            self._hooks.note(warning)
        self._hooks.step(record, self._parts.order.total_steps)

    async def _save_checkpoint(self, provenance: Mapping[str, Any], *, keep: bool = False) -> None:
        started, step, parts = time.monotonic(), self.state.step, self._parts
        state = self.state.as_dict()
        saved = await self._in_learner_thread(
            lambda: parts.checkpoints.save(step, parts.learner, state, provenance, keep=keep)
        )
        self._checkpoint_s = time.monotonic() - started
        self._hooks.checkpoint(SavedCheckpoint(step, saved.directory, saved.kept))

    async def _keep_last_checkpoint(self) -> None:
        """A session that ends leaves a checkpoint that later ones do not replace."""
        latest = self._parts.checkpoints.latest()
        if latest is not None and not latest.kept:
            await self._save_checkpoint(latest.provenance(), keep=True)

    # --- waiting ------------------------------------------------------------------------------------

    async def _in_learner_thread(self, work: Callable[[], T]) -> T:
        # One thread for all of the learner's work: it is never used by two at once.
        return await asyncio.get_running_loop().run_in_executor(self._learner_thread, work)

    async def _unless_stopped(self, work: Awaitable[T]) -> T:
        """Wait for ``work``; cancel it and raise _Stopped when the end is asked for first."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise _Stopped
        finally:
            stopped.cancel()
            task.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)


def learner_metrics(learned: StepMetrics, learning_s: float) -> dict[str, float]:
    """Return a learner's step as a step's metrics; what was not learned has no numbers."""
    if not learned.learned:
        return finite({"train/updates": learned.updates, "time/learning_s": learning_s})
    return finite(
        {
            "train/entropy_loss": learned.entropy,
            "train/loss": learned.loss,
            "train/learning_rate": learned.learning_rate,
            "train/grad_norm": learned.grad_norm,
            "train/clip_fraction": learned.clip_fraction,
            "train/kl_sampler": learned.approx_kl,
            "train/kl_base": learned.kl_base,
            "train/logprob_gap_max": learned.max_abs_logprob_gap,
            "train/logprob_gap_mean": learned.mean_abs_logprob_gap,
            "train/stale_fraction": learned.stale_fraction,
            "train/sequences": learned.sequences,
            "train/tokens": learned.tokens,
            "train/updates": learned.updates,
            "speed/learning_tokens_per_s": learned.tokens / learning_s if learning_s else None,
            "time/learning_s": learning_s,
        }
    )
