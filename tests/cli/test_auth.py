"""What a person and a script see of logging in and out."""

from __future__ import annotations

import io
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from osmosis_ai.api.credentials import CredentialStore
from tests.cli.conftest import Cli, Outcome
from tests.logins import (
    FERN,
    LATER,
    MARA,
    NEW_TOKEN,
    REFUSALS,
    TOKEN,
    VERIFIED,
    files_holding,
    save_login,
    use_platform,
)

AUTHORIZED = {
    "device_code": "dc_canary",
    "user_code": "WXYZ-1234",
    "verification_uri": f"{FERN}/device",
    "verification_uri_complete": f"{FERN}/device?code=WXYZ-1234",
    "expires_in": 600,
    "interval": 5,
}
ISSUED = {"token": NEW_TOKEN, "token_id": "ct_NEW", "expires_at": LATER, "user": MARA}


class Terminal(io.StringIO):
    """Stdin with a person at it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[respx.MockRouter]:
    use_platform(monkeypatch)
    monkeypatch.setenv("OSMOSIS_TOKEN_STORE", "file")
    monkeypatch.setenv("TZ", "UTC")
    with respx.mock(base_url=FERN, assert_all_called=False) as router:
        router.get("/api/cli/verify").respond(json=VERIFIED)
        router.get("/api/cli/workspaces").respond(json={"workspaces": [{"id": "ws_1", "name": "fern-lab"}]})
        yield router


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pages that were opened in a browser."""
    pages: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda page: pages.append(page) or True)  # type: ignore[func-returns-value]
    monkeypatch.setenv("DISPLAY", ":0")
    return pages


def _hides_tokens(outcome: Outcome, *, home: Path) -> None:
    for token in (TOKEN, NEW_TOKEN, "dc_canary"):
        assert token not in outcome.out + outcome.err
        assert files_holding(token, home) in ([], ["credentials.json"])


def _error(outcome: Outcome) -> dict[str, Any]:
    assert outcome.out == ""
    error: dict[str, Any] = json.loads(outcome.err.splitlines()[-1])["error"]
    return error


# login --token


