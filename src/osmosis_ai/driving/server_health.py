"""How late a rollout's server is: what its ``/health`` says, or else how long it took to say anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from osmosis_ai.event_loop import LATE_S, LoopState
from osmosis_ai.supervision import open_server_session, server_url

if TYPE_CHECKING:
    import aiohttp

ANSWER_TIMEOUT_S = 5.0


class ServerHealth:
    """Asks rollout servers how their event loops do, one question at a time."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._address: str | None = None
        self._asked_at: float | None = None
        self._last, self._heard_at = LoopState(0.0), clock()

    @property
    def state(self) -> LoopState:
        """The latest answer; while the next one is due, how long it has been so."""
        waited_s = 0.0 if self._asked_at is None else self._clock() - self._asked_at
        if waited_s >= max(LATE_S, self._last.lag_s):
            return LoopState(waited_s, self._last.busy, 0.0)
        if self._last.late_ago_s is None:
            return self._last
        return replace(self._last, late_ago_s=self._last.late_ago_s + self._clock() - self._heard_at)

    async def ask(self, base_url: str) -> LoopState:
        """Ask the server at ``base_url``. One that does not answer at all is as late as it was waited for."""
        import aiohttp

        if self._session is None or self._address != base_url:
            await self.aclose()
            self._session, self._address = open_server_session(base_url, timeout_s=ANSWER_TIMEOUT_S), base_url
        asked_at = self._asked_at = self._clock()
        told: Any = None
        try:
            async with self._session.get(server_url(base_url, "/health")) as reply:
                body = await reply.json(content_type=None)
                told = body.get("event_loop") if isinstance(body, Mapping) else None
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError):
            pass
        finally:
            self._asked_at = None
        self._heard_at = self._clock()
        self._last = _state(told, waited_s=self._heard_at - asked_at)
        return self._last

    async def aclose(self) -> None:
        """Close the connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _state(told: Any, *, waited_s: float) -> LoopState:
    late_ago_s = 0.0 if waited_s >= LATE_S else None
    if not isinstance(told, Mapping):
        # A server of another SDK says nothing of itself.
        return LoopState(waited_s, 0.0, late_ago_s)
    ago_ms = _number(told.get("late_ago_ms"))
    if late_ago_s is None and ago_ms is not None:
        late_ago_s = ago_ms / 1000
    lag_ms, busy = _number(told.get("lag_ms")), _number(told.get("busy"))
    return LoopState((lag_ms or 0.0) / 1000, busy or 0.0, late_ago_s)


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and value >= 0 else None
