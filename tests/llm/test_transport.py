from __future__ import annotations

import pytest

from osmosis_ai.llm.transport import environment_proxy, is_loopback, open_session


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
