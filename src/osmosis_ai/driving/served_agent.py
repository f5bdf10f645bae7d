"""An agent that is served elsewhere: asked how it does, noticed when it goes away, and waited for.

Nobody here starts or stops it. It counts as gone when it does not answer several times in a row, refuses the key, or
runs fewer rollouts than it was given and has not finished, as one does that was started again in between: the rollouts
it had are lost with it then, and made again once it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from osmosis_ai.driving.agent_address import AgentAddress, AgentAddressError, open_agent_session
from osmosis_ai.driving.callback_server import CallbackAddress
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.llm.transport import connection_failure, is_loopback

if TYPE_CHECKING:
    import aiohttp

PROBE_TIMEOUT_S = 5.0
MAX_REPLY_BYTES = 1024 * 1024
POLL_S = 2.0
_QUICK_POLL_S = 0.2
_MISSES = 3
RETURN_LIMIT_S = 120.0
MAX_DEATHS = 5
_HEALTH_TEXTS = ("status", "agent_loop")
_HEALTH_COUNTS = ("active_rollouts", "completed_rollouts")


class ServedAgentError(OsmosisError):
    """A served agent cannot be used, or is gone."""

    default_code = "NETWORK"
    is_infrastructure = True


@dataclass(frozen=True)
class AgentLocation:
    """Where a served agent is, and the key that it asks for; None for one that asks for none."""

    address: AgentAddress
    api_key: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """What every request to it carries."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


@dataclass(frozen=True)
class AgentHealth:
    """What a served agent said of itself, or why it said nothing of use; one of both."""

    info: dict[str, Any] | None = None
    error: str | None = None


async def probe_agent(http: aiohttp.ClientSession, location: AgentLocation) -> AgentHealth:
    """Ask a served agent how it does; redirects are not followed, and time and size of the reply are bounded."""
    status, health = await _ask(http, location, "/platform/health")
    if status == 404 and location.api_key is None:
        # It asks nobody for a key, and tells everybody.
        _, health = await _ask(http, location, "/health")
    return health


async def _ask(
    http: aiohttp.ClientSession, location: AgentLocation, path: str
) -> tuple[int | None, AgentHealth]:
    """Return the status of the answer, None where there was none, and what it says."""
    import aiohttp

    try:
        async with http.get(
            location.address.base_url + path,
            headers=location.headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S),
        ) as reply:
            body = await read_bounded(reply)
            if reply.status != 200:
                return reply.status, AgentHealth(error=_refusal(reply.status, path, location))
            return reply.status, _read(body)
    except asyncio.TimeoutError:
        return None, AgentHealth(error=f"it did not answer `GET {path}` within {PROBE_TIMEOUT_S:g} s")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return None, AgentHealth(error=connection_failure(error))


