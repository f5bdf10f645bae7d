"""The training loop: sample, grade, compare, learn, publish, validate, record, checkpoint.

A step starts the groups of attempts that it and the next ``max_staleness`` steps need, and learns from the first that
are finished. With 0, the learning policy is the sampling policy and nothing runs concurrently, so a run is a function of
its settings. With more, groups are sampled while the learner works, and no token is older than ``max_staleness`` updates.

A step exists once its record is durable; its checkpoint follows. After a crash, a later session resumes from the last
checkpoint and computes the same steps again.
"""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from osmosis_ai.errors import OsmosisError
from osmosis_ai.training.learner.step import StepMetrics, StepRefusedError
from osmosis_ai.training.runs.group_buffer import GroupBuffer
from osmosis_ai.training.runs.metrics import (
    VALIDATION_DROPPED,
    VALIDATION_PLANNED,
    MetricsHistory,
    StepRecord,
    curves_of,
    finite,
    learning_metrics,
    read_history,
)
from osmosis_ai.training.runs.rollouts import (
    LearnerBatch,
    Measured,
    RolloutBatch,
    few_scored,
    format_causes,
    learner_batch,
    rewards_by_row,
    rollout_metrics,
    significant_fall,
    validate,
    validation_metrics,
)
from osmosis_ai.training.runs.run_directory import ValidationSamples
from osmosis_ai.training.runs.step_warnings import has_collapsed, new_trouble

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.evaluation.run_log import RunLog
    from osmosis_ai.redaction import Redactor
    from osmosis_ai.training.engines.policy_engine import PolicyEngine
    from osmosis_ai.training.learner.checkpoints import CheckpointDirectory, CheckpointStore
    from osmosis_ai.training.learner.policy import Policy
    from osmosis_ai.training.objective.sequences import TokenSequence
    from osmosis_ai.training.runs.loggers import Loggers
    from osmosis_ai.training.runs.rollouts import RolloutSampler
    from osmosis_ai.training.runs.spec import DataOrder, SplitRows, ValidationPlan

T = TypeVar("T")


@dataclass(frozen=True)
class TrainingPlan:
    """The resolved run, once everything is loaded."""

    run_dir: Path
    model_path: str
    training_rows: int
    held_out_rows: int
    rollouts_per_step: int
    total_steps: int
    steps_done: int
    device: str
    warnings: tuple[str, ...] = ()
    unit: Literal["attempts", "conversations"] = "attempts"
    # Which weights have an adapter, by label; empty if unknown.
    adapter: Mapping[str, str] = field(default_factory=dict)


class TrainingHooks:
    """Callbacks to the run's caller, on the run's event loop. The defaults show nothing."""

    def plan(self, plan: TrainingPlan) -> None: ...

    def note(self, message: str) -> None: ...

    def warning(self, step: int, message: str) -> None:
        self.note(message)

    def stage(self, message: str) -> None:
        """Report the current activity, such as ``loading the model``."""

    def environment(self, words: str) -> None:
        """Take the description of the agent's environment; not called for a remote agent."""

    def step(self, record: StepRecord, total_steps: int) -> None:
        """Take a durable step; step 0 is the validation before the first."""

    def checkpoint(self, saved: CheckpointDirectory) -> None: ...

    def started(self, stop: Callable[[], None]) -> None:
        """Take the function that stops the run gracefully; it may be called from any thread."""

    async def goes_on(self) -> bool:
        """Return whether a paused run continues with everything loaded; nothing is computed meanwhile."""
        return False


class LoggedHooks(TrainingHooks):
    """Writes events to the run's log, steps to its loggers, and passes them on."""

    def __init__(self, hooks: TrainingHooks, log: RunLog, loggers: Loggers) -> None:
        self._hooks = hooks
        self._log = log
        self._loggers = loggers
        # These are not logged.
        self.started = hooks.started  # type: ignore[method-assign]
        self.goes_on = hooks.goes_on  # type: ignore[method-assign]

    def plan(self, plan: TrainingPlan) -> None:
        names = ("steps_done", "total_steps", "training_rows", "held_out_rows", "device", "warnings")
        facts = {name: getattr(plan, name) for name in (*names, "adapter")}
        self._log.write("plan", f"training {plan.model_path}", **facts)
        for warning in plan.warnings:
            self._log.write("run", warning, level="WARNING")
        self._hooks.plan(plan)

    def note(self, message: str) -> None:
        self._log.write("run", message, level="WARNING")
        self._hooks.note(message)

    def warning(self, step: int, message: str) -> None:
        self._log.write("run", message, level="WARNING")
        self._hooks.warning(step, message)

    def stage(self, message: str) -> None:
        self._log.write("stage", message)
        self._hooks.stage(message)

    def environment(self, words: str) -> None:
        self._log.write("deps", words)
        self._hooks.environment(words)

    def step(self, record: StepRecord, total_steps: int) -> None:
        self._log.write("step", f"step {record.step} of {total_steps}", metrics=record.metrics)
        self._loggers.log(record)
        self._hooks.step(record, total_steps)

    def checkpoint(self, saved: CheckpointDirectory) -> None:
        if saved.kept:
            self._log.write("checkpoint", f"step {saved.step}", path=str(saved.directory))
        self._hooks.checkpoint(saved)


