from __future__ import annotations

import socket

import aiohttp
import pytest

from osmosis_ai.llm.transport import connection_failure, environment_proxy, is_loopback, open_session


async def test_a_session_never_queues_inside_its_pool() -> None:
    async with open_session(timeout_s=3, headers={"X-A": "1"}) as session:
        assert session.connector is not None
        assert (session.connector.limit, session.connector.limit_per_host) == (0, 0)
        assert session.timeout.total == 3
        assert session.headers["X-A"] == "1"
        assert session.headers["User-Agent"].startswith("osmosis/")


def test_a_proxy_is_used_for_the_world_and_never_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert environment_proxy("https://api.example/v1") == "http://proxy.example:3128"
    assert environment_proxy("https://host.inside.example/v1") is None
    assert environment_proxy("http://127.0.0.1:8000/v1") is None
    assert environment_proxy("http://localhost:8000/v1") is None


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost.example", False),
        ("10.0.0.1", False),
    ],
)
def test_loopback_is_this_machine(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


async def test_a_server_that_is_not_there_is_told_in_plain_words(unused_tcp_port: int) -> None:
    async with open_session(timeout_s=5) as session:
        with pytest.raises(aiohttp.ClientConnectorError) as refused:
            await session.get(f"http://127.0.0.1:{unused_tcp_port}/")
    assert (
        connection_failure(refused.value)
        == f"cannot connect to 127.0.0.1:{unused_tcp_port} (connection refused)"
    )


def test_a_host_that_does_not_exist_is_named() -> None:
    key = aiohttp.client_reqrep.ConnectionKey("models.invalid", 443, True, True, None, None, None)
    cause = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    error = aiohttp.ClientConnectorDNSError(key, cause)
    assert connection_failure(error) == "the host `models.invalid` was not found (Name or service not known)"


def test_an_error_without_words_is_named_by_its_kind() -> None:
    assert connection_failure(aiohttp.ServerDisconnectedError("")) == "ServerDisconnectedError"
