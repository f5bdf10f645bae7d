"""Environment secrets: values go in and never come out."""

from __future__ import annotations

from typing import Literal

from osmosis_ai.api import routes
from osmosis_ai.api.resources.resource import LARGEST_PAGE, Resource
from osmosis_ai.api.retrying import REPEATING
from osmosis_ai.api.wire.secrets import (
    Secret,
    SecretDeleteRequest,
    SecretHandoutList,
    SecretList,
    SecretSetRequest,
)

SecretScope = Literal["workspace", "user"]


class Secrets(Resource):
    """The secrets of the repository's workspace, and this user's own in it."""

    def list(
        self,
        *,
        scope: Literal["all", "workspace", "user"] = "all",
        limit: int = LARGEST_PAGE,
        offset: int = 0,
    ) -> SecretList:
        """Return one page of names; with ``all`` a name may come in both scopes."""
        return self._page(
            routes.ENVIRONMENT_SECRETS, model=SecretList, limit=limit, offset=offset, scope=scope
        )

    def handouts(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> SecretHandoutList:
        """Return one page of what workers were handed, the newest first."""
        return self._page(routes.SECRET_AUDIT, model=SecretHandoutList, limit=limit, offset=offset)

    def set(self, name: str, value: str, *, scope: SecretScope) -> Secret:
        """Store a value under a name, in place of the former one."""
        self._client.hide([value])
        request = SecretSetRequest(name=name, value=value, scope=scope)
        return self._client.post(routes.ENVIRONMENT_SECRETS, request, model=Secret, retry=REPEATING)

    def delete(self, name: str, *, scope: SecretScope) -> None:
        """Delete a secret."""
        self._client.delete(routes.ENVIRONMENT_SECRETS, SecretDeleteRequest(name=name, scope=scope))
