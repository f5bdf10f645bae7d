"""Agents by name, keys, addresses, exceptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.rollout.loop import exceptions as e
from osmosis_ai.rollout.loop import network, registry
from osmosis_ai.rollout.loop.api_key import API_KEY_PREFIX, generate_api_key, validate_api_key

from .agents import Echo


@pytest.fixture
def _empty() -> Iterator[None]:
    registry._REGISTRY.clear()
    yield
    registry._REGISTRY.clear()


@pytest.mark.usefixtures("_empty")
def test_an_agent_is_found_by_the_name_it_is_registered_under() -> None:
    agent = Echo()
    registry.register_agent_loop(agent)

    assert registry.get_agent_loop("echo") is agent and registry.list_agent_loops() == ["echo"]
    with pytest.raises(ValueError, match="already registered"):
        registry.register_agent_loop(Echo())
    with pytest.raises(e.AgentLoopNotFoundError, match=r"'other'.*'echo'") as raised:
        registry.get_agent_loop("other")
    assert (raised.value.name, raised.value.available) == ("other", ["echo"])
    assert (registry.unregister_agent_loop("echo"), registry.unregister_agent_loop("echo")) == (True, False)
    assert registry._REGISTRY.get("echo") is None


def test_a_key_is_recognised_unguessable_and_matches_itself_alone() -> None:
    key = generate_api_key()

    assert key.startswith(API_KEY_PREFIX) and len(key) >= len(API_KEY_PREFIX) + 43
    assert key != generate_api_key()
    assert validate_api_key(key, key)
    for wrong in (None, "", key[:-1], f"{key}x", "ключ", "\udcff"):
        assert not validate_api_key(wrong, key)
    assert not validate_api_key("", "")


def test_every_exception_is_caught_by_one_name_and_knows_its_status() -> None:
    assert issubclass(e.OsmosisRolloutError, OsmosisError)
    for kind in (e.OsmosisTransportError, e.OsmosisTimeoutError, e.ToolExecutionError):
        assert isinstance(kind("text"), e.OsmosisRolloutError) and str(kind("text")) == "text"
    assert e.OsmosisServerError("broken", 503).status_code == 503
    assert e.OsmosisValidationError("refused", 404).status_code == 404
    assert issubclass(e.ToolArgumentError, e.ToolExecutionError)


def test_addresses_are_told_apart() -> None:
    assert network.validate_ipv4("1.2.3.4")
    assert not any(network.validate_ipv4(text) for text in ("::1", "256.1.1.1", "1.2.3", "", "host"))
    good = ["example.com", "a-b.c", "localhost:80", "1.2.3.4:80", "::1", "[::1]:80", "256.1.1.1"]
    assert all(network.is_valid_hostname_or_ip(text) for text in good)
    bad = ["", "-a.com", "a..b", "a b", "host:port", "x" * 64, ":80", "http://a"]
    assert not any(network.is_valid_hostname_or_ip(text) for text in bad)
    assert all(
        network.is_private_ip(text) for text in ("127.0.0.1", "10.0.0.1", "192.168.1.1", "::1", "fd00::1")
    )
    assert not any(network.is_private_ip(text) for text in ("8.8.8.8", "host"))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], list[str]]:
    """Hosts that answer; all others are not reached. Returns who is asked."""

    def build(hosts: dict[str, str]) -> list[str]:
        asked: list[str] = []

        def answer(url: str, **kwargs: object) -> httpx.Response:
            asked.append(url)
            for host, text in hosts.items():
                if host in url:
                    return httpx.Response(200, text=text)
            raise httpx.ConnectError("unreachable")

        monkeypatch.setattr(httpx, "get", answer)
        monkeypatch.setattr(httpx, "put", answer)
        return asked

    return build


def test_the_public_address_comes_from_the_cloud_or_else_from_who_sees_it(
    world: Callable[[dict[str, str]], list[str]],
) -> None:
    world({"computeMetadata": "34.1.2.3\n", "ipify": "5.5.5.5"})
    assert network.detect_public_ip() == "34.1.2.3"
    asked = world({"checkip": "<html>", "ipify": "5.5.5.5"})
    assert network.detect_public_ip() == "5.5.5.5"
    assert not any("icanhazip" in url for url in asked)
    world({})
    with pytest.raises(network.PublicIPDetectionError) as raised:
        network.detect_public_ip()
    assert raised.value.hint == "give it with --public-host"
