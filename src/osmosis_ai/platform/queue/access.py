"""Permissions to claim shards: hosts with a worker token, jobs with a ticket, and the platform's own host.

Tokens and tickets are shown once and stored as hashes. A worker token is valid for the runs of a pool, optionally of some
workspaces, until revoked; revoking it also ends the leases that were claimed with it. A ticket permits one claim of one
attempt of a shard. It expires when withdrawn and, for its first claim, ten minutes after its job was first seen running.

A claim gives the token of a lease, which authorizes everything else (``queue.py``).
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Sequence
from datetime import timedelta

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from osmosis_ai._version import __version__
from osmosis_ai.api.models.workers import ClaimRequest
from osmosis_ai.config.execution import pool_name
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.platform.accounts import (
    TICKET_PREFIX,
    USER_PREFIX,
    WORKER_TOKEN_PREFIX,
    bearer_hash,
    new_bearer,
    note_use,
)
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbRunShard, DbWorkerToken, DbWorkspace, new_id
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.machines import Demands, KnownWorkers
from osmosis_ai.platform.queue.queue import LOCAL, ClaimScope, lock_shard
from osmosis_ai.platform.refusals import ApiError
from osmosis_ai.platform.runs.lifecycle import OPEN
from osmosis_ai.sandbox.isolation import ISOLATION_ENV

CLAIM_WITHIN = timedelta(minutes=10)
"""How long a ticket can be used for its first claim after its job was first seen running."""
# Repeated refusals must not fill a run's log.
_REFUSAL_LOGGED_EVERY = timedelta(minutes=1)
_UNKNOWN = "it does not say why"


class WorkerAccess:
    def __init__(self, db: Database, clock: Clock, logs: LogStore, demands: Demands | None = None) -> None:
        self._db = db
        self._clock = clock
        self._logs = logs
        self._demands = demands or Demands()
        self.known = KnownWorkers(db, clock)
        self.local_token = secrets.token_urlsafe(32)
        """The token with which the host in this process claims runs without a pool."""

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
        newest = DbWorkerToken.created_at.desc(), DbWorkerToken.id.desc()
        return self._db.scalars(select(DbWorkerToken).order_by(*newest))

    def find_token(self, token_id: str) -> DbWorkerToken:
        return _known(self._db.get(DbWorkerToken, token_id), token_id)

    def revoke_token(self, token_id: str) -> DbWorkerToken:
        """Make a worker token invalid, and its shards available to others; a second time changes nothing."""
        with self._db.transaction() as session:
            token = _known(session.get(DbWorkerToken, token_id), token_id)
            token.revoked_at = token.revoked_at or self._clock.now()
            owned = DbRunShard.token_id == token_id, DbRunShard.status == "running"
            revoked = "the token of its worker was revoked; another worker can continue"
            line = LogLine(revoked, "warning", "queue")
            for run_id in session.scalars(select(DbRunShard.run_id).where(*owned).distinct()).all():
                self._logs.add(session, run_id, [line])
            released = {"status": "pending", "lease_token": None, "lease_expires_at": None}
            session.execute(update(DbRunShard).where(*owned).values(released))
        return token

    def issue_ticket(self, shard_id: str) -> str:
        """Return a ticket for the next attempt of a shard; former ones can claim nothing any more."""
        plain = new_bearer(TICKET_PREFIX)
        with self._db.transaction() as session:
            shard = session.get(DbRunShard, shard_id, with_for_update=True)
            if shard is None:
                raise NotFoundError(f"there is no shard '{shard_id}'.")
            shard.ticket_hash, shard.ticket_attempt = bearer_hash(plain), shard.attempt + 1
            shard.ticket_claim_id = shard.ticket_running_at = shard.ticket_refused_at = None
        return plain

    def note_running(self, shard_id: str) -> None:
        """Record that the job with the shard's ticket runs; of several calls the first counts."""
        unseen = DbRunShard.id == shard_id, DbRunShard.ticket_running_at.is_(None)
        with self._db.transaction() as session:
            session.execute(update(DbRunShard).where(*unseen).values(ticket_running_at=self._clock.now()))

    def withdraw(self, shard_id: str) -> None:
        """Make the ticket of a shard invalid: its job has ended, or is no longer wanted."""
        with self._db.transaction() as session:
            session.execute(update(DbRunShard).where(DbRunShard.id == shard_id).values(ticket_hash=None))

    def authorize(self, bearer: str, request: ClaimRequest) -> ClaimScope:
        """Return what the bearer of a token or ticket may claim; raise an ApiError if it may claim nothing."""
        if hmac.compare_digest(bearer.encode(), self.local_token.encode()):
            return ClaimScope(token_id=LOCAL)
        if bearer.startswith(TICKET_PREFIX):
            return self._ticket_scope(bearer, request)
        token = self._token(bearer)
        if (refused := _other_release(request)) is not None:
            raise refused
        if request.pool not in (None, token.pool):
            message = f"this worker token is for the pool '{token.pool}', not for '{request.pool}'."
            raise ApiError(403, "WORKER_POOL", message)
        spaces = frozenset(token.workspace_ids) if token.workspace_ids is not None else None
        if request.run_id is not None:
            self._require_claimable(request.run_id, token.pool, spaces)
        worker_id = self.known.note(request, token)
        with self._db.session() as session:
            refused = _unconfined(session, request, spaces)
        if refused is not None:
            raise refused
        return ClaimScope(pool=token.pool, workspaces=spaces, token_id=token.id, worker_id=worker_id)

    def note_left(self, bearer: str, request: ClaimRequest) -> None:
        """Record that a machine claims no more."""
        if not bearer.startswith(TICKET_PREFIX) and bearer != self.local_token:
            self.known.note_left(request, self._token(bearer))

    def _token(self, bearer: str) -> DbWorkerToken:
        if bearer.startswith(USER_PREFIX):
            raise ApiError(
                403,
                "WORKER_TOKEN_REQUIRED",
                "this is a user's token, and workers need one of their own: create it on the platform's machine with "
                "`osmosis platform worker-token create --pool NAME`.",
            )
        known = DbWorkerToken.token_hash == bearer_hash(bearer)
        token = self._db.scalar(select(DbWorkerToken).where(known))
        if token is None:
            raise ApiError(401, "TOKEN_INVALID", "this worker token does not exist on this platform.")
        if token.revoked_at is not None:
            raise ApiError(401, "TOKEN_REVOKED", "this worker token has been revoked.")
        note_use(self._db, self._clock, token)
        return token

    def _require_claimable(self, run_id: str, pool: str, spaces: Collection[str] | None) -> None:
        """Refuse to wait for a run that cannot come; unknown and forbidden runs get the same answer."""
        permitted = [DbRun.id == run_id, DbRun.pool == pool, DbRun.status.in_(OPEN)]
        if spaces is not None:
            permitted.append(DbRun.workspace_id.in_(spaces))
        if self._db.scalar(select(DbRun.id).where(*permitted)) is not None:
            return
        message = f"there is no such run, it has ended, or this token cannot claim it in the pool '{pool}'."
        if not run_id.startswith("run_"):
            message += " `--run` takes a run's id (`run_…`) from `osmosis eval list --json`, not its name."
        raise ApiError(403, "RUN_NOT_FOR_WORKER", message)

    def _ticket_scope(self, bearer: str, request: ClaimRequest) -> ClaimScope:
        with self._db.transaction() as session:
            found = lock_shard(session, DbRunShard.ticket_hash == bearer_hash(bearer))
            if found is None:
                why = "this ticket is void: it was withdrawn, or its job has ended."
                raise ApiError(401, "TICKET_VOID", why)
            run, shard = found
            refused = self._ticket_refusal(session, run, shard, request)
            if refused is None:
                shard.ticket_claim_id = request.claim_id
            elif refused.reason in ("TICKET_USED", "WORKER_ISOLATION"):
                now, refused_at = self._clock.now(), shard.ticket_refused_at
                if refused_at is None or abs(now - refused_at) >= _REFUSAL_LOGGED_EVERY:
                    shard.ticket_refused_at = now
                    why = (
                        f"claim refused with the ticket of attempt {shard.ticket_attempt}: {refused.message}"
                    )
                    self._logs.add(session, run.id, [LogLine(why, level="warning", step="queue")])
                if refused.reason == "WORKER_ISOLATION":
                    shard.waits = refused.message
        if refused is not None:
            raise refused
        return ClaimScope(shard_id=shard.id)

    def _ticket_refusal(
        self, session: Session, run: DbRun, shard: DbRunShard, request: ClaimRequest
    ) -> ApiError | None:
        if (refused := _other_release(request)) is not None:
            return refused
        is_repeated = shard.ticket_claim_id == request.claim_id
        if shard.ticket_claim_id is not None and not is_repeated:
            return ApiError(409, "TICKET_USED", "this ticket has been used by another worker.")
        if request.run_id not in (None, run.id):
            return ApiError(403, "RUN_NOT_FOR_WORKER", "this ticket is for another run.")
        attempts = shard.ticket_attempt - (0 if is_repeated else 1)
        if run.status not in OPEN or shard.status not in OPEN or shard.attempt > attempts:
            why = "this ticket is void: its run has ended, or was claimed by another worker."
            return ApiError(409, "TICKET_VOID", why)
        # If the clock was set back, the time that has passed is unknown; the next job has its own ticket.
        running_at = shard.ticket_running_at
        if running_at is not None and abs(self._clock.now() - running_at) > CLAIM_WITHIN:
            why = "this ticket is void: it was not used within ten minutes of the start of its job."
            return ApiError(401, "TICKET_VOID", why)
        if is_repeated:
            return None
        if self._demands.read(run.request).needs_sandbox and request.sandbox is False:
            why = (
                f"{_named(request)} does not get this run, which needs a sandbox: rollouts cannot be sandboxed there "
                f"({request.sandbox_problem or _UNKNOWN})."
            )
            return ApiError(403, "WORKER_ISOLATION", why)
        return _unconfined(session, request, of_cluster=True)


