"""Rollouts of connected repositories, and remote agents.

A rollout keeps its row and id while its repository is connected. It becomes inactive when it disappears from the
default branch, and active when it reappears. A sync waits for a remote machine, so it never runs inside a database
session. A failed sync is recorded on the repository and changes nothing else.

A remote agent is registered by name; the newest registration of a name is used, including by active runs. The agent's
key is sealed in the database and used only to call the agent; it is never shown.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

from sqlalchemy import bindparam, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from osmosis_ai.api.models.rollouts import HealthCheckResult
from osmosis_ai.controller.remote_agents import (
    PROBE_TIMEOUT_S,
    AgentAddress,
    AgentAddressError,
    open_agent_session,
    probe_agent,
    unregistered_agent,
)
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.keyset import PagedRows
from osmosis_ai.platform.db.tables import DbRepository, DbRollout, DbRolloutServer, new_id
from osmosis_ai.platform.gitsync.mirror import MirrorStore, RolloutDirectory
from osmosis_ai.platform.vault import Vault, sealing_context
from osmosis_ai.viewer.source import ItemPage

logger = logging.getLogger(__name__)

FRESH_S = 3.0
"""Maximum age of a sync that a list may use."""
MAX_SERVERS = 500
"""Remote agents per workspace."""
MAX_PROBES = 8
"""Maximum number of concurrent probes: one of a silent agent holds a thread that requests need."""
_PARALLEL_SYNCS = 4
# Syncs that found nothing new are recorded this seldom, so that reading does not become writing.
_NOTED_EVERY = timedelta(minutes=1)
_LONGEST_NAME = 255
_LONGEST_KEY = 1024
_probes = threading.BoundedSemaphore(MAX_PROBES)
_SERVERS = PagedRows(
    DbRolloutServer, DbRolloutServer.workspace_id == bindparam("workspace_id"), DbRolloutServer.name
)


class RolloutStore:
    def __init__(self, db: Database, mirrors: MirrorStore, clock: Clock) -> None:
        self._db = db
        self._mirrors = mirrors
        self._clock = clock
        self._threads = ThreadPoolExecutor(_PARALLEL_SYNCS, thread_name_prefix="osmosis-sync")
        self._syncing: dict[str, Future[DbRepository]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """End running syncs and start no more."""
        self._mirrors.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def start_sync(self, repository_id: str) -> Future[DbRepository]:
        """Sync in the background, unless that was done moments ago; concurrent callers share the future."""
        with self._lock:
            running = self._syncing.get(repository_id)
            if running is None:
                running = self._threads.submit(self.sync, repository_id, max_age_s=FRESH_S)
                self._syncing[repository_id] = running
                running.add_done_callback(lambda _: self._syncing.pop(repository_id, None))
        return running

    def sync(self, repository_id: str, *, max_age_s: float = 0.0) -> DbRepository:
        """Fetch a repository and record the rollouts of its default branch (blocking)."""
        with self._db.session() as session:
            repository = _repository(session, repository_id)
        try:
            sha = self._mirrors.sync(repository, max_age_s=max_age_s)
            if self._is_known(repository, sha):
                return repository
            found = self._mirrors.list_rollouts(repository, sha) if sha else []
        except OsmosisError as error:
            problem = error.with_hint
            if problem != repository.sync_error:
                logger.warning("%s", problem)
            with self._db.transaction() as session:
                repository = _repository(session, repository_id)
                repository.sync_error = problem
            return repository
        return self._record(repository_id, sha, found)

    def page(self, repository_id: str, *, limit: int, offset: int) -> ItemPage[DbRollout]:
        """Return a page of the rollouts, active ones first, then by name."""
        mine = DbRollout.repository_id == repository_id
        ordered = select(DbRollout).where(mine).order_by(DbRollout.is_active.desc(), DbRollout.name)
        with self._db.session() as session:
            total = session.scalar(select(func.count()).select_from(DbRollout).where(mine)) or 0
            rows = session.scalars(ordered.limit(limit).offset(offset)).all()
        return ItemPage(rows, counts={"total": total})

    def on_branch(self, repository: DbRepository, branch: str) -> tuple[Sequence[DbRollout], str]:
        """Return the rollouts at the head of a branch, as last fetched, and the commit."""
        sha = self._mirrors.resolve(repository, branch=branch)
        found = self._mirrors.list_rollouts(repository, sha)
        with self._db.session() as session:
            rows = _rows(session, repository.id)
        if any(entry.name not in rows for entry in found):
            with self._db.transaction() as session:
                rows = self._rows_of(session, _repository(session, repository.id, lock=True), found)
        return [rows[entry.name] for entry in found], sha

    def _is_known(self, repository: DbRepository, sha: str | None) -> bool:
        noted = repository.last_synced_at
        return (
            repository.sync_error is None
            and repository.last_synced_sha == sha
            and noted is not None
            and abs(self._clock.now() - noted) < _NOTED_EVERY
        )

    def _record(self, repository_id: str, sha: str | None, found: Sequence[RolloutDirectory]) -> DbRepository:
        now = self._clock.now()
        by_name = {entry.name: entry for entry in found}
        with self._db.transaction() as session:
            repository = _repository(session, repository_id, lock=True)
            repository.sync_error, repository.last_synced_sha, repository.last_synced_at = None, sha, now
            for row in self._rows_of(session, repository, found).values():
                entry = by_name.get(row.name)
                row.is_active = entry is not None
                if entry is not None:
                    row.description = entry.description
                    row.last_synced_commit_sha, row.last_synced_at = sha, now
        return repository

    def _rows_of(
        self, session: Session, repository: DbRepository, found: Sequence[RolloutDirectory]
    ) -> dict[str, DbRollout]:
        """Return all rows of a repository by name, with new ones for rollouts that have none."""
        rows = _rows(session, repository.id)
        for entry in found:
            if entry.name not in rows:
                rows[entry.name] = DbRollout(
                    id=new_id("rol"),
                    workspace_id=repository.workspace_id,
                    repository_id=repository.id,
                    name=entry.name,
                    description=entry.description,
                    is_active=False,
                    created_at=self._clock.now(),
                )
        session.add_all(rows.values())
        return rows


def _repository(session: Session, repository_id: str, *, lock: bool = False) -> DbRepository:
    """Return the row; ``lock`` blocks other syncs from recording its rollouts until the transaction ends."""
    repository = session.get(DbRepository, repository_id, with_for_update=lock)
    if repository is None:
        raise NotFoundError(f"there is no repository '{repository_id}'.")
    return repository


def _rows(session: Session, repository_id: str) -> dict[str, DbRollout]:
    rows = session.scalars(select(DbRollout).where(DbRollout.repository_id == repository_id))
    return {row.name: row for row in rows}


# -- remote agents -------------------------------------------------------------------------------------


class RolloutServerStore:
    def __init__(self, db: Database, vault: Vault, clock: Clock) -> None:
        self._db = db
        self._vault = vault
        self._clock = clock

    def register(
        self, workspace_id: str, user_id: str, *, name: str, address: AgentAddress
    ) -> tuple[DbRolloutServer, HealthCheckResult]:
        """Register an agent in place of an earlier one of its name, and probe it (blocking)."""
        if not name.strip() or name != name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
            raise OsmosisError(
                "the name of a served agent must be printable, have no leading or trailing spaces, and have at most "
                f"{_LONGEST_NAME} characters."
            )
        _check_key(address.api_key)
        health = probe(address)
        try:
            return self._put(workspace_id, user_id, name, address, health), health
        except IntegrityError:
            # Another process registered it a moment ago.
            return self._put(workspace_id, user_id, name, address, health), health

    def page(self, workspace_id: str, *, limit: int, offset: int) -> ItemPage[DbRolloutServer]:
        """Return a page of the agents of a workspace, by name."""
        with self._db.session() as session:
            return _SERVERS.page(session, {"workspace_id": workspace_id}, limit=limit, offset=offset)

    def probe(self, workspace_id: str, name: str) -> tuple[DbRolloutServer, HealthCheckResult]:
        """Probe an agent and record the result (blocking)."""
        health = probe(locate_server(self._db, self._vault, workspace_id, name))
        with self._db.transaction() as session:
            server = _registered(session, workspace_id, name)
            _record_health(server, health, self._clock)
        return server, health

    def remove(self, workspace_id: str, name: str) -> None:
        """Delete an agent's registration and key. The agent itself keeps running."""
        with self._db.transaction() as session:
            session.delete(_registered(session, workspace_id, name))

    def _put(
        self, workspace_id: str, user_id: str, name: str, address: AgentAddress, health: HealthCheckResult
    ) -> DbRolloutServer:
        now = self._clock.now()
        with self._db.transaction() as session:
            server = _server(session, workspace_id, name)
            if server is None:
                _require_room(session, workspace_id)
                server = DbRolloutServer(
                    id=new_id("srv"), workspace_id=workspace_id, name=name, created_at=now
                )
                session.add(server)
            server.host, server.port, server.creator_id = address.host, address.port, user_id
            server.sealed = None
            if address.api_key is not None:
                server.sealed = self._vault.seal(address.api_key.encode(), context=sealing_context(server))
            server.updated_at = now
            _record_health(server, health, self._clock)
        return server


