"""How people get to pages and out again: sessions, wrong words, keys that they make there."""

from __future__ import annotations

import re
from html import unescape

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock, Member, assert_flat_error
from tests.platform.evaluations import submit_body
from tests.platform.http.pages.browsing import HOSTILE, csrf_of, path_of, sign_in, submitted, text_of


def test_a_printed_link_leads_to_its_page_after_signing_in(browser: TestClient, member: Member) -> None:
    run = submitted(browser, "/api/cli/eval-runs", submit_body(), member)
    path = path_of(run["platform_url"])
    sent = browser.get(path)
    assert (sent.status_code, sent.headers["location"]) == (303, f"/login?next={path.replace('/', '%2F')}")
    signed_in = sign_in(browser, wanted=path)
    assert (signed_in.status_code, signed_in.headers["location"]) == (303, path)
    shown = text_of(browser.get(path))
    assert run["name"] in shown and "pending" in shown and "osmosis/tiny" in shown
    assert f"osmosis eval logs {run['name']}" in shown


def test_a_session_ends_by_signing_out_and_by_itself(
    browser: TestClient, member: Member, clock: ManualClock
) -> None:
    sign_in(browser)
    page = browser.get("/fern/evals")
    assert browser.post("/logout", data={"csrf": "x" * 43}).status_code == 403
    assert browser.post("/logout", data={"csrf": csrf_of(page)}).headers["location"] == "/login"
    assert browser.get("/fern/evals").status_code == 303
    sign_in(browser)
    assert browser.get("/fern/evals").status_code == 200
    clock.advance(12 * 3600)
    assert browser.get("/fern/evals").status_code == 303


def test_a_session_is_good_for_pages_alone(
    browser: TestClient, member: Member, services: PlatformServices
) -> None:
    sign_in(browser)
    token = browser.cookies["osmosis_session"]
    refused = browser.get("/api/cli/workspaces", headers={"Authorization": f"Bearer {token}"})
    assert_flat_error(refused, 401, "TOKEN_INVALID")
    browser.cookies.clear()
    browser.cookies.set("osmosis_session", member.token)
    assert browser.get("/fern/evals").status_code == 303
    assert sorted(token.kind for token, _ in services.accounts.tokens()) == ["cli", "web"]


def test_a_wrong_password_and_a_foreign_form_do_not_sign_in(browser: TestClient, member: Member) -> None:
    for changes, words in (
        ({"password": "wrong horse battery"}, "do not belong together"),
        ({"email": "nobody@fern.example"}, "do not belong together"),
        ({"csrf": "A" * 43}, "did not come from this page"),
    ):
        refused = sign_in(browser, **changes)
        assert refused.status_code == 403 and words in refused.text
    assert "osmosis_session" not in browser.cookies


def test_guessing_passwords_is_slowed_down(browser: TestClient, member: Member) -> None:
    answers = [sign_in(browser, password=f"wrong horse {n}").status_code for n in range(12)]
    assert answers[0] == 403 and answers[-1] == 429
    assert int(sign_in(browser).headers["retry-after"]) > 0


@pytest.mark.parametrize(
    "wanted", ["https://evil.example/", "//evil.example", "/\\evil.example", "evil", "", "/\n/x"]
)
def test_signing_in_never_leads_to_another_site(browser: TestClient, member: Member, wanted: str) -> None:
    assert sign_in(browser, wanted=wanted).headers["location"] == "/"


def test_programs_that_happen_upon_a_page_find_nothing(client: TestClient, member: Member) -> None:
    for path in ("/", "/fern", "/fern/evals", "/fern/evals/x", "/cli-auth", "/favicon.ico"):
        assert_flat_error(client.get(path), 404, "ROUTE_NOT_FOUND")


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("/fern/dataset", "/fern/datasets"),
        ("/fern/secrets/", "/fern/secrets"),
        ("/fern/evals/one/nosuch/deep", "/fern/evals"),
        ("/fern/integrations/gti", "/fern/integrations/git"),
    ],
)
def test_a_page_that_is_not_there_is_told_with_the_three_nearest_and_leads_back(
    browser: TestClient, member: Member, path: str, nearest: str
) -> None:
    assert browser.get(path).headers["location"].startswith("/login")
    sign_in(browser)
    reply = browser.get(path)
    page = reply.text
    assert reply.status_code == 404 and f"There is no page at {path}." in unescape(page)
    main = page[page.index("<main") :]
    assert f'href="{nearest}"' in main and main.count("<li><a href") == 3
    assert '<a href="/fern">Back to the first page</a>' in main
    program = browser.get(path, headers={"Accept": "application/json"})
    assert_flat_error(program, 404, "ROUTE_NOT_FOUND")


def test_nothing_of_another_workspace_is_told_where_there_is_no_page(
    browser: TestClient, member: Member, stranger: Member
) -> None:
    sign_in(browser)
    theirs, none = (browser.get(f"/{name}/nosuch") for name in (stranger.workspace.name, "none"))
    assert theirs.status_code == none.status_code == 404
    assert "You are in no workspace" in theirs.text and "Datasets" not in theirs.text
    for path in ("/api/nothing", "/api/cli/nothing", "/fern/nothing"):
        program = browser.get(path, headers={"Accept": "text/html" if "api" in path else "*/*"})
        assert_flat_error(program, 404, "ROUTE_NOT_FOUND")


def test_an_api_key_is_made_shown_once_and_revoked(
    browser: TestClient, member: Member, stranger: Member, services: PlatformServices
) -> None:
    sign_in(browser)
    page = browser.get("/fern/api-keys")
    made = browser.post("/fern/api-keys", data={"csrf": csrf_of(page), "action": "make", "name": HOSTILE})
    (plain,) = re.findall(r"osm_[A-Za-z0-9_-]{43}", made.text)
    assert HOSTILE not in made.text
    principal = services.accounts.authenticate(plain, kinds=("api_key",))
    assert principal.token.workspace_id == member.workspace.id
    again = browser.get("/fern/api-keys")
    assert plain not in again.text and principal.token.id in again.text

    form = {"csrf": csrf_of(again), "action": "revoke"}
    asked = text_of(
        browser.post("/fern/api-keys", data={**form, "action": "ask", "token_id": principal.token.id})
    )
    assert "can not be undone" in asked
    foreign = browser.post("/fern/api-keys", data={**form, "token_id": stranger.token_id})
    assert foreign.status_code == 404 and "no such token" in foreign.text
    assert browser.post("/fern/api-keys", data={**form, "csrf": "B" * 43, "token_id": principal.token.id})
    assert services.accounts.find_token(principal.token.id).revoked_at is None
    browser.post("/fern/api-keys", data={**form, "token_id": principal.token.id})
    assert services.accounts.find_token(principal.token.id).revoked_at is not None
    assert services.accounts.find_token(stranger.token_id).revoked_at is None


def test_signing_out_everywhere_ends_every_browser_s_session_and_no_token(
    browser: TestClient, member: Member, services: PlatformServices
) -> None:
    sign_in(browser)
    elsewhere = browser.cookies["osmosis_session"]
    browser.cookies.clear()
    sign_in(browser)
    page = browser.get("/fern/api-keys")
    assert "this one" in page.text and page.text.count("<td>browser") == 2
    browser.post("/fern/api-keys", data={"csrf": csrf_of(page), "action": "everywhere"})
    assert browser.get("/fern/evals").status_code == 303
    browser.cookies.set("osmosis_session", elsewhere)
    assert browser.get("/fern/evals").status_code == 303
    assert services.accounts.find_token(member.token_id).revoked_at is None
