"""The worker process of one shard: ``python -m osmosis_ai.platform.worker.worker``.

It communicates with the platform only over HTTP and writes only under its lease. When it is cut off, it starts no new
work, and continues when the platform is back unless another worker has the shard. When it ends, the shard has ended with
a one-sentence reason, or waits for another worker, which continues from the journal. It prints only errors from before
its log exists.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import threading
import traceback
from typing import Any, NoReturn

from osmosis_ai import event_loop
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.wire.workers import Assignment
from osmosis_ai.config.execution import read_execution
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal import JournalCorruptionError
from osmosis_ai.files import is_disk_full
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import from_environment
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.runs.lifecycle import LeaseLostError
from osmosis_ai.platform.worker.client import (
    CredentialRefusedError,
    PlatformUnreachableError,
    StoreAwayError,
    WorkerClient,
)
from osmosis_ai.platform.worker.containment import RunContainment
from osmosis_ai.platform.worker.directory import WorkingDirectory
from osmosis_ai.platform.worker.evaluation import EvalWork
from osmosis_ai.platform.worker.inputs import RunInputs
from osmosis_ai.platform.worker.process import (
    ASSIGNMENT,
    BUSY,
    CPUS,
    ENDED,
    HAS_BUCKET_KEYS,
    LEASE_LOST,
    PLATFORM_URL,
    UNREACHABLE,
)
from osmosis_ai.platform.worker.reporter import Reporter
from osmosis_ai.platform.worker.training import TrainingWork
from osmosis_ai.platform.worker.work import Interrupt, Prepared, Work, WorkResult, one_sentence
from osmosis_ai.processes import disable_inspection, lower_priority, take_private_variables, watch_parent

_LOCK_WAIT_S = 10.0
"""How long an earlier worker of the shard on this machine may take to end."""
_KNOCK_S = 0.5
_STOP_WITHIN_S = {"eval": 30.0, "training": 300.0}
"""How long the work may take to end after it was asked to; then the process ends, and its shard is closed as it is."""
_LONGEST_ISOLATION = 255


class Worker:
    """One worker and its shard."""

    def __init__(
        self,
        client: WorkerClient,
        assignment: Assignment,
        inputs: RunInputs,
        directory: WorkingDirectory,
    ) -> None:
        self._directory = directory
        self._interrupt = Interrupt(self._outlast)
        self._is_leaving = self._is_refused = self._was_cut_off = self._is_done = False
        self._away_s = 0.0
        self._reporter = inputs.reporter = Reporter(
            client,
            assignment,
            inputs.redactor,
            SystemClock(),
            on_stop=self._stop,
            on_lost=_end_at_once,
            on_refused=self._refuse,
            on_cut_off=self._cut_off,
            on_round=directory.touch,
        )
        works: dict[str, type[Work[Any]]] = {"eval": EvalWork, "training": TrainingWork}
        self._run = assignment.run
        self._work = works[assignment.run.kind](inputs, self._reporter, directory)
        self._dataset = directory.dataset(assignment.dataset_extension)
        self._containment: RunContainment | None = None
        self._closing = threading.Lock()

    def leave(self) -> None:
        """Make the worker return its shard; from any thread."""
        self._is_leaving = True
        self._stop()

    def run(self) -> int:
        """Execute the shard until it has ended or is left; return the exit status."""
        signal.signal(signal.SIGTERM, lambda *_: self.leave())
        reporter = self._reporter
        reporter.start()
        try:
            try:
                result = self._result()
            finally:
                self._is_done = True
            if self._containment is not None and (line := self._containment.refusals) is not None:
                reporter.log(line)
            try:
                reporter.flush()
            except PlatformError as refusal:
                # The run is not at fault; another worker continues from what was accepted.
                result = WorkResult("failed", one_sentence(refusal), is_infrastructure=True)
            if reporter.damage is not None:
                result = _failed(_DamagedJournalError(reporter.damage))
            return self._close(result)
        except LeaseLostError:
            return LEASE_LOST
        except CredentialRefusedError as error:
            sys.stderr.write(f"{error.message}\n")
            return LEASE_LOST
        except PlatformUnreachableError as error:
            # Everything is in the journal, and the next worker reports it.
            self._directory.note_failure(error.message)
            return UNREACHABLE
        finally:
            reporter.close()
            if self._containment is not None:
                self._containment.close()

    def _stop(self) -> None:
        self._interrupt.set()
        timer = threading.Timer(_STOP_WITHIN_S[self._run.kind], self._end_by_force)
        timer.daemon = True
        timer.start()

    def _end_by_force(self) -> None:
        """Close the shard as it is, because the work does not end."""
        if self._is_done:
            return
        status = UNREACHABLE
        with contextlib.suppress(OsmosisError):
            self._reporter.log(
                LogLine("the worker did not stop in time and was killed", level="warning", step="run")
            )
            self._reporter.flush()
            status = self._close(WorkResult(None))
        os._exit(status)

    def _refuse(self) -> None:
        self._is_refused = True
        self.leave()

    def _require_credential(self) -> None:
        """Fail before something that takes long, if nothing could be reported."""
        if self._is_refused:
            raise CredentialRefusedError("the platform refuses this worker, so the shard is left.")

    def _result(self) -> WorkResult:
        prepared: Prepared | None = None
        try:
            self._require_credential()
            prepared = self._work.prepare()
            self._report_start(prepared)
            self._require_credential()
            return self._execute(prepared)
        except (LeaseLostError, CredentialRefusedError):
            raise
        except Exception as caught:  # the edge of this process: every end of a shard is explained on its run
            error = _DamagedJournalError(caught) if isinstance(caught, JournalCorruptionError) else caught
            if isinstance(error, OsmosisError):
                # Users know the dataset by its name, not the worker's copy of it.
                name = f"dataset '{self._run.dataset_name}'"
                error.message = error.message.replace(str(self._dataset), name)
            # A training run without room for a checkpoint fails; the next worker would need the same room.
            if _met_full_disk(error) and (prepared is None or self._run.kind == "eval"):
                return _unfit(error)
            if details := _log_details(error):
                self._reporter.log(LogLine(details, level="error", step="run"))
            return _failed(error)

    def _report_start(self, prepared: Prepared) -> None:
        reporter, attempt = self._reporter, self._reporter.assignment.lease.attempt
        commit = f" on commit {self._run.commit_sha[:12]}" if self._run.commit_sha else ""
        reporter.log(LogLine(f"attempt {attempt}{commit}", step="run"))
        self._containment = prepared.containment
        if prepared.containment is not None:
            reporter.log(prepared.containment.line)
            reporter.know(isolation=prepared.containment.words[:_LONGEST_ISOLATION])

    def _execute(self, prepared: Prepared) -> WorkResult:
        """Execute the shard, again each time after the platform was unreachable."""
        while True:
            result = event_loop.run(self._work.execute(prepared, self._interrupt))
            is_over = result.outcome is not None or self._is_leaving or self._reporter.stop_requested
            if is_over or not self._was_cut_off or not self._wait_for_platform():
                return result

    def _cut_off(self) -> None:
        self._was_cut_off, self._away_s = True, self._reporter.silence_s()
        self._interrupt.set()

    def _outlast(self) -> bool:
        """Wait for the platform while the work stands still: for one more term, then its rollout servers must end."""
        return self._wait_for_platform(terms=2) and not self._interrupt

    def _wait_for_platform(self, *, terms: float = math.inf) -> bool:
        """Wait until the platform answers again; False if the shard is left, or nothing was heard for ``terms``."""
        reporter, was_cut_off, is_withdrawn = self._reporter, self._was_cut_off, False
        waiting = threading.Event()
        # Checked again afterwards: a lease that expired just before was reported to an interrupt that was set.
        while reporter.has_expired() or not is_withdrawn:
            is_withdrawn = not reporter.has_expired()
            self._was_cut_off = not is_withdrawn
            if is_withdrawn:
                self._interrupt.withdraw()
                continue
            self._away_s = reporter.silence_s()
            if self._is_leaving or self._away_s >= terms * reporter.term_s:
                return False
            waiting.wait(_KNOCK_S)
        if self._is_leaving or reporter.stop_requested:
            self._interrupt.set()
        elif was_cut_off:
            message = f"the platform was unavailable for {self._away_s:.0f} s; the run continues"
            reporter.log(LogLine(message, level="warning", step="run"))
        return True

    def _close(self, result: WorkResult) -> int:
        """Finish or release the shard; return the exit status. A run with a stop request is stopped in any case."""
        with self._closing:
            reporter, is_stopped = self._reporter, self._reporter.stop_requested
            error = reporter.redactor.text(result.error) if result.error is not None else None
            if result.outcome == "failed" and result.is_infrastructure and not is_stopped:
                self._directory.note_failure(error or "")
                reporter.release(error, counts=not result.is_store_away, unfit=result.is_unfit)
                return ENDED
            if result.outcome is None and not is_stopped:
                reporter.log(LogLine(self._farewell(), step="run"))
                reporter.flush()
                reporter.release()
                return ENDED
            reporter.finish(result.outcome or "finished", error, self._work.note)
            self._directory.remove()
            return ENDED

    def _farewell(self) -> str:
        pool = read_execution(self._run.request.get("advanced_config")).pool
        whose = f" of the pool '{pool}'" if pool is not None else ""
        return f"the worker was asked to end; the next one{whose} continues the run"


def _end_at_once() -> None:
    """End this process; its children follow."""
    os._exit(LEASE_LOST)


class _DamagedJournalError(OsmosisError):
    """The journal on the worker's machine is damaged; the engine's hint is about local runs."""

    def __init__(self, damage: JournalCorruptionError) -> None:
        super().__init__(
            damage.message,
            hint="submit the run again: everything that this one has reported is kept. The operator should check "
            f"the disk of the machine '{socket.gethostname()}'",
        )


def _failed(error: Exception) -> WorkResult:
    if isinstance(error, OsmosisError):
        is_away = isinstance(error, StoreAwayError)
        return WorkResult("failed", one_sentence(error), error.is_infrastructure, is_store_away=is_away)
    return WorkResult(
        "failed",
        f"the worker met an unexpected error ({type(error).__name__}); the run's log has the details.",
    )


def _unfit(error: Exception) -> WorkResult:
    """Return that this machine has no room: another one may have, or this one later."""
    problem = error.message if isinstance(error, OsmosisError) else str(error)
    explained = OsmosisError(f"the disk of the worker's machine ({socket.gethostname()}) is full: {problem}")
    return WorkResult("failed", one_sentence(explained), is_infrastructure=True, is_unfit=True)


def _met_full_disk(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and is_disk_full(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _log_details(error: Exception) -> str | None:
    """Return what the log has in addition to the run's one sentence; None if that leaves nothing out."""
    if not isinstance(error, OsmosisError):
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if error.message.rstrip(".") in one_sentence(error):
        return None
    return error.message if error.hint is None else f"{error.message}\n{error.hint}"


def main() -> int:
    """Run a worker; return its exit status."""
    disable_inspection(os.environ)
    watch_parent()
    lower_priority()
    private = take_private_variables()
    assignment = Assignment.model_validate_json(private[ASSIGNMENT])
    config = from_environment(os.environ)
    directory = WorkingDirectory(config.runs_dir, assignment.shard.id)
    if not directory.lock(timeout_s=_LOCK_WAIT_S):
        return BUSY
    cpus = float(os.environ[CPUS]) if CPUS in os.environ else None
    inputs = RunInputs(
        config, assignment, directory, has_bucket_keys=HAS_BUCKET_KEYS in os.environ, cpus=cpus
    )
    client = WorkerClient(private[PLATFORM_URL])
    try:
        return Worker(client, assignment, inputs, directory).run()
    finally:
        client.close()


def end_process(status: int) -> NoReturn:
    """Exit without handling further signals: during the interpreter's shutdown, a signal would change the status."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(status)


if __name__ == "__main__":
    end_process(main())
