"""The workspaces of a user."""

from __future__ import annotations

from osmosis_ai.api import routes
from osmosis_ai.api.resources.resource import Resource
from osmosis_ai.api.retrying import REPEATING
from osmosis_ai.api.wire.auth import WorkspaceList
from osmosis_ai.api.wire.quickstart import Intent, QuickstartChoice, QuickstartRecorded, QuickstartStatus


class Workspaces(Resource):
    """What the user is a member of."""

    def list(self) -> WorkspaceList:
        """Return every workspace of the user; needs no repository."""
        return self._client.get(routes.WORKSPACES, model=WorkspaceList, git="never")

    def quickstart(self, workspace_id: str) -> QuickstartStatus:
        """Return how far the user's first steps in a workspace have got."""
        return self._client.get(
            routes.QUICKSTART, model=QuickstartStatus, params={"organizationId": workspace_id}, git="never"
        )

    def record_quickstart(self, workspace_id: str, intent: Intent) -> QuickstartRecorded:
        """Tell the platform what the user does first."""
        choice = QuickstartChoice(organizationId=workspace_id, intent=intent)
        return self._client.post(
            routes.QUICKSTART, choice, model=QuickstartRecorded, git="never", retry=REPEATING
        )