def probe(address: AgentAddress) -> HealthCheckResult:
    """Probe an agent (blocking); refused while too many probes are running."""

    async def ask() -> HealthCheckResult:
        async with open_agent_session(PROBE_TIMEOUT_S) as http:
            return await probe_agent(http, address)

    if not _probes.acquire(blocking=False):
        return HealthCheckResult(error="too many agents are being probed: try again in a few seconds")
    try:
        return asyncio.run(ask())
    finally:
        _probes.release()


def find_server(db: Database, workspace_id: str, agent: str) -> DbRolloutServer | None:
    """Return the agent that a config names: by its name, or else by its `HOST:PORT`."""
    with db.session() as session:
        named = _server(session, workspace_id, agent)
        if named is not None:
            return named
        try:
            address = AgentAddress.parse(agent)
        except AgentAddressError:
            return None
        at = (DbRolloutServer.host == address.host, DbRolloutServer.port == address.port)
        newest = select(DbRolloutServer).where(DbRolloutServer.workspace_id == workspace_id, *at)
        return session.scalars(newest.order_by(DbRolloutServer.updated_at.desc()).limit(1)).first()


def server_names(db: Database, workspace_id: str) -> Sequence[str]:
    names = select(DbRolloutServer.name).where(DbRolloutServer.workspace_id == workspace_id)
    return db.scalars(names)


