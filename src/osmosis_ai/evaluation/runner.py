"""An evaluation on this machine, from its inputs to its numbers.

The steps are in :meth:`EvalRunner.run`, in order. Nothing is asked or spent before the run
directory and the rows have been found fit; nothing is written before the user agreed. Whatever
happens after that, the directory ends up consistent, and running it again continues it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.controller.dispatcher import Stop
from osmosis_ai.controller.server_process import useful_servers
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.budget import Spending
from osmosis_ai.evaluation.execution import Execution, Job, OpenModel
from osmosis_ai.evaluation.headline import copied_rows
from osmosis_ai.evaluation.hooks import RunHooks, RunPlan
from osmosis_ai.evaluation.journal import Journal
from osmosis_ai.evaluation.journal_checkpoint import CheckpointWriter, JournalCheckpoint
from osmosis_ai.evaluation.ledger import Ledger, WorkItem
from osmosis_ai.evaluation.manifest import Manifest, run_inputs
from osmosis_ai.evaluation.metrics import MetricsAccumulator
from osmosis_ai.evaluation.resume import OpenedRun, open_run
from osmosis_ai.evaluation.rollout_source import RolloutSource
from osmosis_ai.evaluation.row_copies import RowCopies
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_log import RunLog, redact_server_logs
from osmosis_ai.evaluation.run_state import RunState, settle_recorded
from osmosis_ai.evaluation.spec import DatasetInput, EvalRunOptions, EvalRunSpec
from osmosis_ai.evaluation.summary import RunSummary, describe_run, first_failures
from osmosis_ai.evaluation.trajectory_export import Projector
from osmosis_ai.files import cache_dir as default_cache_dir
from osmosis_ai.redaction import Redactor, exposure_warnings

if TYPE_CHECKING:
    from osmosis_ai.datasets import Selection

_PROGRESS_S = 0.25
# Who looks on sees a sample within two seconds, and the numbers that it changes.
_SNAPSHOT_S = 1.0
# Snapshots cost in proportion to the run; at most this share of the time goes into them.
_SNAPSHOT_SHARE = 0.05

AfterFinalize = Callable[[RunSummary], Awaitable[None]]


class EvalRunner:
    """Runs one evaluation, or continues it."""

    def __init__(
        self,
        *,
        spec: EvalRunSpec,
        options: EvalRunOptions,
        dataset: DatasetInput,
        selection: Selection,
        rollout: RolloutSource,
        output_root: Path,
        hooks: RunHooks,
        open_model: OpenModel,
        provenance: Mapping[str, Any] | None = None,
        config_text: str | None = None,
        config_stem: str = "eval",
        environ: Mapping[str, str] | None = None,
        cache_dir: Path | None = None,
        only: Collection[WorkItem] | None = None,
    ) -> None:
        self._spec = spec
        self._options = options
        self._dataset = dataset
        self._selection = selection
        self._rollout = rollout
        self._output_root = output_root
        self._hooks = hooks
        self._open_model = open_model
        self._provenance = dict(provenance or {})
        self._config_text = config_text
        self._config_stem = config_stem
        self._environ = dict(os.environ if environ is None else environ)
        self._cache_dir = cache_dir or default_cache_dir()
        self._only = only

    async def run(self, after_finalize: AfterFinalize | None = None) -> RunSummary | None:
        """Run it; return the summary, or None when the user declined to start."""
        with ExitStack() as held:
            inputs = await asyncio.to_thread(self._inputs)
            opened = open_run(held, self._output_root, self._options, inputs, self._config_stem)
            if self._options.salvage:
                await asyncio.to_thread(self._salvage, opened)
            directory = opened.directory
            checkpoint = await asyncio.to_thread(JournalCheckpoint.of, directory.checkpoint, directory.events)
            ledger = self._replay_ledger(opened, checkpoint)
            self._servers = self._useful_servers(ledger)
            self._hooks.plan(self._plan(opened, ledger))
            if warning := copied_rows(self._copies.count, len(self._selection)):
                self._hooks.note(warning)
            pending = ledger.open_count
            if pending and not await self._hooks.confirm_dispatch(
                pending=pending, model_path=self._spec.experiment.model_path
            ):
                return None
            secret_values = self._hooks.resolve_secrets(self._spec.secret_names) if pending else {}
            for warning in exposure_warnings(secret_values):
                self._hooks.note(warning)
            session = _Session(
                self._job(directory), checkpoint, self._hooks, self._open_model, secret_values, held
            )
            summary = await session.run(self._manifest(opened, inputs, Redactor(secret_values.values())))
            if after_finalize is not None:
                await after_finalize(summary)
            return summary

    def _inputs(self) -> dict[str, Any]:
        """Read everything a result depends on, and check that every selected row can be used."""
        if not len(self._selection):
            raise OsmosisError(
                f"no row is selected: `{self._dataset.path}` has {self._selection.total_rows} rows."
            )
        self._copies = RowCopies.of(row for _, row in self._dataset.rows(self._selection))
        digest = self._rollout.source_digest(self._output_root)
        rows = self._selection.describe()
        inputs = run_inputs(self._spec, self._dataset, rows, digest, self._options.seed)
        if self._only is not None:
            inputs["work_items"] = sorted(map(list, self._only))
        return {**inputs, **self._rollout.inputs()}

    def _replay_ledger(self, opened: OpenedRun, checkpoint: JournalCheckpoint) -> Ledger:
        """Learn what is left, before anything is written."""
        ledger = Ledger(len(self._selection), self._spec.evaluation.n, only=self._only)
        if opened.directory.events.exists():
            settle_recorded(ledger, opened.directory.events, checkpoint)
        if self._options.retry_failed:
            ledger.reopen_failed()
        return ledger

    def _salvage(self, opened: OpenedRun) -> None:
        """Make the run's journal whole again, and say what became of it; asked for, so nobody is asked again."""
        from osmosis_ai.evaluation.salvage import salvage

        directory = opened.directory
        if opened.manifest is None or not directory.events.exists():
            self._hooks.note(f"`{opened.name}` has no journal yet: there is nothing to salvage.")
            return
        ledger = Ledger(len(self._selection), self._spec.evaluation.n, only=self._only)
        try:
            found = salvage(directory.events, lambda each: ledger.holds(each.row_index, each.run_index))
        except OSError as error:
            raise OsmosisError(
                f"the journal of `{opened.name}` could not be salvaged: {error}. It is as it was."
            ) from error
        for told in found.sentences():
            self._hooks.note(told)
        if found.damaged is not None:
            directory.remove_copies()

    def _plan(self, opened: OpenedRun, ledger: Ledger) -> RunPlan:
        return RunPlan(
            run_name=opened.name,
            run_dir=opened.directory.path,
            model_path=self._spec.experiment.model_path,
            rows=len(self._selection),
            rows_in_file=self._selection.total_rows,
            n=self._spec.evaluation.n,
            total=len(ledger),
            pending=ledger.open_count,
            resumed=len(ledger) - ledger.open_count,
            continued=opened.manifest is not None or bool(len(ledger) - ledger.open_count),
            found=opened.found,
            put_aside=opened.put_aside,
            servers=self._servers,
        )

    def _useful_servers(self, ledger: Ledger) -> int:
        if self._rollout.is_elsewhere:
            return 1
        options = self._options
        at_once = options.max_in_flight or self._spec.evaluation.batch_size
        return useful_servers(options.servers, rollouts=ledger.open_count, at_once=at_once)

    def _manifest(self, opened: OpenedRun, inputs: Mapping[str, Any], redact: Redactor) -> Manifest:
        """Return the run's manifest, writing it, before anything else, for a new run, and then its config."""
        manifest = opened.manifest
        if manifest is None:
            manifest = Manifest.new(
                opened.name,
                inputs,
                {**self._provenance, "servers": self._servers},
                grader_digest=self._rollout.grader_digest(self._spec, self._output_root),
            )
            manifest.write(opened.directory.manifest)
            if self._config_text is not None:
                opened.directory.write_config(redact.text(self._config_text))
        opened.directory.create()
        return manifest

    def _job(self, directory: RunDirectory) -> Job:
        return Job(
            spec=self._spec,
            options=self._options,
            dataset=self._dataset,
            selection=self._selection,
            rollout=self._rollout,
            copies=self._copies,
            directory=directory,
            environ=self._environ,
            cache_dir=self._cache_dir,
            servers=self._servers,
            only=self._only,
        )


