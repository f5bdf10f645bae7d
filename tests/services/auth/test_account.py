"""Who one is, as far as the platform and the saved login tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.auth import whoami
from tests.logins import (
    BARELY_VERIFIED,
    FERN,
    IDENTITY,
    LATER,
    NEW_TOKEN,
    NULLS_VERIFIED,
    REFUSALS,
    TOKEN,
    VERIFIED,
    make_checkout,
    save_login,
)
from tests.services.auth.conftest import saved


def test_in_a_connected_repository_the_account_has_its_workspace(
    platform: respx.MockRouter, tmp_path: Path
) -> None:
    save_login()
    verify = platform.get("/api/cli/verify").respond(json=VERIFIED)
    platform.get("/api/cli/workspaces").respond(json={"workspaces": [{"id": "ws_1", "name": "fern-lab"}]})
    facts = {
        "email": "mara@fern.example",
        "name": "Mara",
        "expires_at": LATER,
        "platform_url": FERN,
        "source": "file",
        "effective_source": "file",
        "persistent_login": True,
    }
    assert whoami(make_checkout(tmp_path).root).data() == {
        "account": {**facts, "token_id": "ct_01J8"},
        **facts,
        "platform_directory": None,
        "workspace": {"id": "ws_1", "name": "fern-lab", "role": "admin"},
        "workspaces": [{"id": "ws_1", "name": "fern-lab", "role": None}],
    }
    assert verify.calls.last.request.headers["x-osmosis-git"] == IDENTITY


@pytest.mark.parametrize("reply", [BARELY_VERIFIED, NULLS_VERIFIED])
def test_outside_of_a_repository_and_with_a_platform_of_few_words(
    platform: respx.MockRouter, reply: dict[str, Any]
) -> None:
    save_login(token_id=None)
    verify = platform.get("/api/cli/verify").respond(json=reply)
    platform.get("/api/cli/workspaces").respond(404)
    data = whoami().data()
    assert "x-osmosis-git" not in verify.calls.last.request.headers
    assert (data["workspace"], data["workspaces"], data["expires_at"]) == (None, None, LATER)
    assert "token_id" not in data["account"]


@pytest.mark.parametrize("status", [400, 403, 404, 500])
def test_a_repository_that_is_refused_is_left_out(
    platform: respx.MockRouter, tmp_path: Path, status: int
) -> None:
    save_login()

    def verify(request: httpx.Request) -> httpx.Response:
        if "x-osmosis-git" in request.headers:
            return httpx.Response(status, json={"error": "no", "code": "GIT_REPOSITORY_ACCESS_DENIED"})
        return httpx.Response(200, json={**VERIFIED, "workspace": None})

    platform.get("/api/cli/verify").mock(side_effect=verify)
    platform.get("/api/cli/workspaces").respond(json={"workspaces": []})
    assert whoami(make_checkout(tmp_path).root).data()["workspace"] is None


@pytest.mark.parametrize("reply", [{"status_code": 404, "json": {}}, {"status_code": 500, "text": "no"}])
def test_a_failure_that_names_no_repository_does_not_drop_it(
    platform: respx.MockRouter, tmp_path: Path, reply: dict[str, Any]
) -> None:
    save_login()
    verify = platform.get("/api/cli/verify").respond(**reply)
    with pytest.raises(OsmosisError, match=f"HTTP {reply['status_code']}"):
        whoami(make_checkout(tmp_path).root)
    assert all("x-osmosis-git" in call.request.headers for call in verify.calls)


@pytest.mark.parametrize("reply, code", REFUSALS)
def test_trouble_that_is_not_about_the_repository_is_told(
    platform: respx.MockRouter, tmp_path: Path, reply: dict[str, Any], code: str
) -> None:
    save_login()
    platform.get("/api/cli/verify").respond(**reply)
    with pytest.raises(OsmosisError) as caught:
        whoami(make_checkout(tmp_path).root)
    assert caught.value.code == code
    assert TOKEN not in f"{caught.value.message} {caught.value.details} {caught.value.hint}"
    assert saved() == TOKEN


def test_a_platform_that_is_not_reached_is_not_asked_twice(
    platform: respx.MockRouter, tmp_path: Path
) -> None:
    save_login()
    verify = platform.get("/api/cli/verify").mock(side_effect=httpx.ReadTimeout("slow"))
    with pytest.raises(OsmosisError) as caught:
        whoami(make_checkout(tmp_path).root)
    assert caught.value.code == "PLATFORM_ERROR"
    assert verify.call_count == 1


def test_a_token_in_the_environment_comes_first_and_says_what_it_shadows(
    platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_TOKEN", NEW_TOKEN)
    monkeypatch.setenv("OSMOSIS_TOKEN_PLATFORM_URL", FERN)
    verify = platform.get("/api/cli/verify").respond(json=VERIFIED)
    platform.get("/api/cli/workspaces").respond(json={"workspaces": []})
    assert whoami().data()["persistent_login"] is False
    save_login()
    data = whoami().data()
    assert (data["source"], data["persistent_login"]) == ("environment", True)
    assert verify.calls.last.request.headers["authorization"] == f"Bearer {NEW_TOKEN}"