def locate_server(db: Database, vault: Vault, workspace_id: str, agent: str) -> AgentAddress:
    """Return the current address of an agent, with its key."""
    server = find_server(db, workspace_id, agent)
    if server is None:
        raise unregistered_agent(agent)
    key = None
    if server.sealed is not None:
        key = vault.open(server.sealed, context=sealing_context(server)).decode()
    return AgentAddress(server.host, server.port, key)


def _server(session: Session, workspace_id: str, name: str) -> DbRolloutServer | None:
    if "\0" in name or len(name) > _LONGEST_NAME:
        return None
    named = (DbRolloutServer.workspace_id == workspace_id, DbRolloutServer.name == name)
    return session.scalar(select(DbRolloutServer).where(*named))


def _registered(session: Session, workspace_id: str, name: str) -> DbRolloutServer:
    server = _server(session, workspace_id, name)
    if server is None:
        raise unregistered_agent(name)
    return server


def _require_room(session: Session, workspace_id: str) -> None:
    mine = DbRolloutServer.workspace_id == workspace_id
    count = session.scalar(select(func.count()).select_from(DbRolloutServer).where(mine)) or 0
    if count >= MAX_SERVERS:
        raise ConflictError(
            f"this workspace has {MAX_SERVERS} registered agents, which is the maximum.",
            hint="remove unused ones: osmosis rollout server remove NAME",
        )


def _record_health(server: DbRolloutServer, health: HealthCheckResult, clock: Clock) -> None:
    server.status = "healthy" if health.error is None else "unhealthy"
    server.error = health.error
    server.probed_at = clock.now()


def _check_key(key: str | None) -> None:
    is_valid = key is None or (0 < len(key) <= _LONGEST_KEY and key.isascii() and key.isprintable())
    if not is_valid:
        raise OsmosisError(
            f"the key of a served agent must be of 1 to {_LONGEST_KEY} printable ASCII characters."
        )
