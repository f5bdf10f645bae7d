"""The processes behind the served models: a built-in model's, or an adapter's on its base model.

An adapter's files are fetched when its process starts, and are gone once it has read them: the process holds the
merged weights, and the blobs stay the only copy.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.inference.catalog import engine_of
from osmosis_ai.inference.process import InferenceServer
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import LoraModel
from osmosis_ai.platform.model_serving import ModelServer, ServedModel
from osmosis_ai.platform.models import copy_adapter


class ModelServers:
    """Makes the server of a model; nothing runs before it is started.

    Args:
        db, blobs: where adapters are known and kept.
    """

    def __init__(self, db: Database, blobs: BlobStore) -> None:
        self._db = db
        self._blobs = blobs

    def __call__(self, model: ServedModel) -> ModelServer:
        """Return the server of ``model``."""
        if model.adapter_id is None:
            return InferenceServer(model.name)
        return AdapterServer(model, model.adapter_id, self._db, self._blobs)


class AdapterServer:
    """A process that serves an adapter, merged into its base model.

    Args:
        model: how requests call it.
        adapter_id: which adapter it is.
        db, blobs: where it is known and kept.

    Attributes:
        api_key: the key that the process answers to; empty until it was started.
    """

    def __init__(self, model: ServedModel, adapter_id: str, db: Database, blobs: BlobStore) -> None:
        self.api_key = ""
        self._name = model.name
        self._adapter_id = adapter_id
        self._db = db
        self._blobs = blobs
        self._server: InferenceServer | None = None

    @property
    def base_url(self) -> str:
        """Where it listens.

        Raises:
            OsmosisError: it was not started.
        """
        if self._server is None:
            raise OsmosisError(f"the server of `{self._name}` is not running.", code="INTERNAL")
        return self._server.base_url

    async def start(self) -> None:
        """Start the process and wait until it listens.

        Raises:
            OsmosisError: the adapter is not there or damaged, or the process does not start.
        """
        with tempfile.TemporaryDirectory(prefix="osmosis-adapter-") as directory:
            adapter = Path(directory) / "adapter"
            model = await asyncio.to_thread(self._fetch, adapter)
            server = InferenceServer(
                model.base_model, engine=engine_of(model.base_model), adapter=adapter, served_as=self._name
            )
            await server.start()
        self.api_key, self._server = server.api_key, server

    async def stop(self) -> None:
        """End the process; harmless when there is none."""
        if self._server is not None:
            await self._server.stop()

    def _fetch(self, directory: Path) -> LoraModel:
        with self._db.session() as session:
            model = session.get(LoraModel, self._adapter_id)
        if model is None:
            raise NotFoundError(f"the adapter of `{self._name}` is not there any more.")
        try:
            copy_adapter(self._blobs, model, directory)
        except OSError as error:
            raise OsmosisError(f"its files could not be fetched: {error.strerror or error}.") from error
        return model
