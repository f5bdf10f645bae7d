"""`osmosis login`, `logout` and `whoami`."""

from __future__ import annotations

import io
import socket
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from tests.api.keyrings import LockableKeyring
from tests.api.keyrings import use_keyring as use_keyring
from tests.api.keyrings import working as working
from tests.cli.conftest import Cli
from tests.cli.golden_accounts import AUTHORIZED, ISSUED
from tests.cli.outcome import Outcome, TerminalInput
from tests.logins import (
    FERN,
    LATER,
    NEW_TOKEN,
    REFUSALS,
    TOKEN,
    VERIFIED,
    files_holding,
    make_checkout,
    save_login,
    saved_token,
    use_platform,
)
from tests.workspace.builders import git, make_repository

DEVICE_PAGE = f"{FERN}/device?code=WXYZ-1234"


@pytest.fixture(autouse=True)
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[respx.MockRouter]:
    """A platform that confirms a login by device."""
    use_platform(monkeypatch)
    monkeypatch.setenv("OSMOSIS_TOKEN_STORE", "file")
    monkeypatch.setenv("TZ", "UTC")
    with respx.mock(base_url=f"{FERN}/api/cli", assert_all_called=False) as router:
        router.get("/verify").respond(json=VERIFIED)
        router.get("/workspaces").respond(json={"workspaces": [{"id": "ws_1", "name": "fern-lab"}]})
        router.post("/device/authorize").respond(json=AUTHORIZED)
        router.post("/device/token").respond(json=ISSUED)
        yield router


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pages that were opened in a browser, by a user at a terminal."""
    pages: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda page: pages.append(page) or True)  # type: ignore[func-returns-value]
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(sys, "stdin", TerminalInput())
    return pages


def assert_no_token(outcome: Outcome, home: Path) -> None:
    for token in (TOKEN, NEW_TOKEN, "dc_canary"):
        assert token not in outcome.out + outcome.err
        assert files_holding(token, home) in ([], ["credentials.json"])


def test_login_token_from_stdin(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{TOKEN}\n"))
    outcome = cli("login", "--token", "-", "--json")
    assert outcome.json["status"] == "success"
    assert_no_token(outcome, home)
    for invalid in (b" \n", b"\xff\xfe"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(invalid), encoding="utf-8"))
        assert cli("login", "--token", "-", "--json").error["code"] == "VALIDATION"


def test_login_inside_a_checkout(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    login = ("login", "--token", TOKEN, "--plain")
    assert "git clone URL" in cli(*login).out
    root = make_repository(tmp_path / "work")
    git(root, "remote", "add", "origin", "https://github.com/fern/maze.git")
    monkeypatch.chdir(root)
    inside = cli(*login).out
    assert "git clone" not in inside and "osmosis doctor" in inside


@pytest.mark.parametrize("command", [("login",), ("auth", "login")])
@pytest.mark.parametrize("token", ["", "   ", "\n"])
def test_login_empty_token(
    cli: Cli, platform: respx.MockRouter, command: tuple[str, ...], token: str
) -> None:
    outcome = cli(*command, "--token", token, "--json")
    assert (outcome.status, outcome.error["code"]) == (1, "VALIDATION")
    assert outcome.error["message"] == "Token is empty."
    assert "Checking" not in cli(*command, "--token", token).err
    assert not platform.calls


INVALID_VERIFICATIONS: list[tuple[dict[str, Any], str]] = [
    ({"json": {**VERIFIED, "expires_at": "2020-01-01T00:00:00Z"}}, "AUTH_REQUIRED"),
    ({"json": {**VERIFIED, "valid": False}}, "AUTH_REQUIRED"),
    ({"json": {**VERIFIED, "user": {"id": "", "email": ""}}}, "PLATFORM_ERROR"),
    ({"json": {"expires_at": LATER}}, "PLATFORM_ERROR"),
]


@pytest.mark.parametrize("reply, code", [*REFUSALS, *INVALID_VERIFICATIONS])
def test_login_refused_token(
    cli: Cli, platform: respx.MockRouter, home: Path, reply: dict[str, Any], code: str
) -> None:
    save_login()
    platform.get("/verify").respond(**reply)
    outcome = cli("login", "--token", NEW_TOKEN, "--json")
    assert (outcome.status, outcome.error["code"]) == (1, code)
    assert_no_token(outcome, home)
    assert_no_token(cli("login", "--token", NEW_TOKEN), home)
    assert saved_token() == TOKEN


@pytest.mark.parametrize(
    "reply",
    [{"text": "<html>Not found</html>"}, {"json": {"error": "no such path", "code": "ROUTE_NOT_FOUND"}}],
    ids=["page", "json"],
)
def test_login_url_is_not_a_platform(cli: Cli, reply: dict[str, Any]) -> None:
    with respx.mock() as other:
        other.get(f"{FERN}/foo/api/cli/verify").respond(404, **reply)
        error = cli("--platform", f"{FERN}/foo", "login", "--token", NEW_TOKEN, "--json").error
    assert error["message"] == f"{FERN}/foo is not an Osmosis platform."
    assert error["hint"] == f"check the platform's URL: {FERN}/foo (--platform)"


@pytest.mark.parametrize("arguments", [("login", TOKEN), ("auth", "login", TOKEN, "--json")])
def test_login_token_as_argument(cli: Cli, home: Path, arguments: tuple[str, ...]) -> None:
    outcome = cli(*arguments)
    assert outcome.status == 2 and "--token" in outcome.err
    assert_no_token(outcome, home)


def test_login_failed_revocation_is_a_warning(cli: Cli, platform: respx.MockRouter, home: Path) -> None:
    save_login(token_id="ct_OLD")
    platform.delete("/tokens/ct_OLD").respond(500, text=TOKEN)
    outcome = cli("login", "--token", NEW_TOKEN, "--json")
    assert outcome.json["status"] == "success"
    assert '"code":"TOKEN_REVOKE_FAILED"' in outcome.err
    assert_no_token(outcome, home)


@pytest.mark.parametrize("case", ["--no-browser", "no display", "not a web page"])
def test_login_without_browser(
    cli: Cli, platform: respx.MockRouter, opened: list[str], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    if case == "no display":
        monkeypatch.setattr(sys, "platform", "linux")
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
            monkeypatch.delenv(name, raising=False)
    if case == "not a web page":
        target = {"verification_uri_complete": None, "verification_uri": "file:///bin/sh"}
        platform.post("/device/authorize").respond(json={**AUTHORIZED, **target})
    outcome = cli("login", *(["--no-browser"] if case == "--no-browser" else []))
    assert (outcome.status, opened) == (0, [])
    assert "Waiting for confirmation" in outcome.err


def test_login_not_interactive(cli: Cli, platform: respx.MockRouter) -> None:
    error = cli("login", "--json").error
    assert (error["code"], error["details"]["flags"]) == ("INTERACTIVE_REQUIRED", ["--token"])
    for arguments in (["--plain"], []):
        plain = cli("login", *arguments)
        assert (plain.status, plain.out) == (1, "") and "osmosis login --token -" in plain.err
        assert "or set OSMOSIS_TOKEN" in plain.err
    assert not platform.calls


def test_login_with_token_in_environment(
    cli: Cli, platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_TOKEN", TOKEN)
    for arguments in ([], ["--force"]):
        outcome = cli("login", *arguments)
        assert (outcome.status, outcome.out) == (1, "") and "OSMOSIS_TOKEN is set" in outcome.err
    assert cli("login", "--json").error["code"] == "CONFLICT"
    assert not platform.calls


@pytest.mark.usefixtures("opened")
def test_login_replaces_revoked_session(cli: Cli, platform: respx.MockRouter) -> None:
    save_login(token_id="ct_OLD")
    platform.get("/verify").respond(401, json={"code": "TOKEN_REVOKED"})
    platform.delete("/tokens/ct_OLD").respond(401, json={"code": "TOKEN_REVOKED"})
    outcome = cli("login")
    assert outcome.status == 0 and "Logged in as" in outcome.out
    assert "could not be revoked" not in outcome.err


@pytest.mark.usefixtures("opened")
def test_login_force_and_interrupt(cli: Cli, platform: respx.MockRouter) -> None:
    def interrupt(request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    token = platform.post("/device/token").mock(side_effect=interrupt)
    assert cli("login").status == 130
    assert saved_token() is None

    token.side_effect = None
    token.respond(json=ISSUED)
    token.calls.reset()
    save_login(token_id="ct_OLD")
    outcome = cli("login")
    assert outcome.out.splitlines()[0] == f"Already logged in as mara@fern.example on {FERN}."
    assert "osmosis login --force" in outcome.out and not token.called
    revoke = platform.delete("/tokens/ct_OLD").respond(204)
    assert "Logged in as" in cli("login", "--force").out
    assert (token.call_count, revoke.call_count) == (1, 1)


def test_weakness_9_declined_login(
    cli: Cli, platform: respx.MockRouter, home: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the platform answers the browser: there is no local server whose reply a failed login could cut off.
    listening: list[object] = []
    monkeypatch.setattr(socket.socket, "listen", lambda *_: listening.append(_))
    platform.post("/device/token").respond(400, json={"error": "access_denied"})
    outcome = cli("login")
    assert (outcome.status, outcome.out) == (1, "")
    assert "Error: The login was declined in the browser." in outcome.err.splitlines()
    assert (opened, listening) == ([DEVICE_PAGE], [])
    assert saved_token() is None
    assert_no_token(outcome, home)


def test_logout_asks_first(cli: Cli, platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    save_login()
    monkeypatch.setattr(sys, "stdin", TerminalInput())
    monkeypatch.setattr("typer.getchar", lambda: "\r")
    assert cli("logout")[:2] == (0, "Cancelled.\n")
    assert saved_token() == TOKEN and not platform.calls


@pytest.mark.parametrize("code, problem", [("TOKEN_EXPIRED", "expired"), ("TOKEN_REVOKED", "been revoked")])
def test_whoami_with_invalid_token(
    cli: Cli, platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch, code: str, problem: str
) -> None:
    platform.get("/verify").respond(401, json={"error": "no", "code": code})
    save_login()
    saved = cli("whoami")
    assert (saved.status, saved.out) == (1, "")
    assert f"Error: Your session on {FERN} has {problem}." in saved.err and "`osmosis login`" in saved.err
    given = cli("login", "--token", NEW_TOKEN, "--json").error
    assert given["message"] == f"This token has {problem}."
    monkeypatch.setenv("OSMOSIS_TOKEN", NEW_TOKEN)
    monkeypatch.setenv("OSMOSIS_TOKEN_PLATFORM_URL", FERN)
    error = cli("whoami", "--json").error
    assert (error["code"], error["message"]) == ("AUTH_REQUIRED", f"OSMOSIS_TOKEN has {problem}.")
    assert "OSMOSIS_TOKEN" in error["hint"]


# Which tokens are saved and revoked, and in which order


def test_required_keyring_is_checked_first(
    cli: Cli, platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_TOKEN_STORE", "keyring")
    assert cli("login", "--token", TOKEN, "--json").error["code"] == "KEYRING_UNAVAILABLE"
    monkeypatch.setattr(sys, "stdin", TerminalInput())
    assert cli("login").status == 1
    assert not platform.calls


@pytest.mark.parametrize("token", ["osm canary", "osm_cänary", "osm\ncanary", "osm_\x7f"])
def test_login_malformed_token_is_not_sent(cli: Cli, platform: respx.MockRouter, token: str) -> None:
    outcome = cli("login", "--token", token, "--json")
    assert outcome.status == 1 and token not in outcome.error["message"]
    assert not platform.calls


def test_previous_token_is_revoked_after_saving(cli: Cli, platform: respx.MockRouter) -> None:
    save_login(token_id="ct_OLD")
    platform.get("/verify").respond(json={**VERIFIED, "token_id": "ct_NEW"})
    saved_when_revoked: list[str | None] = []

    def revoke(request: httpx.Request) -> httpx.Response:
        saved_when_revoked.append(saved_token())
        return httpx.Response(200, json={})

    route = platform.delete("/tokens/ct_OLD").mock(side_effect=revoke)
    assert cli("login", "--token", NEW_TOKEN, "--json").err == ""
    assert saved_when_revoked == [NEW_TOKEN]
    assert route.calls.last.request.headers["authorization"] == f"Bearer {TOKEN}"
    assert route.calls.last.request.content == b""


@pytest.mark.parametrize(
    "former",
    [
        {"token": NEW_TOKEN, "token_id": None},
        {"token_id": "ct_NEW"},
        {"expires_at": datetime(2020, 1, 1, tzinfo=timezone.utc), "token_id": "ct_OLD"},
    ],
)
def test_same_or_expired_token_is_not_revoked(
    cli: Cli, platform: respx.MockRouter, former: dict[str, Any]
) -> None:
    save_login(**former)
    platform.get("/verify").respond(json={**VERIFIED, "token_id": "ct_NEW"})
    assert cli("login", "--token", NEW_TOKEN).status == 0
    assert saved_token() == NEW_TOKEN


def test_damaged_logins_are_backed_up(cli: Cli, home: Path) -> None:
    path = home / ".config/osmosis/credentials.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"version": 1, "active_workspace": "fern-lab"}')
    assert '"code":"CREDENTIALS_METADATA_BACKED_UP"' in cli("login", "--token", TOKEN, "--json").err
    assert path.with_name("credentials.json.bak").exists()
    assert saved_token() == TOKEN
    path.write_text("{")
    assert '"code":"CREDENTIALS_METADATA_BACKED_UP"' in cli("logout", "--yes", "--json").err
    assert not path.exists()


class FakeTime:
    """Time that passes only during ``sleep``."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float, /) -> None:
        self.slept.append(seconds)


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch, opened: list[str]) -> FakeTime:
    clock = FakeTime()
    monkeypatch.setattr("osmosis_ai.services.auth.time", clock)
    return clock


