"""Worker process of one run: ``python -m osmosis_ai.platform.runs.work.worker RUN_ID``.

It communicates with the platform only over HTTP and writes only under its lease. If disconnected, it starts no new
work, and resumes when the platform is back, unless another worker has taken the run. When it ends, the run is terminal
with a one-sentence reason, or open for the next worker, which continues from the journal. It prints only errors from
before its log exists.
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
from osmosis_ai._version import __version__
from osmosis_ai.api.retrying import Transient, Waits
from osmosis_ai.api.wire.workers import Assignment, WorkerOffer
from osmosis_ai.config.execution import read_execution
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal import JournalCorruptionError
from osmosis_ai.platform.clock import Clock, SystemClock
from osmosis_ai.platform.config import from_environment
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.runs.execute.worker_process import (
    CLAIM_ID,
    CPUS,
    CREDENTIAL,
    ENDED,
    HANDS_OUT_KEYS,
    LEASE_LOST,
    NOT_MINE,
    PLATFORM_URL,
    REFUSED,
    SET_BACK,
    STORE_AWAY,
)
from osmosis_ai.platform.runs.lifecycle import LeaseLostError
from osmosis_ai.platform.runs.work.containment import RunContainment
from osmosis_ai.platform.runs.work.eval_work import EvalWork
from osmosis_ai.platform.runs.work.http_link import HttpLink
from osmosis_ai.platform.runs.work.inputs import RunInputs
from osmosis_ai.platform.runs.work.lease_keeping import LeaseKeeping
from osmosis_ai.platform.runs.work.platform_link import (
    CredentialRefusedError,
    PlatformUnreachableError,
    StoreAwayError,
)
from osmosis_ai.platform.runs.work.publisher import Publisher
from osmosis_ai.platform.runs.work.run_channel import RunChannel
from osmosis_ai.platform.runs.work.run_work import (
    Interrupt,
    PreparedRun,
    RunWork,
    WorkResult,
    met_full_disk,
    one_sentence,
)
from osmosis_ai.platform.runs.work.training_work import TrainingWork
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.processes import disable_inspection, lower_priority, take_private_variables, watch_parent

# The worker before this one is being ended together with its platform.
_LOCK_WAIT_S = 10.0
_CLAIM_WAITS = Waits((0.5, 1.0), lasting_s=30.0)
"""As long as a lease, unless the platform says otherwise, which a claim that is answered tells."""
_KNOCK_S = 0.5
"""How often a platform that was away is asked whether it is back."""
# Of a column of a run's row.
_LONGEST_WORDS = 255


class Worker:
    """One worker: what it works on, and with what."""

    def __init__(
        self, channel: RunChannel, inputs: RunInputs, directory: WorkingDirectory, clock: Clock
    ) -> None:
        self._channel = channel
        self._directory = directory
        self._interrupt = Interrupt(self._outlast)
        self._is_leaving = self._is_refused = False
        self._was_cut_off = False
        self._publisher = Publisher(channel, clock, inputs.redactor)
        self._keeping = LeaseKeeping(
            channel, on_lost=_end_at_once, on_cut_off=self._cut_off, on_refused=self._refused
        )
        does = TrainingWork if channel.run.kind == "training" else EvalWork
        self._work: RunWork[Any] = does(inputs, channel, directory)
        self._containment: RunContainment | None = None

    def leave(self) -> None:
        """Have the worker put the run aside; from any thread."""
        self._is_leaving = True
        self._interrupt.set()

    def _refused(self) -> None:
        self._is_refused = True
        self.leave()

    def _require_credential(self) -> None:
        """Find out, before something that takes long, whether anything of it could still be said."""
        if self._is_refused:
            raise CredentialRefusedError("what this worker shows is not taken any more; the run is left.")

    def run(self) -> int:
        """Work on the run until it has ended or is to be left; return the exit status."""
        signal.signal(signal.SIGTERM, lambda *_: self.leave())
        self._channel.listen(lambda: self._interrupt.set())
        self._keeping.start()
        publisher = self._publisher
        try:
            publisher.start()
            result = self._result()
            if self._containment is not None and (line := self._containment.refusals) is not None:
                publisher.log(line)
            publisher.finish()
            if publisher.damage is not None:
                result = _failed(_DamagedRunError(publisher.damage))
            # A beat after the end would find no lease, and end this worker while it clears away.
            self._keeping.stop()
            return self._conclude(result)
        except CredentialRefusedError as error:
            sys.stderr.write(f"{error.message}\n")
            return REFUSED
        except PlatformUnreachableError as error:
            # All is in the journal: the next worker says it.
            self._directory.note_setback(error.message)
            return self._leave_to_store(error) if isinstance(error, StoreAwayError) else SET_BACK
        finally:
            self._keeping.stop()
            if self._containment is not None:
                self._containment.close()

    def _leave_to_store(self, error: StoreAwayError) -> int:
        """Let the run go until the store is back; return the exit status. One that is to stop waits for nothing so long."""
        if self._channel.stop_asked:
            return SET_BACK
        self._keeping.stop()
        with contextlib.suppress(OsmosisError):
            self._channel.release(setback=error.message, store_away=True, ending=self._work.ending)
        return STORE_AWAY

    def _result(self) -> WorkResult:
        prepared: PreparedRun | None = None
        try:
            self._require_credential()
            prepared = self._work.prepare()
            self._say_what_it_is(prepared)
            self._require_credential()
            return self._execute(prepared)
        except (LeaseLostError, CredentialRefusedError):
            raise
        except Exception as caught:  # the edge of this process: every end of a run is said on the run
            error = _DamagedRunError(caught) if isinstance(caught, JournalCorruptionError) else caught
            if isinstance(error, OsmosisError):
                # The user knows the dataset by its name, not by the worker's copy of it.
                file = self._directory.dataset(self._channel.assignment.dataset_extension)
                name = f"dataset '{self._channel.run.dataset_name}'"
                error.message = error.message.replace(str(file), name)
            # A training run that finds no room for a checkpoint ends; what its checkpoints need, the next worker needs, too.
            if met_full_disk(error) and (prepared is None or self._channel.run.kind == "eval"):
                return _set_back(error)
            if proof := _log_details(error):
                self._publisher.log(LogLine(proof, level="error", step="run"))
            return _failed(error)

    def _say_what_it_is(self, prepared: PreparedRun) -> None:
        publisher = self._publisher
        line = f"attempt {self._channel.attempt} on commit {prepared.commit_sha[:12]}"
        publisher.log(LogLine(line, step="run"))
        self._containment = prepared.containment
        if prepared.containment is not None:
            publisher.log(prepared.containment.line)
            publisher.know(isolation=prepared.containment.words[:_LONGEST_WORDS])

    def _execute(self, prepared: PreparedRun) -> WorkResult:
        """Execute the run, again and again where the platform was away in between."""
        while True:
            result = event_loop.run(self._work.execute(prepared, self._publisher, self._interrupt))
            is_over = result.outcome is not None or self._is_leaving or self._channel.stop_asked
            if is_over or not self._was_cut_off or not self._wait_for_platform():
                return result

    def _cut_off(self) -> None:
        self._was_cut_off, self._away_s = True, self._channel.silence_s()
        self._interrupt.set()

    def _outlast(self) -> bool:
        """Wait for the platform beside a session that stands still: one term more, then its rollout servers have to end."""
        return self._wait_for_platform(terms=2) and not self._interrupt

    def _wait_for_platform(self, *, terms: float = math.inf) -> bool:
        """Wait until the platform answers again; False where the run is to be left, or nothing was heard for ``terms``."""
        waiting, was_cut_off, is_withdrawn = threading.Event(), self._was_cut_off, False
        # Looked at again behind it: what ran out just before was said to an interrupt that was set.
        while self._channel.has_run_out() or not is_withdrawn:
            is_withdrawn = not self._channel.has_run_out()
            self._was_cut_off = not is_withdrawn
            if is_withdrawn:
                self._interrupt.withdraw()
                continue
            self._away_s = self._channel.silence_s()
            if self._is_leaving or self._away_s >= terms * self._channel.term_s:
                return False
            waiting.wait(_KNOCK_S)
        if self._is_leaving or self._channel.stop_asked:
            self._interrupt.set()
        elif was_cut_off:
            words = f"the platform was unavailable for {self._away_s:.0f} s; the run continues"
            self._publisher.log(LogLine(words, level="warning", step="run"))
        return True

    def _farewell(self) -> str:
        pool = read_execution(self._channel.run.request.get("advanced_config")).pool
        whose = f" of the pool '{pool}'" if pool is not None else ""
        return f"the worker was asked to end; the next one{whose} continues the run"

    def _conclude(self, result: WorkResult) -> int:
        """Report the outcome and return the exit status. A run with a stop request is stopped, whatever else happened."""
        channel, directory = self._channel, self._directory
        stopped = channel.stop_asked
        if (
            result.outcome == "failed"
            and result.is_infrastructure
            and result.error is not None
            and not stopped
        ):
            sentence = self._publisher.redactor.text(result.error)
            directory.note_setback(sentence)
            channel.release(
                setback=sentence,
                of_machine=result.is_of_machine,
                store_away=result.is_store_away,
                ending=self._work.ending,
            )
            return STORE_AWAY if result.is_store_away else SET_BACK
        if result.outcome is None and not stopped:
            self._publisher.log(LogLine(self._farewell(), step="run"))
            self._publisher.flush()
            channel.release(ending=self._work.ending)
            return ENDED
        outcome = result.outcome or "finished"
        error = self._publisher.redactor.text(result.error) if result.error and outcome == "failed" else None
        closed = channel.end(outcome, error, ending=self._work.ending)
        if closed.status == "finished":
            directory.remove()
        elif not result.keeps_files:
            directory.keep_what_resumes()
        return ENDED


def _end_at_once() -> None:
    """End this process; its children follow, and its successor waits for nothing else."""
    os._exit(LEASE_LOST)


class _DamagedRunError(OsmosisError):
    """A journal on the platform's machine is damaged; what the engine advises is for commands on one's own."""

    def __init__(self, damage: JournalCorruptionError) -> None:
        super().__init__(
            damage.message,
            hint="submit the run again: it starts from scratch, and everything this one has published is kept. The file is kept on "
            "the platform's machine: the operator should check that disk",
        )


def _failed(error: Exception) -> WorkResult:
    if isinstance(error, OsmosisError):
        damaged = isinstance(error, _DamagedRunError)
        is_away = isinstance(error, StoreAwayError)
        return WorkResult(
            "failed", one_sentence(error), error.is_infrastructure, is_store_away=is_away, keeps_files=damaged
        )
    return WorkResult(
        "failed",
        f"the worker met an unexpected error ({type(error).__name__}); the run's log has the details.",
    )


def _set_back(error: Exception) -> WorkResult:
    """Return that this machine had no room: another one may, or this one later."""
    words = error.message if isinstance(error, OsmosisError) else str(error)
    told = OsmosisError(f"the disk of the worker's machine ({socket.gethostname()}) is full: {words}")
    return WorkResult("failed", one_sentence(told), is_infrastructure=True, is_of_machine=True)


def _log_details(error: Exception) -> str | None:
    """Return what the log is to say before the run's one sentence; None when that leaves nothing out."""
    if not isinstance(error, OsmosisError):
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if error.message.rstrip(".") in one_sentence(error):
        return None
    return error.message if error.hint is None else f"{error.message}\n{error.hint}"


