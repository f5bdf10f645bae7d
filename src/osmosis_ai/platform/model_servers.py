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
from osmosis_ai.platform.db.tables import DbLoraModel
from osmosis_ai.platform.model_serving import ServableModel
from osmosis_ai.platform.models import copy_adapter


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
