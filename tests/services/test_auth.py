"""Login, logout and whoami: which tokens are saved and revoked, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from osmosis_ai.api.credentials import CredentialStore
from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.auth import login_with_device, login_with_token, logout, plan_logout, whoami
from tests.api.keyrings import MemoryKeyring
from tests.api.keyrings import use_keyring as use_keyring
from tests.api.keyrings import working as working
from tests.logins import (
    FERN,
    LATER,
    MARA,
    NEW_TOKEN,
    TOKEN,
    VERIFIED,
    make_checkout,
    save_login,
    use_platform,
)

AUTHORIZED: dict[str, Any] = {
    "device_code": "dc_canary",
    "user_code": "WXYZ-1234",
    "verification_uri": f"{FERN}/device",
    "verification_uri_complete": f"{FERN}/device?code=WXYZ-1234",
    "expires_in": 600,
    "interval": 5,
}
ISSUED: dict[str, Any] = {"token": NEW_TOKEN, "token_id": "ct_NEW", "expires_at": LATER, "user": MARA}
PENDING = httpx.Response(400, json={"error": "authorization_pending"})
SLOW_DOWN = httpx.Response(400, json={"error": "slow_down"})


class Warnings(list[tuple[str, "str | None"]]):
    def __call__(self, message: str, code: str | None) -> None:
        self.append((message, code))

    @property
    def codes(self) -> list[str | None]:
        return [code for _, code in self]


@pytest.fixture(autouse=True)
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[respx.MockRouter]:
    use_platform(monkeypatch)
    with respx.mock(base_url=FERN, assert_all_called=False) as router:
        yield router


@pytest.fixture
def warn() -> Warnings:
    return Warnings()


def saved() -> str | None:
    found = CredentialStore().load(FERN)
    return found.token if found else None


class FakeTime:
    """Time that passes only during ``sleep``."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float, /) -> None:
        self.slept.append(seconds)


@pytest.fixture(autouse=True)
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    clock = FakeTime()
    monkeypatch.setattr("osmosis_ai.services.auth.time", clock)
    return clock


# With a token


