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
from typing import NoReturn

from osmosis_ai import event_loop
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.workers import Assignment, FinishRequest, ReleaseRequest
from osmosis_ai.config.execution import read_execution
from osmosis_ai.errors import OsmosisError, with_causes
from osmosis_ai.evaluation.journal import JournalCorruptionError
from osmosis_ai.files import is_disk_full
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig, from_environment
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.runs.lifecycle import LeaseLostError
from osmosis_ai.platform.worker.client import CredentialRefusedError, PlatformUnreachableError, WorkerClient
from osmosis_ai.platform.worker.evaluation import EvalWork
from osmosis_ai.platform.worker.process import (
    ASSIGNMENT,
    CPUS,
    HAS_BUCKET_KEYS,
    PLATFORM_URL,
    WorkerExit,
    WorkingDirectory,
)
from osmosis_ai.platform.worker.reporter import Event, Reporter
from osmosis_ai.platform.worker.training import TrainingWork
from osmosis_ai.platform.worker.work import Interrupt, ShardEnd, Work, failed, one_sentence
from osmosis_ai.processes.child_process import lower_priority, watch_parent
from osmosis_ai.processes.privacy import disable_inspection, take_private_variables

_LOCK_WAIT_S = 10.0
"""How long an earlier worker of the shard on this machine may take to end."""
_KNOCK_S = 0.5
_STOP_WITHIN_S = {"eval": 30.0, "training": 300.0}
"""Time for the work to end after a request to stop. Then the process ends and closes its shard unchanged."""


class Worker:
    def __init__(
        self,
        client: WorkerClient,
        assignment: Assignment,
        config: PlatformConfig,
        directory: WorkingDirectory,
        *,
        has_bucket_keys: bool = False,
        cpus: float | None = None,
    ) -> None:
        self._directory = directory
        self._run = assignment.run
        # While the work is paused, its rollout servers wait for one more term.
        self._interrupt = Interrupt(lambda: self._wait_for_platform(terms=2) and not self._interrupt)
        self._is_leaving = self._is_refused = self._was_cut_off = self._is_done = False
        self._away_s = 0.0
        self._reporter = Reporter(client, assignment, SystemClock(), self._handle)
        work = EvalWork if self._run.kind == "eval" else TrainingWork
        self._work: Work = work(config, self._reporter, directory, has_bucket_keys=has_bucket_keys, cpus=cpus)
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
                end = self._do_work()
            finally:
                self._is_done = True
            containment = self._work.containment
            if containment is not None and (line := containment.refusals) is not None:
                reporter.log(line)
            try:
                reporter.flush()
            except PlatformError as refusal:
                # The run is not at fault; another worker continues from what was accepted.
                end = ReleaseRequest(reason=one_sentence(refusal), counts=True)
            if reporter.damage is not None:
                end = failed(_DamagedJournalError(reporter.damage))
            return self._close(end)
        except LeaseLostError:
            return WorkerExit.LEASE_LOST
        except CredentialRefusedError as error:
            sys.stderr.write(f"{error.message}\n")
            return WorkerExit.LEASE_LOST
        except PlatformUnreachableError as error:
            # Everything is in the journal, and the next worker reports it.
            self._directory.note_failure(error.message)
            return WorkerExit.UNREACHABLE
        finally:
            reporter.close()
            if self._work.containment is not None:
                self._work.containment.close()

    def _handle(self, event: Event) -> None:
        """React to an event of the reporter, in its thread."""
        if event == "round":
            self._directory.touch()
        elif event == "stop":
            self._stop()
        elif event == "lost":
            os._exit(WorkerExit.LEASE_LOST)  # the children of this process follow
        elif event == "refused":
            self._is_refused = True
            self.leave()
        else:
            self._was_cut_off, self._away_s = True, self._reporter.silence_s()
            self._interrupt.set()

    def _stop(self) -> None:
        self._interrupt.set()
        timer = threading.Timer(_STOP_WITHIN_S[self._run.kind], self._end_by_force)
        timer.daemon = True
        timer.start()

    def _end_by_force(self) -> None:
        """Close the shard unchanged, because the work does not end."""
        if self._is_done:
            return
        status: int = WorkerExit.UNREACHABLE
        with contextlib.suppress(OsmosisError):
            self._reporter.log(
                LogLine("the worker did not stop in time and was killed", level="warning", step="run")
            )
            self._reporter.flush()
            status = self._close(ReleaseRequest())
        os._exit(status)

    def _require_credential(self) -> None:
        """Fail before something that takes long, if nothing could be reported."""
        if self._is_refused:
            raise CredentialRefusedError("the platform refuses this worker, so the shard is left.")

    def _do_work(self) -> ShardEnd:
        is_prepared = False
        try:
            self._require_credential()
            self._work.prepare()
            is_prepared = True
            containment = self._work.containment
            commit = f" on commit {self._run.commit_sha[:12]}" if self._run.commit_sha else ""
            attempt = self._reporter.assignment.lease.attempt
            self._reporter.log(LogLine(f"attempt {attempt}{commit}", step="run"))
            if containment is not None:
                self._reporter.log(containment.line)
                self._reporter.know(isolation=containment.words)
            self._require_credential()
            return self._execute()
        except (LeaseLostError, CredentialRefusedError):
            raise
        except Exception as caught:  # the edge of this process: every end of a shard is explained on its run
            error = _DamagedJournalError(caught) if isinstance(caught, JournalCorruptionError) else caught
            if isinstance(error, OsmosisError):
                # Users know the dataset by its name, not the worker's copy of it.
                dataset = self._directory.dataset(self._reporter.assignment.dataset_extension)
                name = f"dataset '{self._run.dataset_name}'"
                error.message = error.message.replace(str(dataset), name)
            # A training run without room for a checkpoint fails; the next worker would need the same room.
            causes = (each for each in with_causes(error) if isinstance(each, OSError))
            if any(map(is_disk_full, causes)) and (not is_prepared or self._run.kind == "eval"):
                problem = error.message if isinstance(error, OsmosisError) else str(error)
                full = f"the disk of the worker's machine ({socket.gethostname()}) is full: {problem}"
                return ReleaseRequest(reason=one_sentence(OsmosisError(full)), counts=True, unfit=True)
            if details := _log_details(error):
                self._reporter.log(LogLine(details, level="error", step="run"))
            if isinstance(error, OsmosisError):
                return failed(error)
            kind = type(error).__name__
            message = f"the worker had an internal error ({kind}); see the run's log for the details."
            return FinishRequest(outcome="failed", error=message)

    def _execute(self) -> ShardEnd:
        """Execute the shard, again each time after the platform was unreachable."""
        while True:
            end = event_loop.run(self._work.execute(self._interrupt))
            has_ended = isinstance(end, FinishRequest) or end.reason is not None
            is_over = has_ended or self._is_leaving or self._reporter.stop_requested
            if is_over or not self._was_cut_off or not self._wait_for_platform():
                return end

    def _wait_for_platform(self, *, terms: float = math.inf) -> bool:
        """Wait until the platform answers again; False if the shard is left, or after ``terms`` without an answer."""
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

    def _close(self, end: ShardEnd) -> int:
        """Finish or release the shard; return the exit status. A run with a stop request is stopped in any case."""
        with self._closing:
            reporter = self._reporter
            if isinstance(end, ReleaseRequest) and reporter.stop_requested:
                end = FinishRequest(outcome="failed" if end.reason else "finished", error=end.reason)
            if isinstance(end, FinishRequest):
                error = reporter.redactor.text(end.error) if end.error else None
                reporter.end(FinishRequest(outcome=end.outcome, error=error, note=self._work.note))
                self._directory.remove()
            elif end.reason:
                reason = reporter.redactor.text(end.reason)
                self._directory.note_failure(reason)
                reporter.end(ReleaseRequest(reason=reason, counts=end.counts, unfit=end.unfit))
            else:
                pool = read_execution(self._run.request.get("advanced_config")).pool
                whose = f" of the pool '{pool}'" if pool is not None else ""
                message = f"the worker is shutting down; another worker{whose} can continue the run"
                reporter.log(LogLine(message, step="run"))
                reporter.flush()
                reporter.end(end)
            return WorkerExit.ENDED


