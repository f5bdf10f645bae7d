"""Keeps a rollout's server running, so that an attempt meets either a live server or a clear end.

When the server dies, everything it was working on is lost with it; each of those attempts hears of it at
once, and another server is started. That ends when servers die one after the other without a single attempt
finishing in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from osmosis_ai.errors import OsmosisError, reason_of
from osmosis_ai.supervision import ServiceDiedError, ServiceError, open_server_session, server_url

if TYPE_CHECKING:
    import aiohttp
    from typing_extensions import Self

    from osmosis_ai.driving.driver import RolloutOutcome, RolloutRunRequest

SETTLE_LIMIT_S = 120.0
MAX_FAILED_STARTS = 4
"""How often in a row one server is started in vain, while others may get on."""

_POLL_S = 0.5
_STATUS_TIMEOUT_S = 5.0
_STILL_BUSY = frozenset({"queued", "running", "grading"})
# A dying server refuses connections a little before its end is noticed.
_DEATH_NOTICE_S = 1.0


class Driver(Protocol):
    """Runs rollouts on one server (:class:`osmosis_ai.driving.http_driver.HttpRolloutDriver`)."""

    async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
        """Run one rollout to its terminal result."""

    async def aclose(self) -> None:
        """Release what it holds."""


class KeptServer(Protocol):
    """What is kept running: a process of ours (:class:`osmosis_ai.driving.server_process.RolloutServer`), or
    an agent that is served elsewhere and waited for
    (:class:`osmosis_ai.driving.served_agent.ServedAgent`)."""

    @property
    def base_url(self) -> str:
        """Where it serves."""

    @property
    def capacity(self) -> int | None:
        """How many rollouts it runs at once, as far as it says."""

    async def start(self) -> None:
        """Have it ready."""

    async def stop(self) -> None:
        """Be done with it."""

    async def death(self) -> OsmosisError:
        """Wait until it is gone, and say why."""

    async def revive(self, note: Callable[[str], None]) -> bool:
        """Have it ready again."""

    def made_progress(self) -> None:
        """Note that it brought an attempt to its end."""


class AttemptLostError(Exception):
    """The attempt will never report back; nothing is known of its outcome."""

    def __init__(self, reason: str, *, death: OsmosisError | None) -> None:
        super().__init__(reason)
        self.death = death


class _Generation:
    """One life of the server: where it listened, its driver, and the rollouts under way on it."""

    def __init__(self, base_url: str, driver: Driver) -> None:
        self.base_url = base_url
        self.driver = driver
        self.rollouts: set[asyncio.Task[RolloutOutcome]] = set()
        self.died = asyncio.Event()
        self.death: OsmosisError | None = None


class RestartingRolloutServer:
    """Runs rollouts on a server that is started again when it dies; an async context manager, made on its
    event loop."""

    def __init__(
        self,
        server: KeptServer,
        *,
        connect: Callable[[str], Driver],
        note: Callable[[str], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.end: Exception | None = None
        self._changed = changed
        self._server = server
        self._connect = connect
        self._note = note
        self._ready: asyncio.Future[_Generation] = asyncio.get_running_loop().create_future()
        self._keeper: asyncio.Task[None] | None = None
        self._capacity: int | None = None

    @property
    def capacity(self) -> int | None:
        """How many rollouts the server runs at once, as far as it says."""
        return self._capacity

    @property
    def base_url(self) -> str | None:
        """Address of the server that runs now; None while there is none."""
        ready = self._ready
        if not ready.done() or ready.cancelled() or ready.exception() is not None:
            return None
        return ready.result().base_url

    @property
    def under_way(self) -> int:
        """How many rollouts are under way on the server that runs now."""
        return 0 if self.base_url is None else len(self._ready.result().rollouts)

    async def __aenter__(self) -> Self:
        """Start the first server, as :meth:`start`."""
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the first server."""
        try:
            await self._server.start()
        except OsmosisError as error:
            self.end = error
            raise
        self._capacity = self._server.capacity
        self._keeper = asyncio.create_task(self._keep(self._connected()))

    async def stop(self) -> None:
        """Stop the server for good."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        await self._server.stop()

    def attempt_finished(self) -> None:
        """Note that the present server brought an attempt to its end."""
        self._server.made_progress()

    async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
        """Run one rollout, waiting first while a server is being started."""
        import aiohttp

        generation = await asyncio.shield(self._ready)
        rollout = asyncio.create_task(generation.driver.run(request))
        generation.rollouts.add(rollout)
        try:
            return await rollout
        except asyncio.CancelledError:
            if generation.died.is_set() and rollout.cancelled():
                raise AttemptLostError("the rollout's server died", death=generation.death) from None
            raise
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            try:
                await asyncio.wait_for(generation.died.wait(), _DEATH_NOTICE_S)
            except asyncio.TimeoutError:
                reason = (
                    f"the rollout's server could not be reached: {reason_of(error) or type(error).__name__}"
                )
                raise AttemptLostError(reason, death=None) from None
            raise AttemptLostError("the rollout's server died", death=generation.death) from None
        finally:
            generation.rollouts.discard(rollout)

    async def wait_until_ended(
        self, rollout_ids: Collection[str], *, limit_s: float = SETTLE_LIMIT_S
    ) -> frozenset[str]:
        """Wait until the server has let go of cancelled rollouts; return those that it still has after
        ``limit_s``."""
        busy = set(rollout_ids)
        deadline = time.monotonic() + limit_s
        while True:
            busy = await _still_busy(self.base_url, busy) if self.base_url is not None else set()
            if not busy or time.monotonic() >= deadline:
                return frozenset(busy)
            await asyncio.sleep(_POLL_S)

    def _connected(self) -> _Generation:
        generation = _Generation(self._server.base_url, self._connect(self._server.base_url))
        self._ready.set_result(generation)
        self._changed()
        return generation

    async def _keep(self, generation: _Generation) -> None:
        """Start the server again when it dies, until cancelled or until it is no use."""
        try:
            while True:
                cause = await self._server.death()
                self._lose(generation, cause)
                await self._release(generation)
                await self._revive()
                generation = self._connected()
        except Exception as error:
            # Attempts that wait for a server, now or later, get the reason.
            self.end = error
            if not self._ready.done():
                self._ready.set_exception(error)
                self._ready.exception()
            self._changed()
        finally:
            await self._release(generation)

    async def _revive(self) -> None:
        """Start the server again; one that ends before it is healthy counts as one more that died."""
        for start in range(1, MAX_FAILED_STARTS + 1):
            try:
                await self._server.revive(self._note)
                return
            except ServiceDiedError as error:
                error.hint = (
                    "no attempt has finished in between. Mend the rollout, then start the run again: "
                    "what is finished is kept"
                )
                raise
            except ServiceError:
                if start == MAX_FAILED_STARTS:
                    raise

    def _lose(self, generation: _Generation, cause: OsmosisError) -> None:
        self._ready = asyncio.get_running_loop().create_future()
        generation.death = cause
        generation.died.set()
        for rollout in generation.rollouts:
            rollout.cancel()
        self._changed()

    async def _release(self, generation: _Generation) -> None:
        rollouts = tuple(generation.rollouts)
        for rollout in rollouts:
            rollout.cancel()
        await asyncio.gather(*rollouts, return_exceptions=True)
        await generation.driver.aclose()


async def _still_busy(base_url: str, rollout_ids: Collection[str]) -> set[str]:
    async with open_server_session(base_url, timeout_s=_STATUS_TIMEOUT_S) as http:
        return {rollout_id for rollout_id in rollout_ids if await _is_busy(http, base_url, rollout_id)}


async def _is_busy(http: aiohttp.ClientSession, base_url: str, rollout_id: str) -> bool:
    """Tell whether a rollout is under way; one whose status cannot be read may well be."""
    import aiohttp

    try:
        path = f"/rollout/{quote(rollout_id, safe='')}/status"
        async with http.get(server_url(base_url, path)) as reply:
            if reply.status != 200:
                return reply.status >= 500
            body = await reply.json(content_type=None)
    except aiohttp.ClientConnectorError:
        return False  # nobody is there any more
    except (aiohttp.ClientError, asyncio.TimeoutError, ValueError):
        return True
    return isinstance(body, dict) and body.get("status") in _STILL_BUSY