# Steps in a row in which every group agreed: worth a warning, and the end of the run.
SILENT_STEPS_WARNING = 3
SILENT_STEPS_END = 10
# Steps in a row in which no rollout got a reward: the rollout is broken, not the policy.
UNSCORED_STEPS_END = 3
# Steps in a row that the learner refused: one may be bad luck, this many are a cause.
REFUSED_STEPS_END = 3


class NoRewardsError(OsmosisError):
    """Rollouts fail, or are never graded."""

    default_code = "INTERNAL"


class NothingToLearnError(OsmosisError):
    """From the first step on, all attempts on a prompt got the same reward."""


@dataclass(frozen=True)
class StopReason:
    """The reason why a session ended; ``warning`` is about the policy."""

    because: Literal["finished", "stopped", "nothing_to_learn", "reward_dropped"]
    message: str
    warning: str | None = None


@dataclass
class TrainingLoopState:
    """The loop's part of every checkpoint.

    One bad step is reported and ignored. Several in a row have a cause that a user must know before more is spent.
    """

    step: int = 0
    silent: int = 0
    unscored: int = 0
    refused: int = 0
    reward: float | None = None
    start_rewards: list[float | None] | None = None
    reward_dropped: str | None = None
    best_rewards: list[float | None] | None = None
    best_step: int = 0
    collapsed: bool = False
    drops: int = 0

    def judge_rewards(self, batch: RolloutBatch, learnable: LearnerBatch) -> list[str]:
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

    def judge_validation(
        self, rewards: list[float | None], *, step: int, validations: int, stops: bool
    ) -> list[str]:
        """Compare a validation with the first one and, if that may end the run, with the best one; return warnings."""
        if self.start_rewards is None or self.best_rewards is None:
            self.start_rewards = self.best_rewards = rewards
            return []
        self.reward_dropped = significant_fall(self.start_rewards, rewards, comparisons=validations)
        # The best of several is high by chance too: all pairs count.
        pairs, best = math.comb(validations + 1, 2), f"its best value at step {self.best_step}"
        fallen = (
            significant_fall(self.best_rewards, rewards, comparisons=pairs, below=best) if stops else None
        )
        self.drops = self.drops + 1 if fallen else 0
        if _mean(rewards) > _mean(self.best_rewards):
            self.best_rewards, self.best_step = rewards, step
        found = self.reward_dropped or fallen
        return [f"{found}: the policy gets worse on held-out rows."] if found else []

    def end_after_drop(self, most: int | None) -> StopReason | None:
        if most is None or self.drops < most:
            return None
        often = "the last validation" if most == 1 else f"{most} consecutive validations"
        what = (
            f"the validation reward was significantly below its best value (step {self.best_step}) in {often}"
        )
        by = f"([advanced].stop_after_drop = {most})"
        return StopReason("reward_dropped", f"{what}: ended after step {self.step} {by}.")

    def end_without_signal(self, updates: int) -> StopReason | None:
        if self.silent < SILENT_STEPS_END:
            return None
        what = f"in {self.silent} steps in a row all attempts on each prompt got equal rewards"
        if self.reward is not None:
            what += f" ({self.reward:.3g} on average in the last of them)"
        if updates == 0:
            raise NothingToLearnError(
                f"{what}, so there was nothing to learn from.",
                hint="the task is too hard or too easy for this model, or the grader is too coarse; inspect "
                "some attempts with `osmosis eval run`",
            )
        return StopReason("nothing_to_learn", f"{what}: ended after step {self.step}.")

    def require_a_reward(self) -> None:
        """Fail a finished run that got no reward in any step, even if it had too few steps to stop early."""
        if self.reward is None:
            steps = "the only step" if self.step == 1 else f"any of the {self.step} steps"
            raise NoRewardsError(
                f"no attempt got a reward in {steps}, so nothing was learned.",
                hint="the run's log has the causes; try the rollout with `osmosis eval run` and a few `--rows`",
            )

    def _without_rewards(self, batch: RolloutBatch) -> str:
        causes = format_causes(batch.unscored())
        what = f"none of the {len(batch.samples)} attempts of step {batch.step} got a reward ({causes})"
        failure = batch.first_failure() or "no grader returned a reward"
        if self.unscored >= UNSCORED_STEPS_END:
            raise NoRewardsError(
                f"{what}, for {self.unscored} steps in a row. The first failure: {failure}",
                hint="try the rollout with `osmosis eval run` and a few `--rows`",
            )
        return f"{what}. The first failure: {failure}"


