"""Serving models: who has which, and the servers that do it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from osmosis_ai.errors import NotFoundError, OsmosisError, reason_of
from osmosis_ai.inference.catalog import BUILT_IN_PREFIX, engine_of, served_models
from osmosis_ai.inference.process import InferenceServer
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbLoraModel
from osmosis_ai.platform.models import copy_adapter

if TYPE_CHECKING:
    import aiohttp


class ModelServerFactory:
    """Starts the server of a model."""

    def __init__(self, db: Database, blobs: BlobStore) -> None:
        self._db = db
        self._blobs = blobs

    async def __call__(self, model: ServableModel) -> InferenceServer:
        """Return the server of ``model``, which listens."""
        if model.adapter_id is None:
            server = InferenceServer(model.name)
            await server.start()
            return server
        with tempfile.TemporaryDirectory(prefix="osmosis-adapter-") as directory:
            adapter = Path(directory) / "adapter"
            base = await asyncio.to_thread(self._fetch, model, adapter)
            server = InferenceServer(base, engine=engine_of(base), adapter=adapter, served_as=model.name)
            await server.start()
        return server

    def _fetch(self, model: ServableModel, directory: Path) -> str:
        """Write an adapter's files; return the name of its base model."""
        with self._db.session() as session:
            adapter = session.get(DbLoraModel, model.adapter_id)
        if adapter is None:
            raise NotFoundError(f"the adapter of `{model.name}` is not there any more.")
        try:
            copy_adapter(self._blobs, adapter, directory)
        except OSError as error:
            raise OsmosisError(f"its files could not be fetched: {error.strerror or error}.") from error
        return adapter.base_model


logger = logging.getLogger(__name__)

MAX_REQUESTS = 128
MAX_REQUESTS_PER_KEY = MAX_REQUESTS // 2
REQUEST_TIMEOUT_S = 600.0
RESTART_AFTER_S = 10.0
"""How long a model that failed to start is left alone."""
MAX_ADAPTERS = 8
"""Processes of adapters at a time."""
ADAPTER_IDLE_S = 600.0
"""How long an adapter's process waits for its next request."""


@dataclass(frozen=True, slots=True)
class ServableModel:
    """A model that is served here."""

    name: str
    adapter_id: str | None = None


class ModelServer(Protocol):
    """A process that serves a model; :class:`~osmosis_ai.inference.process.InferenceServer` is one."""

    @property
    def base_url(self) -> str: ...

    api_key: str

    async def stop(self) -> None: ...


class ModelUnavailableError(OsmosisError):
    """A served model cannot answer now."""

    default_code = "PLATFORM_ERROR"


class TooManyRequestsError(OsmosisError):
    """All places are taken."""

    default_code = "RATE_LIMITED"


