"""Worker access: worker tokens of machines, and tickets for one attempt of one run.

Both are shown once and stored as hashes. A worker token is valid for the runs of a pool, optionally of some workspaces,
until revoked. An executor gives a ticket to a job it starts. The first claim binds the ticket to its id. The same id
gets the same answer until the worker's first sync, and any other id is refused and noted on the run. A ticket expires
when withdrawn, when its run ends and, for claims, ten minutes after its job was first seen running.

Neither permits writing to a run, which requires the lease's token from a claim.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, Literal

from sqlalchemy import Select, bindparam, func, select, update
from sqlalchemy.orm import Session

from osmosis_ai._version import __version__
from osmosis_ai.api.wire.workers import WorkerOffer
from osmosis_ai.config.execution import ExecutionSection, pool_name
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.platform.bearers import (
    TICKET_PREFIX,
    USER_PREFIX,
    WORKER_TOKEN_PREFIX,
    bearer_hash,
    new_bearer,
    note_use,
)
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbWorkerTicket, DbWorkerToken, DbWorkspace, new_id
from osmosis_ai.platform.isolation import lacks_isolation, why_not_at_all, why_not_for_all
from osmosis_ai.platform.known_workers import KnownWorkers
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.demands import Demands
from osmosis_ai.platform.runs.desk.claims import ClaimScope
from osmosis_ai.platform.runs.lifecycle import OPEN
from osmosis_ai.platform.worker_admissions import WorkerAdmissions

RefusalCode = Literal[
    "TOKEN_INVALID",
    "TOKEN_REVOKED",
    "WORKER_TOKEN_REQUIRED",
    "WORKER_RELEASE",
    "WORKER_POOL",
    "WORKER_ISOLATION",
    "RUN_NOT_FOR_WORKER",
    "TICKET_VOID",
    "TICKET_USED",
]
CLAIM_WITHIN = timedelta(minutes=10)
"""Of the moment at which its job was first seen running: how long a ticket can be used to claim."""
# Repeated refusals must not fill a run's log.
_REFUSAL_NOTED_EVERY = timedelta(minutes=1)
_MOST_UNCONFINED = 1000
_MOST_NAMED = 500
"""Hashes in one question; the engines differ in how many they take."""
_NOT_BY_NAME = (
    " `--run` takes a run's id (`run_…`), which `osmosis eval list --json` tells, and not its name."
)
# Every exchange asks these; a statement that is built once is also compiled once.
_TOKEN = select(DbWorkerToken).where(DbWorkerToken.token_hash == bindparam("digest"))
_TICKET = select(DbWorkerTicket).where(DbWorkerTicket.token_hash == bindparam("digest"))


class WorkerRefused(OsmosisError):
    """A worker that is not let in; ``status`` and ``reason`` are those of the reply."""

    default_code = "AUTH_REQUIRED"

    def __init__(self, status: int, reason: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason: RefusalCode = reason


class WorkerAccess:
    """The worker tokens and tickets of one platform."""

    def __init__(self, db: Database, clock: Clock, logs: LogStore, demands: Demands | None = None) -> None:
        self._db = db
        self._clock = clock
        self._logs = logs
        self._demands = demands or Demands()
        self.known = KnownWorkers(db, clock, self._demands)
        self._admissions = WorkerAdmissions(clock)
        self._unconfined: dict[str, str] = {}

    # -- tokens ------------------------------------------------------------------------------

    def create_token(
        self, pool: str, *, name: str | None = None, workspace_ids: Sequence[str] = ()
    ) -> tuple[DbWorkerToken, str]:
        """Make a worker token and return its row and the token itself, which nobody can read again."""
        try:
            pool = pool_name(pool)
        except ValueError as error:
            raise OsmosisError(f"'{pool}' {error}.") from None
        plain = new_bearer(WORKER_TOKEN_PREFIX)
        token = DbWorkerToken(
            id=new_id("wkt"),
            name=name,
            pool=pool,
            workspace_ids=list(workspace_ids) or None,
            token_hash=bearer_hash(plain),
            created_at=self._clock.now(),
        )
        with self._db.transaction() as session:
            session.add(token)
        return token, plain

    def tokens(self) -> list[DbWorkerToken]:
        """Return the worker tokens, newest first."""
        with self._db.session() as session:
            newest = DbWorkerToken.created_at.desc(), DbWorkerToken.id.desc()
            return list(session.scalars(select(DbWorkerToken).order_by(*newest)))

    def find_token(self, token_id: str) -> DbWorkerToken:
        """Return a worker token by its id."""
        with self._db.session() as session:
            return _known(session.get(DbWorkerToken, token_id), token_id)

    def revoke_token(self, token_id: str) -> DbWorkerToken:
        """Make a worker token useless from now on; a second time changes nothing."""
        with self._db.transaction() as session:
            token = _known(session.get(DbWorkerToken, token_id), token_id)
            token.revoked_at = token.revoked_at or self._clock.now()
        self._admissions.forget_bearers()
        return token

    def revoked(self, digests: Collection[str]) -> set[str]:
        """Return those of worker tokens and tickets, each by its hash, that have been revoked or withdrawn."""
        found: set[str] = set()
        some = iter(digests)
        with self._db.session() as session:
            while named := list(islice(some, _MOST_NAMED)):
                tokens = DbWorkerToken.token_hash.in_(named), DbWorkerToken.revoked_at.is_not(None)
                found.update(session.scalars(select(DbWorkerToken.token_hash).where(*tokens)))
                tickets = DbWorkerTicket.token_hash.in_(named), DbWorkerTicket.withdrawn_at.is_not(None)
                found.update(session.scalars(select(DbWorkerTicket.token_hash).where(*tickets)))
        return found

    # -- tickets -----------------------------------------------------------------------------

    def issue_ticket(self, run_id: str) -> str:
        """Return a ticket for the next attempt of a run; those before it can claim nothing any more."""
        plain, now = new_bearer(TICKET_PREFIX), self._clock.now()
        self._unconfined.pop(run_id, None)
        with self._db.transaction() as session:
            run = session.get(DbRun, run_id)
            if run is None:
                raise NotFoundError(f"there is no run '{run_id}'.")
            unused = DbWorkerTicket.run_id == run_id, DbWorkerTicket.claim_id.is_(None)
            session.execute(update(DbWorkerTicket).where(*unused).values(withdrawn_at=now))
            session.add(
                DbWorkerTicket(
                    id=new_id("tkt"),
                    run_id=run_id,
                    attempt=run.attempt + 1,
                    token_hash=bearer_hash(plain),
                    created_at=now,
                )
            )
        return plain

    def note_running(self, run_id: str) -> None:
        """Remember that the job which carries the run's ticket is seen running; of several calls the first counts."""
        self._mark(run_id, DbWorkerTicket.running_at)

    def withdraw(self, run_id: str) -> None:
        """Make every ticket of a run useless: its job has ended, or is no longer wanted."""
        self._mark(run_id, DbWorkerTicket.withdrawn_at)

    def why_unconfined(self, run_id: str) -> str | None:
        """Return why the machine that came with a run's newest ticket was refused, where that is for want of a sandbox."""
        return self._unconfined.get(run_id)

    def _mark(self, run_id: str, column: Any) -> None:
        open_ones = DbWorkerTicket.run_id == run_id, DbWorkerTicket.withdrawn_at.is_(None), column.is_(None)
        with self._db.transaction() as session:
            session.execute(update(DbWorkerTicket).where(*open_ones).values({column: self._clock.now()}))
        self._admissions.forget_bearers()

    # -- who asks ----------------------------------------------------------------------------

    def authorize_claim(self, bearer: str, offer: WorkerOffer) -> ClaimScope:
        """Return what a worker may claim."""
        if bearer.startswith(TICKET_PREFIX):
            return self._ticket_scope(bearer, offer)
        with self._db.session() as session:
            token = self._token(session, bearer)
        note_use(self._db, self._clock, token)
        _require_this_release(offer)
        if offer.pool not in (None, token.pool):
            raise WorkerRefused(
                403,
                "WORKER_POOL",
                f"this worker token is for the pool '{token.pool}', not for '{offer.pool}'.",
            )
        spaces = token.workspace_ids
        if offer.run_id is not None and offer.wait_s > 0:
            self._require_open(offer.run_id, token)
        worker_id = self.known.note(offer, token)
        self._require_confined(offer, spaces)
        return ClaimScope(
            workspaces=frozenset(spaces) if spaces is not None else None,
            pool=token.pool,
            worker_id=worker_id,
        )

    def note_left(self, bearer: str, offer: WorkerOffer) -> None:
        """Note that a machine asks for no more runs; of one with a ticket there is nothing to note."""
        with self._db.session() as session:
            if bearer.startswith(TICKET_PREFIX):
                _found(session, _TICKET, bearer)
                return
            token = self._token(session, bearer)
        self.known.note_left(offer, token)

    def _require_confined(self, offer: WorkerOffer, spaces: Collection[str] | None) -> None:
        """Let no machine without a sandbox have runs of several workspaces, unless its operator says so."""
        if not lacks_isolation(offer):
            return
        query = select(func.count()).select_from(DbWorkspace)
        with self._db.session() as session:
            there = session.scalar(query if spaces is None else query.where(DbWorkspace.id.in_(spaces))) or 0
        if (why := why_not_for_all(offer, there)) is not None:
            raise WorkerRefused(403, "WORKER_ISOLATION", why)

    def _require_open(self, run_id: str, token: DbWorkerToken) -> None:
        """Refuse to wait for a run that cannot come; unknown and forbidden runs get the same answer."""
        with self._db.session() as session:
            run = session.get(DbRun, run_id)
        spaces = token.workspace_ids
        is_for_it = run is not None and run.pool == token.pool and (not spaces or run.workspace_id in spaces)
        if run is None or not is_for_it or run.status not in OPEN:
            by_name = "" if run_id.startswith("run_") else _NOT_BY_NAME
            raise WorkerRefused(
                403,
                "RUN_NOT_FOR_WORKER",
                f"there is no such run in the pool '{token.pool}' for this worker token, or it has ended.{by_name}",
            )

    def is_admitted(self, bearer: str, run_id: str) -> bool:
        """Tell whether :meth:`authorize_run` found nothing wrong within the last second; asks no database."""
        return self._admissions.admits(bearer_hash(bearer), run_id)

    def authorize_run(self, bearer: str, run_id: str) -> None:
        """Authorize a worker's message about its claimed run; the lease then decides ownership."""
        if not bearer.startswith(TICKET_PREFIX):
            self._require_run_of(bearer, run_id)
            return
        with self._db.session() as session:
            ticket: DbWorkerTicket = _found(session, _TICKET, bearer)
        if ticket.run_id != run_id or ticket.claim_id is None:
            raise WorkerRefused(
                403, "RUN_NOT_FOR_WORKER", "this ticket is for another run, or none was claimed."
            )
        _require_not_withdrawn(ticket)
        if ticket.synced_at is None:
            first = update(DbWorkerTicket).where(DbWorkerTicket.id == ticket.id)
            with self._db.transaction() as session:
                session.execute(first.values(synced_at=self._clock.now()))
        self._admissions.note_ticket(ticket.token_hash, run_id)

    def _require_run_of(self, bearer: str, run_id: str) -> None:
        # Asked with every exchange of every worker: one connection for both.
        with self._db.session() as session:
            token = self._token(session, bearer)
            found = session.execute(select(DbRun.pool, DbRun.workspace_id).where(DbRun.id == run_id)).first()
        note_use(self._db, self._clock, token)
        spaces = token.workspace_ids
        if (
            found is None
            or found.pool != token.pool
            or (spaces is not None and found.workspace_id not in spaces)
        ):
            raise WorkerRefused(
                403,
                "RUN_NOT_FOR_WORKER",
                f"there is no such run in the pool '{token.pool}' for this worker token.",
            )
        self._admissions.note_token(token.token_hash, token.pool, spaces)
        self._admissions.note_run(run_id, found.pool, found.workspace_id)

    def _token(self, session: Session, bearer: str) -> DbWorkerToken:
        if bearer.startswith(USER_PREFIX):
            raise WorkerRefused(
                403,
                "WORKER_TOKEN_REQUIRED",
                "this is a user's token, and workers need one of their own: make it on the platform's machine with "
                "`osmosis platform worker-token create --pool NAME`.",
            )
        token: DbWorkerToken = _found(session, _TOKEN, bearer)
        if token.revoked_at is not None:
            raise WorkerRefused(401, "TOKEN_REVOKED", "this worker token has been revoked.")
        return token

    def _ticket_scope(self, bearer: str, offer: WorkerOffer) -> ClaimScope:
        with self._db.transaction() as session:
            ticket: DbWorkerTicket = _found(session, _TICKET.with_for_update(), bearer)
            run = session.get_one(DbRun, ticket.run_id)
            refused = self._refusal(ticket, run, offer)
            if refused is None and ticket.claim_id is None:
                refused = _unconfined(session, offer, self._demands.read(run.request))
            if refused is None:
                ticket.claim_id = offer.claim_id
                self._unconfined.pop(run.id, None)
            elif refused.reason == "TICKET_USED" and ticket.claim_id != offer.claim_id:
                self._note_refused(
                    session,
                    ticket,
                    f"somebody tried to claim this run with the ticket of attempt {ticket.attempt}, which its worker has used, "
                    "and was refused",
                )
            elif refused.reason == "WORKER_ISOLATION":
                self._note_refused(session, ticket, refused.message)
                if len(self._unconfined) >= _MOST_UNCONFINED:
                    self._unconfined.clear()
                self._unconfined[run.id] = refused.message
        if refused is not None:
            raise refused
        return ClaimScope(run_id=ticket.run_id)

    def _refusal(self, ticket: DbWorkerTicket, run: DbRun, offer: WorkerOffer) -> WorkerRefused | None:
        """Return why a ticket is not good for a claim, worst first."""
        try:
            _require_not_withdrawn(ticket)
            _require_this_release(offer)
        except WorkerRefused as error:
            return error
        repeated = ticket.claim_id == offer.claim_id
        if ticket.claim_id is not None and (ticket.synced_at is not None or not repeated):
            return WorkerRefused(409, "TICKET_USED", "this ticket has been used by another worker.")
        if offer.run_id not in (None, run.id):
            return WorkerRefused(403, "RUN_NOT_FOR_WORKER", "this ticket is for another run.")
        if run.status not in OPEN or run.attempt > ticket.attempt - (0 if repeated else 1):
            return WorkerRefused(
                409, "TICKET_VOID", "this ticket is void: its run has ended, or was claimed since."
            )
        # Set back, a clock does not say how long it was: the next job has a ticket of its own.
        if ticket.running_at is not None and abs(self._clock.now() - ticket.running_at) > CLAIM_WITHIN:
            return WorkerRefused(
                401, "TICKET_VOID", "this ticket is void: ten minutes for a claim have passed."
            )
        return None

    def _note_refused(self, session: Session, ticket: DbWorkerTicket, message: str) -> None:
        now = self._clock.now()
        if ticket.refused_at is not None and abs(now - ticket.refused_at) < _REFUSAL_NOTED_EVERY:
            return
        ticket.refused_at = now
        self._logs.add(session, ticket.run_id, [LogLine(message, level="warning", step="worker")])