def _mean(rewards: Sequence[float | None]) -> float:
    return fmean([known for reward in rewards if (known := reward) is not None] or [-math.inf])


class _Stopped(Exception):
    """A stop was requested."""


@dataclass(eq=False, kw_only=True)
class StepLoop(ABC):
    """The part of all training methods: steps, validations, records, checkpoints, and how a run stops.

    ``rows.training`` has the training rows by the numbers in ``order``, and ``rows.held_out`` the validation rows.
    """

    settings: TrainingSettings
    rows: SplitRows[Any]
    order: DataOrder
    learner: Policy
    history: MetricsHistory
    checkpoints: CheckpointStore
    hooks: TrainingHooks
    state: TrainingLoopState
    provenance: Mapping[str, Any] = field(default_factory=dict)
    between_steps: Callable[[int, int], None] = lambda _step, _sampled: None
    # Records of steps after the last checkpoint, which are computed again.
    rewound: Sequence[StepRecord] = ()
    # The metric that a validated step has.
    validated_by: ClassVar[str]

    def __post_init__(self) -> None:
        self._cleanup: asyncio.Future[None] | None = None
        self._stop = asyncio.Event()
        self._learner_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner")
        self._checkpoint_s: float | None = None
        self._metrics: Mapping[str, float] = {}

    @abstractmethod
    async def _advance(self, step: int) -> Measured:
        """Update the policy with the batch of ``step``."""

    @abstractmethod
    async def _validate(self, step: int) -> Measured:
        """Measure the policy on the held-out rows."""

    async def _abandon(self) -> None:  # noqa: B027 - optional
        """Cancel what is computed for later steps."""

    def _last_sampled_step(self) -> int:
        """Return the last step whose planned groups of attempts are all done."""
        return self.state.step

    def stop(self) -> None:
        """Stop after uninterruptible work: an update that has begun is finished and kept."""
        self._stop.set()

    async def run(self) -> StopReason:
        """Train until the data ends, a stop is requested, or there is nothing left to learn."""
        try:
            ending = await self._run()
            latest = self.checkpoints.latest()
            if self.state.step > (latest.step if latest is not None else 0):
                await self._save_checkpoint({**self.provenance, "metrics": self._metrics}, keep=True)
            elif latest is not None and not latest.kept:  # later sessions must not replace it
                await self._save_checkpoint(latest.provenance(), keep=True)
            if not (self.state.reward_dropped or self.state.collapsed):
                return ending
            warning = (
                "The policy became worse. Read the run's warnings before you deploy its last checkpoint."
            )
            self.hooks.note(warning)
            return replace(ending, warning=warning)
        finally:
            await self._abandon()
            await asyncio.to_thread(self._learner_thread.shutdown)
            await self._cleaned_up()

    async def _run(self) -> StopReason:
        last = self.order.total_steps
        is_running = True
        while is_running:
            try:
                if ending := await self._take_steps(last):
                    return ending
                is_running = False
            except _Stopped:
                # A pause after the last step, with everything loaded. A stop from then on is another one.
                await self._abandon()
                self._stop.clear()
                is_running = await self.hooks.goes_on()
                if not is_running and self.state.step < last:
                    return StopReason("stopped", f"stopped after step {self.state.step} of {last}.")
        return StopReason("finished", f"all {last} steps are done.")

    async def _take_steps(self, last: int) -> StopReason | None:
        if self._stop.is_set():
            raise _Stopped
        if await asyncio.to_thread(self._lacks_validation):
            step = self.state.step
            began = "before the first step" if step == 0 else "where the run was interrupted"
            self.hooks.stage(f"validating the policy {began}")
            measured = await self._unless_stopped(self._validate(step))
            await self._record(step, measured)
            latest = self.checkpoints.latest()
            if latest is not None:  # it has not seen this validation
                known = latest.provenance()
                metrics = {**(known.get("metrics") or {}), **measured.metrics}
                await self._save_checkpoint({**known, "metrics": metrics}, keep=latest.kept)
        for step in range(self.state.step + 1, last + 1):
            if ending := self.state.end_after_drop(self.settings.stop_after_drop):
                return ending
            await self._take_step(step)
            if ending := self.state.end_without_signal(self.learner.updates):
                return ending
        return None

    async def _take_step(self, step: int) -> None:
        started = time.monotonic()
        done = await self._advance(step)
        validated = await self._validate_if_due(step)
        step_s = time.monotonic() - started
        times = {"time/checkpoint_s": self._checkpoint_s, "time/step_s": step_s}
        if "speed/gpu_memory_gib" in done.metrics:
            times["speed/gpu_idle_share"] = 1 - done.metrics["time/learning_s"] / step_s
        metrics = done.metrics | validated.metrics | finite(times)
        warnings = [*done.warnings, *validated.warnings]
        self.state.step = step
        await self._record(step, replace(done, metrics=metrics, warnings=warnings, rewards=validated.rewards))
        if self.learner.saves_every_step or step % self.settings.checkpoint_save_freq == 0:
            await self._save_checkpoint({**self.provenance, "metrics": metrics})
        self._metrics = metrics
        await self._cleaned_up()
        sampled = self._last_sampled_step()
        self._cleanup = asyncio.ensure_future(asyncio.to_thread(self.between_steps, step, sampled))
        if self._stop.is_set():
            raise _Stopped

    async def _learn(
        self, sequences: Sequence[TokenSequence], advantages: Sequence[float], version: int | None = None
    ) -> tuple[StepMetrics, float, list[str]]:
        """Update the policy; return the metrics, the seconds it took, and warnings."""
        learner, started = self.learner, time.monotonic()
        try:
            learned = await self._in_learner_thread(
                lambda: learner.step(sequences, advantages, policy_version=version)
            )
        except StepRefusedError as error:
            self.state.refused += 1
            if self.state.refused >= REFUSED_STEPS_END:
                raise StepRefusedError(
                    f"{error.message} The run ends after {self.state.refused} refused updates in a row.",
                    hint=error.hint,
                ) from error
            return StepMetrics(updates=learner.updates), time.monotonic() - started, [error.message]
        self.state.refused = 0
        return learned, time.monotonic() - started, list(learned.warnings)

    def _is_due(self, step: int) -> bool:
        due = step % self.settings.eval_interval == 0 or step == self.order.total_steps
        return due and bool(self.rows.held_out)

    def _lacks_validation(self) -> bool:
        """Whether the current step still needs its validation: it is step 0, or the run stopped during it."""
        step = self.state.step
        return self._is_due(step) and not any(
            record.step == step and self.validated_by in record.metrics
            for record in read_history(self.history.path)
        )

    async def _validate_if_due(self, step: int) -> Measured:
        if not self._is_due(step):
            return Measured()
        try:
            return await self._unless_stopped(self._validate(step))
        except _Stopped:
            return Measured()  # the update still counts, and the resumed run validates it

    async def _record(self, step: int, found: Measured) -> None:
        now = round(time.time() * 1000)
        groups, dropped = list(found.groups), list(found.dropped)
        record = StepRecord(
            step, now, found.metrics, found.unscored, found.warnings, found.rewards, groups, dropped
        )
        await asyncio.to_thread(self.history.append, record)
        for warning in record.warnings:
            self.hooks.warning(step, warning)
        self.hooks.step(record, self.order.total_steps)

    async def _save_checkpoint(self, provenance: Mapping[str, Any], *, keep: bool = False) -> None:
        started, step = time.monotonic(), self.state.step
        state = asdict(self.state)
        saved = await self._in_learner_thread(
            lambda: self.checkpoints.save(step, self.learner, state, provenance, keep=keep)
        )
        self._checkpoint_s = time.monotonic() - started
        self.hooks.checkpoint(saved)

    async def _cleaned_up(self) -> None:
        """Wait for the cleanup between steps: removing files can take longer than a step."""
        if self._cleanup is not None:
            await self._cleanup

    async def _in_learner_thread(self, work: Callable[[], T]) -> T:
        # One thread for all of the learner's work, which is not thread-safe.
        return await asyncio.get_running_loop().run_in_executor(self._learner_thread, work)

    async def _unless_stopped(self, work: Awaitable[T]) -> T:
        """Wait for ``work``; cancel it and raise _Stopped if a stop is requested first."""
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


