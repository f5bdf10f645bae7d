"""Workers that wait for a reply: as coroutines, with no thread and no connection to the database between two looks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from anyio.to_thread import run_sync
from fastapi import FastAPI
from sqlalchemy.exc import DBAPIError

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.http.worker_limits import WorkerLimits
from osmosis_ai.platform.runs.desk.watching import Idler
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.viewer.live_routes import LiveServer

LOOK_EVERY_S = 0.25
_REVOKED_EVERY_S = 0.75
"""Whether tokens of those that wait were revoked, maybe by another process, is asked so often and no more."""
Asked = TypeVar("Asked")
Found = TypeVar("Found")


@dataclass(eq=False)
class _Held:
    run_id: str
    token: str
    bearer: str
    told: asyncio.Event = field(default_factory=asyncio.Event)
    is_followed: bool = False


@dataclass(eq=False)
class _Idle:
    idler: Idler
    token: str
    told: asyncio.Event = field(default_factory=asyncio.Event)


class WorkerWaits:
    """The workers that wait at one application."""

    def __init__(self, services: PlatformServices) -> None:
        self.services = services
        self._held: dict[str, _Held] = {}
        self._idle: list[_Idle] = []
        self._looking: asyncio.Task[None] | None = None
        self.limits = WorkerLimits(monotonic=services.clock.monotonic)
        self.is_closed = False

    def close(self) -> None:
        """End every wait, also those that would begin: the server stops."""
        self.is_closed = True
        waiting: list[_Held | _Idle] = [*self._held.values(), *self._idle]
        for each in waiting:
            each.told.set()

    def interrupt(self, run_id: str, token: str | None = None) -> None:
        """End the wait for a run, if there is one; ``token``: that of the worker which has something to say."""
        held = self._held.pop(run_id, None)
        if held is not None:
            held.is_followed = token == held.token
            held.told.set()

    async def for_news(
        self, run_id: str, token: str, within_s: float, bearer: str
    ) -> Literal["look", "followed", "full"]:
        """Wait until the owner of a run has to be told something, or ``within_s`` seconds (``look``)."""
        self.interrupt(run_id)
        if not self.limits.may_wait():
            return "full"
        held = self._held[run_id] = _Held(run_id, token, bearer)
        try:
            await self._until(held.told, within_s)
        finally:
            if self._held.get(run_id) is held:
                del self._held[run_id]
        return "followed" if held.is_followed else "look"

    async def for_run(self, idler: Idler, within_s: float, token: str) -> bool:
        """Wait until there may be a run for a worker, or its ``token`` (as it is kept) was revoked."""
        if not self.limits.may_wait(token):
            return False
        idle = _Idle(idler, token)
        self._idle.append(idle)
        try:
            await self._until(idle.told, within_s, token)
        finally:
            self._idle.remove(idle)
        return True

    async def _until(self, told: asyncio.Event, within_s: float, token: str = "") -> None:
        if self.is_closed:
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        self.limits.waits(token)
        try:
            await asyncio.wait_for(told.wait(), within_s)
        except asyncio.TimeoutError:
            return
        finally:
            self.limits.waits_no_more(token)

    async def _look(self) -> None:
        watch, time_s = self.services.desk.watch, asyncio.get_running_loop().time
        asked_at = time_s()
        while self._held or self._idle:
            holding, idle = list(self._held.values()), list(self._idle)
            held = {each.run_id: each.token for each in holding}
            changed: set[str] = set()
            served: list[Idler] = []
            revoked: set[str] = set()
            try:
                changed = await self._read(watch.changed, held)
                served = await self._read(watch.served, [each.idler for each in idle])
                if time_s() - asked_at >= _REVOKED_EVERY_S:
                    asked_at = time_s()
                    bearers = {*(each.token for each in idle), *(each.bearer for each in holding)}
                    revoked = await self._read(self.services.worker_access.revoked, bearers)
            except (OsmosisError, DBAPIError):
                pass  # the database does not answer, which the next look may find otherwise
            for run_id in changed.union(each.run_id for each in holding if each.bearer in revoked):
                self.interrupt(run_id)
            for each in idle:
                if each.token in revoked or any(each.idler is idler for idler in served):
                    each.told.set()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _read(self, look: Callable[[Asked], Found], asked: Asked) -> Found:
        # SQLite never makes a read wait; PostgreSQL is asked from a thread.
        with self.services.desk.silence.noticed_by_reading():
            return look(asked) if self.services.db.is_sqlite else await run_sync(look, asked)


class WaitingServer(LiveServer):
    """A server that ends waiting workers and streams at shutdown."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, waits first."""
        if isinstance(self.config.app, FastAPI):
            worker_waits(self.config.app).close()
        await super().shutdown(sockets)


def worker_waits(app: FastAPI) -> WorkerWaits:
    """Return what waits at ``app``."""
    found: WorkerWaits | None = getattr(app.state, "worker_waits", None)
    if found is None or found.services is not app.state.services:
        found = app.state.worker_waits = WorkerWaits(app.state.services)
    return found