def _unconfined(session: Session, offer: WorkerOffer, asked: ExecutionSection) -> WorkerRefused | None:
    """Return why a cluster node without a sandbox gets no run, since it serves all workspaces."""
    if asked.needs_sandbox and offer.sandbox is False:
        return WorkerRefused(403, "WORKER_ISOLATION", why_not_at_all(offer))
    if not lacks_isolation(offer):
        return None
    there = session.scalar(select(func.count()).select_from(DbWorkspace)) or 0
    why = why_not_for_all(offer, there, of_cluster=True)
    return WorkerRefused(403, "WORKER_ISOLATION", why) if why is not None else None


def _found(session: Session, query: Select[Any], bearer: str) -> Any:
    digest = bearer_hash(bearer)
    row = session.scalar(query, {"digest": digest})
    if row is None or not hmac.compare_digest(row.token_hash, digest):
        raise WorkerRefused(401, "TOKEN_INVALID", "this worker token is not known here.")
    return row


def _require_not_withdrawn(ticket: DbWorkerTicket) -> None:
    if ticket.withdrawn_at is not None:
        raise WorkerRefused(
            401, "TICKET_VOID", "this ticket is void: it was withdrawn, or its job has ended."
        )


def _require_this_release(offer: WorkerOffer) -> None:
    if offer.sdk_version != __version__:
        raise WorkerRefused(
            426,
            "WORKER_RELEASE",
            f"this platform is release {__version__}, and this worker is {offer.sdk_version[:32]!r}: install the "
            "platform's release on the worker's machine.",
        )


def _known(token: DbWorkerToken | None, token_id: str) -> DbWorkerToken:
    if token is None:
        raise NotFoundError(
            f"there is no worker token '{token_id}'.",
            hint="see them with `osmosis platform worker-token list`",
        )
    return token
