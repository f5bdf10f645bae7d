"""The workspaces of a user."""

from __future__ import annotations

from osmosis_ai.api import routes
from osmosis_ai.api.resources.resource import Resource
from osmosis_ai.api.wire.auth import WorkspaceList


class Workspaces(Resource):
    """What the user is a member of."""

    def list(self) -> WorkspaceList:
        """Return every workspace of the user; needs no repository."""
        return self._client.get(routes.WORKSPACES, model=WorkspaceList, git="never")
