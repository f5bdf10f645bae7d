"""Remote agents: registered by name, probed, and used by runs that name them.

The newest registration of a name is used, including by active runs. The agent's key is sealed in the database and used
only to call the agent; it is never shown.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from osmosis_ai.api.wire.rollout_servers import HealthCheckResult
from osmosis_ai.controller.remote_agents import (
    PROBE_TIMEOUT_S,
    AgentAddress,
    AgentAddressError,
    open_agent_session,
    probe_agent,
    unregistered_agent,
)
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.db.tables import DbRolloutServer, DbUser, new_id

if TYPE_CHECKING:
    from osmosis_ai.platform.clock import Clock
    from osmosis_ai.platform.db.engine import Database
    from osmosis_ai.platform.vault import Vault

MAX_SERVERS = 500
"""Per workspace; who serves an agent again under its name takes no further place."""
MAX_PROBES = 8
"""How many agents are asked at once."""
_LONGEST_NAME = 255
_LONGEST_KEY = 1024
_probes = threading.BoundedSemaphore(MAX_PROBES)


@dataclass(frozen=True, slots=True)
class RegisteredServer:
    """A registered agent, who registered it, and what its latest probe found; None where it was not asked just now."""

    server: DbRolloutServer
    creator: str | None
    health: HealthCheckResult | None = None


class RolloutServerStore:
    """The registered agents of all workspaces."""

    def __init__(self, db: Database, vault: Vault, clock: Clock) -> None:
        self._db = db
        self._vault = vault
        self._clock = clock

    def register(
        self, workspace_id: str, user_id: str, *, name: str, address: AgentAddress
    ) -> RegisteredServer:
        """Keep an agent under its name, in place of an earlier one, and ask it how it does; blocking."""
        _check_name(name)
        _check_key(address.api_key)
        health = probe(address)
        try:
            self._put(workspace_id, user_id, name, address, health)
        except IntegrityError:
            # Another process registered it a moment ago: now it is there to be changed.
            self._put(workspace_id, user_id, name, address, health)
        return self._found(workspace_id, name, health)

    def page(self, workspace_id: str, *, limit: int, offset: int) -> tuple[list[RegisteredServer], int]:
        """Return one page of the agents of a workspace, by name, and how many there are in all."""
        of_workspace = DbRolloutServer.workspace_id == workspace_id
        with self._db.session() as session:
            total = session.scalar(select(func.count()).select_from(DbRolloutServer).where(of_workspace)) or 0
            rows = session.execute(
                select(DbRolloutServer, DbUser)
                .outerjoin(DbUser, DbUser.id == DbRolloutServer.creator_id)
                .where(of_workspace)
                .order_by(DbRolloutServer.name)
                .limit(limit)
                .offset(offset)
            ).all()
        return [RegisteredServer(server, _name_of(user)) for server, user in rows], total

    def probe(self, workspace_id: str, name: str) -> RegisteredServer:
        """Ask an agent how it does, and note the answer; blocking."""
        health = probe(locate_server(self._db, self._vault, workspace_id, name))
        with self._db.transaction() as session:
            server = _server(session, workspace_id, name)
            if server is not None:
                _note(server, health, self._clock)
        return self._found(workspace_id, name, health)

    def remove(self, workspace_id: str, name: str) -> None:
        """Delete an agent's registration and key. The agent itself keeps running."""
        with self._db.transaction() as session:
            server = _server(session, workspace_id, name)
            if server is None:
                raise unregistered_agent(name)
            session.delete(server)

    def _put(
        self,
        workspace_id: str,
        user_id: str,
        name: str,
        address: AgentAddress,
        health: HealthCheckResult,
    ) -> None:
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
                server.sealed = self._vault.seal(address.api_key.encode(), context=server_context(server.id))
            server.updated_at = now
            _note(server, health, self._clock)

    def _found(self, workspace_id: str, name: str, health: HealthCheckResult) -> RegisteredServer:
        with self._db.session() as session:
            server = _server(session, workspace_id, name)
            if server is None:
                raise unregistered_agent(name)
            creator = session.get(DbUser, server.creator_id) if server.creator_id else None
        return RegisteredServer(server, _name_of(creator), health)


def probe(address: AgentAddress) -> HealthCheckResult:
    """Ask an agent how it does; blocking, for as long as one probe may take, or not at all where too many wait."""

    async def ask() -> HealthCheckResult:
        async with open_agent_session(PROBE_TIMEOUT_S) as http:
            return await probe_agent(http, address)

    # Each probe of an agent that never answers holds one of the threads that answer everybody's requests.
    if not _probes.acquire(blocking=False):
        return HealthCheckResult(
            error="too many agents are being asked at this moment: probe it again in a few seconds"
        )
    try:
        return asyncio.run(ask())
    finally:
        _probes.release()


def find_server(db: Database, workspace_id: str, agent: str) -> DbRolloutServer | None:
    """Return the agent that a config calls ``agent``: by its name, or else by its `HOST:PORT`."""
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
    """Return the names of a workspace's agents."""
    with db.session() as session:
        of_workspace = DbRolloutServer.workspace_id == workspace_id
        return session.scalars(select(DbRolloutServer.name).where(of_workspace)).all()


def locate_server(db: Database, vault: Vault, workspace_id: str, agent: str) -> AgentAddress:
    """Return where an agent is now, with its key."""
    server = find_server(db, workspace_id, agent)
    if server is None:
        raise unregistered_agent(agent)
    key = vault.open(server.sealed, context=server_context(server.id)) if server.sealed is not None else None
    return AgentAddress(server.host, server.port, key.decode() if key is not None else None)


def server_context(server_id: str) -> str:
    """Return what the key of an agent is sealed for."""
    return f"rollout_servers:{server_id}"


def _server(session: Session, workspace_id: str, name: str) -> DbRolloutServer | None:
    if "\0" in name or len(name) > _LONGEST_NAME:
        return None
    named = (DbRolloutServer.workspace_id == workspace_id, DbRolloutServer.name == name)
    return session.scalar(select(DbRolloutServer).where(*named))


def _require_room(session: Session, workspace_id: str) -> None:
    of_workspace = DbRolloutServer.workspace_id == workspace_id
    if (
        session.scalar(select(func.count()).select_from(DbRolloutServer).where(of_workspace)) or 0
    ) >= MAX_SERVERS:
        raise ConflictError(
            f"this workspace has {MAX_SERVERS} registered agents, and may have no more.",
            hint="remove what is not served any more: osmosis rollout server remove NAME",
        )


def _note(server: DbRolloutServer, health: HealthCheckResult, clock: Clock) -> None:
    server.status = "healthy" if health.error is None else "unhealthy"
    server.error = health.error
    server.probed_at = clock.now()


def _check_name(name: str) -> None:
    if not name.strip() or name != name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise OsmosisError(
            f"the name of a served agent must be printable, without spaces around it, and of {_LONGEST_NAME} "
            "characters at most."
        )


def _check_key(api_key: str | None) -> None:
    if api_key is None:
        return
    if not api_key or len(api_key) > _LONGEST_KEY or not (api_key.isascii() and api_key.isprintable()):
        raise OsmosisError(
            f"the key of a served agent must be of 1 to {_LONGEST_KEY} printable ASCII characters."
        )


def _name_of(user: DbUser | None) -> str | None:
    return (user.name or user.email) if user is not None else None
