"""The training loop: sample, grade, compare, learn, publish, validate, record, checkpoint.

Step s learns from batch s, and batch s starts when s - 1 - ``max_staleness`` steps are done. With 0, the learning
policy is the sampling policy and nothing runs concurrently, so a run is a function of its settings. With more, later
batches are sampled while the learner works, and no token is older than ``max_staleness`` updates.

A step exists once its record is durable; its checkpoint follows. After a crash, a later session resumes from the last
checkpoint and computes the same steps again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from osmosis_ai.training.learner.step_errors import StepRefusedError, repeated_refusal_error
from osmosis_ai.training.learner.step_metrics import StepMetrics
from osmosis_ai.training.runs.hooks import SamplingProgress, SavedCheckpoint, TrainingHooks
from osmosis_ai.training.runs.loop_state import REFUSED_STEPS_END, Ending, TrainingLoopState
from osmosis_ai.training.runs.metrics import (
    VALIDATION_PLANNED,
    MetricsHistory,
    StepRecord,
    finite,
    learning_metrics,
    read_history,
)
from osmosis_ai.training.runs.rollout_batch import (
    LearnerBatch,
    RolloutBatch,
    attempts_of_step,
    learner_batch,
    rollout_metrics,
)
from osmosis_ai.training.runs.truncation import timed_out, with_truncation_rule
from osmosis_ai.training.runs.validation import (
    MeasuredRows,
    Validated,
    ValidationPlan,
    few_scored,
    rewards_by_row,
    validate,
    validation_metrics,
)
from osmosis_ai.training.runs.validation_samples import ValidationSamples

if TYPE_CHECKING:
    from pathlib import Path

    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.controller.record import TerminalRecord
    from osmosis_ai.redaction import Redactor
    from osmosis_ai.training.engines.policy_engine import PolicyEngine
    from osmosis_ai.training.learner.checkpoints import CheckpointStore
    from osmosis_ai.training.objective.sequences import TokenSequence
    from osmosis_ai.training.runs.data_order import DataOrder
    from osmosis_ai.training.runs.sampler import RolloutSampler, Sample
    from osmosis_ai.training.runs.validation import SplitRows

T = TypeVar("T")


class PolicyLearner(Protocol):
    """What the loop needs of a learner (:class:`osmosis_ai.training.learner.learner.Learner`)."""

    updates: int

    def step(
        self, sequences: list[TokenSequence], advantages: list[float], *, policy_version: int | None = None
    ) -> StepMetrics:
        """Update the policy once."""

    def merged_state(self) -> dict[str, Any]:
        """Return the weights to serve."""

    def low_rank_state(self) -> dict[str, Any]:
        """Return the adapter's updates of them."""

    def save_adapter(self, directory: Path) -> None:
        """Write the adapter in PEFT's format."""

    def state_dict(self) -> dict[str, Any]:
        """Return the learner's complete state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from it."""


class _Stopped(Exception):
    """Somebody asked for the end."""


@dataclass(frozen=True)
class LoopParts:
    """What the loop puts together."""

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
    redact: Redactor | None = None
    keep_validation: Callable[[ValidationSamples], None] = lambda _: None


