"""Adapters of a workspace (the deployable checkpoints of its training runs), and the servers of models.

A deployed adapter is served until it is undeployed. At most :data:`MAX_ACTIVE_DEPLOYMENTS` of a workspace are deployed
at a time, even with concurrent requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from osmosis_ai.api.models.models import ModelFile
from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError, reason_of
from osmosis_ai.inference.catalog import BUILT_IN_PREFIX, served_models
from osmosis_ai.inference.process import InferenceServer
from osmosis_ai.inference.protocol import OpenAIError
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.keyset import PagedRows
from osmosis_ai.platform.db.tables import DbLoraModel, DbMembership, DbUser, DbWorkspace
from osmosis_ai.platform.workspaces import row_named
from osmosis_ai.viewer.source import ItemPage

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)

MAX_ACTIVE_DEPLOYMENTS = 8
"""Per workspace: each served adapter holds memory."""
LINK_TTL = timedelta(hours=1)
"""How long the URLs of an adapter's files are valid."""
MAX_REQUESTS = 128
MAX_REQUESTS_PER_KEY = MAX_REQUESTS // 2
REQUEST_TIMEOUT_S = 600.0
RESTART_AFTER_S = 10.0
"""How long after a failed start a model is started again."""
MAX_ADAPTERS = 8
"""Maximum number of adapter processes."""
ADAPTER_IDLE_S = 600.0
"""How long an adapter's process waits for its next request."""
_NEWEST_FIRST: PagedRows[DbLoraModel] = PagedRows.newest(DbLoraModel)


class LoraModelStore:
    def __init__(self, db: Database, blobs: BlobStore, clock: Clock) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock

    def page(
        self, workspace_id: str, *, limit: int, offset: int | None = None, cursor: str | None = None
    ) -> ItemPage[DbLoraModel]:
        """Return a page of a workspace's adapters, the newest first, and how many are ``deployed``."""
        mine = {"workspace_id": workspace_id}
        with self._db.session() as session:
            found = _NEWEST_FIRST.page(session, mine, limit=limit, offset=offset, cursor=cursor)
            return replace(found, counts={**found.counts, "deployed": _active(session, workspace_id)})

    def get(self, workspace_id: str, name: str) -> DbLoraModel:
        with self._db.session() as session:
            return _get(session, workspace_id, name)

    def of_run(self, run_id: str) -> Sequence[DbLoraModel]:
        """Return the adapters of a run, the earliest first."""
        saved = select(DbLoraModel).where(DbLoraModel.run_id == run_id).order_by(DbLoraModel.step)
        return self._db.scalars(saved)

    def files(self, model: DbLoraModel) -> list[ModelFile]:
        """Return an adapter's files by name, each with a URL that is valid for :data:`LINK_TTL`."""
        return [
            ModelFile(
                **known,
                path=name,
                url=self._blobs.signed_get_url(known["blob_key"], filename=name, ttl=LINK_TTL),
            )
            for name, known in sorted(model.files.items())
        ]

    def deployed(
        self, user_id: str, workspace_id: str | None, name: str | None = None
    ) -> Sequence[DbLoraModel]:
        """Return the deployed adapters that a user may use, the latest deployed first."""
        of_user = and_(DbMembership.workspace_id == DbLoraModel.workspace_id, DbMembership.user_id == user_id)
        active = DbLoraModel.deployment_status == "active"
        query = select(DbLoraModel).join(DbMembership, of_user).where(active)
        if workspace_id is not None:
            query = query.where(DbLoraModel.workspace_id == workspace_id)
        if name is not None:
            base, _, adapter = name.rpartition(":")
            query = query.where(DbLoraModel.name == adapter, DbLoraModel.base_model == base)
        return self._db.scalars(query.order_by(DbLoraModel.deployed_at.desc(), DbLoraModel.id))

    def deployers(self, workspace_id: str) -> dict[str, str | None]:
        """Return who deployed each deployed adapter, by the adapter's name."""
        active = (DbLoraModel.workspace_id == workspace_id, DbLoraModel.deployment_status == "active")
        found = self._db.rows(select(DbLoraModel.name, DbLoraModel.deployer_id).where(*active))
        return {row.name: row.deployer_id for row in found}

    def deploy(self, workspace_id: str, name: str, user: DbUser) -> DbLoraModel:
        """Deploy an adapter; harmless if it is deployed already."""
        with self._db.transaction() as session:
            # Two deployments at once, on an engine with several writers, must not both be the last one allowed.
            session.get_one(DbWorkspace, workspace_id, with_for_update=True)
            model = _get(session, workspace_id, name)
            if model.deployment_status == "active":
                return model
            if _active(session, workspace_id) >= MAX_ACTIVE_DEPLOYMENTS:
                raise ConflictError(
                    f"the workspace has {MAX_ACTIVE_DEPLOYMENTS} deployed models, which is the maximum; undeploy one "
                    "first with `osmosis model undeploy NAME`.",
                    details={"field": "loraName"},
                )
            model.deployment_status = "active"
            model.deployed_at = self._clock.now()
            model.deployer_id = user.id
            return model

    def undeploy(self, workspace_id: str, name: str) -> DbLoraModel:
        """Undeploy an adapter; harmless if it is not deployed."""
        with self._db.transaction() as session:
            model = _get(session, workspace_id, name)
            if model.deployment_status == "active":
                model.deployment_status = "inactive"
            return model


