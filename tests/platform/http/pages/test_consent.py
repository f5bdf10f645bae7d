"""People let clients of the 0.2 line into a workspace of theirs."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import Member, assert_flat_error
from tests.platform.http.pages.browsing import csrf_of, sign_in

ASKED = {"state": "s" * 43, "port": "8977", "device_name": "maras-laptop"}


def consent(browser: TestClient, decision: str = "approve", **changes: str) -> Any:
    page = browser.get("/cli-auth", params=ASKED)
    form = {**ASKED, "csrf": csrf_of(page), "decision": decision}
    chosen = re.search(r'<option value="([^"]+)">', page.text)
    return browser.post("/cli-auth", data={**form, "workspace": chosen[1] if chosen else "", **changes})


def callback(reply: Any) -> dict[str, str]:
    assert reply.status_code == 303, reply.text
    address = urlsplit(reply.headers["location"])
    assert (address.scheme, address.netloc, address.path) == ("http", "localhost:8977", "/callback")
    return {key: value for key, (value,) in parse_qs(address.query).items()}


def test_a_client_of_the_0_2_line_gets_a_token_of_one_workspace(
    browser: TestClient, member: Member, services: PlatformServices
) -> None:
    asked = {**ASKED, "redirect_uri": "http://localhost:8977/callback"}
    assert (
        browser.get("/cli-auth", params=asked)
        .headers["location"]
        .startswith("/login?next=%2Fcli-auth%3Fstate")
    )
    sign_in(browser)
    page = browser.get("/cli-auth", params=asked)
    assert "maras-laptop" in page.text and "fern" in page.text
    # A browser follows the form's redirect only where the policy allows it to.
    assert "form-action 'self' http://localhost:8977;" in page.headers["content-security-policy"]

    told = callback(consent(browser))
    assert told["state"] == ASKED["state"] and "revoked_count" not in told
    verified = browser.get("/api/cli/verify", headers={"Authorization": f"Bearer {told['token']}"}).json()
    assert verified["valid"] is True
    assert verified["organization"] == {"id": member.workspace.id, "name": "fern", "role": "owner"}
    assert services.accounts.authenticate(told["token"]).token.workspace_id == member.workspace.id

    again = callback(consent(browser))
    assert again["revoked_count"] == "1"
    gone = browser.get("/api/cli/verify", headers={"Authorization": f"Bearer {told['token']}"})
    assert_flat_error(gone, 401, "TOKEN_REVOKED")


def test_a_denied_client_is_told_so_and_gets_no_token(
    browser: TestClient, member: Member, services: PlatformServices
) -> None:
    sign_in(browser)
    told = callback(consent(browser, "deny"))
    assert (told["error"], told["state"]) == ("access_denied", ASKED["state"])
    assert sorted(token.kind for token, _ in services.accounts.tokens()) == ["cli", "web"]


@pytest.mark.parametrize(
    "changes",
    [
        {"port": "22"},
        {"port": "89760"},
        {"port": "8977@evil.example"},
        {"state": ""},
        {"state": "<x>"},
        {"redirect_uri": "http://evil.example/callback"},
        {"redirect_uri": "http://localhost:8976/callback"},
    ],
)
def test_a_link_that_no_client_made_gets_nowhere(
    browser: TestClient, member: Member, changes: dict[str, str]
) -> None:
    sign_in(browser)
    refused = browser.get("/cli-auth", params={**ASKED, **changes})
    assert refused.status_code == 400 and "osmosis login" in refused.text


def test_consent_needs_the_own_form_and_an_own_workspace(
    browser: TestClient, member: Member, stranger: Member, services: PlatformServices
) -> None:
    sign_in(browser)
    for changes in ({"csrf": "C" * 43}, {"workspace": stranger.workspace.id}, {"workspace": ""}):
        refused = consent(browser, **changes)
        assert refused.status_code == 403 and "location" not in refused.headers
    assert {token.kind for token, _ in services.accounts.tokens(user_id=member.user.id)} == {"web", "cli"}


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin", "Origin": "null"}, 303),
        ({"Origin": "null"}, 303),
        ({"Origin": "http://127.0.0.1:8733"}, 303),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:3000"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:3000"}, 403),
        ({"Origin": "http://evil.example"}, 403),
    ],
)
def test_a_form_with_the_cookie_s_token_is_refused_where_the_browser_says_that_another_site_or_port_sent_it(
    browser: TestClient, member: Member, told: dict[str, str], status: int
) -> None:
    """Cookies are shared by all ports of a host: what listens on another one can set them, and know the token."""
    sign_in(browser)
    browser.headers.update(told)
    answered = consent(browser)
    assert answered.status_code == status
    assert ("token=" in answered.headers.get("location", "")) is (status == 303)
