"""An evaluation on this machine, from its inputs to its metrics.

:meth:`EvalRunner.run` has the steps in order. The run directory and the rows are checked before the user is asked or
money is spent, and nothing is written before the user agrees. The directory stays consistent however the run ends, and
the next run continues it: dispatch stops, arrived results reach the journal, then the rollout's server and the model
stop. Unfinished attempts stay pending.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.controller.attempt import (
    MAX_LOSSES,
    Attempt,
    AttemptResults,
    RolloutRunner,
    RunningAttempt,
    attempt_seeds,
)
from osmosis_ai.controller.dispatcher import Dispatcher, Stop, choose_limit
from osmosis_ai.controller.outcomes import LimitedBy, LimitName
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.controller.server_process import useful_servers
from osmosis_ai.datasets import row_digest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.attempt_files import AttemptFilesWriter
from osmosis_ai.evaluation.hooks import ProgressSnapshot, RunHooks, RunSummary, describe_run, first_failures
from osmosis_ai.evaluation.journal import Journal, load_results, salvage
from osmosis_ai.evaluation.lenient_json import as_number, as_table
from osmosis_ai.evaluation.manifest import Manifest, RunPlan, open_run, run_inputs
from osmosis_ai.evaluation.metrics import RunMetrics, compute_metrics, describe_copied_rows
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.run_log import RunLog, redact_server_logs
from osmosis_ai.evaluation.sources import RemoteSource, RolloutSource
from osmosis_ai.evaluation.spec import DatasetInput, EvalRunOptions, EvalRunSpec, Spending, Spent
from osmosis_ai.files import cache_dir as default_cache_dir
from osmosis_ai.processes.service import ServiceDiedError, ServiceError
from osmosis_ai.redaction import Redactor, exposure_warnings
from osmosis_ai.statistics.estimates import load_distributions

if TYPE_CHECKING:
    from osmosis_ai.controller.model_proxy import ProviderProxy, RolloutUsage
    from osmosis_ai.controller.remote_agents import RemoteAgent
    from osmosis_ai.controller.server_process import AttemptLostError, RolloutServer
    from osmosis_ai.datasets import Selection
    from osmosis_ai.llm.client import ModelClient
    from osmosis_ai.llm.providers import ModelEndpoint

OpenModel = Callable[
    [Mapping[str, str], Callable[[Exception], None]], "AbstractAsyncContextManager[ModelEndpoint]"
]
INTERRUPTED = Stop("interrupted", "interrupted")
_PROGRESS_S = 0.25
# Live views lag by at most 2 s.
_SNAPSHOT_S = 1.0
# The cost of a snapshot grows with the run; snapshots take at most this share of the time.
_SNAPSHOT_SHARE = 0.05
# The model's own limiter adapts below this; rollouts in flight bound it anyway.
_MODEL_CALLS_CEILING = 256
_RECOUNT_S = 0.25
_SHOWN_ROWS = 10


@dataclass(kw_only=True)
class EvalRunner:
    """Runs one evaluation, or continues it.

    Attributes:
        spec, options: what is evaluated, which decides the results; how to run it this time.
        output_root: the parent of the run's directory.
        open_model: opens the model's endpoint.
        provenance: facts that go into the manifest, such as the commit.
        config_stem: start of the run's name without ``options.name``.
        environ, cache_dir: the environment of the rollout's server, the directory of the built environments.
    """

    spec: EvalRunSpec
    options: EvalRunOptions
    dataset: DatasetInput
    selection: Selection
    rollout: RolloutSource
    output_root: Path
    hooks: RunHooks
    open_model: OpenModel
    provenance: Mapping[str, Any] = field(default_factory=dict)
    config_text: str | None = None
    config_stem: str = "eval"
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    cache_dir: Path | None = None

    async def run(
        self, after_finalize: Callable[[RunSummary], Awaitable[None]] | None = None
    ) -> RunSummary | None:
        """Run the evaluation; return its summary, or None if the user declined to start."""
        with ExitStack() as stack:
            self.table = AttemptTable(len(self.selection), self.spec.evaluation.n)
            inputs = await asyncio.to_thread(self._inputs)
            opened = open_run(stack, self.output_root, self.options, inputs, self.config_stem)
            self.directory = opened.directory
            if self.options.salvage:
                await asyncio.to_thread(self._salvage, opened)
            self.spending = Spending(self.options.budget, earlier_s=self._earlier_s())
            await asyncio.to_thread(
                load_results, self.directory.events, self.table, each=self.spending.add_record
            )
            if self.options.retry_failed:
                self.table.reopen_failed()
            if self.options.only is not None:
                self.table.restrict(self.options.only)
            self.servers = self._useful_servers()
            opened.total, opened.pending = len(self.table), self.table.open_count
            opened.servers = self.servers
            self.hooks.plan(opened)
            if warning := describe_copied_rows(self.table.copied_rows, len(self.selection)):
                self.hooks.note(warning)
            pending = opened.pending
            if pending and not await self.hooks.confirm_dispatch(
                pending=pending, model_path=self.spec.experiment.model_path
            ):
                return None
            self.secret_values = self.hooks.resolve_secrets(self.spec.secret_names) if pending else {}
            for warning in exposure_warnings(self.secret_values):
                self.hooks.note(warning)
            self.redact = Redactor(self.secret_values.values())
            self.manifest = self._write_manifest(opened, inputs)
            summary = await _Session(self, stack).run()
            if after_finalize is not None:
                await after_finalize(summary)
            return summary

    def _inputs(self) -> dict[str, Any]:
        """Return the inputs of the run after checking every selected row."""
        if not len(self.selection):
            raise OsmosisError(
                f"No row is selected: '{self.dataset.path}' has {self.selection.total_rows} rows."
            )
        for row_index, row in self.dataset.rows(self.selection):
            self.table.set_row_digest(row_index, row_digest(row))
        digest = self.rollout.source_digest(self.output_root)
        rows = self.selection.describe()
        inputs = run_inputs(self.spec, self.dataset, rows, digest, self.options.seed)
        return {**inputs, **self.rollout.inputs()}

    def _salvage(self, opened: RunPlan) -> None:
        directory = opened.directory
        if opened.manifest is None or not directory.events.exists():
            self.hooks.note(f"'{opened.name}' has no journal to salvage.")
            return
        try:
            found = salvage(directory.events, self.table.belongs)
        except OSError as error:
            raise OsmosisError(
                f"The journal of '{opened.name}' could not be salvaged: {error}. It is unchanged."
            ) from error
        if found.dropped:
            # They are written again: some may be of a dropped result, and an older one of the same attempt counts.
            shutil.rmtree(directory.trajectories, ignore_errors=True)
        self.hooks.note(found.describe())

    def _earlier_s(self) -> float:
        """Return the duration of earlier sessions in seconds."""
        earlier = as_table((self.directory.read_metrics() or {}).get("eval_run")).get("duration_ms")
        return max((as_number(earlier) or 0.0) / 1000, self.options.worked_before_s)

    def _useful_servers(self) -> int:
        if isinstance(self.rollout, RemoteSource):
            return 1
        at_once = self.options.max_in_flight or self.spec.evaluation.batch_size
        return useful_servers(self.options.servers or 1, rollouts=self.table.open_count, at_once=at_once)

    def _write_manifest(self, opened: RunPlan, inputs: Mapping[str, Any]) -> Manifest:
        """Return the run's manifest; for a new run, write it before anything else."""
        manifest = opened.manifest
        if manifest is None:
            manifest = Manifest(
                opened.name,
                inputs,
                {**self.provenance, "servers": self.servers},
                grader_digest=self.rollout.grader_digest(self.spec, self.output_root),
            )
            manifest.write(self.directory.manifest)
            if self.config_text is not None:
                self.directory.write_config(self.redact.text(self.config_text))
        self.directory.create()
        return manifest


