"""Whether the platform that is asked offers what a command is about: a sentence of ours instead of its 404."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from osmosis_ai.api.http_errors import unsupported

if TYPE_CHECKING:
    from osmosis_ai.api.capabilities import Capability
    from osmosis_ai.api.client import PlatformClient


def require_offered(client: PlatformClient, capability: Capability) -> None:
    """Refuse what the platform does not offer.

    What a platform offers comes with each of its replies: after another call of the same client this costs
    nothing, as the first one it asks `verify` and waits for the answer. So look up first what the command is about,
    then require, then ask the user or send anything large:

    >>> run = client.eval_runs.get(name)                          # doctest: +SKIP
    >>> require_offered(client, Capability.EVAL_RETRIES)          # doctest: +SKIP

    A new capability is a member of :class:`~osmosis_ai.api.capabilities.Capability`, and of ``OFFERED`` in
    ``platform/http/versioning.py`` once our platform has its routes.

    Raises:
        PlatformError: with the platform code ``NOT_OFFERED`` when it does not; as every call when it cannot be asked.
    """
    if client.offers is None:
        client.verify()
    if not is_offered(client.offers, capability):
        raise unsupported(client.platform_url, capability)


def is_offered(offers: Collection[Capability] | None, capability: Capability) -> bool:
    """Tell whether a platform offers something by its replies so far; without any (None) it may."""
    return offers is None or capability in offers


def why_empty(client: PlatformClient, capability: Capability) -> list[str]:
    """Return what to say beside an empty list of something that the platform has just been asked for."""
    if is_offered(client.offers, capability):
        return []
    return [unsupported(client.platform_url, capability).message]