class ModelServerPool:
    """The served models of one platform; to be used from one event loop."""

    def __init__(self, start: Callable[[ServableModel], Awaitable[ModelServer]]) -> None:
        self.models: tuple[str, ...] = served_models()
        self.created = int(time.time())
        # Clients may drop the prefix.
        self._names = {
            name: ServableModel(model)
            for model in self.models
            for name in (model, model.removeprefix(BUILT_IN_PREFIX))
        }
        self._start = start
        self._servers: dict[ServableModel, asyncio.Task[ModelServer]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._requests: Counter[str] = Counter()
        self._in_use: Counter[ServableModel] = Counter()
        # Adapters that nobody is asking, the one asked longest ago first, and what will end each of them.
        self._idle: dict[ServableModel, asyncio.TimerHandle] = {}
        self._ends: set[asyncio.Task[None]] = set()
        # Adapters that are not to be served any more, but still are answering.
        self._withdrawn: set[ServableModel] = set()
        self._closed = False

    def find(self, name: str) -> ServableModel | None:
        """Return the built-in model that a client means by ``name``, or None."""
        return self._names.get(name)

    @contextlib.contextmanager
    def place(self, key_id: str, model: ServableModel) -> Iterator[None]:
        """Hold one of the places for requests, and the model's process, while the block lasts."""
        if self._requests.total() >= MAX_REQUESTS:
            raise TooManyRequestsError("too many requests at a time; try again in a moment.")
        if self._requests[key_id] >= MAX_REQUESTS_PER_KEY:
            raise TooManyRequestsError(
                f"this key has {MAX_REQUESTS_PER_KEY} requests under way, the most one key may have."
            )
        self._requests[key_id] += 1
        self._begin_use(model)
        try:
            yield
        finally:
            self._end_use(model)
            self._requests[key_id] -= 1
            if not self._requests[key_id]:
                del self._requests[key_id]

    async def post(self, model: ServableModel, path: str, body: bytes) -> aiohttp.ClientResponse:
        """Send a JSON body to the server of a model and return its reply, whose content is still to be read."""
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
                    f"`{model.name}` did not answer within {REQUEST_TIMEOUT_S:g} s."
                ) from None
            except (aiohttp.ClientConnectionError, OsmosisError) as error:
                logger.warning("the server of %s is gone (%s)", model.name, error)
                await self._discard(model, serving)
                if last_try:
                    raise ModelUnavailableError(f"`{model.name}` ended before it answered.") from error
        raise AssertionError("unreachable")

    def withdraw(self, adapter_id: str) -> None:
        """End the process of an adapter, once it has answered what it was asked; harmless when there is none."""
        for model in [model for model in self._servers if model.adapter_id == adapter_id]:
            if model in self._in_use:
                self._withdrawn.add(model)
            else:
                self._end(model)

    async def close(self) -> None:
        """Stop every server; nothing can be asked afterwards."""
        self._closed = True
        for timer in self._idle.values():
            timer.cancel()
        self._idle.clear()
        await asyncio.gather(*self._ends, return_exceptions=True)
        for model, serving in list(self._servers.items()):
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError, OsmosisError):
                await serving
            await self._discard(model, serving)
        if self._session is not None:
            await self._session.close()

    async def _serving(self, model: ServableModel) -> asyncio.Task[ModelServer]:
        """Return the task that starts the model's server; concurrent callers share it."""
        if self._closed:
            raise ModelUnavailableError("the platform is stopping.")
        serving = self._servers.get(model)
        if serving is None:
            self._make_room(model)
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
            raise ModelUnavailableError(f"`{model.name}` cannot be served: {error.message}") from error
        return serving

    async def _started(self, model: ServableModel) -> ModelServer:
        try:
            return await self._start(model)
        except Exception as error:  # reported to concurrent callers only
            start = asyncio.current_task()
            asyncio.get_running_loop().call_later(RESTART_AFTER_S, self._forget, model, start)
            if isinstance(error, OsmosisError):
                logger.error("%s", error.message)
                raise
            logger.exception("the server of %s was not started", model.name)
            raise ModelUnavailableError(f"its server was not started: {reason_of(error)}") from error

    def _forget(self, model: ServableModel, start: asyncio.Task[object] | None) -> None:
        """Let a model that failed to start be started again, unless that has happened."""
        if self._servers.get(model) is start:
            self._servers.pop(model, None)

    async def _discard(self, model: ServableModel, serving: asyncio.Task[ModelServer]) -> None:
        if self._servers.get(model) is serving:
            del self._servers[model]
        if not serving.cancelled() and serving.exception() is None:
            await serving.result().stop()

    # -- processes of adapters --------------------------------------------------------------------

    def _begin_use(self, model: ServableModel) -> None:
        self._in_use[model] += 1
        # Who is let in now asks an adapter that is deployed again.
        self._withdrawn.discard(model)
        if (timer := self._idle.pop(model, None)) is not None:
            timer.cancel()

    def _end_use(self, model: ServableModel) -> None:
        self._in_use[model] -= 1
        if self._in_use[model]:
            return
        del self._in_use[model]
        if model in self._withdrawn:
            self._withdrawn.discard(model)
            self._end(model)
        elif model.adapter_id is not None and model in self._servers:
            loop = asyncio.get_running_loop()
            self._idle[model] = loop.call_later(ADAPTER_IDLE_S, self._end, model)

    def _make_room(self, model: ServableModel) -> None:
        """See to it that there may be one more process, if it is to be an adapter's."""
        if (
            model.adapter_id is None
            or sum(one.adapter_id is not None for one in self._servers) < MAX_ADAPTERS
        ):
            return
        if not self._idle:
            raise ModelUnavailableError(
                f"{MAX_ADAPTERS} other adapters are answering requests, as many as this platform serves at a time; "
                "try again in a moment."
            )
        self._end(next(iter(self._idle)))

    def _end(self, model: ServableModel) -> None:
        if (timer := self._idle.pop(model, None)) is not None:
            timer.cancel()
        serving = self._servers.pop(model, None)
        if serving is not None:
            end = asyncio.ensure_future(self._discard(model, serving))
            self._ends.add(end)
            end.add_done_callback(self._ends.discard)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            from osmosis_ai.llm.transport import open_session

            self._session = open_session(timeout_s=REQUEST_TIMEOUT_S)
        return self._session
