"""Uploads of evaluations that ran on other machines."""

from __future__ import annotations

from osmosis_ai.api.models import eval_imports as wire
from osmosis_ai.api.models.base import WireModel
from osmosis_ai.api.models.datasets import CompletedPart
from osmosis_ai.platform.http.authentication import Scope, Services, WorkspaceScope
from osmosis_ai.platform.http.routing import api_router, run_url
from osmosis_ai.platform.runs.run_imports import ImportState
from osmosis_ai.platform.services import PlatformServices

router = api_router("/api/cli/eval-runs/imports")


@router.post("")
def start_import(
    services: Services, scope: WorkspaceScope, body: wire.EvalImportStart
) -> wire.EvalImportSession:
    """Start an upload of a run. A repeated request for the same run resumes it."""
    state = services.eval_imports.start(scope.workspace_id, scope.repository.id, scope.user.id, body)
    return _session(services, scope, state)


@router.post("/{session_id}/uploads")
def import_uploads(
    services: Services, scope: WorkspaceScope, session_id: str, body: wire.ImportUploadsRequest
) -> wire.ImportUploads:
    """Return upload URLs for those of the named files (1 to 100) that have not been uploaded."""
    found = services.eval_imports.upload_instructions(scope.workspace_id, session_id, body.paths)
    return wire.ImportUploads(
        files=[
            wire.ImportUpload(path=file.path, size=file.size, sha256=file.sha256, upload=upload)
            for file, upload in found
        ]
    )


@router.post("/{session_id}/uploads/complete")
def complete_import_upload(
    services: Services, scope: WorkspaceScope, session_id: str, body: wire.ImportUploadComplete
) -> WireModel:
    """Complete the upload of a file; its bytes must match the announced digest."""
    parts = None
    if body.parts is not None:
        parts = [CompletedPart(PartNumber=part.part_number, ETag=part.etag) for part in body.parts]
    services.eval_imports.complete_file(scope.workspace_id, session_id, body.path, parts)
    return WireModel()


@router.post("/{session_id}/finalize")
def finalize_import(services: Services, scope: WorkspaceScope, session_id: str) -> wire.EvalImportSession:
    """Create a run from the uploaded files. The request may be repeated."""
    return _session(services, scope, services.eval_imports.finalize(scope.workspace_id, session_id))


def _session(services: PlatformServices, scope: Scope, state: ImportState) -> wire.EvalImportSession:
    session = wire.EvalImportSession(
        session_id=state.row.id,
        status="uploading" if state.run is None else "finalized",
        expected_files=len(state.files),
        uploaded_files=sum(file.is_stored for file in state.files),
        files=[
            wire.ImportFileState(
                path=file.path,
                size=file.size,
                sha256=file.sha256,
                state="uploaded" if file.is_stored else "pending",
            )
            for file in state.files
        ],
    )
    if state.run is None:
        session.expires_at = state.row.expires_at
        return session
    session.eval_run_id, session.eval_run_name = state.run.id, state.run.name
    session.platform_url = run_url(services, scope.workspace, state.run.kind, state.run.name)
    return session
