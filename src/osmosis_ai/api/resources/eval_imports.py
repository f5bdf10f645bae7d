"""The upload of evaluations that ran elsewhere; every call may be repeated."""

from __future__ import annotations

from collections.abc import Sequence

from osmosis_ai.api import routes
from osmosis_ai.api.resources.datasets import PARTS_TIMEOUT_S
from osmosis_ai.api.resources.resource import Resource
from osmosis_ai.api.retrying import COMPLETING, SIGNING
from osmosis_ai.api.wire.base import WireModel
from osmosis_ai.api.wire.datasets import CompletedPart
from osmosis_ai.api.wire.eval_imports import (
    EvalImportSession,
    EvalImportStart,
    ImportPart,
    ImportUpload,
    ImportUploadComplete,
    ImportUploads,
    ImportUploadsRequest,
)

FINALIZE_TIMEOUT_S = 300.0


class EvalImports(Resource):
    """The uploads of evaluations to the repository's workspace."""

    def start(self, request: EvalImportStart) -> EvalImportSession:
        """Announce a run and its files; the same run again goes on with what was begun."""
        return self._client.post(
            routes.EVAL_IMPORTS, request, model=EvalImportSession, timeout_s=PARTS_TIMEOUT_S, retry=SIGNING
        )

    def uploads(self, session_id: str, paths: Sequence[str]) -> list[ImportUpload]:
        """Return where to send those of ``paths``, 1 to 100 of them, that are missing."""
        path = routes.eval_import_uploads(session_id)
        asked = ImportUploadsRequest(paths=list(paths))
        return self._client.post(path, asked, model=ImportUploads, retry=SIGNING).files

    def complete(self, session_id: str, path: str, parts: Sequence[CompletedPart] | None) -> None:
        """Say that all bytes of a file are there; ``parts`` of one that was sent in parts."""
        request = ImportUploadComplete(path=path)
        if parts is not None:
            request.parts = [ImportPart(part_number=part.PartNumber, etag=part.ETag) for part in parts]
        self._client.post(
            routes.eval_import_complete(session_id),
            request,
            model=WireModel,
            timeout_s=PARTS_TIMEOUT_S,
            retry=COMPLETING,
        )

    def finalize(self, session_id: str) -> EvalImportSession:
        """Make a run of what was sent."""
        return self._client.post(
            routes.eval_import_finalize(session_id),
            None,
            model=EvalImportSession,
            timeout_s=FINALIZE_TIMEOUT_S,
            retry=COMPLETING,
        )
