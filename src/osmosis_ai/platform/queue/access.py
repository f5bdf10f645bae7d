"""Who may claim shards: hosts with a worker token, jobs with a ticket, and the platform's own host.

Tokens and tickets are shown once and stored as hashes. A worker token is valid for the runs of a pool, optionally of some
workspaces, until revoked; revoking it also ends the leases that were claimed with it. A ticket permits one claim of one
attempt of a shard. It expires when withdrawn and, for its first claim, ten minutes after its job was first seen running.

A claim gives the token of a lease, which authorizes everything else (``queue.py``).
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from osmosis_ai._version import __version__
from osmosis_ai.api.wire.workers import ClaimRequest
from osmosis_ai.config.execution import pool_name
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
from osmosis_ai.platform.db.tables import (
    DbRun,
    DbRunShard,
    DbWorkerTicket,
    DbWorkerToken,
    DbWorkspace,
    new_id,
)
from osmosis_ai.platform.isolation import lacks_isolation, why_not_at_all, why_not_for_all
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.machines import Demands, KnownWorkers
from osmosis_ai.platform.queue.queue import LOCAL, ClaimScope
from osmosis_ai.platform.runs.lifecycle import OPEN

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
"""How long a ticket can be used for its first claim after its job was first seen running."""
# Repeated refusals must not fill a run's log.
_REFUSAL_LOGGED_EVERY = timedelta(minutes=1)


class WorkerRefused(OsmosisError):
    """A refused claim; ``status`` and ``reason`` are those of the reply."""

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
        self.known = KnownWorkers(db, clock)
        self.local_token = secrets.token_urlsafe(32)
        """What the host in this process claims the runs without a pool with."""

    # -- tokens ----------------------------------------------------------------------------------------

    def create_token(
        self, pool: str, *, name: str | None = None, workspace_ids: Sequence[str] = ()
    ) -> tuple[DbWorkerToken, str]:
        """Create a worker token; return its row and the token itself, which cannot be read again."""
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
        """Make a worker token invalid, and its shards available to others; a second time changes nothing."""
        with self._db.transaction() as session:
            token = _known(session.get(DbWorkerToken, token_id), token_id)
            token.revoked_at = token.revoked_at or self._clock.now()
            owned = DbRunShard.token_id == token_id, DbRunShard.status == "running"
            line = LogLine(
                "the token of its worker was revoked; another worker continues", "warning", "queue"
            )
            for run_id in session.scalars(select(DbRunShard.run_id).where(*owned).distinct()).all():
                self._logs.add(session, run_id, [line])
            released = {"status": "pending", "lease_token": None, "lease_expires_at": None}
            session.execute(update(DbRunShard).where(*owned).values(released))
        return token

    # -- tickets ---------------------------------------------------------------------------------------

    def issue_ticket(self, shard_id: str) -> str:
        """Return a ticket for the next attempt of a shard; former ones can claim nothing any more."""
        plain, now = new_bearer(TICKET_PREFIX), self._clock.now()
        with self._db.transaction() as session:
            shard = session.get(DbRunShard, shard_id)
            if shard is None:
                raise NotFoundError(f"there is no shard '{shard_id}'.")
            unused = DbWorkerTicket.shard_id == shard_id, DbWorkerTicket.claim_id.is_(None)
            session.execute(update(DbWorkerTicket).where(*unused).values(withdrawn_at=now))
            session.add(
                DbWorkerTicket(
                    id=new_id("tkt"),
                    shard_id=shard_id,
                    attempt=shard.attempt + 1,
                    token_hash=bearer_hash(plain),
                    created_at=now,
                )
            )
        return plain

    def note_running(self, shard_id: str) -> None:
        """Record that the job with the shard's ticket runs; of several calls the first counts."""
        self._mark(shard_id, DbWorkerTicket.running_at)

    def withdraw(self, shard_id: str) -> None:
        """Make every ticket of a shard invalid: its job has ended, or is no longer wanted."""
        self._mark(shard_id, DbWorkerTicket.withdrawn_at)

    def has_used_ticket(self, shard_id: str, attempt: int) -> bool:
        """Return whether the ticket of an attempt was used for a claim, answered or not."""
        used = DbWorkerTicket.attempt == attempt, DbWorkerTicket.claim_id.is_not(None)
        with self._db.session() as session:
            asked = select(DbWorkerTicket.id).where(DbWorkerTicket.shard_id == shard_id, *used)
            return session.scalar(asked.limit(1)) is not None

    def _mark(self, shard_id: str, column: Any) -> None:
        valid = DbWorkerTicket.shard_id == shard_id, DbWorkerTicket.withdrawn_at.is_(None), column.is_(None)
        with self._db.transaction() as session:
            session.execute(update(DbWorkerTicket).where(*valid).values({column: self._clock.now()}))

    # -- claims ----------------------------------------------------------------------------------------

    def authorize(self, bearer: str, request: ClaimRequest) -> ClaimScope:
        """Return what the bearer of a token or ticket may claim; a WorkerRefused otherwise."""
        if hmac.compare_digest(bearer.encode(), self.local_token.encode()):
            return ClaimScope(token_id=LOCAL)
        if bearer.startswith(TICKET_PREFIX):
            return self._ticket_scope(bearer, request)
        token = self._token(bearer)
        _require_this_release(request)
        if request.pool not in (None, token.pool):
            raise WorkerRefused(
                403,
                "WORKER_POOL",
                f"this worker token is for the pool '{token.pool}', not for '{request.pool}'.",
            )
        spaces = token.workspace_ids
        if request.run_id is not None:
            self._require_claimable(request.run_id, token)
        scope = ClaimScope(
            pool=token.pool, workspaces=frozenset(spaces) if spaces is not None else None, token_id=token.id
        )
        worker_id = self.known.note(request, token)
        self._require_confined(request, spaces)
        return replace(scope, worker_id=worker_id)

    def note_left(self, bearer: str, request: ClaimRequest) -> None:
        """Record that a machine claims no more."""
        if not bearer.startswith(TICKET_PREFIX) and bearer != self.local_token:
            self.known.note_left(request, self._token(bearer))

    def _token(self, bearer: str) -> DbWorkerToken:
        if bearer.startswith(USER_PREFIX):
            raise WorkerRefused(
                403,
                "WORKER_TOKEN_REQUIRED",
                "this is a user's token, and workers need one of their own: create it on the platform's machine with "
                "`osmosis platform worker-token create --pool NAME`.",
            )
        with self._db.session() as session:
            token: DbWorkerToken = _find(session, DbWorkerToken, bearer)
        if token.revoked_at is not None:
            raise WorkerRefused(401, "TOKEN_REVOKED", "this worker token has been revoked.")
        note_use(self._db, self._clock, token)
        return token

    def _require_confined(self, request: ClaimRequest, spaces: Collection[str] | None) -> None:
        """Give a machine without a sandbox no runs of several workspaces, unless its operator permits it."""
        if not lacks_isolation(request):
            return
        query = select(func.count()).select_from(DbWorkspace)
        with self._db.session() as session:
            workspaces = (
                session.scalar(query if spaces is None else query.where(DbWorkspace.id.in_(spaces))) or 0
            )
        if (why := why_not_for_all(request, workspaces)) is not None:
            raise WorkerRefused(403, "WORKER_ISOLATION", why)

    def _require_claimable(self, run_id: str, token: DbWorkerToken) -> None:
        """Refuse to wait for a run that cannot come; unknown and forbidden runs get the same answer."""
        with self._db.session() as session:
            run = session.get(DbRun, run_id)
        spaces = token.workspace_ids
        is_permitted = (
            run is not None and run.pool == token.pool and (not spaces or run.workspace_id in spaces)
        )
        if run is None or not is_permitted or run.status not in OPEN:
            by_name = (
                ""
                if run_id.startswith("run_")
                else " `--run` takes a run's id (`run_…`) from `osmosis eval list --json`, not its name."
            )
            raise WorkerRefused(
                403,
                "RUN_NOT_FOR_WORKER",
                f"there is no such run in the pool '{token.pool}' for this worker token, or it has ended.{by_name}",
            )

    def _ticket_scope(self, bearer: str, request: ClaimRequest) -> ClaimScope:
        with self._db.transaction() as session:
            ticket: DbWorkerTicket = _find(session, DbWorkerTicket, bearer, for_update=True)
            shard = session.get_one(DbRunShard, ticket.shard_id)
            run = session.get_one(DbRun, shard.run_id)
            refused = self._ticket_refusal(ticket, run, shard, request)
            if refused is None and ticket.claim_id is None:
                refused = self._unconfined(session, run, request)
            if refused is None:
                ticket.claim_id = request.claim_id
            elif refused.reason == "TICKET_USED":
                message = f"refused a second claim with the ticket of attempt {ticket.attempt}"
                self._log_refusal(session, ticket, run, message)
            elif refused.reason == "WORKER_ISOLATION":
                shard.waits = refused.message
                self._log_refusal(session, ticket, run, refused.message)
        if refused is not None:
            raise refused
        return ClaimScope(shard_id=ticket.shard_id)

    def _ticket_refusal(
        self, ticket: DbWorkerTicket, run: DbRun, shard: DbRunShard, request: ClaimRequest
    ) -> WorkerRefused | None:
        if ticket.withdrawn_at is not None:
            return WorkerRefused(
                401, "TICKET_VOID", "this ticket is void: it was withdrawn, or its job has ended."
            )
        try:
            _require_this_release(request)
        except WorkerRefused as error:
            return error
        is_repeated = ticket.claim_id == request.claim_id
        if ticket.claim_id is not None and not is_repeated:
            return WorkerRefused(409, "TICKET_USED", "this ticket has been used by another worker.")
        if request.run_id not in (None, run.id):
            return WorkerRefused(403, "RUN_NOT_FOR_WORKER", "this ticket is for another run.")
        attempts = ticket.attempt - (0 if is_repeated else 1)
        if run.status not in OPEN or shard.status not in OPEN or shard.attempt > attempts:
            return WorkerRefused(
                409, "TICKET_VOID", "this ticket is void: its run has ended, or was claimed since."
            )
        # If the clock was set back, the time that has passed is unknown; the next job has its own ticket.
        if ticket.running_at is not None and abs(self._clock.now() - ticket.running_at) > CLAIM_WITHIN:
            return WorkerRefused(
                401,
                "TICKET_VOID",
                "this ticket is void: it was not used within ten minutes of the start of its job.",
            )
        return None

    def _unconfined(self, session: Session, run: DbRun, request: ClaimRequest) -> WorkerRefused | None:
        """Return why a cluster node without a sandbox gets no run, since it serves all workspaces."""
        if self._demands.read(run.request).needs_sandbox and request.sandbox is False:
            return WorkerRefused(403, "WORKER_ISOLATION", why_not_at_all(request))
        if not lacks_isolation(request):
            return None
        workspaces = session.scalar(select(func.count()).select_from(DbWorkspace)) or 0
        why = why_not_for_all(request, workspaces, of_cluster=True)
        return WorkerRefused(403, "WORKER_ISOLATION", why) if why is not None else None

    def _log_refusal(self, session: Session, ticket: DbWorkerTicket, run: DbRun, message: str) -> None:
        now = self._clock.now()
        if ticket.refused_at is None or abs(now - ticket.refused_at) >= _REFUSAL_LOGGED_EVERY:
            ticket.refused_at = now
            self._logs.add(session, run.id, [LogLine(message, level="warning", step="queue")])


def _find(session: Session, table: Any, bearer: str, *, for_update: bool = False) -> Any:
    digest = bearer_hash(bearer)
    query = select(table).where(table.token_hash == digest)
    row = session.scalar(query.with_for_update() if for_update else query)
    if row is None or not hmac.compare_digest(row.token_hash, digest):
        raise WorkerRefused(401, "TOKEN_INVALID", "this worker token does not exist on this platform.")
    return row


def _require_this_release(request: ClaimRequest) -> None:
    if request.sdk_version != __version__:
        raise WorkerRefused(
            426,
            "WORKER_RELEASE",
            f"this platform is release {__version__}, and this worker is {request.sdk_version[:32]!r}: install the "
            "platform's release on the worker's machine.",
        )


def _known(token: DbWorkerToken | None, token_id: str) -> DbWorkerToken:
    if token is None:
        raise NotFoundError(
            f"there is no worker token '{token_id}'.",
            hint="see them with `osmosis platform worker-token list`",
        )
    return token
