"""`osmosis login`, `logout` and `whoami`."""

from __future__ import annotations

import io
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from osmosis_ai.api.credentials import CredentialStore
from tests.cli.conftest import Cli
from tests.cli.golden_accounts import AUTHORIZED, ISSUED
from tests.cli.outcome import Outcome, TerminalInput
from tests.logins import (
    FERN,
    NEW_TOKEN,
    REFUSALS,
    TOKEN,
    VERIFIED,
    files_holding,
    save_login,
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


@pytest.mark.parametrize("reply, code", REFUSALS)
def test_login_refused_token(
    cli: Cli, platform: respx.MockRouter, home: Path, reply: dict[str, Any], code: str
) -> None:
    save_login()
    platform.get("/verify").respond(**reply)
    outcome = cli("login", "--token", NEW_TOKEN, "--json")
    assert (outcome.status, outcome.error["code"]) == (1, code)
    assert_no_token(outcome, home)
    assert_no_token(cli("login", "--token", NEW_TOKEN), home)
    saved = CredentialStore().load(FERN)
    assert saved is not None and saved.token == TOKEN


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
    assert CredentialStore().all() == ()

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
    assert CredentialStore().all() == ()
    assert_no_token(outcome, home)


def test_logout_asks_first(cli: Cli, platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    save_login()
    monkeypatch.setattr(sys, "stdin", TerminalInput())
    monkeypatch.setattr("typer.getchar", lambda: "\r")
    assert cli("logout")[:2] == (0, "Cancelled.\n")
    assert CredentialStore().load(FERN) is not None and not platform.calls


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
