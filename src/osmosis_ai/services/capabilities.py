"""Check whether a platform offers a feature, to report a clear error instead of its 404."""

from __future__ import annotations

from collections.abc import Collection

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.http_errors import unsupported


def require_offered(client: PlatformClient, capability: Capability) -> None:
    """Raise a PlatformError, with the platform code ``NOT_OFFERED``, unless the platform offers a capability.

    Every reply of a platform lists its capabilities. After another call of the same client this check is free; as the
    first call it sends `verify`. So look up the command's object first, then check the capability, then ask the user or
    send anything large.

    To add a capability, add a member to :class:`~osmosis_ai.api.capabilities.Capability`, and to ``OFFERED`` in
    ``platform/http/middleware.py`` once our platform has its routes.
    """
    if client.offers is None:
        client.verify()
    if not is_offered(client.offers, capability):
        raise unsupported(client.platform_url, capability)


def is_offered(offers: Collection[Capability] | None, capability: Capability) -> bool:
    """Tell whether a platform offers a capability by its replies so far; without a reply (None), True."""
    return offers is None or capability in offers
