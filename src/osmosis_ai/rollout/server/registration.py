"""Register a served agent with a platform once it answers, and unregister it at shutdown.

Failures do not stop the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.credentials import Credentials
    from osmosis_ai.api.wire.rollout_servers import RegisteredRolloutServer

    from ..config import RolloutServerSettings

logger = logging.getLogger(__name__)

REGISTRATION_TIMEOUT_S = 15.0
"""Seconds for the platform to answer. It connects back to this server meanwhile."""

EVERY_ADDRESS = ("0.0.0.0", "::", "")
_READY_TIMEOUT_S = 5.0
_UNREGISTER_CONNECT_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Registration:
    """A server that registers with the platform of ``credentials``; ``api_key`` is the key the platform must send."""

    credentials: Credentials
    host: str
    port: int
    agent_loop_name: str
    api_key: str | None = field(default=None, repr=False)
    public_host: str | None = None


def start_registering(
    registration: Registration, settings: RolloutServerSettings, say: Callable[[str], None]
) -> Callable[[], Awaitable[None]]:
    """Register in the background and return a function that unregisters the server. ``say`` receives the outcome."""
    task = asyncio.ensure_future(_register(registration, settings, say))

    async def unregister() -> None:
        timeout_s = settings.registration_shutdown_timeout_seconds
        await asyncio.wait({task}, timeout=timeout_s)
        task.cancel()
        (host,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(host, str):
            return
        try:
            await asyncio.wait_for(asyncio.to_thread(_unregister, registration, host), timeout_s)
        except (OsmosisError, asyncio.TimeoutError) as error:
            logger.debug("the agent was not unregistered", exc_info=error)
            name, platform_url = registration.agent_loop_name, registration.credentials.platform_url
            say(f"[WARNING] Still registered with {platform_url}: osmosis rollout server remove {name}")

    return unregister


async def _register(
    registration: Registration, settings: RolloutServerSettings, say: Callable[[str], None]
) -> str | None:
    """Register and return the registered host, or None if that failed."""
    platform_url = registration.credentials.platform_url
    try:
        await _until_it_answers(registration, settings)
        host, reply = await asyncio.to_thread(_send, registration)
    except Exception as error:  # the edge of this task: nothing awaits it
        logger.debug("registration failed", exc_info=True)
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, OsmosisError):
            reason = error.message + (f" ({error.hint})" if error.hint else "")
        say(f"[WARNING] Failed to register with {platform_url}: {reason}")
        return None
    address, health = f"{host}:{registration.port}", reply.health_check_result
    if reply.status == "healthy":
        active = health.server_info.active_rollouts if health.server_info is not None else 0
        say(f"[OK] Registered with {platform_url} as {address} ({active} active rollouts)")
    else:
        reason = health.error or f"status {reply.status!r}"
        say(f"[WARNING] Registered but health check failed: {platform_url} did not reach {address}: {reason}")
    return host


def _unregister(registration: Registration, host: str) -> None:
    """Remove the agent, unless another server has since registered its name."""
    from osmosis_ai.api.paging import iterate_pages

    ours = (registration.agent_loop_name, host, registration.port)
    with _client(registration, connect_timeout_s=_UNREGISTER_CONNECT_TIMEOUT_S) as client:
        pages = iterate_pages(
            lambda limit, offset: client.rollout_servers.list(limit=limit, offset=offset),
            lambda page: page.rollout_servers,
        )
        listed = (server for page in pages for server in page.rollout_servers)
        if any((server.name, server.host, server.port) == ours for server in listed):
            client.rollout_servers.remove(registration.agent_loop_name)


async def _until_it_answers(registration: Registration, settings: RolloutServerSettings) -> None:
    """Wait, for a limited time, until the server answers its own health check."""
    import aiohttp

    from osmosis_ai.llm.transport import open_session

    host = "127.0.0.1" if registration.host in EVERY_ADDRESS else registration.host
    url = f"http://{f'[{host}]' if ':' in host else host}:{registration.port}/health"
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + settings.registration_readiness_timeout_seconds
    async with open_session(timeout_s=_READY_TIMEOUT_S) as session:
        while loop.time() < give_up_at:
            try:
                async with session.get(url) as reply:
                    if reply.status == 200:
                        return
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
                pass  # not yet
            await asyncio.sleep(settings.registration_readiness_poll_interval_seconds)


def reachable_host(registration: Registration) -> str:
    """Return the address under which the platform reaches the server.

    The network is queried only if the server binds to every address, no public host is configured, and the platform is
    on another machine. Raises OsmosisError if the public address is unknown.
    """
    if registration.public_host:
        return registration.public_host
    if registration.host not in EVERY_ADDRESS:
        return registration.host
    from osmosis_ai.api.platform_url import is_loopback

    from ..network import PublicIPDetectionError, detect_public_ip

    if is_loopback(urlsplit(registration.credentials.platform_url).hostname):
        return "127.0.0.1"  # on the same machine, where the public address may not lead back

    try:
        return detect_public_ip()
    except PublicIPDetectionError as error:
        raise OsmosisError(
            f"this machine's public address is not known: {error}", hint="give it with --public-host"
        ) from error


def _send(registration: Registration) -> tuple[str, RegisteredRolloutServer]:
    from osmosis_ai.api.wire.rollout_servers import RolloutServerRegistration

    host, name = reachable_host(registration), registration.agent_loop_name
    request = RolloutServerRegistration(
        host=host, port=registration.port, agent_loop_name=name, api_key=registration.api_key
    )
    with _client(registration) as client:
        return host, client.rollout_servers.register(request)


def _client(registration: Registration, *, connect_timeout_s: float | None = None) -> PlatformClient:
    from osmosis_ai.api.client import PlatformClient

    return PlatformClient.from_credentials(
        registration.credentials,
        git_identity=_git_identity(),
        timeout_s=REGISTRATION_TIMEOUT_S,
        connect_timeout_s=connect_timeout_s,
    )


def _git_identity() -> str | None:
    """Return the Git repository that the agent is served from, which can identify the workspace."""
    from osmosis_ai.api.git_identity import identify_origin
    from osmosis_ai.workspace.git import read_origin
    from osmosis_ai.workspace.layout import find_workspace

    try:
        root = find_workspace(None, require_scaffold=False).root
        origin = read_origin(root)
        return None if origin is None else identify_origin(origin, base=root).identity
    except OsmosisError:
        return None  # not in a repository
