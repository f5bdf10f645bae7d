"""The live part of a run: everything that exists only while attempts are made, and its orderly end.

Whatever ends it, the order is the same: nothing more is dispatched, records on their way reach the
disk, the server is stopped, then the model. What had not finished stays pending.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.controller.attempt import Attempt
from osmosis_ai.controller.dispatcher import Dispatcher, Stop, choose_limit
from osmosis_ai.evaluation.budget import NOTHING, Spent
from osmosis_ai.evaluation.hooks import RunHooks
from osmosis_ai.evaluation.intervals import load_distributions
from osmosis_ai.evaluation.journal import Journal
from osmosis_ai.evaluation.ledger import WorkItem
from osmosis_ai.evaluation.pending import pending_attempts
from osmosis_ai.evaluation.recording import JournalRecorder
from osmosis_ai.evaluation.rollout_source import RolloutSource, ServerSetting
from osmosis_ai.evaluation.row_copies import RowCopies
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_state import RunState
from osmosis_ai.evaluation.spec import DatasetInput, EvalRunOptions, EvalRunSpec

if TYPE_CHECKING:
    from osmosis_ai.controller.dispatcher import RolloutRunner
    from osmosis_ai.datasets import Selection
    from osmosis_ai.llm.client import ModelClient
    from osmosis_ai.llm.providers import ModelEndpoint

Lost = Callable[[Exception], None]
OpenModel = Callable[[Mapping[str, str], Lost], "AbstractAsyncContextManager[ModelEndpoint]"]

# The model's own limiter adapts below this; rollouts in flight bound it anyway.
_MODEL_CALLS_CEILING = 256
_LAST_COPIES_WAIT_S = 3.0
_RECOUNT_S = 0.25
INTERRUPTED = Stop("interrupted", "interrupted")


@dataclass(frozen=True)
class Job:
    """What an execution works on, with so many ``servers``; ``only`` these work items, where not all of them."""

    spec: EvalRunSpec
    options: EvalRunOptions
    dataset: DatasetInput
    selection: Selection
    copies: RowCopies
    rollout: RolloutSource
    directory: RunDirectory
    environ: Mapping[str, str]
    cache_dir: Path
    servers: int = 1
    only: Collection[WorkItem] | None = None


class Execution:
    """Makes the attempts that a run still asks for."""

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
        self._dispatcher: Dispatcher[Attempt] | None = None
        self._task: asyncio.Task[Stop | None] | None = None
        self._interrupted = False
        self._spent, self._spent_at = NOTHING, -math.inf
        self.dispatched = 0

    @property
    def in_flight(self) -> int:
        """Attempts under way."""
        return self._dispatcher.in_flight if self._dispatcher is not None else 0

    def interrupt(self) -> None:
        """Stop dispatching and cancel what is in flight; what is being set up is given up."""
        self._interrupted = True
        if self._dispatcher is not None:
            self._dispatcher.halt(INTERRUPTED)
        elif self._task is not None:
            self._task.cancel()

    async def run(self) -> Stop | None:
        """Make the attempts; return why some are left, or None."""
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
        from osmosis_ai.controller.dispatcher import RolloutRunner
        from osmosis_ai.controller.model_proxy import ProviderProxy

        job, state = self._job, self._state
        async with AsyncExitStack() as stack:
            client = await self._open_policy(stack)
            self._hooks.stage("preparing the rollout's environment")
            environment, server = await job.rollout.server(self._server_setting())
            if environment is not None:
                self._log("deps", environment.note, kind=environment.kind, python=str(environment.python))
                job.directory.write_environment(state.redact.text(environment.words))
                self._hooks.environment(environment.words)
            servers = "server" if job.servers == 1 else f"{job.servers} servers"
            self._hooks.stage(
                f"starting the rollout's {servers}" if environment else "looking for the served agent"
            )
            model_key = secrets.token_urlsafe(32)
            runner = RolloutRunner(
                ProviderProxy(client),
                bridge_token=model_key,
                server=server,
                servers=job.servers,
                timeouts=job.spec.timeouts,
                redact=state.redact,
                note=self._note,
                log=state.log.write,
                rate_limited=client.rate_limit_holds,
            )
            # Imported while the server is: later, the run's first numbers would hold up its rollouts.
            loading = asyncio.create_task(asyncio.to_thread(load_distributions))
            await stack.enter_async_context(runner)
            await loading
            stop = await self._dispatch(runner)
            if "seed" in client.snapshot().refused_parameters:
                self._note("the model's endpoint takes no seed: running this again will give other samples.")
            return stop

    def _server_setting(self) -> ServerSetting:
        job = self._job
        return ServerSetting(
            spec=job.spec,
            directory=job.directory,
            environ=job.environ,
            secret_values=self._secret_values,
            cache_dir=job.cache_dir,
            port=job.options.rollout_port,
            note=self._hooks.note,
        )

    async def _open_policy(self, stack: AsyncExitStack) -> ModelClient:
        """Open the model and make sure that it answers, unless the options say not to."""
        from osmosis_ai.llm.client import ModelClient

        job = self._job
        doing = "checking" if job.options.preflight else "opening"
        self._hooks.stage(f"{doing} the model {job.spec.experiment.model_path}")
        variables = {**job.environ, **job.spec.env, **self._secret_values}
        endpoint = await stack.enter_async_context(self._open_model(variables, self._halt_for_fault))
        if endpoint.api_key:
            self._state.redact.add([endpoint.api_key])
        ceiling = max(_MODEL_CALLS_CEILING, job.options.max_in_flight or job.spec.evaluation.batch_size or 0)
        client = await stack.enter_async_context(ModelClient(endpoint, max_connections=ceiling))
        if job.options.preflight:
            await client.preflight()
            self._log(
                "preflight",
                "the model answers",
                model_path=endpoint.model_path,
                base_url=(endpoint.base_url or "").partition("?")[0] or None,
            )
        return client

    async def _dispatch(self, runner: RolloutRunner) -> Stop | None:
        job, state = self._job, self._state
        count, limit = state.ledger.open_count, self._limit(runner.capacity)
        self._log("schedule", "dispatching", pending=count, in_flight=limit)
        self._hooks.stage(f"running {count} {'rollout' if count == 1 else 'rollouts'}, {limit} at once")
        self._dispatcher = runner.dispatcher(
            pending_attempts(job.dataset.rows(job.selection), state.ledger, job.options.seed),
            JournalRecorder(self._journal, state, self._hooks.recorded, previews=job.options.previews),
            limit=limit,
            gate=lambda: state.spending.exhausted(lambda: self._spent_in_flight(runner)),
        )
        if self._interrupted:
            return INTERRUPTED
        await asyncio.to_thread(state.projector.copy_left)
        state.projector.start()
        try:
            stop = await runner.run(self._dispatcher, tally=state.tally)
        finally:
            self.dispatched = runner.dispatched
        if stop is not None:
            await runner.wait_until_cancelled_ended(self._hooks.stage)
        patience_s = _LAST_COPIES_WAIT_S if stop is None or stop.kind == "budget" else 0.0
        await asyncio.to_thread(state.projector.stop, patience_s=patience_s)
        return stop

    def _limit(self, capacity: int | None) -> int:
        """Return how many rollouts run at once."""
        asked, count = self._job.options.max_in_flight, self._state.ledger.open_count
        limit = choose_limit(
            max_in_flight=asked, batch_size=self._job.spec.evaluation.batch_size, capacity=capacity
        )
        if (asked or 0) > limit:
            self._hooks.note(
                f"the rollout's {'servers take' if self._job.servers > 1 else 'server takes'} {limit} rollouts at once; `--max-in-flight` cannot raise that."
            )
        return min(limit, count)

    def _spent_in_flight(self, runner: RolloutRunner) -> Spent:
        """Return what the attempts under way have used, at most a moment ago."""
        now = time.monotonic()
        if now - self._spent_at >= _RECOUNT_S:
            used = list(runner.used_in_flight())
            self._spent = Spent(
                sum(usage.total_tokens for usage in used), sum(usage.cost_usd or 0.0 for usage in used)
            )
            self._spent_at = now
        return self._spent

    def _halt_for_fault(self, error: Exception) -> None:
        if self._dispatcher is not None:
            self._dispatcher.halt(Stop("fault", str(error), error))

    def _note(self, message: str) -> None:
        self._state.log.write("run", message, level="WARNING")
        self._hooks.note(message)

    def _log(self, step: str, message: str, **details: Any) -> None:
        self._state.log.write(step, message, **details)