def adapter_size(model: DbLoraModel) -> int | None:
    """Return the total size of an adapter's files in bytes; None without files."""
    return sum(int(known["size"]) for known in model.files.values()) if model.files else None


def _get(session: Session, workspace_id: str, name: str) -> DbLoraModel:
    mine = select(DbLoraModel).where(DbLoraModel.workspace_id == workspace_id)
    see = "see `osmosis model list`"
    found: DbLoraModel = row_named(session, mine, DbLoraModel, name, called="LoRA model", otherwise=see)[0]
    return found


def _active(session: Session, workspace_id: str) -> int:
    deployed = (DbLoraModel.workspace_id == workspace_id, DbLoraModel.deployment_status == "active")
    return session.scalar(select(func.count()).select_from(DbLoraModel).where(*deployed)) or 0


def find_adapter(db: Database, workspace_id: str, model_path: str) -> DbLoraModel | None:
    """Return the adapter of a workspace that ``model_path`` names, if any."""
    base, colon, name = model_path.rpartition(":")
    if not colon:
        return None
    mine = DbLoraModel.workspace_id == workspace_id
    named = (DbLoraModel.name == name, DbLoraModel.base_model == base)
    return db.scalar(select(DbLoraModel).where(mine, *named))


# -- serving -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServableModel:
    name: str
    adapter_id: str | None = None


class ModelUnavailableError(OpenAIError):
    def __init__(self, message: str) -> None:
        super().__init__(503, message, type="server_error", code="model_unavailable", retry_after_s=10)


class TooManyRequestsError(OpenAIError):
    def __init__(self, message: str) -> None:
        super().__init__(429, message, type="rate_limit_error", code="rate_limit_exceeded", retry_after_s=1)


async def start_model_server(db: Database, blobs: BlobStore, model: ServableModel) -> InferenceServer:
    if model.adapter_id is None:
        server = InferenceServer(model.name)
        await server.start()
        return server
    with tempfile.TemporaryDirectory(prefix="osmosis-adapter-") as directory:
        files = Path(directory) / "adapter"
        base_model = await asyncio.to_thread(_fetch_adapter, db, blobs, model, files)
        server = InferenceServer(base_model, adapter=files, served_as=model.name)
        await server.start()
    return server


def _fetch_adapter(db: Database, blobs: BlobStore, model: ServableModel, directory: Path) -> str:
    """Write an adapter's files; return the name of its base model."""
    adapter = db.get(DbLoraModel, model.adapter_id)
    if adapter is None:
        raise NotFoundError(f"the adapter of `{model.name}` was deleted.")
    try:
        directory.mkdir(parents=True, mode=0o700)
        for name, known in adapter.files.items():
            with blobs.open(known["blob_key"]) as source, (directory / name).open("wb") as target:
                shutil.copyfileobj(source, target)
            if file_digest(directory / name) != known["sha256"]:
                raise OsmosisError(
                    f"the stored file {name} of the adapter '{adapter.name}' is damaged: its SHA-256 has changed.",
                    code="PLATFORM_ERROR",
                    hint="use another checkpoint of its run, or train it again",
                )
    except OSError as error:
        raise OsmosisError(f"its files could not be fetched: {error.strerror or error}.") from error
    return adapter.base_model