def _unconfined(
    session: Session,
    request: ClaimRequest,
    spaces: Collection[str] | None = None,
    *,
    of_cluster: bool = False,
) -> ApiError | None:
    """Return why a machine without a sandbox gets no runs of several workspaces; None if its operator permits it."""
    if request.sandbox is not False or request.isolation != "auto":
        return None
    count = select(func.count()).select_from(DbWorkspace)
    if spaces is not None:
        count = count.where(DbWorkspace.id.in_(spaces))
    if (workspaces := session.scalar(count) or 0) < 2:
        return None
    name = _named(request) if of_cluster else "this machine"
    remedy = "" if of_cluster else "give it a token for one (`worker-token create --workspace`), or, "
    return ApiError(
        403,
        "WORKER_ISOLATION",
        f"{name} gets no runs of {workspaces} workspaces: rollouts cannot be sandboxed there "
        f"({request.sandbox_problem or _UNKNOWN}), so runs of one could read the secrets and files of another; "
        f"{remedy}if all of them trust each other, set {ISOLATION_ENV}=off there.",
    )


def _named(request: ClaimRequest) -> str:
    return f"the machine '{request.machine}'" if request.machine else "this machine"


def _other_release(request: ClaimRequest) -> ApiError | None:
    if request.sdk_version == __version__:
        return None
    return ApiError(
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
