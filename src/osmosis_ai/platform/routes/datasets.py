"""Datasets: upload, list, read, delete."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header

from osmosis_ai.api.models import datasets as wire
from osmosis_ai.api.models.base import LogPage
from osmosis_ai.platform.db.tables import DbDataset
from osmosis_ai.platform.http.authentication import Services, WorkspaceScope
from osmosis_ai.platform.http.routing import LogPaging, Paging, api_router, page_url, quick_read

router = api_router("/api/cli/datasets")

IntentHeader = Annotated[
    str | None,
    Header(
        alias=wire.UPLOAD_INTENT_HEADER, description="`ID; sha256=DIGEST` of the file, to resume its upload."
    ),
]


@router.post("")
def create_dataset(
    services: Services, scope: WorkspaceScope, request: wire.DatasetCreateRequest, intent: IntentHeader = None
) -> wire.Dataset:
    """Start the upload of a file, and return the upload URLs."""
    row, instructions = services.datasets.create(
        scope.workspace_id, scope.user.id, request, wire.UploadIntent.of(intent)
    )
    return _wire(services, scope, row, upload=instructions)


@router.post("/{dataset_id}/complete")
def complete_dataset(
    services: Services, scope: WorkspaceScope, dataset_id: str, request: wire.DatasetCompleteRequest
) -> wire.Dataset:
    """Complete an upload. The request may be repeated."""
    row = services.datasets.complete(scope.workspace_id, dataset_id, request.file_extension, request.parts)
    return _wire(services, scope, row)


@router.post("/{dataset_id}/abort")
def abort_dataset(services: Services, scope: WorkspaceScope, dataset_id: str) -> wire.Dataset:
    """Abort an upload. The request may be repeated."""
    return _wire(services, scope, services.datasets.abort(scope.workspace_id, dataset_id))


@router.get("")
@quick_read
def list_datasets(services: Services, scope: WorkspaceScope, page: Paging) -> wire.DatasetList:
    """List datasets, newest first."""
    found = services.datasets.page(scope.workspace_id, limit=page.limit, offset=page.offset)
    return wire.DatasetList(
        datasets=[_wire(services, scope, row) for row in found.items],
        **page.keys(found.counts["total"], len(found.items)),
    )


@router.get("/{name_or_id}")
@quick_read
def get_dataset(services: Services, scope: WorkspaceScope, name_or_id: str) -> wire.Dataset:
    """Return one dataset, with its first rows once it has been checked."""
    row = services.datasets.get(scope.workspace_id, name_or_id)
    return _wire(services, scope, row, data_preview=row.preview or None)


@router.get("/{name_or_id}/download")
def download_dataset(services: Services, scope: WorkspaceScope, name_or_id: str) -> wire.DatasetDownload:
    """Return a download URL."""
    return services.datasets.download(scope.workspace_id, name_or_id)


@router.get("/{name_or_id}/logs")
@quick_read
def dataset_logs(services: Services, scope: WorkspaceScope, name_or_id: str, page: LogPaging) -> LogPage:
    """Return a page of the log of the upload and validation."""
    row = services.datasets.get(scope.workspace_id, name_or_id)
    return services.logs.page(row.id, limit=page.limit, direction=page.direction, cursor=page.cursor)


@router.delete("/{name_or_id}")
def remove_dataset(services: Services, scope: WorkspaceScope, name_or_id: str) -> dict[str, Any]:
    """Delete a dataset that no active run uses. Only an admin or owner can delete another user's dataset."""
    row = services.datasets.get(scope.workspace_id, name_or_id)
    scope.require_maker(row.creator_id, "a dataset")
    services.datasets.delete(row)
    return {}


def _wire(services: Services, scope: WorkspaceScope, row: DbDataset, **more: Any) -> wire.Dataset:
    return wire.Dataset.of(
        row,
        nulls=False,
        file_name=row.name,
        file_format=row.extension,
        upload_error=row.error,
        platform_url=page_url(services, scope.workspace, "datasets", row.name),
        **more,
    )