class _Session(AttemptResults):
    """The work of one process on a run; it holds the run's lock."""

    def __init__(self, run: EvalRunner, stack: ExitStack) -> None:
        self._run, self._directory, self._hooks = run, run.directory, run.hooks
        self._table, self._spending = run.table, run.spending
        self.redact, self.previews = run.redact, run.options.previews
        self._log = RunLog(
            run.directory.log, run.redact, echo=run.hooks.log_event if run.options.verbose else None
        )
        stack.callback(self._log.close)
        self._is_part = run.options.only is not None
        self._files = AttemptFilesWriter(
            run.directory, run.table, self._log, run.redact, writes_files=not self._is_part
        )
        self._limits: Counter[LimitName] = Counter()
        self._dispatcher: Dispatcher[Attempt] | None = None
        self._task: asyncio.Task[Stop | None] | None = None
        self._halted: Stop | None = None
        self._resumed = run.table.done_count
        self._finished = self._dispatched = 0
        self._spent, self._spent_at = Spent(), -math.inf
        self._indexed: tuple[int, int] | None = None
        # How often attempts were lost with their server, by source row and run. They run again first, so they are few.
        self._deaths: Counter[tuple[int, int]] = Counter()

    async def run(self) -> RunSummary:
        """Run the pending attempts, then write the results."""
        self._spending.start_clock()
        self._journal = Journal(self._directory.events)
        try:
            self._resumed_before = self._journal.size
            pending = self._table.open_count
            self._log.write("run", "session starts", run=self._directory.path.name, pending=pending)
            if self._resumed:
                self._log.write("resume", "continuing from the journal", finished=self._resumed)
            if not self._is_part:
                await self._files.in_thread(self._files.restore)
                self._indexed = self._finished, self._files.written
                self._write_snapshots("running")
            return await self._finalize(await self._execute() if pending else None)
        finally:
            await self._journal.close()
            await self._files.close()

    def interrupt(self) -> None:
        """Stop dispatching and cancel the attempts in flight, or the setup."""
        self._halt(INTERRUPTED)

    def _halt(self, stop: Stop) -> None:
        self._halted = self._halted or stop
        if self._dispatcher is not None:
            self._dispatcher.halt(stop)
        elif self._task is not None:
            self._task.cancel()

    async def _execute(self) -> Stop | None:
        """Run the attempts; return why some are pending, or None."""
        self._task = asyncio.create_task(self._make_attempts())
        self._hooks.started(self.interrupt)
        try:
            async with self._reporting():
                stop = await self._until_done(self._task)
        except Exception as error:  # finished results are written before it propagates
            self._log.write("run", str(error), level="ERROR", error=type(error).__name__)
            await self._finalize(Stop("fault", str(error), error))
            raise
        finally:
            self._hooks.ended()
        if stop is not None:
            self._log.write("run", f"stopped: {stop.reason}", level="WARNING", kind=stop.kind)
        return stop

    async def _until_done(self, task: asyncio.Task[Stop | None]) -> Stop | None:
        try:
            return await task
        except asyncio.CancelledError:
            if self._halted and task.cancelled():
                return self._halted
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise

    async def _make_attempts(self) -> Stop | None:
        run = self._run

        async def start_servers(stack: AsyncExitStack) -> tuple[RolloutRunner, ProviderProxy]:
            server = await launching
            # Imported while the server starts.
            from osmosis_ai.controller.callbacks import AttemptTimeouts
            from osmosis_ai.controller.model_proxy import ProviderProxy

            proxy = ProviderProxy()
            runner = RolloutRunner(
                proxy,
                model_key=secrets.token_urlsafe(32),
                server=server,
                servers=run.servers,
                timeouts=AttemptTimeouts(
                    run.spec.evaluation.agent_workflow_timeout_s, run.spec.evaluation.grader_timeout_s
                ),
                redact=run.redact,
                note=self._note,
                log=self._log.write,
                rate_limited=lambda: proxy.client.limiter.is_rate_limited,
            )
            # Later, the import for the first metrics would delay the rollouts.
            loading = asyncio.create_task(asyncio.to_thread(load_distributions))
            await stack.enter_async_context(runner)
            await loading
            return runner, proxy

        async with AsyncExitStack() as model, AsyncExitStack() as servers:  # the servers stop first
            launching = asyncio.create_task(self._launch_server(run, servers))
            # The import of the model's client would delay the launch, but building an environment takes long.
            await asyncio.wait({launching}, timeout=0.1)
            opening = asyncio.create_task(self._open_model(model))
            starting = asyncio.create_task(start_servers(servers))
            try:
                client, (runner, proxy) = await asyncio.gather(opening, starting)
                proxy.connect(client)
            finally:
                tasks = launching, opening, starting
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            stop = await self._dispatch(runner)
            if "seed" in client.refused_parameters:
                self._note(
                    "The model's endpoint does not accept a seed. Another run gives different results."
                )
            return stop

    async def _launch_server(self, run: EvalRunner, stack: AsyncExitStack) -> RolloutServer | RemoteAgent:
        """Return the agent's server; its process is launched if it is the only one, and stopped by ``stack``."""
        from osmosis_ai.controller.server_process import prepare_server

        self._hooks.stage("preparing the rollout's environment")
        rollout, directory = run.rollout, self._directory
        if isinstance(rollout, RemoteSource):
            self._hooks.note(f"remote agent: '{rollout.name}'")
            self._hooks.stage("looking for the remote agent")
            return rollout.agent()
        environment, server = await prepare_server(
            rollout.path,
            run.spec.experiment.entrypoint,
            environ=rollout.server_environment(run.environ),
            variables=run.spec.env,
            secret_values=run.secret_values,
            artifact_root=directory.trials,
            log_path=directory.server_log,
            cache_dir=run.cache_dir or default_cache_dir(),
            note=self._hooks.note,
            port=run.options.rollout_port,
            sandbox=rollout.sandbox,
        )
        self._log.write(
            "deps",
            f"environment: {environment.summary}",
            kind=environment.kind,
            python=str(environment.python),
        )
        directory.write_environment(run.redact.text(environment.description))
        self._hooks.environment(environment.description)
        servers = "server" if run.servers == 1 else f"{run.servers} servers"
        self._hooks.stage(f"starting the rollout's {servers}")
        if run.servers == 1 and rollout.sandbox is None:
            stack.push_async_callback(server.stop)
            with contextlib.suppress(OSError, ServiceError):  # the start tries again and reports
                server.launch()
        return server

    async def _open_model(self, stack: AsyncExitStack) -> ModelClient:
        """Open the model and check that it answers, unless the check is disabled."""
        from osmosis_ai.llm.client import ModelClient

        run = self._run
        doing = "checking" if run.options.preflight else "opening"
        self._hooks.stage(f"{doing} the model {run.spec.experiment.model_path}")
        variables = {**run.environ, **run.spec.env, **run.secret_values}
        opening = run.open_model(variables, lambda error: self._halt(Stop("fault", str(error), error)))
        endpoint = await stack.enter_async_context(opening)
        if endpoint.api_key:
            run.redact.add([endpoint.api_key])
        ceiling = max(_MODEL_CALLS_CEILING, run.options.max_in_flight or run.spec.evaluation.batch_size or 0)
        client = await stack.enter_async_context(ModelClient(endpoint, max_connections=ceiling))
        if run.options.preflight:
            await client.preflight()
            base_url = (endpoint.base_url or "").partition("?")[0] or None
            self._log.write(
                "preflight", "the model answers", model_path=endpoint.model_path, base_url=base_url
            )
        return client

    async def _dispatch(self, runner: RolloutRunner) -> Stop | None:
        count, limit = self._table.open_count, self._limit(runner.capacity)
        self._log.write("schedule", "dispatching", pending=count, in_flight=limit)
        self._hooks.stage(f"running {count} {'attempt' if count == 1 else 'attempts'}, {limit} at a time")
        self._dispatcher = runner.dispatcher(
            self._pending_attempts(),
            self,
            limit=limit,
            gate=lambda: self._spending.exhausted(lambda: self._spent_in_flight(runner)),
        )
        if self._halted:
            return self._halted
        try:
            stop = await runner.run(self._dispatcher, limits=self._limits)
        finally:
            self._dispatched = runner.dispatched
        died = stop.error if stop is not None else None
        if stop is not None and isinstance(died, ServiceDiedError) and self._deaths:
            died.details["source_rows"], running, died.hint = self._suspects(max(self._deaths.values()))
            stop = Stop(stop.kind, f"{stop.reason} Each time, {running} running.", died)
        if stop is not None:
            await runner.wait_until_cancelled_ended(self._hooks.stage)
        return stop

    def _limit(self, capacity: int | None) -> int:
        """Return how many rollouts run at once."""
        run, requested = self._run, self._run.options.max_in_flight
        limit = choose_limit(
            max_in_flight=requested, batch_size=run.spec.evaluation.batch_size, capacity=capacity
        )
        if (requested or 0) > limit:
            servers = "servers run" if run.servers > 1 else "server runs"
            self._hooks.note(
                f"The rollout's {servers} {limit} rollouts at once; '--max-in-flight' cannot raise that."
            )
        return min(limit, self._table.open_count)

    def _pending_attempts(self) -> Iterator[Attempt]:
        """Yield the pending attempts, by row, then by attempt; rows are streamed."""
        run, table = self._run, self._table
        for row_index, row in run.dataset.rows(run.selection):
            pending = [run_index for run_index in range(table.n) if table.is_open(row_index, run_index)]
            digest = row_digest(row) if pending else ""
            for run_index in pending:
                seeds = attempt_seeds(run.options.seed, row.source_row_index, run_index)
                yield Attempt(row, row_index, run_index, seeds, row_digest=digest)

    def _spent_in_flight(self, runner: RolloutRunner) -> Spent:
        """Return the usage of the attempts in flight, which may be a moment old."""
        now = time.monotonic()
        if now - self._spent_at >= _RECOUNT_S:
            used = list(runner.used_in_flight())
            tokens, cost_usd = (
                sum(each.total_tokens for each in used),
                sum(each.cost_usd or 0.0 for each in used),
            )
            self._spent, self._spent_at = Spent(tokens, cost_usd), now
        return self._spent

    def _note(self, message: str) -> None:
        self._log.write("run", message, level="WARNING")
        self._hooks.note(message)

    async def record(self, record: TerminalRecord, running: RunningAttempt) -> None:
        """Make a record durable, then count it."""
        # Before the first await, because the next attempt may start then and check the budget.
        self._spending.add_record(record)
        row_index, run_index = record.row_index, record.run_index
        if self._table.offset(row_index, run_index) >= 0:
            # Remove the files of the older result first.
            await asyncio.to_thread(self._files.remove, row_index, run_index)
        run_ms = round(self._spending.elapsed_s * 1000)
        trajectory = await self._files.append(record, running.trajectory(), run_ms=run_ms)
        offset = await self._journal.append(record)
        self._table.set_result(record, offset)
        self._finished += 1
        self._deaths.pop((running.attempt.row.source_row_index, run_index), None)
        self._files.add(record, trajectory)
        self._log.write(
            "result",
            record.status if record.error is None else f"{record.status}: {record.error}",
            level="WARNING" if record.status == "failed" else "INFO",
            row_index=row_index,
            run_index=run_index,
            rollout_id=record.rollout_id,
            reward=record.reward,
            tokens=record.tokens,
            duration_ms=record.duration_ms,
            error_type=record.error_type,
            boundary=record.boundary,
        )
        self._hooks.recorded(record)

    def lost(self, attempt: Attempt, loss: AttemptLostError) -> None:
        """Log a lost attempt, which runs again unless it was lost too often."""
        if loss.death is not None:
            self._deaths[attempt.row.source_row_index, attempt.run_index] += 1
        self._log.write(
            "dispatch",
            f"attempt lost: {loss}",
            level="WARNING",
            row_index=attempt.row_index,
            run_index=attempt.run_index,
            losses=attempt.losses,
        )
        if attempt.losses > MAX_LOSSES:
            raise self._lost_too_often(attempt, loss)

    def unrecorded(self, rollout_id: str, usage: RolloutUsage) -> None:
        """Count the cost of an attempt without a result."""
        tokens = 0 if usage.uncounted else usage.total_tokens
        self._spending.add(calls=usage.calls, tokens=tokens, cost_usd=usage.cost_usd)

    def _lost_too_often(self, attempt: Attempt, loss: AttemptLostError) -> OsmosisError:
        source_row = attempt.row.source_row_index
        if loss.death is None:
            return OsmosisError(
                f"Row {source_row} (attempt {attempt.run_index}) was lost {attempt.losses} times, "
                f"the last time because {loss}.",
                code="INTERNAL",
                details={"source_row_index": source_row, "run_index": attempt.run_index},
                hint="finished results are kept; the others are pending",
            )
        rows, running, hint = self._suspects(self._deaths[source_row, attempt.run_index])
        return OsmosisError(
            f"The rollout's server died {attempt.losses} times while {running} running. "
            f"The last time: {loss.death.message}",
            code="INTERNAL",
            details={"source_rows": rows, **loss.death.details},
            hint=hint,
        )

    def _suspects(self, deaths: int) -> tuple[list[int], str, str]:
        """Return the rows that ran when a server died, for most of the ``deaths``, in words too, and a hint."""
        # Any of them may be the cause; the others were lost with it.
        rows = sorted({row for (row, _), count in self._deaths.items() if count >= deaths - 1})
        shown = ", ".join(map(str, rows[:_SHOWN_ROWS])) + (", …" if len(rows) > _SHOWN_ROWS else "")
        running = f"row {shown} was" if len(rows) == 1 else f"rows {shown} were"
        cause = f"row {shown} causes it" if len(rows) == 1 else "one of these rows causes it"
        hint = f"{cause}. Run one alone with '--rows {rows[0]}'; finished results are kept"
        return rows, running, hint

    @contextlib.asynccontextmanager
    async def _reporting(self) -> AsyncIterator[None]:
        over = asyncio.Event()
        reporter = asyncio.create_task(self._report(over))
        try:
            yield
        finally:
            # Not cancelled: a snapshot still being written would overwrite the final one.
            over.set()
            await asyncio.gather(reporter, return_exceptions=True)

    async def _report(self, over: asyncio.Event) -> None:
        """Show progress often, a last time after ``over`` is set, and write snapshots now and then."""
        started = time.monotonic()
        snapshot_at = started + _SNAPSHOT_S
        while True:
            last, now = over.is_set(), time.monotonic()
            self._hooks.progress(self._progress(now - started))
            if last:
                return
            await self._files.write()
            if now >= snapshot_at and not self._is_part:
                with contextlib.suppress(OSError):  # the journal reports a full disk
                    await self._files.in_thread(self._write_snapshots, "running")
                took_s = time.monotonic() - now
                snapshot_at = time.monotonic() + max(_SNAPSHOT_S, took_s / _SNAPSHOT_SHARE)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(over.wait(), _PROGRESS_S)

    def _progress(self, elapsed_s: float) -> ProgressSnapshot:
        spending = self._spending
        return ProgressSnapshot.of(
            self._table,
            self._run.spec.evaluation.pass_threshold,
            tokens=spending.tokens,
            cost_usd=spending.cost_usd if spending.cost_known else None,
            in_flight=self._dispatcher.in_flight if self._dispatcher is not None else 0,
            elapsed_s=elapsed_s,
            finished=self._finished,
        )

    def _metrics(self, table: AttemptTable) -> RunMetrics:
        metrics = compute_metrics(
            table,
            pass_threshold=self._run.spec.evaluation.pass_threshold,
            reward_range=self._run.manifest.reward_range,
        )
        limited = LimitedBy.from_seconds(self._limits)
        if limited is not None and limited.most == "provider" and not _waits_for_model(table):
            limited = None  # no limit was reached, and the model is not what takes the time
        estimates = metrics.estimates.model_copy(update={"limited_by": limited})
        return metrics.model_copy(update={"estimates": estimates})

    def _write_snapshots(self, status: str) -> RunMetrics:
        run, directory = self._run, self._directory
        progress = {
            "total_runs": len(run.selection) * run.spec.evaluation.n,
            "sampled_rows": len(run.selection),
            "total_dataset_rows": run.selection.total_rows,
        }
        shown, index = (self._finished, self._files.written), None
        table = self._table.snapshot()
        # A killed session may leave an incomplete index, which is completed later.
        if status != "running" or shown != self._indexed or not directory.index.exists():
            index = directory.index_entries(
                table, resumed_before=self._resumed_before, has_trajectory=self._files.has_trajectory
            )
        described = describe_run(
            run.spec,
            run.manifest,
            run.selection.drawn,
            status=status,
            duration_ms=round(self._spending.elapsed_s * 1000),
        )
        # While results arrive, the journal has results that are not counted yet.
        counted = None if status == "running" else directory.events.stat().st_size
        metrics = self._metrics(table)
        directory.write_results(described, metrics, journal_bytes=counted, progress=progress, index=index)
        if index is not None:
            self._indexed = shown
        return metrics

    async def _finalize(self, stop: Stop | None) -> RunSummary:
        table, directory = self._table, self._directory
        await self._files.write(at_end=True)
        with contextlib.suppress(OSError):
            redact_server_logs(directory.server_log, self._run.redact)
        status = "finished" if stop is None and table.open_count == 0 else "incomplete"
        try:
            metrics = await self._files.in_thread(
                *((self._metrics, table) if self._is_part else (self._write_snapshots, status))
            )
        except OSError as error:
            if stop is None:
                raise OsmosisError(
                    f"The results in '{directory.events}' are safe, but the tables could not be written: {error}.",
                    hint="free some space, then run the same command again; no result is lost",
                ) from error
            self._log.write("run", f"could not write the snapshots: {error}", level="ERROR")
            metrics = self._metrics(table)
        self._log.write("run", "session ends", complete=status == "finished", dispatched=self._dispatched)
        return RunSummary(
            run_dir=directory.path,
            local_run_id=self._run.manifest.local_run_id,
            total_work_items=len(table),
            dispatched=self._dispatched,
            succeeded=table.count("success"),
            failed=table.count("failed"),
            skipped=table.count("skipped"),
            pending=table.open_count,
            resumed=self._resumed,
            stop=stop,
            duration_ms=round(self._spending.elapsed_s * 1000),
            metrics=metrics,
            failures=first_failures(directory, table),
            rows=self._run.selection.drawn,
        )


def _waits_for_model(table: AttemptTable) -> bool:
    """Whether the recorded attempts spent at least half of their time in the model."""
    import numpy as np

    in_model, whole = (float(np.nansum(table.columns[name])) for name in ("model_latency_ms", "duration_ms"))
    return 0.0 < whole <= 2 * in_model