class _Session:
    """One process's turn at a run whose directory exists and whose lock is held."""

    def __init__(
        self,
        job: Job,
        checkpoint: JournalCheckpoint,
        hooks: RunHooks,
        open_model: OpenModel,
        secret_values: Mapping[str, str],
        held: ExitStack,
    ) -> None:
        self._job = job
        self._checkpoint = checkpoint
        self._checkpoints = CheckpointWriter(checkpoint, job.directory.events)
        self._hooks = hooks
        self._open_model = open_model
        self._secret_values = secret_values
        self._held = held
        self._redact = Redactor(secret_values.values())

    async def run(self, manifest: Manifest) -> RunSummary:
        """Replay, execute, finalize."""
        job, options = self._job, self._job.options
        self._manifest = manifest
        echo = self._hooks.log_event if options.verbose else None
        log = RunLog(job.directory.log, self._redact, echo=echo)
        self._held.callback(log.close)
        journal = Journal.open(job.directory.events)
        try:
            self._resumed_before = journal.size
            state = self._state = await asyncio.to_thread(self._replay, journal, log)
            self._resumed = len(state.ledger) - state.ledger.open_count
            log.write("run", "session starts", run=job.directory.path.name, pending=state.ledger.open_count)
            if self._resumed:
                known = self._checkpoint.records or None
                log.write(
                    "resume", "continuing from the journal", finished=self._resumed, from_checkpoint=known
                )
            self._indexed = state.records, state.projector.copied
            self._write_snapshots("running")
            execution: Execution | None = None
            stop: Stop | None = None
            if state.ledger.open_count:
                execution = self._make_execution(journal, state)
                stop = await self._execute(execution, log)
        finally:
            await journal.close()
        return await self._finalize(stop, execution)

    def _replay(self, journal: Journal, log: RunLog) -> RunState:
        job, spec = self._job, self._job.spec
        ledger = Ledger(len(job.selection), spec.evaluation.n, only=job.only)
        earlier = (job.directory.read_metrics() or {}).get("eval_run", {}).get("duration_ms", 0)
        earlier_s = max(earlier / 1000, job.options.worked_before_s)
        spending = Spending(job.options.budget, earlier_s=earlier_s)
        state = RunState(
            ledger=ledger,
            metrics=MetricsAccumulator(
                rows=len(job.selection),
                n=spec.evaluation.n,
                pass_threshold=spec.evaluation.pass_threshold,
                clusters=job.copies.clusters(),
                only=job.only,
                reward_range=self._manifest.reward_range,
            ),
            spending=spending,
            projector=Projector(job.directory, ledger, log, self._redact),
            log=log,
            redact=self._redact,
            pass_threshold=spec.evaluation.pass_threshold,
        )
        state.replay(journal, self._checkpoint)
        if job.options.retry_failed:
            ledger.reopen_failed()
        return state

    def _make_execution(self, journal: Journal, state: RunState) -> Execution:
        return Execution(
            self._job,
            state=state,
            journal=journal,
            hooks=self._hooks,
            open_model=self._open_model,
            secret_values=self._secret_values,
        )

    async def _execute(self, execution: Execution, log: RunLog) -> Stop | None:
        self._hooks.started(execution.interrupt)
        try:
            async with self._reporting(execution):
                stop = await execution.run()
        except (
            Exception
        ) as error:  # whatever it is, what is finished is written down before it goes on its way
            log.write("run", str(error), level="ERROR", error=type(error).__name__)
            await self._finalize(Stop("fault", str(error), error), execution)
            raise
        finally:
            self._hooks.ended()
        if stop is not None:
            log.write("run", f"stopped: {stop.reason}", level="WARNING", kind=stop.kind)
        return stop

    @contextlib.asynccontextmanager
    async def _reporting(self, execution: Execution) -> AsyncIterator[None]:
        over = asyncio.Event()
        reporter = asyncio.create_task(self._report(execution, over))
        try:
            yield
        finally:
            # Not cancelled: a snapshot still being written would land on top of the final one.
            over.set()
            await asyncio.gather(reporter, return_exceptions=True)

    async def _report(self, execution: Execution, over: asyncio.Event) -> None:
        """Show progress often, the last time once all is ``over``, and write snapshots now and then."""
        started = snapshot_at = time.monotonic()
        snapshot_at += _SNAPSHOT_S
        while True:
            last = over.is_set()
            now = time.monotonic()
            self._hooks.progress(self._state.progress(in_flight=execution.in_flight, elapsed_s=now - started))
            if last:
                return
            if now >= snapshot_at:
                with contextlib.suppress(OSError):  # a full disk is the journal's to report
                    await asyncio.to_thread(self._write_snapshots, "running")
                took_s = time.monotonic() - now
                snapshot_at = time.monotonic() + max(_SNAPSHOT_S, took_s / _SNAPSHOT_SHARE)
            await self._checkpoints.keep_up(self._state.records, self._state.log)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(over.wait(), _PROGRESS_S)

    def _write_snapshots(self, status: str) -> None:
        job, state = self._job, self._state
        progress = {
            "total_runs": len(job.selection) * job.spec.evaluation.n,
            "sampled_rows": len(job.selection),
            "total_dataset_rows": job.selection.total_rows,
        }
        shown, index = (state.records, state.projector.copied), None
        # The index has what a session starts with, except what a killed session did not write; that can wait.
        if status != "running" or shown != self._indexed or not job.directory.index.exists():
            index = job.directory.index_entries(
                state.ledger,
                resumed_before=self._resumed_before,
                has_trajectory=state.projector.has_trajectory,
            )
        duration_ms = round(state.spending.elapsed_s * 1000)
        described = describe_run(
            job.spec, self._manifest, job.selection.drawn, status=status, duration_ms=duration_ms
        )
        # While results come in, the journal has some that are not counted yet.
        counted = None if status == "running" else job.directory.events.stat().st_size
        job.directory.write_results(
            described, state.summary(), journal_bytes=counted, progress=progress, index=index
        )
        if index is not None:
            self._indexed = shown

    async def _finalize(self, stop: Stop | None, execution: Execution | None) -> RunSummary:
        state, directory = self._state, self._job.directory
        await asyncio.to_thread(state.projector.stop, patience_s=0.0)
        await asyncio.to_thread(state.projector.copy_missing)
        await self._checkpoints.keep_up(state.records, state.log)
        with contextlib.suppress(OSError):
            redact_server_logs(directory.server_log, self._redact)
        complete = stop is None and state.ledger.open_count == 0
        try:
            await asyncio.to_thread(self._write_snapshots, "finished" if complete else "incomplete")
        except OSError as error:
            if stop is None:
                raise OsmosisError(
                    f"the results are safe in `{directory.events}`, but the tables could not be written: {error}.",
                    hint="free some space, then start the run again: no result is lost",
                ) from error
            state.log.write("run", f"could not write the snapshots: {error}", level="ERROR")
        dispatched = execution.dispatched if execution is not None else 0
        state.log.write("run", "session ends", complete=complete, dispatched=dispatched)
        return RunSummary(
            run_dir=directory.path,
            local_run_id=self._manifest.local_run_id,
            run_name=directory.path.name,
            total_work_items=len(state.ledger),
            dispatched=dispatched,
            succeeded=state.ledger.count("success"),
            failed=state.ledger.count("failed"),
            skipped=state.ledger.count("skipped"),
            pending=state.ledger.open_count,
            resumed=self._resumed,
            stop=stop,
            duration_ms=round(state.spending.elapsed_s * 1000),
            metrics=state.summary(),
            failures=first_failures(directory, state.ledger),
            rows=self._job.selection.drawn,
        )