@dataclass(eq=False, kw_only=True)
class TrainingLoop(StepLoop):
    """Reinforcement learning from the rewards of rollouts."""

    validation: ValidationPlan
    sampler: RolloutSampler
    engine: PolicyEngine
    redact: Redactor | None = None
    keep_validation: Callable[[ValidationSamples], None] = lambda _: None
    validated_by = VALIDATION_PLANNED

    def __post_init__(self) -> None:
        super().__post_init__()
        self._buffer = GroupBuffer(
            self.sampler,
            self.engine,
            self.rows.training,
            self.order,
            self.settings,
            step=self.state.step,
            records=read_history(self.history.path),
            rewound=self.rewound,
        )

    async def _abandon(self) -> None:
        await self._buffer.abandon()

    def _last_sampled_step(self) -> int:
        return self._buffer.last_sampled_step()

    async def _take_steps(self, last: int) -> StopReason | None:
        ending = await super()._take_steps(last)
        if ending is None:
            self.state.require_a_reward()
        return ending

    async def _advance(self, step: int) -> Measured:
        version = self.learner.updates
        batch = await self._unless_stopped(self._buffer.take(step, version))
        learnable = learner_batch(batch, normalise=self.settings.normalise_advantages)
        metrics = rollout_metrics(batch, learnable.statistics, version)
        warnings = self.state.judge_rewards(batch, learnable)
        learned, learning_s, doubts = await self._learn(learnable.sequences, learnable.advantages, version)
        published = time.monotonic()
        if learned.learned:
            await self.engine.publish(self.learner, learned.updates)
        publishing_s = time.monotonic() - published
        metrics |= learning_metrics(learned, learning_s) | {"time/publishing_s": publishing_s}
        warnings += [*doubts, *self._new_trouble(batch, metrics)]
        groups = batch.positions if self.settings.records_groups else ()
        unscored, dropped = batch.unscored(), batch.dropped
        return Measured(metrics, warnings, unscored=unscored, groups=groups, dropped=dropped)

    def _new_trouble(self, batch: RolloutBatch, metrics: Mapping[str, float]) -> list[str]:
        records = (*read_history(self.history.path), StepRecord(batch.step, 0, dict(metrics)))
        curves = curves_of(records)
        found, self.state.collapsed = new_trouble(curves), has_collapsed(curves)
        if self.state.unscored:  # none has a reward, which is reported with its causes
            return []
        for kind, source in (("unscored", ""), ("grader", "grader")):
            if kind in found:
                causes = {cause: n for cause, n in batch.unscored().items() if cause.startswith(source)}
                failure = batch.first_failure(source)
                found[kind] += f" ({format_causes(causes)})" + (
                    f". First failure: {failure}" if failure else ""
                )
        return list(found.values())

    async def _validate(self, step: int) -> Measured:
        started = time.monotonic()
        seed = self.settings.seed
        validation = await validate(
            self.sampler, self.rows.held_out, self.validation, seed=seed, step=step, redact=self.redact
        )
        numbers = validation_metrics(validation.metrics) | {"time/validation_s": time.monotonic() - started}
        # Every due step after the start, including the last one.
        validations = math.ceil(self.order.total_steps / self.settings.eval_interval)
        stops = self.settings.stop_after_drop is not None
        warnings = self.state.judge_validation(
            validation.rewards, step=step, validations=validations, stops=stops
        )
        if few := few_scored(validation):
            warnings.insert(0, few)
        numbers[VALIDATION_DROPPED] = float(self.state.reward_dropped is not None or self.state.drops > 0)
        threshold = self.validation.pass_threshold
        samples = ValidationSamples.of(validation.records, step=step, pass_threshold=threshold)
        try:
            await asyncio.to_thread(self.keep_validation, samples)
        except (OSError, TypeError) as error:  # a full disk, or a text that JSON cannot hold, ends no run
            warnings.append(f"the conversations of the validation could not be saved: {error}")
        rewards = rewards_by_row(self.rows.held_out, validation.rewards)
        return Measured(numbers, warnings, finite(rewards))
