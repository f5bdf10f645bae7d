"""Run a training on this machine: open all resources in order and close them in reverse.

The learner, the policy engine and the agents' endpoint live in this process. The rollout runs in its own process and
environment. A run directory belongs to one run: with the same inputs the trainer resumes from the last checkpoint, and
with other inputs it refuses.

With several learner processes, this one leads and starts the others (:mod:`osmosis_ai.training.learner.ranks`).
Under `torchrun`, rank 0 runs a :class:`Trainer` and the other ranks call :func:`follow_leader`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from osmosis_ai.evaluation.run_log import RunLog, redact_server_logs
from osmosis_ai.files import cache_dir
from osmosis_ai.redaction import Redactor, exposure_warnings
from osmosis_ai.training import require_train_extra
from osmosis_ai.training.learner.ranks import LearnerRanks
from osmosis_ai.training.runs.data_order import DataOrder
from osmosis_ai.training.runs.hooks import LoggedHooks, TrainingHooks, TrainingPlan
from osmosis_ai.training.runs.loop_state import Ending, TrainingLoopState
from osmosis_ai.training.runs.metrics import MetricsHistory, StepRecord, read_history
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.training.runs.spec import TrainingSpec
from osmosis_ai.training.runs.validation import SplitRows, split_rows

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.controller.remote_agents import RemoteAgent
    from osmosis_ai.controller.server_process import RolloutServer
    from osmosis_ai.inference.chat import ChatFormat
    from osmosis_ai.sandbox import Sandbox
    from osmosis_ai.training.engines.policy_engine import PolicyEngine
    from osmosis_ai.training.learner.checkpoints import CheckpointStore
    from osmosis_ai.training.learner.learner import Learner
    from osmosis_ai.training.runs.loop import TrainingLoop
    from osmosis_ai.training.runs.sampler import RolloutSampler

T = TypeVar("T")
MakeLearner = Callable[[TrainingSpec], "Learner"]


@dataclass(frozen=True)
class TrainingSummary:
    """How a session ended."""

    run_dir: Path
    ending: Ending
    steps_done: int
    total_steps: int
    records: list[StepRecord]


def new_learner(spec: TrainingSpec) -> Learner:
    """Load the model and put the adapter on it."""
    from osmosis_ai.training.learner.learner import Learner

    return Learner(spec.model_path, spec.settings, spec.device, adapter=spec.adapter)


class Trainer:
    """Starts or resumes a training."""

    def __init__(
        self,
        spec: TrainingSpec,
        run_dir: Path,
        hooks: TrainingHooks | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        rollout_cache: Path | None = None,
        sandbox: Sandbox | None = None,
        provenance: Mapping[str, Any] | None = None,
        make_learner: MakeLearner = new_learner,
    ) -> None:
        self._spec = spec
        self._directory = TrainingDirectory(run_dir)
        self._hooks = hooks or TrainingHooks()
        self._environ = dict(os.environ if environ is None else environ)
        self._rollout_cache = rollout_cache or cache_dir()
        self._sandbox = sandbox
        self._provenance = provenance or {}
        self._make_learner = make_learner
        self._redact = Redactor(spec.secret_values.values())
        self._loop: TrainingLoop | None = None
        self._learner: Learner | None = None
        self._ranks: LearnerRanks | None = None
        self._stop_requested = False

    def stop(self) -> None:
        """Ask for a graceful end; what is being loaded is loaded first. Call it on the run's event loop."""
        self._stop_requested = True
        if self._loop is not None:
            self._loop.stop()

    async def run(self) -> TrainingSummary:
        """Train to the end, to a stop, or to where there is no point in going on."""
        require_train_extra()
        with self._directory.held(), self._log() as log:
            hooks = LoggedHooks(self._hooks, log)
            try:
                return await self._run(hooks)
            except Exception as error:
                log.write("run", str(error), level="ERROR", error=type(error).__name__)
                raise
            finally:
                redact_server_logs(self._directory.server_log, self._redact)

    async def _run(self, hooks: TrainingHooks) -> TrainingSummary:
        directory, spec = self._directory, self._spec
        running = asyncio.get_running_loop()
        hooks.started(lambda: _call_if_alive(running, self.stop))
        processes = int(os.environ.get("WORLD_SIZE", spec.settings.learner_processes))
        for warning in spec.settings.warnings(spec.model_path, processes=processes):
            hooks.note(warning)
        for warning in exposure_warnings(spec.secret_values):
            hooks.note(warning)
        rows, inputs = await asyncio.gather(
            asyncio.to_thread(split_rows, spec.dataset.path, spec.validation, spec.settings.seed),
            asyncio.to_thread(spec.inputs),
        )
        directory.claim(inputs, self._provenance)
        order = data_order(rows, spec.settings)
        async with AsyncExitStack() as stack:
            loop = self._loop = await self._open(stack, hooks, rows, order)
            if self._stop_requested:
                loop.stop()
            with _loaded_objects_frozen():
                ending = await self._run_with_ranks(loop.run())
        return TrainingSummary(
            run_dir=directory.path,
            ending=ending,
            steps_done=loop.state.step,
            total_steps=order.total_steps,
            records=list(read_history(directory.metrics)),
        )

    async def _open(
        self, stack: AsyncExitStack, hooks: TrainingHooks, rows: SplitRows, order: DataOrder
    ) -> TrainingLoop:
        """Open everything; the cheap and the likely to fail come first."""
        from osmosis_ai.training.learner.checkpoints import CheckpointStore
        from osmosis_ai.training.runs.engine_factory import chat_format_of, open_policy_engine
        from osmosis_ai.training.runs.loop import LoopParts, TrainingLoop

        spec, directory = self._spec, self._directory
        hooks.stage("preparing the rollout's environment")
        server = await self._prepare_server(hooks)
        if spec.settings.learner_processes > 1 and "WORLD_SIZE" not in os.environ:
            ranks = LearnerRanks(spec, directory.learner, self._environ)
            self._ranks = await stack.enter_async_context(ranks)
        hooks.stage(f"loading the model {spec.model_path}")
        learner = self._learner = await self._run_blocking_with_ranks(lambda: self._make_learner(spec))
        stack.callback(learner.close)
        checkpoints = CheckpointStore(directory.checkpoints, keep_every=spec.settings.checkpoint_save_freq)
        history = MetricsHistory(directory.metrics)
        state = await self._run_blocking_with_ranks(lambda: _resume(checkpoints, learner, history))
        directory.forget_validation_after(state.step)
        hooks.stage(f"opening the policy's engine ({spec.settings.policy_engine})")
        engine = await open_policy_engine(
            stack,
            spec,
            directory,
            device=str(learner.device),
            environ=self._environ,
            note=hooks.note,
        )
        if (
            learner.updates or spec.adapter is not None
        ):  # else the policy is the base, which is served already
            await self._run_with_ranks(engine.publish(learner, learner.updates))
        chat = chat_format_of(spec, note=hooks.note)
        await self._run_with_ranks(self._probe(engine, learner, chat, rows, hooks))
        one = spec.served is not None or spec.servers == 1
        hooks.stage(f"starting the rollout's {'server' if one else f'{spec.servers} servers'}")
        sampler = await self._open_sampler(stack, engine, chat, server, hooks)
        hooks.plan(self._plan(rows, order, state, str(learner.device)))
        parts = LoopParts(
            settings=spec.settings,
            rows=rows,
            order=order,
            validation=spec.validation,
            sampler=sampler,
            learner=learner,
            engine=engine,
            history=history,
            checkpoints=checkpoints,
            hooks=hooks,
            provenance=self._checkpoint_provenance(),
            redact=self._redact,
            keep_validation=directory.write_validation,
        )
        return TrainingLoop(parts, state, between_steps=directory.sweep_trials)

    async def _run_blocking_with_ranks(self, work: Callable[[], T]) -> T:
        if self._ranks is None:
            return await asyncio.to_thread(work)
        return await self._ranks.run_blocking(work)

    async def _run_with_ranks(self, work: Coroutine[Any, Any, T]) -> T:
        if self._ranks is None or self._learner is None:
            return await work
        return await self._ranks.run(work, self._learner.abandon)

    async def _prepare_server(self, hooks: TrainingHooks) -> RolloutServer | RemoteAgent:
        from osmosis_ai.controller.server_process import prepare_server

        spec, directory = self._spec, self._directory
        if spec.served is not None:
            return spec.served.agent()
        environment, server = await prepare_server(
            spec.rollout_dir,
            spec.entrypoint,
            environ=self._environ,
            variables=spec.env,
            secret_values=spec.secret_values,
            artifact_root=directory.trials,
            log_path=directory.server_log,
            cache_dir=self._rollout_cache,
            note=hooks.note,
            sandbox=self._sandbox,
        )
        directory.write_environment(self._redact.text(environment.description))
        hooks.environment(environment.description)
        return server

    async def _probe(
        self, engine: PolicyEngine, learner: Learner, chat: ChatFormat, rows: SplitRows, hooks: TrainingHooks
    ) -> None:
        """Make sure that what samples samples from what is learned; raises DistributionMismatchError."""
        from osmosis_ai.training.engines.sampling_probe import probe, probe_prompts
        from osmosis_ai.training.runs.engine_factory import computes_in_float32

        settings = self._spec.settings
        hooks.stage("comparing what is sampled with what is learned")
        longest = min(settings.max_prompt_length, engine.model.config.max_positions - 1)
        prompts = probe_prompts(rows.training.values(), chat, longest=longest)
        found = await probe(engine, learner, prompts, settings)
        found.require_agreement(
            float32=computes_in_float32(settings, learner.device.type),
            truncated=settings.rollout_top_p < 1,
        )
        hooks.stage(f"the policy's engine samples what is learned: {found.sentence()}")

    async def _open_sampler(
        self,
        stack: AsyncExitStack,
        engine: PolicyEngine,
        chat: ChatFormat,
        server: RolloutServer | RemoteAgent,
        hooks: TrainingHooks,
    ) -> RolloutSampler:
        from osmosis_ai.controller.callbacks import AttemptTimeouts
        from osmosis_ai.controller.dispatcher import RolloutRunner
        from osmosis_ai.training.engines.policy_bridge import PolicyBridge, RolloutLimits, RolloutSampling
        from osmosis_ai.training.runs.sampler import RolloutSampler

        settings, token = self._spec.settings, secrets.token_urlsafe(32)
        bridge = PolicyBridge(
            engine,
            chat,
            model_path=self._spec.model_path,
            limits=RolloutLimits(settings.max_prompt_length, settings.max_response_length),
            sampling=RolloutSampling(settings.rollout_temperature, settings.rollout_top_p),
        )
        runner = RolloutRunner(
            bridge,
            model_key=token,
            server=server,
            servers=self._spec.servers,
            timeouts=AttemptTimeouts(settings.agent_workflow_timeout_s, settings.grader_timeout_s),
            redact=self._redact,
            note=hooks.note,
            trajectory_root=self._directory.trials,
        )
        return RolloutSampler(await stack.enter_async_context(runner), bridge)

    def _checkpoint_provenance(self) -> dict[str, Any]:
        """Return what an adapter says of the run that made it, wherever it is copied to."""
        spec = self._spec
        return {
            **self._provenance,
            "model_path": spec.model_path,
            "dataset": {"name": spec.dataset.name, "sha256": spec.dataset.sha256},
            "rollout": spec.rollout_dir.name,
            "settings": spec.settings.model_dump(mode="json"),
        }

    def _plan(self, rows: SplitRows, order: DataOrder, state: TrainingLoopState, device: str) -> TrainingPlan:
        settings = self._spec.settings
        return TrainingPlan(
            run_dir=self._directory.path,
            model_path=self._spec.model_path,
            training_rows=len(rows.training),
            held_out_rows=len(rows.held_out),
            rollouts_per_step=settings.rollout_batch_size * settings.n_samples_per_prompt,
            total_steps=order.total_steps,
            steps_done=state.step,
            device=device,
        )

    @contextmanager
    def _log(self) -> Iterator[RunLog]:
        log = RunLog(self._directory.log, self._redact)
        try:
            yield log
        finally:
            log.close()


def data_order(rows: SplitRows, settings: TrainingSettings) -> DataOrder:
    """Return the order in which a run goes through its training rows."""
    return DataOrder(
        tuple(rows.training),
        settings.rollout_batch_size,
        settings.total_epochs,
        settings.seed,
        settings.max_steps,
    )


def follow_leader(spec: TrainingSpec, make_learner: MakeLearner = new_learner) -> None:
    """Do the share of a rank that does not lead, until the leader is done."""
    require_train_extra()
    make_learner(spec).follow()


@contextmanager
def _loaded_objects_frozen() -> Iterator[None]:
    """Keep the garbage collector off what is loaded: torch alone is half a million objects, 0.2 s a look."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _resume(checkpoints: CheckpointStore, learner: Learner, history: MetricsHistory) -> TrainingLoopState:
    """Put learner and history back to the last checkpoint; what came after it is computed again."""
    checkpoint = checkpoints.latest()
    if checkpoint is None:
        history.rewind(-1)
        return TrainingLoopState()
    state = TrainingLoopState(**checkpoint.load_into(learner))
    history.rewind(state.step)
    return state


def _call_if_alive(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Call ``function`` on the loop's thread, from any; nothing is left to do once the loop is closed."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function)