PENDING = httpx.Response(400, json={"error": "authorization_pending"})
SLOW_DOWN = httpx.Response(400, json={"error": "slow_down"})


def test_device_login_poll_interval_and_expiry(
    cli: Cli, platform: respx.MockRouter, fake_time: FakeTime
) -> None:
    platform.post("/device/authorize").respond(json={**AUTHORIZED, "expires_in": 5000, "interval": 0})
    platform.post("/device/token").mock(side_effect=[SLOW_DOWN] * 100)
    outcome = cli("login")
    assert outcome.status == 1 and "not confirmed in time" in outcome.err
    assert fake_time.slept[:7] == [6, 11, 16, 21, 26, 30, 30]
    assert sum(fake_time.slept) == 900


@pytest.mark.usefixtures("fake_time")
def test_short_outage_during_device_login(cli: Cli, platform: respx.MockRouter) -> None:
    trouble = [httpx.ConnectError("down"), httpx.Response(503)]
    answers = [*trouble, PENDING, *trouble, httpx.Response(200, json=ISSUED)]
    platform.post("/device/token").mock(side_effect=answers)
    assert cli("login").status == 0
    assert saved_token() == NEW_TOKEN


@pytest.mark.usefixtures("fake_time")
@pytest.mark.parametrize(
    "reply, polls",
    [
        (httpx.Response(500), 3),
        (httpx.Response(429), 3),
        (httpx.Response(200, text="<html>"), 3),
        (httpx.Response(426, json={"status": "unsupported", "message": "Upgrade."}), 1),
        (httpx.Response(400, json={"error": "something new"}), 1),
    ],
)
def test_persistent_failure_of_device_login(
    cli: Cli, platform: respx.MockRouter, home: Path, reply: httpx.Response, polls: int
) -> None:
    route = platform.post("/device/token").mock(side_effect=[reply] * 5)
    outcome = cli("login")
    assert (outcome.status, outcome.out, route.call_count) == (1, "", polls)
    assert_no_token(outcome, home)