class ModelServerPool:
    """The servers of one platform's models; to be used from one event loop."""

    def __init__(self, start: Callable[[ServableModel], Awaitable[InferenceServer]]) -> None:
        self.models: tuple[str, ...] = served_models()
        self.created = int(time.time())
        # Clients may drop the prefix.
        self._names = {
            name: ServableModel(model)
            for model in self.models
            for name in (model, model.removeprefix(BUILT_IN_PREFIX))
        }
        self._start = start
        self._servers: dict[ServableModel, asyncio.Task[InferenceServer]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._requests: Counter[str] = Counter()
        self._in_use: Counter[ServableModel] = Counter()
        # Unused adapters, least recently used first, with the timers that end them.
        self._idle: dict[ServableModel, asyncio.TimerHandle] = {}
        self._ends: set[asyncio.Task[None]] = set()
        # Undeployed adapters that are still answering.
        self._withdrawn: set[ServableModel] = set()
        self._closed = False

    def find(self, name: str) -> ServableModel | None:
        return self._names.get(name)

    @contextlib.contextmanager
    def place(self, key_id: str, model: ServableModel) -> Iterator[None]:
        """Count a request, and keep the model's process, while the block lasts."""
        if self._requests.total() >= MAX_REQUESTS:
            raise TooManyRequestsError("too many concurrent requests; try again in a moment.")
        if self._requests[key_id] >= MAX_REQUESTS_PER_KEY:
            raise TooManyRequestsError(
                f"this key has {MAX_REQUESTS_PER_KEY} concurrent requests, which is the maximum."
            )
        self._requests[key_id] += 1
        self._in_use[model] += 1
        # A new request means that the adapter was deployed again.
        self._withdrawn.discard(model)
        if (timer := self._idle.pop(model, None)) is not None:
            timer.cancel()
        try:
            yield
        finally:
            self._end_use(model)
            self._requests[key_id] -= 1
            if not self._requests[key_id]:
                del self._requests[key_id]

    async def post(self, model: ServableModel, path: str, body: bytes) -> aiohttp.ClientResponse:
        """Send a JSON body to the server of a model and return its reply, whose content is not read yet."""
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
        """End the process of an adapter after its current requests; harmless without a process."""
        for model in [model for model in self._servers if model.adapter_id == adapter_id]:
            if model in self._in_use:
                self._withdrawn.add(model)
            else:
                self._end(model)

    async def close(self) -> None:
        """Stop every server; later requests are refused."""
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

    async def _serving(self, model: ServableModel) -> asyncio.Task[InferenceServer]:
        """Return the task that starts the model's server; concurrent callers share it."""
        if self._closed:
            raise ModelUnavailableError("the platform is stopping.")
        serving = self._servers.get(model)
        if serving is None:
            self._make_room(model)
            serving = asyncio.create_task(self._started(model))
            self._servers[model] = serving
        try:
            # The first caller may be cancelled; the others still need the server.
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            if not serving.cancelled():
                raise
            raise ModelUnavailableError("the platform is stopping.") from None
        except OsmosisError as error:
            raise ModelUnavailableError(f"`{model.name}` cannot be served: {error.message}") from error
        return serving

    async def _started(self, model: ServableModel) -> InferenceServer:
        try:
            return await self._start(model)
        except Exception as error:  # reported to concurrent callers only
            start = asyncio.current_task()

            def allow_restart() -> None:
                if self._servers.get(model) is start:
                    self._servers.pop(model, None)

            asyncio.get_running_loop().call_later(RESTART_AFTER_S, allow_restart)
            if isinstance(error, OsmosisError):
                logger.error("%s", error.message)
                raise
            logger.exception("the server of %s was not started", model.name)
            raise OsmosisError(f"its server was not started: {reason_of(error)}") from error

    async def _discard(self, model: ServableModel, serving: asyncio.Task[InferenceServer]) -> None:
        if self._servers.get(model) is serving:
            del self._servers[model]
        if not serving.cancelled() and serving.exception() is None:
            await serving.result().stop()

    # -- processes of adapters --------------------------------------------------------------------

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
        adapters = sum(one.adapter_id is not None for one in self._servers)
        if model.adapter_id is None or adapters < MAX_ADAPTERS:
            return
        if not self._idle:
            raise ModelUnavailableError(
                f"{MAX_ADAPTERS} other adapters are answering requests, which is the maximum; try again in a moment."
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
