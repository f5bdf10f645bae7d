"""The models this platform serves itself: each one process, started when it is first asked for.

A process that has died is replaced at the next request, which does not notice. One that cannot start is not
tried again at once: meanwhile every request gets the reason. Only so many requests are let in at a time;
one key can hold half of the places, so that no other is shut out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.catalog import built_in_model, served_models
from osmosis_ai.inference.process import InferenceServer

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)

MAX_REQUESTS = 128
MAX_REQUESTS_PER_KEY = MAX_REQUESTS // 2
REQUEST_TIMEOUT_S = 600.0
RESTART_AFTER_S = 10.0
"""How long a model that failed to start is left alone."""


class ModelServer(Protocol):
    """A process that serves a model; :class:`~osmosis_ai.inference.process.InferenceServer` is one."""

    @property
    def base_url(self) -> str: ...

    api_key: str

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class ModelUnavailableError(OsmosisError):
    """A served model cannot answer now."""

    default_code = "PLATFORM_ERROR"


class TooManyRequestsError(OsmosisError):
    """All places are taken."""

    default_code = "RATE_LIMITED"


class ServedModels:
    """The served models of one platform; to be used from one event loop.

    Args:
        start: makes the server of a model.
    """

    def __init__(self, start: Callable[[str], ModelServer] = InferenceServer) -> None:
        self.models: tuple[str, ...] = served_models()
        self.created = int(time.time())
        self._names = {name: model for model in self.models for name in built_in_model(model).names}
        self._start = start
        self._servers: dict[str, asyncio.Task[ModelServer]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._requests: Counter[str] = Counter()
        self._closed = False

    def find(self, name: str) -> str | None:
        """Return the model that a client means by ``name``, or None."""
        return self._names.get(name)

    @contextlib.contextmanager
    def place(self, key_id: str) -> Iterator[None]:
        """Hold one of the places for requests while the block lasts.

        Args:
            key_id: whose request it is.

        Raises:
            TooManyRequestsError: all are taken, or too many by this key.
        """
        if self._requests.total() >= MAX_REQUESTS:
            raise TooManyRequestsError("too many requests at a time; try again in a moment.")
        if self._requests[key_id] >= MAX_REQUESTS_PER_KEY:
            raise TooManyRequestsError(
                f"this key has {MAX_REQUESTS_PER_KEY} requests under way, the most one key may have."
            )
        self._requests[key_id] += 1
        try:
            yield
        finally:
            self._requests[key_id] -= 1
            if not self._requests[key_id]:
                del self._requests[key_id]

    async def post(self, model: str, path: str, body: bytes) -> aiohttp.ClientResponse:
        """Send a JSON body to the server of a model and return its reply, whose content is still to be read.

        Args:
            model: one of :attr:`models`.
            path: below its base URL, such as ``/chat/completions``.
            body: the encoded body.

        Raises:
            ModelUnavailableError: the model does not start, or died twice over this request.
        """
        import aiohttp

        for last_try in (False, True):
            serving = await self._serving(model)
            server = serving.result()
            try:
                return await self._open_session().post(
                    f"{server.base_url}{path}",
                    data=body,
                    headers={"Authorization": f"Bearer {server.api_key}", "Content-Type": "application/json"},
                )
            except asyncio.TimeoutError:
                raise ModelUnavailableError(
                    f"`{model}` did not answer within {REQUEST_TIMEOUT_S:g} s."
                ) from None
            except (aiohttp.ClientConnectionError, OsmosisError) as error:
                logger.warning("the server of %s is gone (%s)", model, error)
                await self._discard(model, serving)
                if last_try:
                    raise ModelUnavailableError(f"`{model}` ended before it answered.") from error
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Stop every server; nothing can be asked afterwards."""
        self._closed = True
        for model, serving in list(self._servers.items()):
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError, OsmosisError):
                await serving
            await self._discard(model, serving)
        if self._session is not None:
            await self._session.close()

    async def _serving(self, model: str) -> asyncio.Task[ModelServer]:
        """Return the finished start of the model's server; whoever comes while it starts waits for the same."""
        if self._closed:
            raise ModelUnavailableError("the platform is stopping.")
        serving = self._servers.get(model)
        if serving is None:
            serving = asyncio.create_task(self._started(model))
            self._servers[model] = serving
        try:
            # Who asked first may go away; the others still want the server.
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            if not serving.cancelled():
                raise
            raise ModelUnavailableError("the platform is stopping.") from None
        except OsmosisError as error:
            raise ModelUnavailableError(f"`{model}` cannot be served: {error.message}") from error
        return serving

    async def _started(self, model: str) -> ModelServer:
        server = self._start(model)
        try:
            await server.start()
        except OsmosisError as error:
            logger.error("%s", error.message)
            asyncio.get_running_loop().call_later(RESTART_AFTER_S, self._servers.pop, model, None)
            raise
        return server

    async def _discard(self, model: str, serving: asyncio.Task[ModelServer]) -> None:
        if self._servers.get(model) is serving:
            del self._servers[model]
        if not serving.cancelled() and serving.exception() is None:
            await serving.result().stop()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            from osmosis_ai.llm.transport import open_session

            self._session = open_session(timeout_s=REQUEST_TIMEOUT_S)
        return self._session
