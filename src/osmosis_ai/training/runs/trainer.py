"""Run a training on this machine: open all resources in order and close them in reverse.

The learner, the policy engine and the agents' endpoint live in this process. The rollout runs in its own process and
environment. With the same inputs the trainer resumes from the last checkpoint, and with other inputs it refuses.

With several learner processes, this one leads and starts the others (:mod:`osmosis_ai.training.learner.ranks`).
Under `torchrun`, rank 0 runs a :class:`Trainer` and the other ranks call :func:`follow_leader`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import NetworkError, OsmosisError
from osmosis_ai.evaluation.run_directory import ENVIRONMENT_FILE
from osmosis_ai.evaluation.run_log import RunLog, redact_server_logs
from osmosis_ai.files import cache_dir, write_atomic
from osmosis_ai.inference.catalog import served_models
from osmosis_ai.inference.chat import BuiltInChat, ChatFormat
from osmosis_ai.inference.engine import LESS_MEMORY, refused_memory
from osmosis_ai.redaction import Redactor, exposure_warnings
from osmosis_ai.sandbox.gpus import visible_gpus
from osmosis_ai.training import require_train_extra
from osmosis_ai.training.engines.policy_engine import InProcessPolicyEngine, PolicyEngine
from osmosis_ai.training.learner.policy import SessionLostError
from osmosis_ai.training.learner.ranks import LearnerRanks
from osmosis_ai.training.model_support import ModelSupport, model_support
from osmosis_ai.training.runs.loggers import Loggers
from osmosis_ai.training.runs.loop import (
    LoggedHooks,
    StopReason,
    TrainingHooks,
    TrainingLoopState,
    TrainingPlan,
)
from osmosis_ai.training.runs.metrics import MetricsHistory, StepRecord, read_history
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.training.runs.spec import DataOrder, SplitRows, TrainingSpec, split_rows

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.controller.remote_agents import RemoteAgent
    from osmosis_ai.controller.server_process import RolloutServer
    from osmosis_ai.datasets import DatasetRow
    from osmosis_ai.sandbox.bubblewrap import Sandbox
    from osmosis_ai.training.engines.tinker_backend import TinkerLearner
    from osmosis_ai.training.learner.checkpoints import CheckpointStore
    from osmosis_ai.training.learner.learner import Learner
    from osmosis_ai.training.learner.policy import Policy
    from osmosis_ai.training.runs.loop import StepLoop
    from osmosis_ai.training.runs.rollouts import RolloutSampler


MakeLearner = Callable[[TrainingSpec], "Policy"]
# Version of the adapter that is changed to see whether the server applies it; no run has so many updates.
_CHANGED = 10**9
# vLLM's own variable for the key of a server.
SERVER_KEY_ENV = "VLLM_API_KEY"
# Losses of a remote session in a row, without a new step in between, and the pause after the first.
SESSION_LOSSES = 3
LOSS_PAUSE_S = 5.0


@dataclass(frozen=True)
class TrainingSummary:
    run_dir: Path
    ending: StopReason
    steps_done: int
    total_steps: int
    records: list[StepRecord]


def local_learner(spec: TrainingSpec) -> Learner:
    from osmosis_ai.training.learner.learner import Learner

    return Learner(spec.model_path, spec.settings, spec.device, adapter=spec.adapter)


def new_learner(spec: TrainingSpec) -> Policy:
    if spec.settings.backend == "local":
        return local_learner(spec)
    from osmosis_ai.training.engines.tinker_backend import API_KEY_ENV, TinkerLearner, TinkerServer

    if spec.adapter is not None:
        raise OsmosisError("A Tinker server cannot start from an adapter; model_path must name a base model.")
    key = {**spec.env, **spec.secret_values}.get(API_KEY_ENV)
    server = TinkerServer(spec.settings, spec.model_path, key)
    return TinkerLearner(server, spec.settings, run=f"osmosis-{secrets.token_hex(4)}")


@dataclass(eq=False)
class Trainer:
    """Starts or resumes a training."""

    spec: TrainingSpec
    run_dir: Path
    hooks: TrainingHooks = field(default_factory=TrainingHooks)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    rollout_cache: Path | None = None
    sandbox: Sandbox | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    make_learner: MakeLearner = new_learner
    loggers_dir: Path | None = None
    _loop: StepLoop | None = field(default=None, init=False)
    _stop_requested: bool = field(default=False, init=False)
    _adapter: Mapping[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._directory = TrainingDirectory(self.run_dir)
        self._redact = Redactor(self.spec.secret_values.values())
        self._loggers = Loggers(
            self.spec,
            self.loggers_dir or self._directory.path / "loggers",
            lambda message: self.hooks.note(self._redact.text(message)),
        )

    def stop(self) -> None:
        """Request a graceful end after the current loading step. Call it on the run's event loop."""
        self._stop_requested = True
        if self._loop is not None:
            self._loop.stop()

    async def run(self) -> TrainingSummary:
        """Train until the data ends, a stop is requested, or there is nothing left to learn."""
        require_train_extra()
        self._loggers.require()
        with self._directory.held(), closing(RunLog(self._directory.log, self._redact)) as log:
            self.hooks = LoggedHooks(self.hooks, log, self._loggers)
            try:
                async with self._loggers:
                    return await self._run_through_losses()
            except Exception as error:
                log.write("run", str(error), level="ERROR", error=type(error).__name__)
                if isinstance(error, OsmosisError) or (refused := refused_memory(error)) is None:
                    raise
                message = f"Training ran out of memory: {refused} could not be allocated."
                raise OsmosisError(message, hint=LESS_MEMORY) from error
            finally:
                redact_server_logs(self._directory.server_log, self._redact)

    async def _run_through_losses(self) -> TrainingSummary:
        """Run; after a lost session, continue from the last checkpoint as long as steps get done in between."""
        from osmosis_ai.training.learner.checkpoints import checkpoints_in

        losses = 0
        while True:
            before = self._last_step()
            try:
                return await self._run()
            except (SessionLostError, NetworkError) as error:
                is_lost = isinstance(error, SessionLostError) or losses > 0
                losses = 1 if self._last_step() > before else losses + 1
                if not is_lost or self._stop_requested or losses > SESSION_LOSSES:
                    raise
                pause_s = LOSS_PAUSE_S * 4 ** (losses - 1)
                has_checkpoint = bool(checkpoints_in(self._directory.checkpoints))
                then = "continues from its last checkpoint" if has_checkpoint else "starts again"
                self.hooks.note(f"{error.message.rstrip('.')}. The run {then} in {pause_s:g} s.")
            await asyncio.sleep(pause_s)

    def _last_step(self) -> int:
        return max((record.step for record in read_history(self._directory.metrics)), default=0)

    async def _run(self) -> TrainingSummary:
        directory, spec, hooks = self._directory, self.spec, self.hooks
        running = asyncio.get_running_loop()

        def stop() -> None:  # from any thread
            if not running.is_closed():
                running.call_soon_threadsafe(self.stop)

        hooks.started(stop)
        self._support = await asyncio.to_thread(self._require_support)
        self._manifest = directory.claim(await asyncio.to_thread(spec.inputs), self.provenance)
        async with AsyncExitStack() as stack:
            loop = self._loop = await self._open(stack)
            if self._stop_requested:
                loop.stop()
            with _loaded_objects_frozen():
                ending = await self._ranks.run(loop.run(), loop.learner)
        return TrainingSummary(
            run_dir=directory.path,
            ending=ending,
            steps_done=loop.state.step,
            total_steps=loop.order.total_steps,
            records=list(read_history(directory.metrics)),
        )

    def _require_support(self) -> ModelSupport:
        """Refuse a model that cannot be trained before anything is spent on it."""
        from osmosis_ai.training.learner.distributed import local_device
        from osmosis_ai.training.learner.policy_model import model_source

        model_path, settings = self.spec.model_path, self.spec.settings
        try:
            model_source(model_path, allow_download=settings.allow_download, weights=False)
        except OsmosisError:
            if settings.backend == "tinker":  # raises if the server lacks the model, too
                self.make_learner(self.spec).close()
            raise
        support = _support_on_device(self.spec)
        support.require()
        settings = support.settings
        if settings.policy_engine == "vllm" and settings.method == "rl" and not settings.vllm_url:
            settings = settings.model_copy(update={"vllm_command": settings.vllm_command or self._own_vllm()})
            needed, found = _learner_processes(settings) + settings.vllm_replicas, visible_gpus(self.environ)
            on_gpu = local_device(self.spec.device).type == "cuda"
            if on_gpu and settings.vllm_replicas > 1 and len(found) < needed:
                raise OsmosisError(
                    f"This machine has {len(found)} GPUs; the learner and [advanced].vllm_replicas = "
                    f"{settings.vllm_replicas} need {needed}."
                )
        self.spec = replace(self.spec, settings=settings)
        self._ranks = LearnerRanks(self.spec, self._directory.learner, self.environ)
        return support

    def _own_vllm(self) -> str:
        found = shutil.which("vllm", path=self.environ.get("PATH"))
        if found is None:
            raise OsmosisError(
                f"`vllm` is not on PATH (required to sample from '{self.spec.model_path}').",
                hint="install it with `uv venv /opt/vllm && uv pip install -p /opt/vllm vllm` and set "
                '[advanced].vllm_command = "/opt/vllm/bin/vllm", or set policy_engine = "torch"',
            )
        return found

    async def _open(self, stack: AsyncExitStack) -> StepLoop:
        spec, settings = self.spec, self.spec.settings
        is_rl = settings.method == "rl"
        loop = await (self._open_rl if is_rl else self._open_sft)(stack)
        self.hooks.plan(
            TrainingPlan(
                run_dir=self._directory.path,
                model_path=spec.model_path,
                training_rows=len(loop.rows.training),
                held_out_rows=len(loop.rows.held_out),
                rollouts_per_step=settings.rollouts_per_step,
                unit="attempts" if is_rl else "conversations",
                total_steps=loop.order.total_steps,
                steps_done=loop.state.step,
                device=str(loop.learner.device),
                warnings=(
                    *settings.warnings(spec.model_path, processes=_learner_processes(settings)),
                    *loop.rows.warnings,
                    *exposure_warnings(spec.secret_values),
                ),
                adapter=self._adapter,
            )
        )
        return loop

    async def _open_sft(self, stack: AsyncExitStack) -> StepLoop:
        from osmosis_ai.inference.torch_engine import end_tokens_of
        from osmosis_ai.training.learner.policy_model import model_source
        from osmosis_ai.training.runs.sft import SupervisedLoop, split_conversations, tokenise_conversations

        spec, settings, hooks = self.spec, self.spec.settings, self.hooks
        rows = await asyncio.to_thread(split_conversations, spec.dataset.path, spec.validation, settings.seed)
        shared = await self._open_learner(stack)
        chat = chat_format_of(spec, note=hooks.note)
        end_tokens = end_tokens_of(model_source(spec.model_path, allow_download=settings.allow_download))
        hooks.stage("tokenizing the conversations")
        tokenised = await asyncio.to_thread(tokenise_conversations, rows, chat, end_tokens, settings)
        return SupervisedLoop(rows=tokenised, order=DataOrder.of(tokenised, settings), **shared)

    async def _open_rl(self, stack: AsyncExitStack) -> StepLoop:
        from osmosis_ai.training.runs.loop import TrainingLoop

        spec, settings, directory, hooks = self.spec, self.spec.settings, self._directory, self.hooks
        rows = await asyncio.to_thread(split_rows, spec.dataset.path, spec.validation, settings.seed)
        hooks.stage("preparing the rollout's environment")
        server = await self._prepare_server()
        shared = await self._open_learner(stack)
        learner, ranks = shared["learner"], self._ranks
        is_remote = settings.backend == "tinker"
        hooks.stage(f"starting the sampling engine ({'tinker' if is_remote else settings.policy_engine})")
        if is_remote:
            engine: PolicyEngine = await self._open_tinker(stack, learner)
        elif settings.policy_engine == "vllm":
            engine = await self._open_vllm(stack, learner)
        else:
            engine = await asyncio.to_thread(self._open_torch, stack, str(learner.device))
        # Otherwise the policy is the base, which is served already.
        if learner.updates or spec.adapter is not None or is_remote:
            await ranks.run(engine.publish(learner, learner.updates), learner)
        chat = chat_format_of(spec, note=hooks.note)
        await ranks.run(self._check_engine(engine, learner, chat, rows), learner)
        one = spec.served is not None or spec.servers == 1
        hooks.stage(f"starting the rollout's {'server' if one else f'{spec.servers} servers'}")
        sampler = await self._open_sampler(stack, engine, chat, server, len(rows.held_out))
        return TrainingLoop(
            rows=rows,
            order=DataOrder.of(rows, settings),
            validation=spec.validation,
            sampler=sampler,
            engine=engine,
            redact=self._redact,
            keep_validation=directory.write_validation,
            **shared,
        )

    async def _open_learner(self, stack: AsyncExitStack) -> dict[str, Any]:
        """Load the learner and resume from the last checkpoint; return what every method's loop has."""
        from osmosis_ai.training.learner.checkpoints import CheckpointStore

        spec, settings, directory, hooks = self.spec, self.spec.settings, self._directory, self.hooks
        ranks = await stack.enter_async_context(self._ranks)
        hooks.stage(f"loading the model {spec.model_path}")
        learner = await ranks.run_blocking(lambda: self.make_learner(spec))
        stack.callback(learner.close)
        if settings.backend == "tinker":
            hooks.stage(f"training on {learner}")
        plan = self._support.plan
        # The run may start from an adapter with other target weights than the settings.
        if plan is not None and plan.trainable_parameters == learner.trainable_parameters:
            self._adapter = dict(plan.facts())
            hooks.stage(". ".join(f"{label}: {text}" for label, text in self._adapter.items()))
        if spec.model_path in served_models() and str(learner.device) == "cpu":
            import torch

            # The model is so small that a second thread costs more than it brings.
            torch.set_num_threads(1)
        checkpoints = CheckpointStore(directory.checkpoints, keep_every=settings.checkpoint_save_freq)
        history = MetricsHistory(directory.metrics)
        state, rewound = await ranks.run_blocking(lambda: _resume(checkpoints, learner, history))
        directory.forget_validation_after(state.step)
        self._loggers.start(self._manifest, read_history(directory.metrics))
        return {
            "settings": settings,
            "learner": learner,
            "history": history,
            "checkpoints": checkpoints,
            "hooks": hooks,
            "state": state,
            "rewound": rewound,
            # Every copy of an adapter carries the provenance.
            "provenance": {
                **self.provenance,
                "model_path": spec.model_path,
                "dataset": {"name": spec.dataset.name, "sha256": spec.dataset.sha256},
                "rollout": spec.rollout_dir.name,
                "settings": settings.model_dump(mode="json"),
            },
            "between_steps": directory.sweep_trials,
        }

    async def _prepare_server(self) -> RolloutServer | RemoteAgent:
        from osmosis_ai.controller.server_process import prepare_server

        spec, directory = self.spec, self._directory
        if spec.served is not None:
            return spec.served.agent()
        environment, server = await prepare_server(
            spec.rollout_dir,
            spec.entrypoint,
            environ=self.environ,
            variables=spec.env,
            secret_values=spec.secret_values,
            artifact_root=directory.trials,
            log_path=directory.server_log,
            cache_dir=self.rollout_cache or cache_dir(),
            note=self.hooks.note,
            sandbox=self.sandbox,
        )
        write_atomic(directory.path / ENVIRONMENT_FILE, f"{self._redact.text(environment.description)}\n")
        self.hooks.note(f"environment: {environment.summary}")
        self.hooks.environment(environment.description)
        return server

    def _open_torch(self, stack: AsyncExitStack, device: str) -> PolicyEngine:
        import torch

        from osmosis_ai.inference.engine import MAX_BATCH, InferenceEngine, cached_sequences
        from osmosis_ai.inference.torch_engine import TorchModel
        from osmosis_ai.training.learner.policy_model import model_source

        spec, settings = self.spec, self.spec.settings
        built_in = spec.model_path in served_models() and device == "cpu"
        rollouts = settings.rollouts_per_step
        network = TorchModel.load(
            model_source(spec.model_path, allow_download=settings.allow_download),
            device=device,
            # In float64, a rollout's tokens do not depend on other rollouts sampled at the same time.
            dtype=torch.float64 if built_in else None,
            max_positions=settings.max_prompt_length + settings.max_response_length,
        )
        batch = min(MAX_BATCH, rollouts)
        kept, waiting = cached_sequences(rollouts) - batch, max(1024, 2 * settings.rollouts_in_flight)
        engine = InferenceEngine(network, max_batch=batch, max_waiting=waiting, kept=kept)
        return InProcessPolicyEngine(stack.enter_context(engine), unmerged=network.rounds_weights)

    async def _open_tinker(self, stack: AsyncExitStack, learner: TinkerLearner) -> PolicyEngine:
        from osmosis_ai.inference.torch_engine import end_tokens_of
        from osmosis_ai.training.engines.tinker_backend import TinkerEngine

        settings = self.spec.settings
        longest = settings.max_prompt_length + settings.max_response_length
        source = model_files(self.spec)
        engine = TinkerEngine(
            learner,
            end_token_ids=end_tokens_of(source),
            max_positions=min(longest, learner.server.max_positions or longest),
        )
        stack.push_async_callback(engine.close)
        return engine

    async def _open_vllm(self, stack: AsyncExitStack, learner: Learner) -> PolicyEngine:
        from osmosis_ai.inference.torch_engine import end_tokens_of
        from osmosis_ai.training.engines.vllm_engine import VllmEngine, VllmServer
        from osmosis_ai.training.learner.policy_model import model_source

        spec, settings, directory = self.spec, self.spec.settings, self._directory
        source = model_source(spec.model_path, allow_download=settings.allow_download)
        servers: list[VllmServer | str] = list(settings.vllm_urls)
        if settings.vllm_command is not None:
            on_cpu = learner.device.type == "cpu"
            gpus = None if on_cpu else visible_gpus(self.environ)[learner.world.size :]
            count, log = settings.vllm_replicas, directory.engine_log
            each = len(gpus or ()) // count
            servers = [
                VllmServer(
                    settings,
                    name="the vLLM server" if count == 1 else f"vLLM server {number + 1}",
                    model=source,
                    served_as=spec.model_path,
                    dtype="float32" if on_cpu else "bfloat16",
                    gpus=None if gpus is None else gpus[number * each : (number + 1) * each],
                    experts=learner.adapts_experts,
                    environ=self.environ,
                    log_path=log.with_stem(f"{log.stem}-{number + 1}") if number else log,
                )
                for number in range(count)
            ]
        engine = VllmEngine(
            servers,
            model=spec.model_path,
            end_token_ids=end_tokens_of(source),
            adapters_dir=directory.served_adapters,
            api_key={**self.environ, **spec.env, **spec.secret_values}.get(SERVER_KEY_ENV),
            # No other run on the server has this name, even if both directories have the same one.
            run=f"{directory.path.name}-{os.urandom(4).hex()}",
            note=self.hooks.note,
        )
        return await stack.enter_async_context(engine)

    async def _check_engine(
        self, engine: PolicyEngine, learner: Policy, chat: ChatFormat, rows: SplitRows[DatasetRow]
    ) -> None:
        """Require that the engine samples from the distribution that the learner computes."""
        from osmosis_ai.training.engines.logprob_check import probe, probe_prompts
        from osmosis_ai.training.learner.learner import Learner

        settings, hooks = self.spec.settings, self.hooks
        hooks.stage("comparing the log-probabilities of engine and learner")
        longest = min(settings.max_prompt_length, engine.model.config.max_positions - 1)
        prompts = probe_prompts(rows.training.values(), chat, longest=longest)
        if not prompts:
            raise OsmosisError(
                f"No prompt fits: prompts may have at most {longest} tokens.",
                hint="increase [training].max_prompt_length, or the server's context length",
            )
        found = await probe(engine, learner, prompts, settings)
        is_own = settings.vllm_command is not None and "--dtype" not in settings.vllm_args
        float32 = str(learner.device) == "cpu" and (is_own or settings.policy_engine != "vllm")
        for each in found:
            each.require_agreement(float32=float32, truncated=settings.rollout_top_p < 1)
            hooks.stage(f"engine and learner agree: {each.sentence()}")
        if isinstance(learner, Learner) and settings.policy_engine == "vllm":
            # The effect of an adapter depends on the server's version and the model's architecture.
            hooks.stage("comparing the log-probabilities with a modified adapter")
            with learner.changed_adapter():
                await engine.publish(learner, _CHANGED)
                changed = await probe(engine, learner, prompts, settings)
            await engine.publish(learner, learner.updates)
            for each in changed:
                each.require_agreement(float32=float32, adapter=True)

    async def _open_sampler(
        self,
        stack: AsyncExitStack,
        engine: PolicyEngine,
        chat: ChatFormat,
        server: RolloutServer | RemoteAgent,
        held_out_rows: int,
    ) -> RolloutSampler:
        from osmosis_ai.controller.attempt import RolloutRunner
        from osmosis_ai.controller.callbacks import AttemptTimeouts
        from osmosis_ai.training.engines.policy_bridge import PolicyBridge
        from osmosis_ai.training.runs.rollouts import RolloutSampler

        settings = self.spec.settings
        bridge = PolicyBridge(engine, chat, model_path=self.spec.model_path, settings=settings)
        runner = RolloutRunner(
            bridge,
            model_key=secrets.token_urlsafe(32),
            server=server,
            servers=self.spec.servers,
            timeouts=AttemptTimeouts(settings.agent_workflow_timeout_s, settings.grader_timeout_s),
            redact=self._redact,
            note=self.hooks.note,
            trajectory_root=self._directory.trials,
            max_in_flight=settings.rollouts_in_flight + held_out_rows * settings.validation_attempts,
        )
        return RolloutSampler(await stack.enter_async_context(runner), bridge)