async def read_bounded(reply: aiohttp.ClientResponse) -> bytes:
    """Return a reply's bytes."""
    pieces, size = [], 0
    async for piece in reply.content.iter_any():
        size += len(piece)
        if size > MAX_REPLY_BYTES:
            raise ValueError(f"its reply is larger than {MAX_REPLY_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


class ServedAgent:
    """A served agent, as :class:`~osmosis_ai.driving.restarting_server.RestartingRolloutServer` keeps a
    server."""

    capacity: int | None = None

    def __init__(
        self,
        locate: Callable[[], AgentLocation],
        *,
        name: str,
        callback_address: CallbackAddress | None = None,
        artifact_root: Path | None = None,
        hint: str = "start it with `osmosis serve`, then try again",
        poll_s: float = POLL_S,
        return_limit_s: float = RETURN_LIMIT_S,
    ) -> None:
        self.name = name
        self.callback_address = callback_address or CallbackAddress()
        self.artifact_root = artifact_root
        self._hint = hint
        self.admitted: set[str] = set()
        self._locate = locate
        self._poll_s = poll_s
        self._return_limit_s = return_limit_s
        self._location: AgentLocation | None = None
        self._http: aiohttp.ClientSession | None = None
        self._suspected = asyncio.Event()
        self._deaths = 0
        self._last: str = ""

    @property
    def location(self) -> AgentLocation:
        """Where it was last found."""
        if self._location is None:
            raise RuntimeError(f"{self.name} was not looked for yet")
        return self._location

    @property
    def base_url(self) -> str:
        """Where it serves."""
        return self.location.address.base_url

    async def start(self) -> None:
        """Find it, and make sure that it answers."""
        self._http = open_agent_session(timeout_s=PROBE_TIMEOUT_S)
        try:
            health = await self._look()
            if health.error is not None:
                raise ServedAgentError(f"{self.name} cannot be used: {health.error}.", hint=self._hint)
            if not await self._can_call_back():
                raise ServedAgentError(
                    f"{self.name} is on another machine, and would look for the model on its own loopback.",
                    hint="set OSMOSIS_BRIDGE_HOST to the name or address that this machine has there",
                    code="VALIDATION",
                )
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Ask it no more; the agent itself goes on."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    def made_progress(self) -> None:
        """Note that it brought a rollout to its end."""
        self._deaths = 0

    def suspect(self) -> None:
        """Look at it now: somebody could not reach it."""
        self._suspected.set()

    async def death(self) -> OsmosisError:
        """Wait until it is gone, and say why it is thought to be."""
        misses = forgotten = 0
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                pause_s = _QUICK_POLL_S if misses else self._poll_s
                await asyncio.wait_for(self._suspected.wait(), pause_s)
            self._suspected.clear()
            known = set(self.admitted)
            health = await self._probe()
            misses = misses + 1 if health.error is not None else 0
            forgotten = forgotten + 1 if _has_forgotten(health, known & self.admitted) else 0
            if misses >= _MISSES or forgotten >= _MISSES:
                self._last = health.error or "it does not know its rollouts any more: it was started again"
                return ServedAgentError(f"{self.name} is gone: {self._last}.")

    async def revive(self, note: Callable[[str], None]) -> bool:
        """Wait until it is back."""
        self._deaths += 1
        if self._deaths > MAX_DEATHS:
            raise self._given_up(f"went away {self._deaths} times without finishing a rollout in between")
        note(f"{self.name} is gone: {self._last}. Waiting for it, {self._return_limit_s:g} s at most.")
        deadline = time.monotonic() + self._return_limit_s
        while (health := await self._look()).error is not None:
            if time.monotonic() >= deadline:
                raise self._given_up(f"did not come back within {self._return_limit_s:g} s: {health.error}")
            await asyncio.sleep(min(1.0, self._poll_s))
        return True

    async def _can_call_back(self) -> bool:
        if not is_loopback(self.callback_address.host):
            return True
        address = self.location.address
        return await asyncio.to_thread(lambda: address.is_here)

    async def _look(self) -> AgentHealth:
        """Find it anew, and ask it."""
        try:
            self._location = await asyncio.to_thread(self._locate)
        except AgentAddressError as error:
            return AgentHealth(error=error.message.rstrip("."))
        return await self._probe()

    async def _probe(self) -> AgentHealth:
        if self._http is None:
            return AgentHealth(error="nobody asks it any more")
        return await probe_agent(self._http, self.location)

    def _given_up(self, said: str) -> ServedAgentError:
        return ServedAgentError(
            f"{self.name} {said}.", hint="start it again, then start the run again: what is finished is kept"
        )


def _has_forgotten(health: AgentHealth, under_way: set[str]) -> bool:
    """Whether it runs fewer rollouts than it has accepted, all of which were under way when it was asked."""
    active = (health.info or {}).get("active_rollouts")
    return active is not None and active < len(under_way)


def _refusal(status: int, path: str, location: AgentLocation) -> str:
    if status == 401:
        return (
            f"it {'refuses the key' if location.api_key else 'asks for a key, and there is none'} (HTTP 401)"
        )
    if 300 <= status < 400:
        return f"it answers `GET {path}` with a redirect (HTTP {status}), which is not followed"
    if status == 404 and path != "/health":
        return f"it has no `{path}` (HTTP 404): it is no served agent, or was started without a key"
    return f"it answers `GET {path}` with HTTP {status}"


def _read(body: bytes) -> AgentHealth:
    try:
        told = orjson.loads(body)
    except ValueError:
        told = None
    if not isinstance(told, dict) or told.get("status") != "healthy":
        return AgentHealth(error="its answer is not that of a served agent in good health")
    info: dict[str, Any] = {name: told[name][:256] for name in _HEALTH_TEXTS if type(told.get(name)) is str}
    info |= {name: told[name] for name in _HEALTH_COUNTS if type(told.get(name)) is int and told[name] >= 0}
    return AgentHealth(info)


def not_registered(name: str) -> NotFoundError:
    """Return the error of a name that no agent has."""
    return NotFoundError(
        f"no served agent '{name[:255]}' is registered in this workspace.",
        hint="`osmosis serve` registers the agent that it serves; `osmosis rollout server list` shows all",
    )
