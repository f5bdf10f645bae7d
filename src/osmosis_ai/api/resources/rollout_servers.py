"""Agents that are served elsewhere, as the platform knows them."""

from __future__ import annotations

from osmosis_ai.api import routes
from osmosis_ai.api.resources.resource import LARGEST_PAGE, Resource
from osmosis_ai.api.retrying import REPEATING
from osmosis_ai.api.wire.rollout_servers import (
    RegisteredRolloutServer,
    RolloutServerList,
    RolloutServerRegistration,
)


class RolloutServers(Resource):
    """The served agents of the repository's workspace; without a repository, of the token's workspace."""

    def list(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> RolloutServerList:
        """Return one page, by name."""
        params = {"limit": limit, "offset": offset}
        return self._client.get(
            routes.ROLLOUT_SERVERS, model=RolloutServerList, params=params, git="optional"
        )

    def register(self, registration: RolloutServerRegistration) -> RegisteredRolloutServer:
        """Register an agent under its name, in place of an earlier one; the platform asks it how it does."""
        if registration.api_key is not None:
            self._client.hide([registration.api_key])
        return self._client.post(
            routes.ROLLOUT_SERVER_REGISTER,
            registration,
            model=RegisteredRolloutServer,
            git="optional",
            retry=REPEATING,
        )

    def probe(self, name: str) -> RegisteredRolloutServer:
        """Have the platform ask an agent how it does."""
        path = routes.rollout_server_probe(name)
        return self._client.post(path, None, model=RegisteredRolloutServer, git="optional", retry=REPEATING)

    def remove(self, name: str) -> None:
        """Forget an agent."""
        self._client.delete(routes.rollout_server(name), git="optional")
