"""What the calls of every resource stand on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient

LARGEST_PAGE = 50
LARGEST_LOG_PAGE = 200


class Resource:
    """A group of calls on one client."""

    def __init__(self, client: PlatformClient) -> None:
        self._client = client
