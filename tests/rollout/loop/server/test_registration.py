"""A served agent tells its platform of itself, if it was asked to, and goes on whatever the platform says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from osmosis_ai.api.credentials import Credentials
from osmosis_ai.errors import OsmosisError
from osmosis_ai.rollout.loop import network
from osmosis_ai.rollout.loop.server.registration import Registration, reachable_host
from osmosis_ai.rollout.loop.settings import RolloutServerSettings, RolloutSettings
from tests.logins import make_checkout
from tests.workspace.builders import git, make_workspace

from .agents import Calculator
from .trainer import served

SOON = RolloutSettings(
    server=RolloutServerSettings(
        registration_readiness_timeout_seconds=60, registration_readiness_poll_interval_seconds=0.05
    )
)
ELSEWHERE = Registration(
    Credentials(token="osm_u_canary", platform_url="https://platform.example", source="environment"),
    host="0.0.0.0",
    port=9000,
    agent_loop_name="calculator",
)


class Platform:
    """Answers registrations as it is told to, and keeps them."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.answer: dict[str, Any] = {
            "id": "rs_1",
            "status": "healthy",
            "health_check_result": {"server_info": {"active_rollouts": 0}},
        }
        self.registrations: list[dict[str, Any]] = []
        self.repositories: list[str | None] = []
        self.listed: list[dict[str, Any]] = []
        self.removed: list[str] = []

    async def _register(self, request: web.Request) -> web.Response:
        sent = {**await request.json(), "authorization": request.headers["Authorization"]}
        self.repositories.append(request.headers.get("X-Osmosis-Git"))
        self.registrations.append(sent)
        return web.json_response(self.answer, status=self.status)

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response({"rollout_servers": self.listed, "total_count": len(self.listed)})

    async def _remove(self, request: web.Request) -> web.Response:
        self.removed.append(request.match_info["name"])
        return web.json_response({})

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Platform]:
        app = web.Application()
        app.router.add_post("/api/cli/rollout-server/register", self._register)
        app.router.add_get("/api/cli/rollout-servers", self._list)
        app.router.add_delete("/api/cli/rollout-servers/{name}", self._remove)
        # The server under test has no socket of its own here: this is who answers its readiness check.
        app.router.add_get("/health", self._health)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"
        try:
            yield self
        finally:
            await runner.cleanup()


@pytest.fixture
async def platform() -> AsyncIterator[Platform]:
    async with Platform().serving() as running:
        yield running


