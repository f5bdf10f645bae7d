"""Logging in: what is saved, what is revoked, in which order, and what a person hears of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from osmosis_ai.api.credentials import CredentialStore
from osmosis_ai.api.wire.auth import DeviceAuthorization
from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.auth import login_with_device, login_with_token, minutes_to_confirm, saved_login
from tests.api.keyrings import MemoryKeyring
from tests.logins import (
    BARELY_VERIFIED,
    FERN,
    LATER,
    MARA,
    NEW_TOKEN,
    NULLS_VERIFIED,
    REFUSALS,
    TOKEN,
    VERIFIED,
    save_login,
)
from tests.services.auth.conftest import Warnings, saved

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


class FakeTime:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float, /) -> None:
        self.slept.append(seconds)


# With a token


def test_a_token_is_verified_saved_and_never_in_plain_sight(
    platform: respx.MockRouter, working: MemoryKeyring, home: Path, warn: Warnings
) -> None:
    verify = platform.get("/api/cli/verify").respond(json=VERIFIED)
    login = login_with_token(TOKEN, warn=warn)
    assert "x-osmosis-git" not in verify.calls.last.request.headers
    assert login.resource() == {
        "email": "mara@fern.example",
        "name": "Mara",
        "expires_at": LATER,
        "platform_url": FERN,
        "workspace": None,
        "source": "token",
        "verified": True,
        "saved": True,
        "token_store": "keyring",
    }
    assert list(working.kept.values()) == [TOKEN]
    assert TOKEN not in (home / ".config/osmosis/credentials.json").read_text()
    assert TOKEN not in repr(login)
    assert warn == []


@pytest.mark.parametrize("reply", [BARELY_VERIFIED, NULLS_VERIFIED])
def test_a_platform_that_says_little_gives_a_login_for_ninety_days(
    platform: respx.MockRouter, reply: dict[str, Any]
) -> None:
    platform.get("/api/cli/verify").respond(json=reply)
    login = login_with_token(TOKEN)
    assert login.credentials.expires_at is not None
    assert (login.credentials.expires_at - datetime.now(timezone.utc)).days in (89, 90)
    assert (login.user.name, login.credentials.token_id) == (None, None)


def test_without_a_keyring_the_file_is_mentioned_the_first_time(
    platform: respx.MockRouter, home: Path, warn: Warnings
) -> None:
    platform.get("/api/cli/verify").respond(json=VERIFIED)
    path = home / ".config/osmosis/credentials.json"
    assert login_with_token(TOKEN, warn=warn).credentials.source == "file"
    assert [(str(path) in text, code) for text, code in warn] == [(True, "KEYRING_UNAVAILABLE")]
    assert path.stat().st_mode & 0o777 == 0o600
    login_with_token(TOKEN, warn=warn)
    assert len(warn) == 1


def test_a_file_that_was_asked_for_is_not_mentioned(
    platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch, warn: Warnings
) -> None:
    monkeypatch.setenv("OSMOSIS_TOKEN_STORE", "file")
    platform.get("/api/cli/verify").respond(json=VERIFIED)
    login_with_token(TOKEN, warn=warn)
    assert warn == []


def test_a_keyring_that_is_demanded_and_missing_is_found_out_before_the_platform_is_asked(
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


@pytest.mark.parametrize("reply, code", REFUSALS)
def test_a_token_that_is_not_accepted_leaves_the_saved_login_alone(
    platform: respx.MockRouter, reply: dict[str, Any], code: str
) -> None:
    save_login()
    platform.get("/api/cli/verify").respond(**reply)
    with pytest.raises(OsmosisError) as caught:
        login_with_token(NEW_TOKEN)
    assert caught.value.code == code
    assert NEW_TOKEN not in f"{caught.value.message} {caught.value.details} {caught.value.hint}"
    assert saved() == TOKEN


@pytest.mark.parametrize(
    "reply, code",
    [
        ({**VERIFIED, "expires_at": "2020-01-01T00:00:00Z"}, "AUTH_REQUIRED"),
        ({**VERIFIED, "valid": False}, "AUTH_REQUIRED"),
        ({**VERIFIED, "user": {"id": "", "email": ""}}, "PLATFORM_ERROR"),
        ({"expires_at": LATER}, "PLATFORM_ERROR"),
    ],
)
def test_a_reply_that_vouches_for_nobody_is_no_login(
    platform: respx.MockRouter, reply: dict[str, Any], code: str
) -> None:
    platform.get("/api/cli/verify").respond(json=reply)
    with pytest.raises(OsmosisError) as caught:
        login_with_token(TOKEN)
    assert caught.value.code == code
    assert saved() is None


@pytest.mark.parametrize("token", ["osm canary", "osm_cänary", "osm\ncanary", "osm_\x7f"])
def test_what_can_be_no_token_is_not_sent(platform: respx.MockRouter, token: str) -> None:
    with pytest.raises(OsmosisError) as caught:
        login_with_token(token)
    assert "canary" not in str(caught.value.message)
    assert platform.calls.call_count == 0


def test_the_token_it_replaces_is_revoked_after_the_new_one_is_safe(
    platform: respx.MockRouter, warn: Warnings
) -> None:
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


def test_a_former_token_without_an_id_is_asked_for_its_id(platform: respx.MockRouter) -> None:
    save_login(token_id=None)

    def verify(request: httpx.Request) -> httpx.Response:
        is_new = request.headers["authorization"] == f"Bearer {NEW_TOKEN}"
        return httpx.Response(200, json={**VERIFIED, "token_id": "ct_NEW" if is_new else "ct_OLD"})

    platform.get("/api/cli/verify").mock(side_effect=verify)
    revoke = platform.delete("/api/cli/tokens/ct_OLD").respond(204)
    login_with_token(NEW_TOKEN)
    assert revoke.call_count == 1


@pytest.mark.parametrize(
    "reply, codes",
    [
        (httpx.Response(401, json={"code": "TOKEN_REVOKED"}), []),
        (httpx.Response(500), ["TOKEN_REVOKE_FAILED"]),
        (httpx.ConnectError("down"), ["TOKEN_REVOKE_FAILED"]),
    ],
)
def test_a_revocation_that_fails_is_a_warning(
    platform: respx.MockRouter, warn: Warnings, reply: Any, codes: list[str]
) -> None:
    save_login(token_id="ct_OLD")
    platform.get("/api/cli/verify").respond(json={**VERIFIED, "token_id": "ct_NEW"})
    platform.delete("/api/cli/tokens/ct_OLD").mock(side_effect=[reply])
    login_with_token(NEW_TOKEN, warn=warn)
    assert warn.codes == codes
    assert TOKEN not in repr(warn) and NEW_TOKEN not in repr(warn)
    assert saved() == NEW_TOKEN


@pytest.mark.parametrize(
    "former",
    [
        {"token": NEW_TOKEN, "token_id": None},
        {"token_id": "ct_NEW"},
        {"expires_at": datetime(2020, 1, 1, tzinfo=timezone.utc), "token_id": "ct_OLD"},
    ],
)
def test_the_same_token_and_an_expired_one_are_not_revoked(
    platform: respx.MockRouter, former: dict[str, Any]
) -> None:
    save_login(**former)
    platform.get("/api/cli/verify").respond(json={**VERIFIED, "token_id": "ct_NEW"})
    login_with_token(NEW_TOKEN)
    assert saved() == NEW_TOKEN


def test_a_former_token_that_cannot_be_read_is_told_of(
    platform: respx.MockRouter, working: MemoryKeyring, warn: Warnings
) -> None:
    save_login()
    working.kept.clear()
    platform.get("/api/cli/verify").respond(json=VERIFIED)
    login_with_token(NEW_TOKEN, warn=warn)
    assert warn.codes == ["TOKEN_NOT_FOUND"]


def test_damaged_logins_are_moved_aside(platform: respx.MockRouter, home: Path, warn: Warnings) -> None:
    path = home / ".config/osmosis/credentials.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"version": 1, "active_workspace": "fern-lab"}')
    platform.get("/api/cli/verify").respond(json=VERIFIED)
    login_with_token(TOKEN, warn=warn)
    assert "CREDENTIALS_METADATA_BACKED_UP" in warn.codes
    assert path.with_name("credentials.json.bak").exists()
    assert saved() == TOKEN


def test_logins_of_several_platforms_live_side_by_side(
    platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_login("https://other.example", token="osm_other")
    platform.get("/api/cli/verify").respond(json=VERIFIED)
    login_with_token(TOKEN)
    assert [login.platform_url for login in CredentialStore().all()] == [
        "https://osmosis.fern.example",
        "https://other.example",
    ]


# By device


def _polls(platform: respx.MockRouter, *replies: Any, **authorized: Any) -> respx.Route:
    platform.post("/api/cli/device/authorize").respond(json={**AUTHORIZED, **authorized})
    return platform.post("/api/cli/device/token").mock(side_effect=list(replies))


def test_a_code_is_shown_and_asked_about_until_it_is_confirmed(
    platform: respx.MockRouter, warn: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_TOKEN_STORE", "file")
    monkeypatch.setattr("socket.gethostname", lambda: "fern-laptop")
    polls = _polls(platform, PENDING, SLOW_DOWN, PENDING, httpx.Response(200, json=ISSUED))
    shown: list[DeviceAuthorization] = []
    time = FakeTime()
    login = login_with_device(shown.append, warn=warn, clock=time)
    authorize = next(call.request for call in platform.calls)
    assert json.loads(authorize.content) == {"deviceName": "fern-laptop"}
    assert "authorization" not in authorize.headers
    assert {call.request.content for call in polls.calls} == {b'{"device_code": "dc_canary"}'}
    assert [code.user_code for code in shown] == ["WXYZ-1234"]
    assert minutes_to_confirm(shown[0]) == 10
    assert time.slept == [5, 10, 10]
    assert (login.source, login.resource()["token_store"], saved()) == ("device", "file", NEW_TOKEN)
    assert "canary" not in f"{login!r} {shown!r} {warn!r}"


def test_asking_slows_down_to_half_a_minute_and_ends_when_the_code_does(platform: respx.MockRouter) -> None:
    _polls(platform, *[SLOW_DOWN] * 100, expires_in=5000, interval=0)
    time = FakeTime()
    with pytest.raises(OsmosisError) as caught:
        login_with_device(lambda _: None, clock=time)
    assert (caught.value.code, "not confirmed in time" in caught.value.message) == ("AUTH_REQUIRED", True)
    assert time.slept[:7] == [6, 11, 16, 21, 26, 30, 30]
    assert sum(time.slept) == 900


@pytest.mark.parametrize(
    "said, message",
    [
        ("expired_token", "The login was not confirmed in time."),
        ("access_denied", "The login was declined in the browser."),
    ],
)
def test_the_user_or_the_time_can_end_it(platform: respx.MockRouter, said: str, message: str) -> None:
    _polls(platform, PENDING, httpx.Response(400, json={"error": said}))
    with pytest.raises(OsmosisError) as caught:
        login_with_device(lambda _: None, clock=FakeTime())
    assert (caught.value.code, caught.value.message) == ("AUTH_REQUIRED", message)
    assert saved() is None


def test_a_moment_without_the_platform_does_not_end_the_login(platform: respx.MockRouter) -> None:
    trouble = [httpx.ConnectError("down"), httpx.Response(503)]
    _polls(platform, *trouble, PENDING, *trouble, httpx.Response(200, json=ISSUED))
    login_with_device(lambda _: None, clock=FakeTime())
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
def test_a_platform_that_goes_on_failing_ends_it(
    platform: respx.MockRouter, reply: httpx.Response, polls: int, code: str
) -> None:
    route = _polls(platform, *[reply] * 5)
    with pytest.raises(OsmosisError) as caught:
        login_with_device(lambda _: None, clock=FakeTime())
    assert (caught.value.code, route.call_count) == (code, polls)
    assert "dc_canary" not in f"{caught.value.message} {caught.value.details}"


def test_a_token_in_the_environment_stands_in_the_way(
    platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_TOKEN", TOKEN)
    with pytest.raises(OsmosisError) as caught:
        login_with_device(lambda _: None)
    assert caught.value.code == "CONFLICT"
    assert platform.calls.call_count == 0


def _refuse_to_save(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def save(self: CredentialStore, credentials: Any) -> None:
        raise error

    monkeypatch.setattr(CredentialStore, "save", save)


DISK_FULL = OsmosisError("the disk is full.", code="CREDENTIALS_UNAVAILABLE")


@pytest.mark.parametrize("error", [DISK_FULL, KeyboardInterrupt()])
def test_a_new_token_that_cannot_be_saved_is_revoked_and_the_old_one_kept(
    platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    save_login(token_id="ct_OLD")
    _polls(platform, httpx.Response(200, json=ISSUED))
    revoke = platform.delete("/api/cli/tokens/ct_NEW").respond(json={})
    _refuse_to_save(monkeypatch, error)
    with pytest.raises(type(error)):
        login_with_device(lambda _: None, clock=FakeTime())
    assert revoke.calls.last.request.headers["authorization"] == f"Bearer {NEW_TOKEN}"
    assert saved() == TOKEN


def test_a_new_token_that_can_be_neither_saved_nor_revoked_is_told_of(
    platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    _polls(platform, httpx.Response(200, json=ISSUED))
    platform.delete("/api/cli/tokens/ct_NEW").respond(503)
    _refuse_to_save(monkeypatch, DISK_FULL)
    with pytest.raises(OsmosisError) as caught:
        login_with_device(lambda _: None, clock=FakeTime())
    assert caught.value.code == "TOKEN_REVOKE_FAILED"
    assert "the disk is full" in caught.value.message
    assert NEW_TOKEN not in f"{caught.value.message} {caught.value.details}"


def test_a_token_of_the_users_own_is_not_revoked_when_it_cannot_be_saved(
    platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform.get("/api/cli/verify").respond(json=VERIFIED)
    _refuse_to_save(monkeypatch, DISK_FULL)
    with pytest.raises(OsmosisError):
        login_with_token(TOKEN)
    assert [call.request.method for call in platform.calls] == ["GET"]


def test_an_interruption_while_waiting_leaves_everything_as_it_was(platform: respx.MockRouter) -> None:
    class Interrupted(FakeTime):
        def sleep(self, seconds: float, /) -> None:
            raise KeyboardInterrupt

    save_login()
    _polls(platform, PENDING)
    with pytest.raises(KeyboardInterrupt):
        login_with_device(lambda _: None, clock=Interrupted())
    assert saved() == TOKEN


# The login there is


def test_a_saved_login_counts_only_while_the_platform_accepts_it(platform: respx.MockRouter) -> None:
    assert saved_login() is None
    save_login(expires_at=datetime(2020, 1, 1, tzinfo=timezone.utc))
    assert saved_login() is None
    assert platform.calls.call_count == 0
    save_login()
    verify = platform.get("/api/cli/verify").respond(json=VERIFIED)
    found = saved_login()
    assert found is not None
    assert (found.source, found.user.email) == ("saved", "mara@fern.example")
    verify.respond(401, json={"code": "TOKEN_REVOKED"})
    assert saved_login() is None
    verify.respond(500)
    with pytest.raises(OsmosisError):
        saved_login()
