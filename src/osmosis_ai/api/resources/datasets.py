"""Datasets: upload in three steps (create, send the bytes, complete), then read."""

from __future__ import annotations

from collections.abc import Sequence

from osmosis_ai.api import routes
from osmosis_ai.api.resources.resource import LARGEST_PAGE, LogDirection, Resource
from osmosis_ai.api.retrying import COMPLETING, REPEATING
from osmosis_ai.api.wire.base import LogPage, WireModel
from osmosis_ai.api.wire.datasets import (
    UPLOAD_INTENT_HEADER,
    CompletedPart,
    Dataset,
    DatasetCompleteRequest,
    DatasetCreateRequest,
    DatasetDownload,
    DatasetList,
    UploadIntent,
)

PARTS_TIMEOUT_S = 120.0


class Datasets(Resource):
    """The datasets of the repository's workspace."""

    def list(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> DatasetList:
        """Return one page, the newest first."""
        return self._page(routes.DATASETS, model=DatasetList, limit=limit, offset=offset)

    def get(self, name_or_id: str) -> Dataset:
        """Return one dataset."""
        return self._client.get(routes.dataset(name_or_id), model=Dataset)

    def create(
        self,
        name: str,
        *,
        size_bytes: int,
        extension: str,
        overwrite_id: str | None = None,
        intent: UploadIntent | None = None,
    ) -> Dataset:
        """Announce an upload and return the dataset with its upload instructions."""
        request = DatasetCreateRequest(file_name=name, file_size=size_bytes, extension=extension)
        if overwrite_id is not None:
            request.overwrite_dataset_id = overwrite_id
        headers = None if intent is None else {UPLOAD_INTENT_HEADER: intent.header}
        return self._client.post(routes.DATASETS, request, model=Dataset, headers=headers)

    def complete(
        self, dataset_id: str, *, extension: str, parts: Sequence[CompletedPart] | None = None
    ) -> Dataset:
        """Tell the platform that all bytes are there; the platform takes it any number of times."""
        request = DatasetCompleteRequest(file_extension=extension)
        if parts is not None:
            request.parts = list(parts)
        return self._client.post(
            routes.dataset_complete(dataset_id),
            request,
            model=Dataset,
            timeout_s=PARTS_TIMEOUT_S if parts is not None else None,
            retry=COMPLETING,
        )

    def abort(self, dataset_id: str) -> None:
        """Give an upload up; doing so twice changes nothing."""
        self._client.post(routes.dataset_abort(dataset_id), None, model=WireModel, retry=REPEATING)

    def delete(self, name_or_id: str) -> None:
        """Delete a dataset; a route of self-hosted platforms."""
        self._client.delete(routes.dataset(name_or_id))

    def download(self, name_or_id: str) -> DatasetDownload:
        """Return where the bytes can be had for a while."""
        return self._client.get(routes.dataset_download(name_or_id), model=DatasetDownload)

    def logs(
        self,
        name_or_id: str,
        *,
        limit: int = 50,
        cursor: str | None = None,
        direction: LogDirection = "older",
    ) -> LogPage:
        """Return one page of what was said while the dataset was checked."""
        return self._log_page(
            routes.dataset_logs(name_or_id), limit=limit, cursor=cursor, direction=direction
        )
