"""The worker protocol on the platform's database: claim, sync and close runs.

Every method is idempotent, blocks and is independent of HTTP. A worker's data are written in one transaction, which
requires its lease's token (:meth:`~osmosis_ai.platform.runs.leases.Leases.writing`). Blobs are stored
before it and deleted after it.
"""

from __future__ import annotations

from datetime import datetime

from osmosis_ai.api.wire.workers import (
    Assignment,
    EndRequest,
    ReleaseRequest,
    RunClosed,
    SyncReply,
    SyncRequest,
    WorkerOffer,
)
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.signing import UrlSigner
from osmosis_ai.platform.blobs.store import BlobError, BlobStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.demands import Demands
from osmosis_ai.platform.runs.desk.accepted_numbers import AcceptedNumbers
from osmosis_ai.platform.runs.desk.assignment import Assignments
from osmosis_ai.platform.runs.desk.claims import Claims, ClaimScope
from osmosis_ai.platform.runs.desk.closing import RunClosing
from osmosis_ai.platform.runs.desk.journal_folding import JournalFolding
from osmosis_ai.platform.runs.desk.news import WorkerNews
from osmosis_ai.platform.runs.desk.pace import SyncPace
from osmosis_ai.platform.runs.desk.silence import DatabaseSilence
from osmosis_ai.platform.runs.desk.unfit_machines import UnfitMachines
from osmosis_ai.platform.runs.desk.uploads import RunUploads
from osmosis_ai.platform.runs.desk.watching import RunWatch
from osmosis_ai.platform.runs.leases import Lease, Leases
from osmosis_ai.platform.runs.lifecycle import LeaseLostError, Outcome
from osmosis_ai.platform.runs.secret_handouts import SecretHandouts
from osmosis_ai.platform.runs.source_archives import SourceArchives, StillPackingError
from osmosis_ai.platform.runs.waiting import BegunRun, is_without_worker, waits_for
from osmosis_ai.platform.vault import Vault

_MOST_WAITING = 10_000
"""Runs of which it is remembered what they wait for; of more their logs say it again."""
_STORE = "the store"