class _DamagedJournalError(OsmosisError):
    """The journal on the worker's machine is damaged; the engine's hint is about local runs."""

    def __init__(self, damage: JournalCorruptionError) -> None:
        super().__init__(
            damage.message,
            hint="submit the run again: everything that this one has reported is kept. The operator should check "
            f"the disk of the machine '{socket.gethostname()}'",
        )


def _log_details(error: Exception) -> str | None:
    """Return what the log has in addition to the run's one sentence; None if that leaves nothing out."""
    if not isinstance(error, OsmosisError):
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if error.message.rstrip(".") in one_sentence(error):
        return None
    return error.message if error.hint is None else f"{error.message}\n{error.hint}"


def main() -> int:
    disable_inspection(os.environ)
    watch_parent()
    lower_priority()
    private = take_private_variables()
    assignment = Assignment.model_validate_json(private[ASSIGNMENT])
    config = from_environment(os.environ)
    directory = WorkingDirectory(config.runs_dir, assignment.shard.id)
    if not directory.lock(timeout_s=_LOCK_WAIT_S):
        return WorkerExit.BUSY
    cpus = float(os.environ[CPUS]) if CPUS in os.environ else None
    has_keys = HAS_BUCKET_KEYS in os.environ
    with contextlib.closing(WorkerClient(private[PLATFORM_URL])) as client:
        return Worker(client, assignment, config, directory, has_bucket_keys=has_keys, cpus=cpus).run()


def end_process(status: int) -> NoReturn:
    """Exit without handling further signals: during the interpreter's shutdown, a signal would change the status."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(status)


if __name__ == "__main__":
    end_process(main())
