"""Logging in and out: what is saved, what is revoked, in which order, and what a person hears of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import keyring
import keyring.core
import pytest
import respx

from osmosis_ai.api.credentials import CredentialStore
from osmosis_ai.api.wire.auth import DeviceAuthorization
from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.auth import (
    login_with_device,
    login_with_token,
    logout,
    plan_logout,
    saved_login,
    whoami,
)
from osmosis_ai.services.auth.device_code import minutes_to_confirm
from tests.api.keyrings import LockableKeyring, MemoryKeyring
from tests.logins import (
    BARELY_VERIFIED,
    FERN,
    IDENTITY,
    LATER,
    MARA,
    NEW_TOKEN,
    NULLS_VERIFIED,
    REFUSALS,
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


class FakeTime:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float, /) -> None:
        self.slept.append(seconds)


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


@pytest.fixture
def use_keyring() -> Iterator[Callable[[Any], None]]:
    former = keyring.core._keyring_backend
    yield keyring.set_keyring
    keyring.core._keyring_backend = former


@pytest.fixture
def working(use_keyring: Callable[[Any], None]) -> MemoryKeyring:
    backend = LockableKeyring()
    use_keyring(backend)
    return backend


def _saved() -> str | None:
    found = CredentialStore().load(FERN)
    return found.token if found else None


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
    assert _saved() == TOKEN


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
    assert _saved() is None


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
        saved_when_revoked.append(_saved())
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
    assert _saved() == NEW_TOKEN


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
    assert _saved() == NEW_TOKEN


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
    assert _saved() == TOKEN


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
    assert (login.source, login.resource()["token_store"], _saved()) == ("device", "file", NEW_TOKEN)
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
    assert _saved() is None


def test_a_moment_without_the_platform_does_not_end_the_login(platform: respx.MockRouter) -> None:
    trouble = [httpx.ConnectError("down"), httpx.Response(503)]
    _polls(platform, *trouble, PENDING, *trouble, httpx.Response(200, json=ISSUED))
    login_with_device(lambda _: None, clock=FakeTime())
    assert _saved() == NEW_TOKEN


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
    assert _saved() == TOKEN


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
    assert _saved() == TOKEN


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


# Logging out


def test_logging_out_revokes_and_forgets(platform: respx.MockRouter, working: MemoryKeyring) -> None:
    store = save_login()
    revoke = platform.delete("/api/cli/tokens/ct_01J8").respond(204)
    plan = plan_logout()
    assert logout(plan) is True
    assert revoke.calls.last.request.headers["authorization"] == f"Bearer {TOKEN}"
    assert plan.resource(revoked=True) == {
        "logged_in": False,
        "revoked": True,
        "env_token_set": False,
        "persistent_login": False,
        "effective_source": None,
        "platform_url": FERN,
        "platforms": [FERN],
    }
    assert working.kept == {}
    assert not store.path.exists()


@pytest.mark.parametrize("reply", [httpx.Response(500), httpx.Response(404), httpx.ConnectError("down")])
def test_a_platform_that_does_not_revoke_does_not_keep_anyone_logged_in(
    platform: respx.MockRouter, warn: Warnings, reply: Any
) -> None:
    save_login()
    platform.delete("/api/cli/tokens/ct_01J8").mock(side_effect=[reply])
    assert logout(plan_logout(), warn=warn) is False
    assert warn.codes == ["TOKEN_REVOKE_FAILED"]
    assert _saved() is None


def test_an_expired_login_is_forgotten_without_a_call(platform: respx.MockRouter) -> None:
    save_login(expires_at=datetime(2020, 1, 1, tzinfo=timezone.utc))
    assert logout(plan_logout()) is False
    assert platform.calls.call_count == 0
    assert CredentialStore().all() == ()


def test_a_login_that_lost_its_token_is_forgotten_with_a_warning(
    working: MemoryKeyring, warn: Warnings
) -> None:
    save_login()
    working.kept.clear()
    logout(plan_logout(), warn=warn)
    assert warn.codes == ["TOKEN_NOT_FOUND"]
    assert CredentialStore().all() == ()


def test_only_the_active_platform_is_left_unless_all_are(platform: respx.MockRouter) -> None:
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


def test_damaged_logins_can_be_left_behind(home: Path, warn: Warnings) -> None:
    path = home / ".config/osmosis/credentials.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    plan = plan_logout()
    assert (plan.platforms, plan.is_empty) == ((), False)
    logout(plan, warn=warn)
    assert warn.codes == ["CREDENTIALS_METADATA_BACKED_UP"]
    assert plan_logout().is_empty


# Who one is


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
    platform.get("/api/cli/workspaces").respond(json={})
    assert whoami(make_checkout(tmp_path).root).data()["workspace"] is None


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
    assert _saved() == TOKEN


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
    platform.get("/api/cli/workspaces").respond(json={})
    assert whoami().data()["persistent_login"] is False
    save_login()
    data = whoami().data()
    assert (data["source"], data["persistent_login"]) == ("environment", True)
    assert verify.calls.last.request.headers["authorization"] == f"Bearer {NEW_TOKEN}"