def _claimed(link: HttpLink, offer: WorkerOffer) -> Assignment | None:
    """Claim the run while it is reserved for the first claimant under this id."""

    def ask() -> Assignment | None:
        try:
            return link.claim(offer)
        except PlatformUnreachableError as error:
            raise Transient(error) from None

    try:
        return _CLAIM_WAITS.run(ask)
    except OsmosisError as error:
        sys.stderr.write(f"{error.message}\n")
        return None


def main(arguments: list[str] | None = None) -> int:
    """Run a worker; return its exit status."""
    disable_inspection(os.environ)
    watch_parent()
    lower_priority()
    (run_id,) = sys.argv[1:] if arguments is None else arguments
    handed = take_private_variables()
    config = from_environment(os.environ)
    directory = WorkingDirectory(config.runs_dir, run_id)
    # On one machine the lock tells more surely than any clock that the worker before is gone.
    if not directory.lock(timeout_s=_LOCK_WAIT_S):
        return NOT_MINE
    link = HttpLink(handed[PLATFORM_URL], handed[CREDENTIAL])
    offer = WorkerOffer(claim_id=handed[CLAIM_ID], sdk_version=__version__, run_id=run_id)
    try:
        assignment = _claimed(link, offer)
        if assignment is None or assignment.run.id != run_id:
            return NOT_MINE
        directory.note_lease(assignment.lease.token.get_secret_value())
        channel = RunChannel(link, assignment)
        cpus = float(os.environ[CPUS]) if CPUS in os.environ else None
        keys = HANDS_OUT_KEYS in os.environ
        inputs = RunInputs(config, channel, directory, hands_out_keys=keys, cpus=cpus)
        return Worker(channel, inputs, directory, SystemClock()).run()
    except LeaseLostError:
        return LEASE_LOST
    finally:
        link.close()


def end_process(status: int) -> NoReturn:
    """Exit without handling further signals: during interpreter shutdown the handlers are gone, and a signal would change
    the exit status of a released or ended run to that of one that never started.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(status)


if __name__ == "__main__":
    end_process(main())