@pytest.fixture
def asked_for_address(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    asked: list[bool] = []

    def detect() -> str:
        asked.append(True)
        return "203.0.113.7"

    monkeypatch.setattr(network, "detect_public_ip", detect)
    return asked


async def register(platform: Platform, *, told: list[str] | None = None, **options: Any) -> str:
    """Serve an agent until its registration is told of; return what was told, and keep what is told afterwards."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    login = Credentials(token="osm_u_canary", platform_url=platform.url, source="environment")
    options = {"server_host": "127.0.0.1", "server_port": platform.port, "credentials": login, **options}
    async with served(Calculator(), settings=SOON, say=lines.put_nowait, **options) as server:
        line = await asyncio.wait_for(lines.get(), 60)
        assert (await server.get("/health")).status_code == 200
    while told is not None and not lines.empty():
        told.append(lines.get_nowait())
    return line


async def test_a_healthy_registration_is_told_and_carries_address_name_and_key(
    platform: Platform, asked_for_address: list[bool]
) -> None:
    line = await register(platform, api_key="osm_rollout_k")
    assert line == f"[OK] Registered with {platform.url} as 127.0.0.1:{platform.port} (0 active rollouts)"
    assert platform.registrations == [
        {
            "host": "127.0.0.1",
            "port": platform.port,
            "agent_loop_name": "calculator",
            "api_key": "osm_rollout_k",
            "authorization": "Bearer osm_u_canary",
        }
    ]
    assert asked_for_address == []


async def test_weakness_10_the_network_is_asked_for_an_address_only_to_register_one_that_was_not_given(
    platform: Platform, asked_for_address: list[bool]
) -> None:
    async with served(Calculator(), server_host="0.0.0.0", server_port=1) as server:
        assert (await server.get("/health")).status_code == 200
    await register(platform, server_host="0.0.0.0", public_host="agents.example")
    assert asked_for_address == []
    await register(platform, server_host="0.0.0.0")  # for a platform on this very machine
    assert asked_for_address == []
    assert [sent["host"] for sent in platform.registrations] == ["agents.example", "127.0.0.1"]
    assert reachable_host(ELSEWHERE) == "203.0.113.7"
    assert asked_for_address == [True]


async def test_an_agent_is_registered_for_the_repository_it_is_served_from_if_there_is_one(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await register(platform)
    repository = make_workspace(tmp_path / "maze").root
    git(repository, "remote", "add", "origin", "git@github.com:Fern/Maze.git")
    monkeypatch.chdir(repository)
    await register(platform)
    assert platform.repositories == [None, "fern/maze"]


def test_a_server_whose_address_nobody_knows_says_how_to_give_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_knows() -> str:
        raise network.PublicIPDetectionError("nobody answered")

    monkeypatch.setattr(network, "detect_public_ip", nobody_knows)
    with pytest.raises(OsmosisError, match="this machine's public address is not known") as refused:
        reachable_host(ELSEWHERE)
    assert refused.value.hint == "give it with --public-host"


async def test_an_agent_that_the_platform_does_not_reach_is_told_so_and_served_on(platform: Platform) -> None:
    platform.answer = {
        "id": "rs_1",
        "status": "unhealthy",
        "health_check_result": {"error": "connection refused"},
    }
    assert await register(platform) == (
        f"[WARNING] Registered but health check failed: {platform.url} did not reach "
        f"127.0.0.1:{platform.port}: connection refused"
    )


@pytest.mark.parametrize("status", [401, 403, 500])
async def test_a_refused_registration_is_told_in_one_line_without_the_key(
    platform: Platform, status: int
) -> None:
    platform.status = status
    platform.answer = {"error": "no, not with osm_rollout_canary"}
    line = await register(platform, api_key="osm_rollout_canary")
    assert line.startswith(f"[WARNING] Failed to register with {platform.url}: ")
    assert "\n" not in line
    assert "canary" not in line


async def test_a_shutdown_waits_for_a_registration_under_way(platform: Platform) -> None:
    told: list[str] = []
    login = Credentials(token="osm_u_canary", platform_url=platform.url, source="environment")
    async with served(
        Calculator(),
        settings=SOON,
        say=told.append,
        credentials=login,
        server_host="127.0.0.1",
        server_port=platform.port,
    ):
        pass
    assert len(platform.registrations) == 1 and told[0].startswith("[OK] Registered with ")


@pytest.mark.parametrize("in_a_checkout", [True, False])
async def test_who_registered_itself_withdraws_at_its_end_unless_another_has_its_name(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_a_checkout: bool
) -> None:
    monkeypatch.chdir(make_checkout(tmp_path / "maze").root if in_a_checkout else tmp_path)
    own = {
        "id": "rs_1",
        "name": "calculator",
        "host": "127.0.0.1",
        "port": platform.port,
        "status": "healthy",
    }
    platform.listed = [{**own, "host": "10.0.0.7"}]
    await register(platform)
    assert platform.removed == []
    platform.listed = [own]
    await register(platform)
    assert platform.removed == ["calculator"]


async def test_a_registration_that_cannot_be_withdrawn_is_told_with_the_command(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_checkout(tmp_path / "maze").root)
    platform.listed = [{"id": "rs_1"}]
    told: list[str] = []
    await register(platform, told=told)
    assert told == [
        f"[WARNING] Still registered with {platform.url}: osmosis rollout server remove calculator"
    ]
