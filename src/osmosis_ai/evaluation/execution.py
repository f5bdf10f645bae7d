"""The live part of a run: everything that exists only while attempts are made, and its orderly end.

Whatever ends it, the order is the same: nothing more is dispatched, records on their way reach the
disk, the server is stopped, then the model. What had not finished stays pending.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.driving.concurrency import choose_limit
from osmosis_ai.driving.dispatcher import Dispatcher, Stop
from osmosis_ai.driving.machine import MachineWatch
from osmosis_ai.driving.pace import Pace
from osmosis_ai.driving.restarting_server import RestartingRolloutServer
from osmosis_ai.evaluation.attempts import AttemptRunner
from osmosis_ai.evaluation.hooks import RunHooks
from osmosis_ai.evaluation.journal import Journal
from osmosis_ai.evaluation.pending import WorkItem, pending_items
from osmosis_ai.evaluation.row_copies import RowCopies
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_state import RunState
from osmosis_ai.evaluation.spec import DatasetInput, EvalRunOptions, EvalRunSpec
from osmosis_ai.evaluation.unwinding import wait_until_unwound
from osmosis_ai.event_loop import LoopLag, LoopState

if TYPE_CHECKING:
    from osmosis_ai.datasets import Selection
    from osmosis_ai.driving.callback_registry import CallbackStore
    from osmosis_ai.driving.callback_server import CallbackListener
    from osmosis_ai.driving.http_driver import HttpRolloutDriver
    from osmosis_ai.driving.server_process import RolloutServer
    from osmosis_ai.llm.client import ModelClient
    from osmosis_ai.llm.providers import ModelEndpoint

Lost = Callable[[Exception], None]
OpenModel = Callable[[Mapping[str, str], Lost], "AbstractAsyncContextManager[ModelEndpoint]"]

# The model's own limiter adapts below this; rollouts in flight bound it anyway.
_MODEL_CALLS_CEILING = 256
_LAST_COPIES_WAIT_S = 3.0
INTERRUPTED = Stop("interrupted", "interrupted")


@dataclass(frozen=True)
class Job:
    """What an execution works on."""

    spec: EvalRunSpec
    options: EvalRunOptions
    dataset: DatasetInput
    selection: Selection
    copies: RowCopies
    rollout_dir: Path
    directory: RunDirectory
    environ: Mapping[str, str]
    cache_dir: Path


class Execution:
    """Makes the attempts that a run still asks for.

    Args:
        open_model: opens the policy's endpoint; given the variables in which its key may be, and whom to
            tell when the endpoint is gone for good.
        secret_values: values of the configured secrets, by name.
    """

    def __init__(
        self,
        job: Job,
        *,
        state: RunState,
        journal: Journal,
        hooks: RunHooks,
        open_model: OpenModel,
        secret_values: Mapping[str, str],
    ) -> None:
        self._job = job
        self._state = state
        self._journal = journal
        self._hooks = hooks
        self._open_model = open_model
        self._secret_values = secret_values
        self._environment = {**job.environ, **job.spec.env, **secret_values}
        self._dispatcher: Dispatcher[WorkItem] | None = None
        self._task: asyncio.Task[Stop | None] | None = None
        self._interrupted = False
        self._told_late = False
        self.attempts: AttemptRunner | None = None
        self.limit = 0

    @property
    def in_flight(self) -> int:
        """Attempts under way."""
        return self._dispatcher.in_flight if self._dispatcher is not None else 0

    @property
    def dispatched(self) -> int:
        """Attempts started."""
        return self.attempts.dispatched if self.attempts is not None else 0

    def interrupt(self) -> None:
        """Stop dispatching and cancel what is in flight; what is being set up is given up."""
        self._interrupted = True
        if self._dispatcher is not None:
            self._dispatcher.halt(INTERRUPTED)
        elif self._task is not None:
            self._task.cancel()

    async def run(self) -> Stop | None:
        """Make the attempts; return why some are left, or None.

        Raises:
            OsmosisError: when nothing could be dispatched at all (model, environment, server).
        """
        self._task = asyncio.create_task(self._run())
        try:
            return await self._task
        except asyncio.CancelledError:
            if self._interrupted and self._task.cancelled():
                return INTERRUPTED
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            raise

    async def _run(self) -> Stop | None:
        async with AsyncExitStack() as stack:
            client = await self._open_policy(stack)
            python = await self._prepare_python()
            store, listener, model_key, callback_key = await self._listen(stack, client)

            def connect(base_url: str) -> HttpRolloutDriver:
                return self._driver(base_url, store, listener, model_key, callback_key)

            self._hooks.stage("starting the rollout's server")
            host = RestartingRolloutServer(
                make_server=lambda: self._server(python), connect=connect, note=self._note
            )
            await stack.enter_async_context(host)
            self._log("server", "the rollout's server is healthy", capacity=host.capacity)
            assert self.attempts is not None
            self.attempts.host = host
            stop = await self._dispatch(stack, host, client, self.attempts)
            if "seed" in client.snapshot().refused_parameters:
                self._note("the model's endpoint takes no seed: running this again will give other samples.")
            return stop

    async def _open_policy(self, stack: AsyncExitStack) -> ModelClient:
        """Open the model and make sure that it answers.

        Raises:
            ModelCallError: in the provider's own words.
        """
        from osmosis_ai.llm.client import ModelClient

        self._hooks.stage(f"checking the model {self._job.spec.model_path}")
        endpoint = await stack.enter_async_context(self._open_model(self._environment, self._halt_for_fault))
        if endpoint.api_key:
            self._state.redact.add([endpoint.api_key])
        ceiling = max(_MODEL_CALLS_CEILING, self._job.options.max_in_flight or self._job.spec.batch_size or 0)
        client = await stack.enter_async_context(ModelClient(endpoint, max_connections=ceiling))
        await client.preflight()
        self._log(
            "preflight", "the model answers", model_path=endpoint.model_path, base_url=endpoint.base_url
        )
        return client

    async def _prepare_python(self) -> Path:
        from osmosis_ai.driving.environment import prepare_environment

        self._hooks.stage("preparing the rollout's environment")
        environment = await asyncio.to_thread(
            prepare_environment, self._job.rollout_dir, cache_dir=self._job.cache_dir, note=self._hooks.note
        )
        self._hooks.note(f"environment: {environment.note}")
        self._log("deps", environment.note, kind=environment.kind, python=str(environment.python))
        return environment.python

    async def _listen(
        self, stack: AsyncExitStack, client: ModelClient
    ) -> tuple[CallbackStore, CallbackListener, str, str]:
        """Open the door for callbacks and model calls; each has a key of its own."""
        from osmosis_ai.driving.bridge import ModelBridge
        from osmosis_ai.driving.callback_registry import CallbackStore
        from osmosis_ai.driving.callback_server import CallbackListener

        model_key, callback_key = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._state.redact.add([model_key, callback_key])
        bridge = ModelBridge(client, auth_token=model_key)
        self.attempts = AttemptRunner(
            spec=self._job.spec,
            seed=self._job.options.seed,
            bridge=bridge,
            journal=self._journal,
            state=self._state,
            on_fault=self._halt_for_fault,
        )
        store = CallbackStore(
            on_terminal_commit=self.attempts.commit,
            acknowledge_completion=self.attempts.acknowledge_completion,
        )
        listener = CallbackListener(store, auth_token=callback_key, bridge=bridge, bridge_token=model_key)
        await stack.enter_async_context(listener)
        self._log("listener", "listening for callbacks", url=listener.base_url)
        return store, listener, model_key, callback_key

    def _driver(
        self,
        base_url: str,
        store: CallbackStore,
        listener: CallbackListener,
        model_key: str,
        callback_key: str,
    ) -> HttpRolloutDriver:
        from osmosis_ai.driving.http_driver import HttpRolloutDriver

        return HttpRolloutDriver(
            rollout_base_url=base_url,
            callback_store=store,
            completion_url_for=listener.completion_url,
            grader_url_for=listener.grader_url,
            chat_completions_url_for=listener.chat_completions_url,
            chat_api_key=model_key,
            controller_api_key=callback_key,
            callback_timeout_sec=self._job.spec.item_deadline_s,
        )

    def _server(self, python: Path) -> RolloutServer:
        from osmosis_ai.driving.server_process import RolloutServer, ServerSpec, health_timeout

        return RolloutServer(
            ServerSpec(
                rollout_dir=self._job.rollout_dir,
                entrypoint=self._job.spec.entrypoint,
                python=python,
                env=self._environment,
                artifact_root=self._job.directory.trials,
                port=self._job.options.rollout_port,
                log_path=self._job.directory.server_log,
                secret_values=frozenset(self._secret_values.values()),
            ),
            health_timeout_s=health_timeout(self._job.environ),
        )

    async def _dispatch(
        self,
        stack: AsyncExitStack,
        host: RestartingRolloutServer,
        client: ModelClient,
        attempts: AttemptRunner,
    ) -> Stop | None:
        job, state = self._job, self._state
        wished = choose_limit(
            max_in_flight=job.options.max_in_flight, batch_size=job.spec.batch_size, capacity=host.capacity
        )
        self.limit = min(wished, state.ledger.open_count)
        if (job.options.max_in_flight or 0) > wished:
            self._hooks.note(
                f"the rollout's server takes {wished} rollouts at once; `--max-in-flight` cannot raise that."
            )
        self._log("schedule", "dispatching", pending=state.ledger.open_count, in_flight=self.limit)
        count = state.ledger.open_count
        self._hooks.stage(f"running {count} {'rollout' if count == 1 else 'rollouts'}, {self.limit} at once")
        self._dispatcher = Dispatcher(
            pending_items(job.dataset.path, job.selection, state.ledger),
            attempts.attempt,
            limit=self.limit,
            gate=lambda: state.spending.exhausted(attempts.spent_in_flight),
        )
        if self._interrupted:
            return INTERRUPTED
        pace = Pace(self.limit)
        watch = self._watch_machine(stack, host, client, pace)
        attempts.was_late, state.limited_by = watch.was_late, watch.limited_by
        following = asyncio.create_task(
            watch.watch(in_flight=lambda: self.in_flight, changed=lambda: self._follow(pace))
        )
        state.projector.start()
        try:
            stop = await self._dispatcher.run()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await attempts.settle()
        if stop is not None and attempts.cancelled and host.base_url is not None:
            await self._unwind(host.base_url, attempts.cancelled)
        patience_s = _LAST_COPIES_WAIT_S if stop is None or stop.kind == "budget" else 0.0
        await asyncio.to_thread(state.projector.stop, patience_s=patience_s)
        return stop

    def _watch_machine(
        self, stack: AsyncExitStack, host: RestartingRolloutServer, client: ModelClient, pace: Pace
    ) -> MachineWatch:
        from osmosis_ai.driving.server_health import ServerHealth

        lag, health = LoopLag(), ServerHealth()
        lag.start()
        stack.callback(lag.stop)
        stack.push_async_callback(health.aclose)

        async def ask() -> LoopState | None:
            base_url = host.base_url
            return await health.ask(base_url) if base_url is not None else None

        return MachineWatch(
            pace,
            engine=lag.state,
            server=lambda: health.state,
            ask_server=ask,
            rate_limited=client.rate_limit_holds,
        )

    def _follow(self, pace: Pace) -> None:
        """Let as many rollouts be in flight as the machine keeps up with."""
        assert self._dispatcher is not None
        self._dispatcher.narrow(pace.allowed)
        self._log("schedule", "this machine sets the pace", in_flight=pace.allowed, of=pace.ceiling)
        if not self._told_late:
            self._told_late = True
            self._note(
                "this machine is late: fewer rollouts run at once until it keeps up "
                f"({pace.allowed} of {pace.ceiling} now)."
            )

    async def _unwind(self, base_url: str, rollout_ids: list[str]) -> None:
        self._hooks.stage(f"waiting for {len(rollout_ids)} cancelled rollouts to end")
        busy = await wait_until_unwound(base_url, rollout_ids)
        self._log("cancel", "cancelled rollouts have ended", cancelled=len(rollout_ids), still_busy=len(busy))
        if busy:
            self._hooks.note(
                f"{len(busy)} cancelled rollouts did not end in time; their server is stopped anyway."
            )

    def _halt_for_fault(self, error: Exception) -> None:
        if self._dispatcher is not None:
            self._dispatcher.halt(Stop("fault", str(error), error))

    def _note(self, message: str) -> None:
        self._state.log.write("run", message, level="WARNING")
        self._hooks.note(message)

    def _log(self, step: str, message: str, **details: Any) -> None:
        self._state.log.write(step, message, **details)
