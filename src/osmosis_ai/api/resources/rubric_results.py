"""Results of judging sessions on a platform: uploaded in one call, looked up, deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osmosis_ai.api import routes
from osmosis_ai.api.resources.resource import Resource
from osmosis_ai.api.retrying import COMPLETING
from osmosis_ai.api.wire.rubric_results import RubricResultPage, StoredRubricResult

UPLOAD_TIMEOUT_S = 300.0


class RubricResults(Resource):
    """The results of judging sessions in the repository's workspace."""

    def upload(self, name: str, document: Mapping[str, Any]) -> StoredRubricResult:
        """Send a result; may be repeated, for the same document of the same name is kept once."""
        body = {"name": name, "document": document}
        return self._client.post(
            routes.RUBRIC_RESULTS,
            body,
            model=StoredRubricResult,
            timeout_s=UPLOAD_TIMEOUT_S,
            retry=COMPLETING,
            packed=True,
        )

    def page(self, *, limit: int | None = None, cursor: str | None = None) -> RubricResultPage:
        """Return a page of the results, the newest first."""
        params = {"limit": limit, "cursor": cursor}
        return self._client.get(routes.RUBRIC_RESULTS, model=RubricResultPage, params=params)

    def get(self, name_or_id: str) -> StoredRubricResult:
        """Return a result as lists show it."""
        return self._client.get(routes.rubric_result(name_or_id), model=StoredRubricResult)

    def delete(self, name_or_id: str) -> None:
        """Delete a result."""
        self._client.delete(routes.rubric_result(name_or_id))
