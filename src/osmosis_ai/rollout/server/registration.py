"""Register a served agent with a platform once it answers, and unregister it at shutdown. Failures do not stop the server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.credentials import Credentials
    from osmosis_ai.api.models.rollouts import RegisteredRolloutServer, RolloutServerRegistration

    from ..config import RolloutServerSettings

logger = logging.getLogger(__name__)

REGISTRATION_TIMEOUT_S = 15.0  # for the platform to answer; it connects back to this server meanwhile
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


@asynccontextmanager
async def registered(
    server: Registration, settings: RolloutServerSettings, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """Register a server in the background, and unregister it at the end. ``say`` receives the outcome."""
    task = asyncio.ensure_future(_register(server, settings, say))
    try:
        yield
    finally:
        timeout_s = settings.registration_shutdown_timeout_seconds
        await asyncio.wait({task}, timeout=timeout_s)
        task.cancel()
        (host,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(host, str):
            try:
                await asyncio.wait_for(asyncio.to_thread(_unregister, server, host), timeout_s)
            except (OsmosisError, asyncio.TimeoutError) as error:
                logger.debug("the agent was not unregistered", exc_info=error)
                name, platform_url = server.agent_loop_name, server.credentials.platform_url
                say(f"[WARNING] Still registered with {platform_url}: osmosis rollout server remove {name}")


async def _register(
    server: Registration, settings: RolloutServerSettings, say: Callable[[str], None]
) -> str | None:
    """Register and return the registered host, or None if that failed."""
    platform_url = server.credentials.platform_url
    try:
        await _wait_until_healthy(server, settings)
        host = await asyncio.to_thread(reachable_host, server)
        reply = await asyncio.to_thread(_send, server, host)
    except Exception as error:  # the edge of this task: nothing awaits it
        logger.debug("registration failed", exc_info=True)
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, OsmosisError):
            reason = error.message + (f" ({error.hint})" if error.hint else "")
        say(f"[WARNING] Failed to register with {platform_url}: {reason}")
        return None
    address, health = f"{host}:{server.port}", reply.health_check_result
    if reply.status == "healthy":
        active = health.server_info.active_rollouts if health.server_info is not None else 0
        say(f"[OK] Registered with {platform_url} as {address} ({active} active rollouts)")
    else:
        reason = health.error or f"status {reply.status!r}"
        say(f"[WARNING] Registered but health check failed: {platform_url} did not reach {address}: {reason}")
    return host


async def _wait_until_healthy(server: Registration, settings: RolloutServerSettings) -> None:
    """Wait, for a limited time, until the server answers its own health check."""
    import httpx

    host = "127.0.0.1" if server.host in EVERY_ADDRESS else server.host
    url = f"http://{f'[{host}]' if ':' in host else host}:{server.port}/health"
    give_up_at = time.monotonic() + settings.registration_readiness_timeout_seconds
    # The address is plain HTTP; loading the certificates would block the event loop.
    async with httpx.AsyncClient(timeout=_READY_TIMEOUT_S, trust_env=False, verify=False) as client:
        while time.monotonic() < give_up_at:
            with suppress(httpx.HTTPError):
                if (await client.get(url)).status_code == 200:
                    return
            await asyncio.sleep(settings.registration_readiness_poll_interval_seconds)


def reachable_host(server: Registration) -> str:
    """Return the address under which the platform reaches the server.

    The network is queried only if the server binds to every address, no public host is configured, and the platform is
    on another machine. Raises OsmosisError if the public address is unknown.
    """
    from osmosis_ai.api.platform_url import is_loopback

    from ..network import PublicIPDetectionError, detect_public_ip

    if server.public_host or server.host not in EVERY_ADDRESS:
        return server.public_host or server.host
    if is_loopback(urlsplit(server.credentials.platform_url).hostname):
        return "127.0.0.1"  # on the same machine, where the public address may not lead back
    try:
        return detect_public_ip()
    except PublicIPDetectionError as error:
        raise OsmosisError(
            f"this machine's public address is not known: {error}", hint="give it with --public-host"
        ) from error


def _send(server: Registration, host: str) -> RegisteredRolloutServer:
    from osmosis_ai.api.models.rollouts import RolloutServerRegistration

    request = RolloutServerRegistration(
        host=host, port=server.port, agent_loop_name=server.agent_loop_name, api_key=server.api_key
    )
    with _client(server) as client:
        return send_registration(client, request)


def send_registration(
    client: PlatformClient, registration: RolloutServerRegistration
) -> RegisteredRolloutServer:
    """Register or replace an agent; the platform checks its health."""
    from osmosis_ai.api.connections import REPEATING
    from osmosis_ai.api.models.rollouts import RegisteredRolloutServer

    if registration.api_key is not None:
        client.hide([registration.api_key])
    return client.post(
        "/api/cli/rollout-server/register",
        registration,
        model=RegisteredRolloutServer,
        git="optional",
        retry=REPEATING,
    )


def _unregister(server: Registration, host: str) -> None:
    """Remove the agent, unless another server has since registered its name."""
    from osmosis_ai.api.client import segment
    from osmosis_ai.api.models.rollouts import RolloutServerList
    from osmosis_ai.api.paging import iterate_pages

    path = "/api/cli/rollout-servers"
    ours = (server.agent_loop_name, host, server.port)
    with _client(server, connect_timeout_s=_UNREGISTER_CONNECT_TIMEOUT_S) as client:
        pages = client.pages(path, RolloutServerList, git="optional")
        listed = (each for page in iterate_pages(pages) for each in page.items)
        if any((each.name, each.host, each.port) == ours for each in listed):
            client.delete(f"{path}/{segment(server.agent_loop_name)}", git="optional")


def _client(server: Registration, *, connect_timeout_s: float | None = None) -> PlatformClient:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.git_identity import identify_origin
    from osmosis_ai.workspace.git import read_origin
    from osmosis_ai.workspace.layout import find_workspace

    identity = None
    # The agent's Git repository can identify the workspace.
    with suppress(OsmosisError):
        root = find_workspace(None, require_scaffold=False).root
        origin = read_origin(root)
        identity = None if origin is None else identify_origin(origin, base=root).identity
    return PlatformClient(
        server.credentials.platform_url,
        server.credentials.token,
        identity,
        REGISTRATION_TIMEOUT_S,
        connect_timeout_s=connect_timeout_s,
        token_origin=server.credentials.token_origin,
    )