def _learner_processes(settings: TrainingSettings) -> int:
    return int(os.environ.get("WORLD_SIZE", settings.learner_processes))


def _support_on_device(spec: TrainingSpec) -> ModelSupport:
    from osmosis_ai.training.learner.distributed import local_device

    on_gpu = local_device(spec.device).type == "cuda"
    return model_support(spec.model_path, spec.settings, on_gpu=on_gpu, needs_weights=True)


def follow_leader(
    spec: TrainingSpec, make_learner: Callable[[TrainingSpec], Learner] = local_learner
) -> None:
    require_train_extra()
    make_learner(replace(spec, settings=_support_on_device(spec).settings)).follow()


@contextmanager
def _loaded_objects_frozen() -> Iterator[None]:
    """Exclude loaded objects from garbage collection: torch alone has half a million, 0.2 s per collection."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _resume(
    checkpoints: CheckpointStore, learner: Policy, history: MetricsHistory
) -> tuple[TrainingLoopState, list[StepRecord]]:
    """Restore learner and history from the last checkpoint; return the records of the steps to compute again."""
    checkpoint = checkpoints.latest()
    if checkpoint is None:
        return TrainingLoopState(), history.rewind(-1)
    state = TrainingLoopState(**checkpoint.load_into(learner))
    return state, history.rewind(state.step)


def model_files(spec: TrainingSpec) -> str:
    """Return the folder of the model's tokenizer and configuration, and of its weights if they are needed here."""
    from osmosis_ai.training.learner.policy_model import model_source

    settings = spec.settings
    weights = settings.backend == "local"
    return model_source(spec.model_path, allow_download=settings.allow_download, weights=weights)


def chat_format_of(spec: TrainingSpec, *, note: Callable[[str], None] | None = None) -> ChatFormat:
    from osmosis_ai.inference.torch_engine import PretrainedChat

    chosen, source = spec.settings.tool_call_format, model_files(spec)
    if spec.model_path in served_models():
        return BuiltInChat(Path(source), tool_call_format=chosen)
    return PretrainedChat.load(source, tool_call_format=chosen, note=note)