def test_required_keyring_is_checked_first(
    platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_TOKEN_STORE", "keyring")
    attempts: list[Callable[[], object]] = [
        lambda: login_with_token(TOKEN),
        lambda: login_with_device(lambda _: None),
    ]
    for attempt in attempts:
        with pytest.raises(OsmosisError) as caught:
            attempt()
        assert caught.value.code == "KEYRING_UNAVAILABLE"
    assert platform.calls.call_count == 0


@pytest.mark.parametrize(
    "reply, code",
    [
        ({**VERIFIED, "expires_at": "2020-01-01T00:00:00Z"}, "AUTH_REQUIRED"),
        ({**VERIFIED, "valid": False}, "AUTH_REQUIRED"),
        ({**VERIFIED, "user": {"id": "", "email": ""}}, "PLATFORM_ERROR"),
        ({"expires_at": LATER}, "PLATFORM_ERROR"),
    ],
)
def test_invalid_verification(platform: respx.MockRouter, reply: dict[str, Any], code: str) -> None:
    platform.get("/api/cli/verify").respond(json=reply)
    with pytest.raises(OsmosisError) as caught:
        login_with_token(TOKEN)
    assert caught.value.code == code
    assert saved() is None


@pytest.mark.parametrize("token", ["osm canary", "osm_cänary", "osm\ncanary", "osm_\x7f"])
def test_malformed_token_is_not_sent(platform: respx.MockRouter, token: str) -> None:
    with pytest.raises(OsmosisError) as caught:
        login_with_token(token)
    assert "canary" not in str(caught.value.message)
    assert platform.calls.call_count == 0


def test_previous_token_is_revoked_after_saving(platform: respx.MockRouter, warn: Warnings) -> None:
    save_login(token_id="ct_OLD")
    platform.get("/api/cli/verify").respond(json={**VERIFIED, "token_id": "ct_NEW"})
    saved_when_revoked: list[str | None] = []

    def revoke(request: httpx.Request) -> httpx.Response:
        saved_when_revoked.append(saved())
        return httpx.Response(200, json={})

    route = platform.delete("/api/cli/tokens/ct_OLD").mock(side_effect=revoke)
    login_with_token(NEW_TOKEN, warn=warn)
    assert saved_when_revoked == [NEW_TOKEN]
    assert route.calls.last.request.headers["authorization"] == f"Bearer {TOKEN}"
    assert route.calls.last.request.content == b""
    assert warn == []


@pytest.mark.parametrize(
    "former",
    [
        {"token": NEW_TOKEN, "token_id": None},
        {"token_id": "ct_NEW"},
        {"expires_at": datetime(2020, 1, 1, tzinfo=timezone.utc), "token_id": "ct_OLD"},
    ],
)
def test_same_or_expired_token_is_not_revoked(platform: respx.MockRouter, former: dict[str, Any]) -> None:
    save_login(**former)
    platform.get("/api/cli/verify").respond(json={**VERIFIED, "token_id": "ct_NEW"})
    login_with_token(NEW_TOKEN)
    assert saved() == NEW_TOKEN


def test_damaged_logins_are_backed_up(platform: respx.MockRouter, home: Path, warn: Warnings) -> None:
    path = home / ".config/osmosis/credentials.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"version": 1, "active_workspace": "fern-lab"}')
    platform.get("/api/cli/verify").respond(json=VERIFIED)
    login_with_token(TOKEN, warn=warn)
    assert "CREDENTIALS_METADATA_BACKED_UP" in warn.codes
    assert path.with_name("credentials.json.bak").exists()
    assert saved() == TOKEN


# By device


def _polls(platform: respx.MockRouter, *replies: Any, **authorized: Any) -> respx.Route:
    platform.post("/api/cli/device/authorize").respond(json={**AUTHORIZED, **authorized})
    return platform.post("/api/cli/device/token").mock(side_effect=list(replies))


def test_poll_interval_and_expiry(platform: respx.MockRouter, fake_time: FakeTime) -> None:
    _polls(platform, *[SLOW_DOWN] * 100, expires_in=5000, interval=0)
    with pytest.raises(OsmosisError) as caught:
        login_with_device(lambda _: None)
    assert (caught.value.code, "not confirmed in time" in caught.value.message) == ("AUTH_REQUIRED", True)
    assert fake_time.slept[:7] == [6, 11, 16, 21, 26, 30, 30]
    assert sum(fake_time.slept) == 900


def test_short_outage_during_device_login(platform: respx.MockRouter) -> None:
    trouble = [httpx.ConnectError("down"), httpx.Response(503)]
    _polls(platform, *trouble, PENDING, *trouble, httpx.Response(200, json=ISSUED))
    login_with_device(lambda _: None)
    assert saved() == NEW_TOKEN


@pytest.mark.parametrize(
    "reply, polls, code",
    [
        (httpx.Response(500), 3, "PLATFORM_ERROR"),
        (httpx.Response(429), 3, "RATE_LIMITED"),
        (httpx.Response(200, text="<html>"), 3, "PLATFORM_ERROR"),
        (httpx.Response(426, json={"status": "unsupported", "message": "Upgrade."}), 1, "UPGRADE_REQUIRED"),
        (httpx.Response(400, json={"error": "something new"}), 1, "VALIDATION"),
    ],
)
def test_persistent_failure_of_device_login(
    platform: respx.MockRouter, reply: httpx.Response, polls: int, code: str
) -> None:
    route = _polls(platform, *[reply] * 5)
    with pytest.raises(OsmosisError) as caught:
        login_with_device(lambda _: None)
    assert (caught.value.code, route.call_count) == (code, polls)
    assert "dc_canary" not in f"{caught.value.message} {caught.value.details}"


def _refuse_to_save(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def save(self: CredentialStore, credentials: Any) -> None:
        raise error

    monkeypatch.setattr(CredentialStore, "save", save)


DISK_FULL = OsmosisError("the disk is full.", code="CREDENTIALS_UNAVAILABLE")


@pytest.mark.parametrize("error", [DISK_FULL, KeyboardInterrupt()])
def test_unsaved_device_token_is_revoked(
    platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    save_login(token_id="ct_OLD")
    _polls(platform, httpx.Response(200, json=ISSUED))
    revoke = platform.delete("/api/cli/tokens/ct_NEW").respond(json={})
    _refuse_to_save(monkeypatch, error)
    with pytest.raises(type(error)):
        login_with_device(lambda _: None)
    assert revoke.calls.last.request.headers["authorization"] == f"Bearer {NEW_TOKEN}"
    assert saved() == TOKEN


def test_unsaved_and_unrevoked_device_token(
    platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    _polls(platform, httpx.Response(200, json=ISSUED))
    platform.delete("/api/cli/tokens/ct_NEW").respond(503)
    _refuse_to_save(monkeypatch, DISK_FULL)
    with pytest.raises(OsmosisError) as caught:
        login_with_device(lambda _: None)
    assert caught.value.code == "TOKEN_REVOKE_FAILED"
    assert "the disk is full" in caught.value.message
    assert NEW_TOKEN not in f"{caught.value.message} {caught.value.details}"


def test_unsaved_user_token_is_not_revoked(
    platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform.get("/api/cli/verify").respond(json=VERIFIED)
    _refuse_to_save(monkeypatch, DISK_FULL)
    with pytest.raises(OsmosisError):
        login_with_token(TOKEN)
    assert [call.request.method for call in platform.calls] == ["GET"]


# The login there is


@pytest.mark.parametrize("reply", [httpx.Response(500), httpx.Response(404), httpx.ConnectError("down")])
def test_failed_revocation_still_logs_out(platform: respx.MockRouter, warn: Warnings, reply: Any) -> None:
    save_login()
    platform.delete("/api/cli/tokens/ct_01J8").mock(side_effect=[reply])
    assert logout(plan_logout(), warn=warn) is False
    assert warn.codes == ["TOKEN_REVOKE_FAILED"]
    assert saved() is None


def test_logout_without_stored_token(working: MemoryKeyring, warn: Warnings) -> None:
    save_login()
    working.kept.clear()
    logout(plan_logout(), warn=warn)
    assert warn.codes == ["TOKEN_NOT_FOUND"]
    assert CredentialStore().all() == ()


def test_logout_everywhere(platform: respx.MockRouter) -> None:
    other = "https://other.example"
    save_login()
    save_login(other, token="osm_other", token_id="ct_OTHER")
    assert plan_logout().platforms == (FERN,)
    plan = plan_logout(everywhere=True)
    assert plan.platforms == (FERN, other)
    platform.delete("/api/cli/tokens/ct_01J8").respond(204)
    with respx.mock(base_url=other) as elsewhere:
        elsewhere.delete("/api/cli/tokens/ct_OTHER").respond(204)
        assert logout(plan) is True
    assert CredentialStore().all() == ()


def test_logout_with_damaged_logins(home: Path, warn: Warnings) -> None:
    path = home / ".config/osmosis/credentials.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    plan = plan_logout()
    assert (plan.platforms, plan.is_empty) == ((), False)
    logout(plan, warn=warn)
    assert warn.codes == ["CREDENTIALS_METADATA_BACKED_UP"]
    assert plan_logout().is_empty


@pytest.mark.parametrize("status", [400, 403, 404, 500])
def test_whoami_in_refused_repository(
    platform: respx.MockRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    save_login()
    monkeypatch.chdir(make_checkout(tmp_path).root)

    def verify(request: httpx.Request) -> httpx.Response:
        if "x-osmosis-git" in request.headers:
            return httpx.Response(status, json={"error": "no", "code": "GIT_REPOSITORY_ACCESS_DENIED"})
        return httpx.Response(200, json={**VERIFIED, "workspace": None})

    platform.get("/api/cli/verify").mock(side_effect=verify)
    platform.get("/api/cli/workspaces").respond(json={"workspaces": []})
    assert whoami().data()["workspace"] is None


def test_whoami_of_unreachable_platform(platform: respx.MockRouter) -> None:
    save_login()
    verify = platform.get("/api/cli/verify").mock(side_effect=httpx.ReadTimeout("slow"))
    with pytest.raises(OsmosisError) as caught:
        whoami()
    assert caught.value.code == "PLATFORM_ERROR"
    assert verify.call_count == 1


def test_whoami_with_environment_token(platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_TOKEN", NEW_TOKEN)
    monkeypatch.setenv("OSMOSIS_TOKEN_PLATFORM_URL", FERN)
    verify = platform.get("/api/cli/verify").respond(json=VERIFIED)
    platform.get("/api/cli/workspaces").respond(json={"workspaces": []})
    assert whoami().data()["persistent_login"] is False
    save_login()
    data = whoami().data()
    assert (data["source"], data["persistent_login"]) == ("environment", True)
    assert verify.calls.last.request.headers["authorization"] == f"Bearer {NEW_TOKEN}"


def test_logout_with_expired_login(platform: respx.MockRouter) -> None:
    save_login(expires_at=datetime(2020, 1, 1, tzinfo=timezone.utc))
    assert logout(plan_logout()) is False
    assert platform.calls.call_count == 0
    assert CredentialStore().all() == ()
