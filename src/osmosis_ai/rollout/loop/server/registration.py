"""Register a served agent with a platform once it answers, and unregister it at shutdown. Failures do not stop the server.

The network is asked for this machine's public address only if the server binds to every address, no public host is
configured, and the platform is on another machine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.credentials import Credentials
    from osmosis_ai.api.wire.rollout_servers import RegisteredRolloutServer

    from ..settings import RolloutSettings

logger = logging.getLogger(__name__)

REGISTRATION_TIMEOUT_S = 15.0
"""Seconds for the platform to answer. It connects back to this server meanwhile."""

EVERY_ADDRESS = ("0.0.0.0", "::", "")
_READY_TIMEOUT_S = 5.0
_WITHDRAWAL_CONNECT_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Registration:
    """Data for the registration with a platform.

    Attributes:
        credentials: The login.
        host: Address the server binds to.
        port: Port it listens on.
        agent_loop_name: Name of the served agent.
        api_key: Key the platform must send.
        public_host: Address for the platform, if it differs from ``host``.
    """

    credentials: Credentials
    host: str
    port: int
    agent_loop_name: str
    api_key: str | None = field(default=None, repr=False)
    public_host: str | None = None


def start_registering(
    registration: Registration, settings: RolloutSettings | None, say: Callable[[str], None]
) -> Callable[[], Awaitable[None]]:
    """Register in the background and return a function that unregisters the server.

    Args:
        registration: The server and the login.
        settings: The timeouts (default: the process's).
        say: Receives the outcome.
    """
    from ..settings import get_settings

    limits = (settings or get_settings()).server
    task = asyncio.ensure_future(_register(registration, limits, say))

    async def withdraw() -> None:
        await asyncio.wait({task}, timeout=limits.registration_shutdown_timeout_seconds)
        task.cancel()
        (host,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(host, str):
            await _withdraw(registration, host, limits.registration_shutdown_timeout_seconds, say)

    return withdraw


async def _register(registration: Registration, limits: Any, say: Callable[[str], None]) -> str | None:
    """Register and return the registered host, or None if that failed."""
    platform_url = registration.credentials.platform_url
    try:
        await _until_it_answers(registration, limits)
        host = await asyncio.to_thread(reachable_host, registration)
        reply = await asyncio.to_thread(_send, registration, host)
    except OsmosisError as error:
        hint = f" ({error.hint})" if error.hint else ""
        say(f"[WARNING] Failed to register with {platform_url}: {error.message}{hint}")
        return None
    except Exception as error:  # the edge of this task: nothing awaits it
        logger.debug("registration failed", exc_info=True)
        say(f"[WARNING] Failed to register with {platform_url}: {type(error).__name__}: {error}")
        return None
    found = reply.health_check_result
    if reply.status == "healthy":
        active = found.server_info.active_rollouts if found.server_info is not None else 0
        say(f"[OK] Registered with {platform_url} as {host}:{registration.port} ({active} active rollouts)")
        return host
    why = found.error or f"it says {reply.status!r}"
    say(
        f"[WARNING] Registered but health check failed: {platform_url} did not reach {host}:{registration.port}: {why}"
    )
    return host


async def _withdraw(
    registration: Registration, host: str, timeout_s: float, say: Callable[[str], None]
) -> None:
    """Unregister the server, so that no run tries to reach it."""
    name, platform_url = registration.agent_loop_name, registration.credentials.platform_url
    try:
        await asyncio.wait_for(asyncio.to_thread(_forget, registration, host), timeout_s)
    except (OsmosisError, asyncio.TimeoutError) as error:
        logger.debug("the registration was not withdrawn", exc_info=error)
        say(f"[WARNING] Still registered with {platform_url}: osmosis rollout server remove {name}")


def _forget(registration: Registration, host: str) -> None:
    """Remove the agent, unless another server has since registered its name."""
    from osmosis_ai.api.paging import iterate_pages

    ours = (registration.agent_loop_name, host, registration.port)
    with _client(registration, connect_timeout_s=_WITHDRAWAL_CONNECT_TIMEOUT_S) as client:
        pages = iterate_pages(
            lambda limit, offset: client.rollout_servers.list(limit=limit, offset=offset),
            lambda page: page.rollout_servers,
        )
        listed = (server for page in pages for server in page.rollout_servers)
        if any((server.name, server.host, server.port) == ours for server in listed):
            client.rollout_servers.remove(registration.agent_loop_name)


async def _until_it_answers(registration: Registration, limits: Any) -> None:
    """Wait, for a limited time, until the server answers its own health check."""
    import aiohttp

    from osmosis_ai.llm.transport import open_session

    host = "127.0.0.1" if registration.host in EVERY_ADDRESS else registration.host
    url = f"http://{f'[{host}]' if ':' in host else host}:{registration.port}/health"
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + limits.registration_readiness_timeout_seconds
    async with open_session(timeout_s=_READY_TIMEOUT_S) as session:
        while loop.time() < give_up_at:
            try:
                async with session.get(url) as reply:
                    if reply.status == 200:
                        return
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
                pass  # not yet
            await asyncio.sleep(limits.registration_readiness_poll_interval_seconds)


def reachable_host(registration: Registration) -> str:
    """Return the address under which the platform reaches the server.

    Raises:
        OsmosisError: The public address could not be determined.
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


def _send(registration: Registration, host: str) -> RegisteredRolloutServer:
    from osmosis_ai.api.wire.rollout_servers import RolloutServerRegistration

    told = RolloutServerRegistration(
        host=host,
        port=registration.port,
        agent_loop_name=registration.agent_loop_name,
        api_key=registration.api_key,
    )
    with _client(registration) as client:
        return client.rollout_servers.register(told)


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