def test_a_token_on_stdin_stays_out_of_the_process_list(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{TOKEN}\n"))
    outcome = cli("login", "--token", "-", "--json")
    assert json.loads(outcome.out)["status"] == "success"
    _hides_tokens(outcome, home=home)
    monkeypatch.setattr(sys, "stdin", io.StringIO(" \n"))
    assert _error(cli("login", "--token", "-", "--json"))["code"] == "VALIDATION"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    assert _error(cli("login", "--token", "-", "--json"))["code"] == "VALIDATION"


@pytest.mark.parametrize("command", [("login",), ("auth", "login")])
@pytest.mark.parametrize("token", ["", "   ", "\n"])
def test_a_token_that_is_empty_is_said_to_be_before_anybody_is_asked(
    cli: Cli, platform: respx.MockRouter, command: tuple[str, ...], token: str
) -> None:
    outcome = cli(*command, "--token", token, "--json")
    error = _error(outcome)
    assert (outcome.status, error["code"], error["message"]) == (1, "VALIDATION", "The token is empty.")
    assert "Checking" not in cli(*command, "--token", token).err
    assert not platform.calls


@pytest.mark.parametrize("reply, code", REFUSALS)
def test_a_refusal_names_the_reason_and_never_the_token(
    cli: Cli, platform: respx.MockRouter, home: Path, reply: dict[str, Any], code: str
) -> None:
    save_login()
    platform.get("/api/cli/verify").respond(**reply)
    outcome = cli("login", "--token", NEW_TOKEN, "--json")
    assert (outcome.status, _error(outcome)["code"]) == (1, code)
    _hides_tokens(outcome, home=home)
    _hides_tokens(cli("login", "--token", NEW_TOKEN), home=home)
    found = CredentialStore().load(FERN)
    assert found is not None
    assert found.token == TOKEN


@pytest.mark.parametrize(
    "reply",
    [{"text": "<html>Not found</html>"}, {"json": {"error": "no such path", "code": "ROUTE_NOT_FOUND"}}],
)
def test_a_url_that_is_not_a_platform_is_named(cli: Cli, reply: dict[str, Any]) -> None:
    with respx.mock() as other:
        other.get(f"{FERN}/foo/api/cli/verify").respond(404, **reply)
        error = _error(cli("--platform", f"{FERN}/foo", "login", "--token", NEW_TOKEN, "--json"))
    assert error["message"] == f"{FERN}/foo is not an Osmosis platform."
    assert error["hint"] == f"check the platform's URL: {FERN}/foo (--platform)"


def test_a_token_without_its_option_is_refused_and_not_repeated(cli: Cli, home: Path) -> None:
    for arguments in (("login", TOKEN), ("auth", "login", TOKEN, "--json")):
        outcome = cli(*arguments)
        assert outcome.status == 2
        assert "--token" in outcome.err
        _hides_tokens(outcome, home=home)


def test_a_revocation_that_fails_is_a_warning_beside_the_result(
    cli: Cli, platform: respx.MockRouter, home: Path
) -> None:
    save_login(token_id="ct_OLD")
    platform.delete("/api/cli/tokens/ct_OLD").respond(500, text=TOKEN)
    outcome = cli("login", "--token", NEW_TOKEN, "--json")
    assert json.loads(outcome.out)["status"] == "success"
    assert json.loads(outcome.err)["warning"]["code"] == "TOKEN_REVOKE_FAILED"
    _hides_tokens(outcome, home=home)


# login by device


def _confirmed(platform: respx.MockRouter) -> respx.Route:
    platform.post("/api/cli/device/authorize").respond(json=AUTHORIZED)
    return platform.post("/api/cli/device/token").respond(json=ISSUED)


def test_the_code_is_shown_and_the_browser_opened_for_a_person(
    cli: Cli, platform: respx.MockRouter, home: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _confirmed(platform)
    monkeypatch.setattr(sys, "stdin", Terminal())
    outcome = cli("login")
    assert outcome.status == 0
    assert "Your code: WXYZ-1234" in outcome.err
    assert f"within 10 minutes at {FERN}/device?code=WXYZ-1234" in outcome.err
    assert opened == [f"{FERN}/device?code=WXYZ-1234"]
    assert "Logged in as mara@fern.example." in outcome.out
    _hides_tokens(outcome, home=home)


@pytest.mark.parametrize("case", ["no terminal", "--no-browser", "no display", "not a web page"])
def test_the_browser_is_left_alone_where_it_is_not_wanted(
    cli: Cli, platform: respx.MockRouter, opened: list[str], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    _confirmed(platform)
    monkeypatch.setattr(sys, "stdin", io.StringIO() if case == "no terminal" else Terminal())
    if case == "no display":
        monkeypatch.setattr(sys, "platform", "linux")
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
            monkeypatch.delenv(name, raising=False)
    if case == "not a web page":
        target = {"verification_uri_complete": None, "verification_uri": "file:///bin/sh"}
        platform.post("/api/cli/device/authorize").respond(json={**AUTHORIZED, **target})
    outcome = cli("login", *(["--no-browser"] if case == "--no-browser" else []))
    assert (outcome.status, opened) == (0, [])
    assert "Waiting for you to confirm" in outcome.err


@pytest.mark.parametrize("mode", ["--json", "--plain"])
def test_without_a_person_a_token_is_needed(cli: Cli, platform: respx.MockRouter, mode: str) -> None:
    outcome = cli("login", mode)
    assert (outcome.status, outcome.out, platform.calls.call_count) == (1, "", 0)
    if mode == "--json":
        error = _error(outcome)
        assert (error["code"], error["details"]["flags"]) == ("INTERACTIVE_REQUIRED", ["--token"])
    else:
        assert "osmosis login --token -" in outcome.err


@pytest.mark.parametrize("arguments", [[], ["--force"], ["--json"]])
def test_a_token_in_the_environment_is_in_the_way(
    cli: Cli, platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("OSMOSIS_TOKEN", TOKEN)
    outcome = cli("login", *arguments)
    assert (outcome.status, outcome.out, platform.calls.call_count) == (1, "", 0)
    assert "OSMOSIS_TOKEN is set" in outcome.err
    if "--json" in arguments:
        assert _error(outcome)["code"] == "CONFLICT"


def test_a_login_that_was_revoked_is_replaced_without_being_forced(
    cli: Cli, platform: respx.MockRouter
) -> None:
    save_login(token_id="ct_OLD")
    _confirmed(platform)
    platform.get("/api/cli/verify").respond(401, json={"code": "TOKEN_REVOKED"})
    platform.delete("/api/cli/tokens/ct_OLD").respond(401, json={"code": "TOKEN_REVOKED"})
    outcome = cli("login")
    assert outcome.status == 0
    assert "Logged in as" in outcome.out
    assert "could not be revoked" not in outcome.err


def test_a_login_stays_unless_forced_or_interrupted(cli: Cli, platform: respx.MockRouter) -> None:
    platform.post("/api/cli/device/authorize").respond(json=AUTHORIZED)

    def interrupt(request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    platform.post("/api/cli/device/token").mock(side_effect=interrupt)
    assert cli("login").status == 130
    assert CredentialStore().all() == ()

    save_login(token_id="ct_OLD")
    confirmed = _confirmed(platform)
    outcome = cli("login")
    assert outcome.out.splitlines()[0] == f"Already logged in as mara@fern.example on {FERN}."
    assert "osmosis login --force" in outcome.out
    assert confirmed.call_count == 0
    revoke = platform.delete("/api/cli/tokens/ct_OLD").respond(204)
    assert "Logged in as" in cli("login", "--force").out
    assert (confirmed.call_count, revoke.call_count) == (1, 1)


def test_weakness_9_a_login_that_fails_cuts_off_no_reply_for_the_browser_is_answered_by_the_platform_alone(
    cli: Cli, platform: respx.MockRouter, home: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listening: list[object] = []
    monkeypatch.setattr(socket.socket, "listen", lambda *_: listening.append(_))
    monkeypatch.setattr(sys, "stdin", Terminal())
    platform.post("/api/cli/device/authorize").respond(json=AUTHORIZED)
    platform.post("/api/cli/device/token").respond(400, json={"error": "access_denied"})
    outcome = cli("login")
    assert (outcome.status, outcome.out) == (1, "")
    assert "Error: The login was declined in the browser." in outcome.err.splitlines()
    assert (opened, listening) == ([f"{FERN}/device?code=WXYZ-1234"], [])
    assert CredentialStore().all() == ()
    _hides_tokens(outcome, home=home)


# logout


def test_logging_out_asks_first(
    cli: Cli, platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_login()
    error = _error(cli("logout", "--json"))
    assert (error["code"], error["details"]["prompt"]) == ("INTERACTIVE_REQUIRED", "Logout from Osmosis AI?")
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("typer.getchar", lambda: "\r")
    assert cli("logout")[:2] == (0, "Cancelled.\n")
    assert CredentialStore().load(FERN) is not None
    assert platform.calls.call_count == 0


# whoami


@pytest.mark.parametrize("code, problem", [("TOKEN_EXPIRED", "expired"), ("TOKEN_REVOKED", "been revoked")])
def test_an_expired_and_a_revoked_token_are_told_apart(
    cli: Cli, platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch, code: str, problem: str
) -> None:
    platform.get("/api/cli/verify").respond(401, json={"error": "no", "code": code})
    save_login()
    saved = cli("whoami")
    assert (saved.status, saved.out) == (1, "")
    assert f"Error: Your session on {FERN} has {problem}." in saved.err and "`osmosis login`" in saved.err
    given = _error(cli("login", "--token", NEW_TOKEN, "--json"))
    assert given["message"] == f"This token has {problem}."
    monkeypatch.setenv("OSMOSIS_TOKEN", NEW_TOKEN)
    monkeypatch.setenv("OSMOSIS_TOKEN_PLATFORM_URL", FERN)
    error = _error(cli("whoami", "--json"))
    assert (error["code"], error["message"]) == ("AUTH_REQUIRED", f"OSMOSIS_TOKEN has {problem}.")
    assert "OSMOSIS_TOKEN" in error["hint"]