class RunDesk:
    """Where workers claim runs, say what they found out, and hand runs back."""

    def __init__(
        self,
        config: PlatformConfig,
        db: Database,
        clock: Clock,
        logs: LogStore,
        blobs: BlobStore,
        vault: Vault,
        sources: SourceArchives,
        signer: UrlSigner,
        handouts: SecretHandouts,
    ) -> None:
        self._logs = logs
        self._handouts = handouts
        self.leases = Leases(db, clock, config.lease_term)
        self.silence = DatabaseSilence(clock, self.leases)
        self._unfit = UnfitMachines(db, clock)
        self._sources = sources
        demands = Demands.of(config)
        self._claims = Claims(db, self.leases, self._unfit, demands)
        self.watch = RunWatch(db, self.leases, self._claims)
        self._folding = JournalFolding(db, blobs)
        self._uploads = RunUploads(db, blobs, config.run_upload_bytes)
        term = config.lease_term
        self._assignments = Assignments(db, vault, blobs, signer, sources, self._folding, term, demands)
        self._news = WorkerNews(db, clock, logs, blobs, self._uploads)
        self._accepted = AcceptedNumbers(db, blobs, self.leases)
        self._closing = RunClosing(
            db,
            logs,
            blobs,
            self.leases,
            self._folding,
            self._uploads,
            self._accepted,
            self._assignments.secrets,
            config.runs_dir,
            monotonic=clock.monotonic,
            all_are_elsewhere=config.ray is not None,
        )
        self._waiting: dict[str, str] = {}
        self._executor_told: dict[str, str] = {}
        self.pace = SyncPace(clock, term)

    def claim(self, offer: WorkerOffer, scope: ClaimScope) -> Assignment | None:
        """Give a worker a run; None where there is none for it."""
        # Skip runs with no claimable work; otherwise the oldest one would starve the rest.
        gives_way = scope.run_id is None
        while (taken := self._take(offer, scope)) is not None:
            lease, _is_again = taken
            if self._closing.close_if_over(lease, counts_deaths=scope.run_id is None):
                continue
            try:
                assignment = self._assignments.of(lease, next_s=self.pace.next_s())
            except StillPackingError:
                self._closing.let_go(lease, is_later=True)
                return None  # what else waits, the next claim finds
            except OsmosisError as error:
                if not error.is_infrastructure:
                    self._closing.close_unassigned(lease, error)
                    continue
                self._closing.let_go(lease, is_later=gives_way)
                self._tell_what_it_waits_for(lease.run_id, error)
                raise
            except BaseException:
                self._closing.let_go(lease, is_later=gives_way)
                raise
            self._waiting.pop(lease.run_id, None)
            if assignment.secrets:
                self._note_secrets(lease, assignment, offer, scope)
            return assignment
        return None

    def _tell_what_it_waits_for(self, run_id: str, error: OsmosisError) -> None:
        """Say on a run why no worker is given it, once until one is: claims come every second, maybe for days."""
        what = _STORE if isinstance(error, BlobError) else "what its worker is handed"
        if self._note_waiting(run_id, what):
            line = LogLine(f"waits for {what}: {error.message}", level="warning", step="run")
            self._logs.append(run_id, [line])

    def _note_waiting(self, run_id: str, what: str) -> bool:
        """Remember what a run waits for until a worker is given it; return whether that is news."""
        is_news = run_id not in self._waiting
        if len(self._waiting) >= _MOST_WAITING:
            self._waiting.clear()
        self._waiting[run_id] = what
        return is_news

    def note_executor(self, run_id: str, told: str) -> None:
        """Remember what an executor says that a run waits for; empty: for nothing any more."""
        self._executor_told.pop(run_id, None)
        if told:
            if len(self._executor_told) >= _MOST_WAITING:
                self._executor_told.clear()
            self._executor_told[run_id] = told

    def why_it_waits(self, run: BegunRun) -> str | None:
        """Return what a run waits for that has no machine, or whose worker released it or is silent."""
        if (told := self._told_by_executor(run)) is not None:
            return f"{told.removesuffix('.')}."
        why, what = waits_for(run, self.leases), self._waiting.get(run.id)
        return f"it waits for {what}, and its log says why." if why is not None and what is not None else why

    def _told_by_executor(self, run: BegunRun) -> str | None:
        """Return what an executor says that a run waits for, where the run has no worker: not begun, or its lease has ended."""
        told = self._executor_told.get(run.id)
        return told if told is not None and is_without_worker(run, self.leases) else None

    def silent_since(self, run: BegunRun) -> datetime | None:
        """Return when the worker of a run was last heard, where its silence is what :meth:`why_it_waits` tells of."""
        is_told = run.lease_expires_at is not None and run.id not in self._waiting
        is_told = is_told and self._told_by_executor(run) is None
        return run.heartbeat_at if is_told and waits_for(run, self.leases) is not None else None

    def _note_secrets(
        self, lease: Lease, assignment: Assignment, offer: WorkerOffer, scope: ClaimScope
    ) -> None:
        """Record who receives a run's secrets, beforehand: in the audit, which outlives the run, and in the run's log."""
        self._handouts.note(
            lease.run_id,
            lease.attempt,
            offer.claim_id,
            assignment.secrets,
            machine=offer.machine,
            pool=scope.pool,
        )
        names = ", ".join(sorted(assignment.secrets))
        message = f"handed the worker of attempt {lease.attempt} these secrets: {names}"
        whom = {"machine": offer.machine, "pool": scope.pool}
        details = {name: value for name, value in whom.items() if value is not None}
        self._logs.append_once(lease.run_id, LogLine(message, step="run", details=details or None))

    def sync(self, run_id: str, request: SyncRequest) -> SyncReply:
        """Keep a worker's lease, take everything new, and say what there is to know."""
        lease = self._lease(run_id, request.lease.get_secret_value())
        try:
            with self.silence.noticed():
                taken = self._news.take(self.leases, lease, request)
        except LeaseLostError:
            self._claims.hear_late(run_id, lease.token)
            raise
        if taken.may_be_folded:
            self._folding.fold_if_large(run_id)
        run = taken.run
        return SyncReply(
            stop=run.stop_requested_at is not None,
            term_s=self.leases.term.total_seconds(),
            next_s=self.pace.next_s(run_id),
            journal_bytes=run.journal_bytes,
            log_lines=run.log_lines,
            uploads=[
                grant.model_copy(
                    update={
                        "url": self._assignments.told(grant.url),
                        "further_urls": [self._assignments.told(url) for url in grant.further_urls],
                    }
                )
                for grant in self._uploads.grants(run_id, taken.begun)
            ],
            checkpoints=taken.checkpoints,
            agent=self._assignments.agent_of(run_id) if request.find_agent else None,
            renewed=self._assignments.renewed(lease, next_s=self.pace.next_s()) if request.renew else None,
        )

    def end(self, run_id: str, request: EndRequest, *, keeps_journal: bool = False) -> RunClosed:
        """Give a run its outcome; its journal is folded first."""
        lease = self._lease(run_id, request.lease.get_secret_value())
        return self._closing.end(lease, request, is_said_again=True, keeps_journal=keeps_journal)

    def release(self, run_id: str, request: ReleaseRequest) -> RunClosed:
        """Release a run unchanged for another worker."""
        lease = self._lease(run_id, request.lease.get_secret_value())
        if request.of_machine:
            self._unfit.note(run_id, lease.token)  # before the run is free
        elif request.setback is not None and not request.store_away:
            self._sources.doubt(run_id)  # before the next claim receives it
        try:
            closed = self._closing.release(lease, request)
            if request.store_away:
                self._note_waiting(run_id, _STORE)  # its log says so
            return closed
        except LeaseLostError:
            if request.setback is None or request.store_away:
                # No crash: its worker left, or never began, or waited for the store.
                self._claims.hear_late(run_id, lease.token)
            raise

    def close_abandoned(self, run_id: str, outcome: Outcome, error: str | None = None) -> None:
        """End an open run without a worker, keeping accepted data. Does nothing if a worker is active."""
        # Behind a long silence nobody is abandoned before everybody has had a term to say something.
        with self.silence.noticed():
            lease = self._claims.take_abandoned(run_id)
        if lease is not None:
            self._closing.end(lease, EndRequest.model_construct(outcome=outcome, error=error))

    def close_stopped(self) -> None:
        """End the runs of pools that are to stop and that nobody works on: no worker may ever come for them."""
        for run_id in self._claims.stopped():
            self.close_abandoned(run_id, "stopped")

    def count_accepted(self) -> None:
        """Work out the numbers of the evaluations that nobody works on, where their workers have not said the last ones."""
        self._accepted.catch_up()

    def clear_ended(self) -> None:
        """Clear away behind runs whose end was cut off."""
        self._closing.clear_ended()

    def renew_all(self) -> None:
        """Give every owner a whole term: nobody could keep a lease while the platform was away."""
        self.leases.renew_all()

    def _take(self, offer: WorkerOffer, scope: ClaimScope) -> tuple[Lease, bool] | None:
        with self.silence.noticed():
            return self._claims.take(offer, scope)

    def _lease(self, run_id: str, token: str) -> Lease:
        return Lease(run_id, token, 0)
