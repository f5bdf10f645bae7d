"""Names and values of secrets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import respx

from osmosis_ai.api.client import PlatformClient
from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.secrets import (
    check_name,
    check_value,
    require_secret,
    value_from_environment,
)
from tests.logins import FERN, IDENTITY, REFUSALS, TOKEN, use_platform

PATH = "/api/cli/environment-secrets"


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[respx.MockRouter]:
    use_platform(monkeypatch)
    with respx.mock(base_url=FERN, assert_all_called=False) as router:
        yield router


@pytest.fixture
def client(platform: respx.MockRouter) -> Iterator[PlatformClient]:
    with PlatformClient(FERN, TOKEN, IDENTITY, token_origin="saved") as client:
        yield client


@pytest.mark.parametrize("name", ["", "a", "2A", "_A", "A-B", "A B", "A\n", "Ä", "A" * 256, "sk-canary"])
def test_invalid_names(name: str) -> None:
    with pytest.raises(OsmosisError) as caught:
        check_name(name)
    assert caught.value.code == "VALIDATION"
    assert "canary" not in f"{caught.value.message} {caught.value.details} {caught.value.hint}"


def test_values_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_HERE", " sk-canary \n")
    assert value_from_environment("FROM_HERE") == " sk-canary \n"
    monkeypatch.setenv("FROM_HERE", "")
    for variable in ("FROM_HERE", "FROM_NOWHERE"):
        with pytest.raises(OsmosisError, match=variable) as caught:
            value_from_environment(variable)
        assert caught.value.code == "VALIDATION"
    with pytest.raises(OsmosisError, match="UTF-8") as caught:
        check_value("sk-canary\udcff", source="it")
    assert "canary" not in caught.value.message


@pytest.mark.parametrize("reply, code", REFUSALS)
def test_failed_lookup(
    platform: respx.MockRouter, client: PlatformClient, reply: dict[str, Any], code: str
) -> None:
    platform.get(PATH).respond(**reply)
    if code == "PLATFORM_ERROR":
        require_secret(client, "A", "personal")
        return
    with pytest.raises(OsmosisError) as caught:
        require_secret(client, "A", "personal")
    assert caught.value.code == code