class TrainingLoop:
    """Runs the steps that are left."""

    def __init__(
        self,
        parts: LoopParts,
        state: TrainingLoopState,
        *,
        between_steps: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._hooks = parts.hooks
        self._between_steps = between_steps
        self._cleanup: asyncio.Future[None] | None = None
        self.state = state
        self._stop = asyncio.Event()
        self._batches: dict[int, asyncio.Task[RolloutBatch]] = {}
        self._learner_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner")
        self._checkpoint_s: float | None = None

    def stop(self) -> None:
        """Stop after uninterruptible work: an update that has begun is finished and kept."""
        self._stop.set()

    async def run(self) -> Ending:
        """Train to the end of the data, to a stop, or to where nothing is left to learn."""
        try:
            ending = await self._run()
            await self._keep_last_checkpoint()
            if self.state.fallen is None:
                return ending
            warning = f"{self.state.fallen}; look at the curve before you deploy its last checkpoint."
            self._hooks.note(warning)
            return replace(ending, warning=warning)
        finally:
            await self._abandon_batches()
            await asyncio.to_thread(self._learner_thread.shutdown)
            await self._cleaned_up()

    async def _run(self) -> Ending:
        last = self._parts.order.total_steps
        is_going = True
        while is_going:
            try:
                if ending := await self._take_steps(last):
                    return ending
                is_going = False
            except _Stopped:
                is_going = await self._goes_on()
                if not is_going and self.state.step < last:
                    return Ending("stopped", f"stopped after step {self.state.step} of {last}.")
        self.state.require_a_reward()
        return Ending("finished", f"all {last} steps are done.")

    async def _take_steps(self, last: int) -> Ending | None:
        """Take the steps that are left; return why no more of them are worth it, if they are not."""
        if self._stop.is_set():
            raise _Stopped
        if await asyncio.to_thread(self._lacks_validation):
            began = "before the first step" if self.state.step == 0 else "where the run was interrupted"
            await self._validate_alone(f"validating the policy {began}")
        for step in range(self.state.step + 1, last + 1):
            await self._take_step(step)
            if ending := self.state.end_without_signal(self._parts.learner.updates):
                return ending
        return None

    async def _goes_on(self) -> bool:
        """Pause after the last step with everything loaded; return whether the run then continues."""
        await self._abandon_batches()
        # Before it is asked: what is said from then on is another stop.
        self._stop.clear()
        return await self._hooks.goes_on()

    # --- one step ---------------------------------------------------------------------------------

    async def _take_step(self, step: int) -> None:
        started = time.monotonic()
        batch = await self._unless_stopped(self._batch(step))
        if failure := self._parts.engine.failure:
            raise failure  # what was sampled before it failed is not worth a step
        version = self._parts.learner.updates
        learnable = learner_batch(batch, normalise=self._settings.normalise_advantages)
        metrics = rollout_metrics(batch, learnable.statistics, version)
        warnings = self.state.judge_rewards(batch, learnable)

        learned, learning_s, refusal = await self._learn(learnable, version)
        publishing_s = await self._publish(learned)
        warnings += [refusal] if refusal else list(learned.warnings)
        metrics |= learning_metrics(learned, learning_s)
        validated = await self._validate_if_due(step)
        metrics |= validated.metrics
        warnings += validated.warnings
        metrics |= finite(
            {
                "time/publishing_s": publishing_s,
                "time/checkpoint_s": self._checkpoint_s,
                "time/step_s": time.monotonic() - started,
            }
        )
        self.state.step = step
        await self._record(step, metrics, batch.unscored(), warnings, validated.rewards)
        await self._save_checkpoint({**self._parts.provenance, "metrics": metrics})
        await self._cleaned_up()
        self._cleanup = asyncio.ensure_future(asyncio.to_thread(self._between_steps, step))
        if self._stop.is_set():
            raise _Stopped

    async def _learn(self, learnable: LearnerBatch, version: int) -> tuple[StepMetrics, float, str | None]:
        """Update the policy; return what came of it, the seconds it took, and why it was refused."""
        learner, started = self._parts.learner, time.monotonic()
        try:
            learned = await self._in_learner_thread(
                lambda: learner.step(learnable.sequences, learnable.advantages, policy_version=version)
            )
        except StepRefusedError as error:
            self.state.refused += 1
            if self.state.refused >= REFUSED_STEPS_END:
                raise repeated_refusal_error(error, self.state.refused) from error
            return StepMetrics(updates=learner.updates), time.monotonic() - started, error.message
        self.state.refused = 0
        return learned, time.monotonic() - started, None

    async def _publish(self, learned: StepMetrics) -> float:
        """Serve the policy from now on; return the seconds it took."""
        started = time.monotonic()
        if learned.learned:
            await self._parts.engine.publish(self._parts.learner, learned.updates)
        return time.monotonic() - started

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
        late = sum(map(timed_out, samples))
        samples = [with_truncation_rule(sample, settings) for sample in samples]
        size = settings.n_samples_per_prompt
        samples_PG = [samples[start : start + size] for start in range(0, len(samples), size)]
        return RolloutBatch(step, samples_PG, time.monotonic() - started, timed_out=late)

    def _progress(self, step: int, kind: str, total: int) -> Callable[[Sample | TerminalRecord], None]:
        rewards: list[float] = []
        finished = 0

        def tell(sample: Sample | TerminalRecord) -> None:
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

    def _is_due(self, step: int) -> bool:
        due = step % self._settings.eval_interval == 0 or step == self._parts.order.total_steps
        return due and bool(self._parts.rows.held_out)

    def _lacks_validation(self) -> bool:
        """Tell whether the policy is to be validated first: nothing is learned yet, or its last step was cut off at that."""
        step = self.state.step
        return self._is_due(step) and not any(
            record.step == step and VALIDATION_PLANNED in record.metrics
            for record in read_history(self._parts.history.path)
        )

    async def _validate_alone(self, doing: str) -> None:
        """Validate outside of a step; its numbers are a record of their own."""
        self._hooks.stage(doing)
        found = await self._unless_stopped(self._validate(self.state.step))
        await self._record(self.state.step, found.metrics, {}, found.warnings, found.rewards)

    async def _validate_if_due(self, step: int) -> Validated:
        if not self._is_due(step):
            return Validated()
        try:
            return await self._unless_stopped(self._validate(step))
        except _Stopped:
            return Validated()  # the update still counts, and the resumed run validates it

    async def _validate(self, step: int) -> Validated:
        parts, started = self._parts, time.monotonic()
        total = len(parts.rows.held_out) * parts.validation.attempts
        validation = await validate(
            parts.sampler,
            parts.rows.held_out,
            parts.validation,
            seed=self._settings.seed,
            step=step,
            finished=self._progress(step, "validation", total),
            redact=parts.redact,
        )
        numbers = validation_metrics(validation.metrics) | {"time/validation_s": time.monotonic() - started}
        worries = [
            few_scored(validation.metrics),
            self.state.judge_validation(
                validation.rewards,
                # Every due step after the start, the last step included.
                validations=math.ceil(parts.order.total_steps / self._settings.eval_interval),
            ),
            await self._keep_samples(step, validation),
        ]
        rewards = rewards_by_row(parts.rows.held_out, validation.rewards)
        return Validated(numbers, [worry for worry in worries if worry], finite(rewards))

    async def _keep_samples(self, step: int, validation: MeasuredRows) -> str | None:
        """Keep what became of each sample; return what went wrong, for which no run should end."""
        threshold = self._parts.validation.pass_threshold
        samples = ValidationSamples.of(validation.records, step=step, pass_threshold=threshold)
        try:
            await asyncio.to_thread(self._parts.keep_validation, samples)
        except (OSError, TypeError) as error:  # the disk is full, or a text is none that JSON can hold
            return f"validation: its conversations cannot be listed ({error})"
        return None

    async def _record(
        self,
        step: int,
        metrics: dict[str, float],
        unscored: dict[str, int],
        warnings: list[str],
        rewards: dict[str, float],
    ) -> None:
        record = StepRecord(step, round(time.time() * 1000), metrics, unscored, warnings, rewards)
        await asyncio.to_thread(self._parts.history.append, record)
        for warning in warnings:
            self._hooks.warning(step, warning)
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

    async def _cleaned_up(self) -> None:
        """Wait for what is done between steps: removing files can take a disk longer than a step."""
        if self._cleanup is not None:
            await self._cleanup

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