def refuse_to_save(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def save(*_: object) -> None:
        raise error

    monkeypatch.setattr("osmosis_ai.api.credentials.CredentialStore.save", save)


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("error, status", [(OSError(28, "disk full"), 1), (KeyboardInterrupt(), 130)])
def test_unsaved_device_token_is_revoked(
    cli: Cli, platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    save_login(token_id="ct_OLD")
    revoke = platform.delete("/tokens/ct_NEW").respond(json={})
    refuse_to_save(monkeypatch, error)
    assert cli("login", "--force").status == status
    assert revoke.calls.last.request.headers["authorization"] == f"Bearer {NEW_TOKEN}"
    assert saved_token() == TOKEN


@pytest.mark.usefixtures("opened")
def test_unsaved_and_unrevoked_device_token(cli: Cli, platform: respx.MockRouter, home: Path) -> None:
    platform.delete("/tokens/ct_NEW").respond(503)

    def issue_and_block_saving(request: httpx.Request) -> httpx.Response:
        (home / ".config").mkdir()
        (home / ".config/osmosis").write_text("a file where the directory belongs")
        return httpx.Response(200, json=ISSUED)

    platform.post("/device/token").mock(side_effect=issue_and_block_saving)
    outcome = cli("login")
    assert (outcome.status, outcome.out) == (1, "")
    assert "The new token could not be revoked either" in outcome.err
    assert_no_token(outcome, home)


def test_unsaved_user_token_is_not_revoked(
    cli: Cli, platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_save(monkeypatch, OSError(28, "disk full"))
    assert cli("login", "--token", TOKEN).status == 1
    assert [call.request.method for call in platform.calls] == ["GET"]


@pytest.mark.parametrize("reply", [httpx.Response(500), httpx.Response(404), httpx.ConnectError("down")])
def test_failed_revocation_still_logs_out(cli: Cli, platform: respx.MockRouter, reply: Any) -> None:
    save_login()
    platform.delete("/tokens/ct_01J8").mock(side_effect=[reply])
    outcome = cli("logout", "--yes", "--json")
    assert (outcome.status, outcome.resource["revoked"]) == (0, False)
    assert '"code":"TOKEN_REVOKE_FAILED"' in outcome.err
    assert saved_token() is None


def test_logout_without_stored_token(
    cli: Cli, working: LockableKeyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OSMOSIS_TOKEN_STORE")
    save_login()
    working.kept.clear()
    assert '"code":"TOKEN_NOT_FOUND"' in cli("logout", "--yes", "--json").err
    assert cli("logout", "--yes", "--json").json["status"] == "noop"


def test_logout_everywhere(cli: Cli, platform: respx.MockRouter) -> None:
    other = "https://other.example"
    save_login()
    save_login(other, token="osm_other", token_id="ct_OTHER")
    platform.delete("/tokens/ct_01J8").respond(204)
    with respx.mock(base_url=other) as elsewhere:
        elsewhere.delete("/api/cli/tokens/ct_OTHER").respond(204)
        resource = cli("logout", "--all", "--yes", "--json").resource
    assert (resource["platforms"], resource["revoked"]) == ([FERN, other], True)
    assert (saved_token(), saved_token(other)) == (None, None)


def test_logout_with_expired_login(cli: Cli, platform: respx.MockRouter) -> None:
    save_login(expires_at=datetime(2020, 1, 1, tzinfo=timezone.utc))
    assert cli("logout", "--yes", "--json").resource["revoked"] is False
    assert not platform.calls and saved_token() is None


@pytest.mark.parametrize("status", [400, 403, 404, 500])
def test_whoami_in_refused_repository(
    cli: Cli, platform: respx.MockRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    save_login()
    monkeypatch.chdir(make_checkout(tmp_path).root)

    def verify(request: httpx.Request) -> httpx.Response:
        if "x-osmosis-git" in request.headers:
            return httpx.Response(status, json={"error": "no", "code": "GIT_REPOSITORY_ACCESS_DENIED"})
        return httpx.Response(200, json={**VERIFIED, "workspace": None})

    platform.get("/verify").mock(side_effect=verify)
    assert cli("whoami", "--json").data["workspace"] is None


def test_whoami_of_unreachable_platform(cli: Cli, platform: respx.MockRouter) -> None:
    save_login()
    verify = platform.get("/verify").mock(side_effect=httpx.ReadTimeout("slow"))
    assert cli("whoami", "--json").error["code"] == "PLATFORM_ERROR"
    assert verify.call_count == 1


def test_whoami_with_environment_token(
    cli: Cli, platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_TOKEN", NEW_TOKEN)
    monkeypatch.setenv("OSMOSIS_TOKEN_PLATFORM_URL", FERN)
    assert cli("whoami", "--json").data["persistent_login"] is False
    save_login()
    data = cli("whoami", "--json").data
    assert (data["source"], data["persistent_login"]) == ("environment", True)
    request = platform.get("/verify").calls.last.request
    assert request.headers["authorization"] == f"Bearer {NEW_TOKEN}"
