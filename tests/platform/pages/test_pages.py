"""The platform's pages: sessions, consent to clients of the 0.2 line, keys, lists, rows of a dataset."""

from __future__ import annotations

import errno
import os
import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from tests.datasets.builders import write_rows
from tests.lazily import needs
from tests.platform.conftest import ManualClock, Member, World, assert_flat_error
from tests.platform.evaluations import add_dataset, submit_body, training_body
from tests.platform.pages.browsing import HOSTILE, PASSWORD, csrf_of, path_of, sign_in, submitted, text_of
from tests.platform.viewer.runs_world import add_model, add_run


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


def test_a_session_is_good_for_pages_alone(browser: TestClient, member: Member, world: World) -> None:
    sign_in(browser)
    token = browser.cookies["osmosis_session"]
    refused = browser.get("/api/cli/workspaces", headers={"Authorization": f"Bearer {token}"})
    assert_flat_error(refused, 401, "TOKEN_INVALID")
    browser.cookies.clear()
    browser.cookies.set("osmosis_session", member.token)
    assert browser.get("/fern/evals").status_code == 303
    assert sorted(token.kind for token, _ in world.services.accounts.tokens()) == ["cli", "web"]


def test_a_wrong_password_and_a_foreign_form_do_not_sign_in(browser: TestClient, member: Member) -> None:
    for changes, words in (
        ({"password": "wrong horse battery"}, "Incorrect email or password"),
        ({"email": "nobody@fern.example"}, "Incorrect email or password"),
        ({"csrf": "A" * 43}, "was not sent from this page"),
    ):
        refused = sign_in(browser, **changes)
        assert refused.status_code == 403 and words in refused.text
    assert "osmosis_session" not in browser.cookies


def test_guessing_passwords_is_slowed_down(browser: TestClient, member: Member) -> None:
    answers = [sign_in(browser, password=f"wrong horse {n}").status_code for n in range(12)]
    assert answers[0] == 403 and answers[-1] == 429
    assert int(sign_in(browser).headers["retry-after"]) > 0


@pytest.mark.parametrize(
    "wanted",
    [
        *("https://evil.example/", "//evil.example", "///evil.example", "/\\evil.example"),
        *("/\t/evil.example", "javascript:alert(1)", "evil", "", "/\n/x"),
    ],
)
def test_signing_in_never_leads_to_another_site(browser: TestClient, member: Member, wanted: str) -> None:
    assert sign_in(browser, wanted=wanted).headers["location"] == "/"


def test_programs_that_happen_upon_a_page_find_nothing(client: TestClient, member: Member) -> None:
    for path in ("/", "/fern", "/fern/evals", "/fern/evals/x", "/cli-auth", "/favicon.ico"):
        program = client.get(path, headers={"accept": "application/json"})
        assert_flat_error(program, 404, "ROUTE_NOT_FOUND")
    assert_flat_error(client.get("/api/evals"), 404, "ROUTE_NOT_FOUND")


def test_a_client_that_accepts_anything_is_led_to_the_sign_in_page(
    client: TestClient, member: Member
) -> None:
    assert client.headers.pop("accept") == "*/*"
    for headers in ({}, {"accept": "*/*"}):
        reply = client.get("/fern/evals/x", headers=headers)
        assert reply.headers["location"].endswith("/login?next=%2Ffern%2Fevals%2Fx")


def test_an_api_key_is_made_shown_once_and_revoked(
    browser: TestClient, member: Member, stranger: Member, world: World
) -> None:
    sign_in(browser)
    page = browser.get("/fern/api-keys")
    assert "<h1>API keys</h1>" in page.text
    made = browser.post("/fern/api-keys", data={"csrf": csrf_of(page), "action": "make", "name": HOSTILE})
    (plain,) = re.findall(r"osm_[A-Za-z0-9_-]{43}", made.text)
    assert HOSTILE not in made.text
    principal = world.services.accounts.authenticate(plain, kinds=("api_key",))
    assert principal.token.workspace_id == member.workspace.id
    again = browser.get("/fern/api-keys")
    assert plain not in again.text and principal.token.id in again.text

    form = {"csrf": csrf_of(again), "action": "revoke"}
    asked = text_of(
        browser.post("/fern/api-keys", data={**form, "action": "ask", "token_id": principal.token.id})
    )
    assert "cannot be undone" in asked
    foreign = browser.post("/fern/api-keys", data={**form, "token_id": stranger.token_id})
    assert foreign.status_code == 404 and "Token not found" in foreign.text
    assert browser.post("/fern/api-keys", data={**form, "csrf": "B" * 43, "token_id": principal.token.id})
    assert world.services.accounts.find_token(principal.token.id).revoked_at is None
    browser.post("/fern/api-keys", data={**form, "token_id": principal.token.id})
    assert world.services.accounts.find_token(principal.token.id).revoked_at is not None
    assert world.services.accounts.find_token(stranger.token_id).revoked_at is None


def test_a_secret_is_set_on_its_page(browser: TestClient, world: World, member: Member) -> None:
    world.member("noa", role="member", password=PASSWORD)
    sign_in(browser, "noa@fern.example")
    assert "For a value with line breaks" in text_of(browser.get("/fern/secrets"))
    form = {"csrf": csrf_of(browser.get("/fern/secrets")), "name": "MODEL_KEY", "value": "sk-canary"}
    stale = browser.post("/fern/secrets", data={**form, "csrf": "B" * 43})
    assert stale.status_code == 403 and "MODEL_KEY" not in stale.text
    refused = browser.post("/fern/secrets", data={**form, "scope": "workspace"})
    assert refused.status_code == 403 and "Only an admin or owner can set" in refused.text
    invalid = browser.post("/fern/secrets", data={**form, "name": "no name"})
    assert invalid.status_code == 409 and "sk-canary" not in invalid.text
    assert browser.post("/fern/secrets", data=form).headers["location"] == "/fern/secrets"
    shown = browser.get("/fern/secrets")
    assert "MODEL_KEY" in shown.text and "sk-canary" not in shown.text
    sign_in(browser)
    assert "MODEL_KEY" not in browser.get("/fern/secrets").text
    browser.post(
        "/fern/secrets", data={**form, "csrf": csrf_of(browser.get("/fern/secrets")), "scope": "workspace"}
    )
    stored = world.services.secrets.page(member.workspace.id, member.user.id, limit=9).items
    assert [(each.name, each.scope) for each in stored] == [("MODEL_KEY", "workspace")]


def test_owners_add_members(browser: TestClient, world: World, member: Member) -> None:
    world.services.accounts.create_user("ida@fern.example", password=PASSWORD)
    sign_in(browser)
    form = {"csrf": csrf_of(browser.get("/fern/members")), "email": "ida@fern.example", "role": "admin"}
    assert browser.post("/fern/members", data={**form, "csrf": ""}).status_code == 403
    unknown = browser.post("/fern/members", data={**form, "email": "nobody@fern.example"})
    assert unknown.status_code == 409 and "There is no user nobody@fern.example" in unknown.text
    assert "your own role" in browser.post("/fern/members", data={**form, "email": member.user.email}).text
    assert browser.post("/fern/members", data=form).headers["location"] == "/fern/members"
    roles = {user.email: role for user, role in world.services.workspaces.members(member.workspace.id)}
    assert roles["ida@fern.example"] == "admin" and roles[member.user.email] == "owner"
    sign_in(browser, "ida@fern.example")
    page = browser.get("/fern/members")
    assert ">Add member<" not in page.text
    mine = {"csrf": csrf_of(page), "email": member.user.email, "role": "member"}
    assert browser.post("/fern/members", data=mine).status_code == 403


def test_administrators_connect_repositories(
    browser: TestClient, member: Member, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(world.services.mirrors, "probe", lambda identity, url: asked.append(url))
    sign_in(browser)
    page = browser.get("/fern/integrations/git")
    form = {"csrf": csrf_of(page), "clone_url": "https://git.example.org/fern/more.git"}
    assert "Connect repository" not in page.text
    assert browser.post("/fern/integrations/git", data=form).status_code == 403 and asked == []
    admin = ("ida@fern.example", "--admin", "--workspace", "fern", "--password-stdin")
    world.operate("user", "add", *admin, stdin=PASSWORD)
    browser.cookies.clear()
    sign_in(browser, "ida@fern.example")
    page = browser.get("/fern/integrations/git")
    assert "Connect repository" in page.text
    form["csrf"] = csrf_of(page)
    for url in (
        "/etc",
        "file:///etc",
        "http://git.example.org/a.git",
        "ext::sh -c id",
        "https://a:b@c.org/d",
        "https://c.org/d?private_token=e",
    ):
        assert browser.post("/fern/integrations/git", data={**form, "clone_url": url}).status_code == 409
    assert asked == []
    assert browser.post("/fern/integrations/git", data=form).status_code == 303
    assert "git.example.org/fern/more" in text_of(browser.get("/fern/integrations/git"))
    assert asked == ["https://git.example.org/fern/more.git"]


def test_a_dataset_is_uploaded_on_its_page(browser: TestClient, member: Member, world: World) -> None:
    sign_in(browser)
    page = browser.get("/fern/datasets")
    assert "<noscript>, up to 8 MB</noscript>" in page.text
    form = {"csrf": csrf_of(page)}
    rows = b'{"user_prompt": "What is 1 + 1?", "ground_truth": "2"}\n' * 4
    for files, sent, status in (
        ({"file": ("more.jsonl", rows)}, {"csrf": "B" * 43}, 403),
        ({"file": ("more.txt", rows)}, form, 409),
        ({"file": ("more.jsonl", b"")}, form, 409),
        ({}, form, 409),
    ):
        refused = browser.post("/fern/datasets", data=sent, files=files)
        assert refused.status_code == status, (files, refused.text)
    stored = browser.post("/fern/datasets", data=form, files={"file": ("more.jsonl", rows)})
    assert stored.headers["location"] == "/fern/datasets"
    assert world.services.datasets.ingest.wait_idle(60)
    found = world.services.datasets.get(member.workspace.id, "more")
    assert not found.error, found.error
    assert (found.status, found.row_count, found.creator_id) == ("uploaded", 4, member.user.id)
    again = browser.post("/fern/datasets", data=form, files={"file": ("more.jsonl", rows)})
    assert again.status_code == 409


def test_a_dataset_is_uploaded_in_parts(browser: TestClient, member: Member, world: World) -> None:
    world.services.datasets.multipart_from_bytes = world.services.datasets.part_bytes = 100
    sign_in(browser)
    page = browser.get("/fern/datasets")
    form = {"csrf": csrf_of(page)}
    rows = b'{"user_prompt": "What is 1 + 1?", "ground_truth": "2"}\n' * 4
    at = re.search(r'data-parts="([^"]+)"', page.text)[1]  # type: ignore[index]
    announced = {"filename": "more.jsonl", "size": len(rows)}
    assert browser.post(at, data={**announced, "csrf": "B" * 43}).status_code == 403
    refused = browser.post(at, data={**announced, **form, "filename": "more.txt"})
    assert refused.status_code == 409 and "must be one of csv" in refused.text

    def start() -> dict[str, Any]:
        started: dict[str, Any] = browser.post(at, data={**announced, **form}).json()
        return started

    aborted = start()
    assert browser.post(aborted["finish"], data=form).status_code == 204
    assert world.services.datasets.get(member.workspace.id, "more").status == "cancelled"
    started, etags, before = start(), [], 0
    for url, size in started["parts"]:
        sent = browser.put(urlsplit(url).path, content=rows[before : before + size])
        etags.append(sent.headers["ETag"])
        before += size
    assert (len(etags), before) == (3, len(rows))
    assert browser.post(started["finish"], data={**form, "etag": etags[:2]}).status_code == 409
    assert browser.post(started["finish"], data={**form, "etag": etags}).status_code == 204
    assert world.services.datasets.ingest.wait_idle(60)
    found = world.services.datasets.get(member.workspace.id, "more")
    assert (found.status, found.row_count) == ("uploaded", 4)


def test_an_upload_that_fails_leaves_its_name_free(
    browser: TestClient, member: Member, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(key: str, stream: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sign_in(browser)
    form = {"csrf": csrf_of(browser.get("/fern/datasets"))}
    rows = b'{"user_prompt": "What is 1 + 1?", "ground_truth": "2"}\n' * 4
    with monkeypatch.context() as patched:
        patched.setattr(world.services.blobs, "put", full)
        assert (
            browser.post("/fern/datasets", data=form, files={"file": ("more.jsonl", rows)}).status_code == 507
        )
    assert world.services.datasets.get(member.workspace.id, "more").status == "cancelled"
    assert browser.post("/fern/datasets", data=form, files={"file": ("more.jsonl", rows)}).status_code == 303


def test_the_header_leads_to_other_workspaces(browser: TestClient, member: Member, world: World) -> None:
    sign_in(browser)
    assert "/moss/evals" not in browser.get("/fern/evals").text
    world.services.workspaces.add_member(world.services.workspaces.create("moss").id, member.user.id)
    assert 'href="/moss/evals"' in browser.get("/fern/evals").text


def test_signing_out_everywhere_ends_every_browser_s_session_and_no_token(
    browser: TestClient, member: Member, world: World
) -> None:
    sign_in(browser)
    elsewhere = browser.cookies["osmosis_session"]
    browser.cookies.clear()
    sign_in(browser)
    page = browser.get("/fern/api-keys")
    assert "(current)" in page.text and page.text.count("<td>browser") == 2
    browser.post("/fern/api-keys", data={"csrf": csrf_of(page), "action": "everywhere"})
    assert browser.get("/fern/evals").status_code == 303
    browser.cookies.set("osmosis_session", elsewhere)
    assert browser.get("/fern/evals").status_code == 303
    assert world.services.accounts.find_token(member.token_id).revoked_at is None


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
    browser: TestClient, member: Member, world: World
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

    denied = callback(consent(browser, "deny"))
    assert denied["error"] == "access_denied" and "token" not in denied
    granted = consent(browser)
    assert (
        granted.headers["referrer-policy"] == "no-referrer" and granted.headers["cache-control"] == "no-store"
    )
    told = callback(granted)
    assert told["state"] == ASKED["state"] and "revoked_count" not in told
    verified = browser.get("/api/cli/verify", headers={"Authorization": f"Bearer {told['token']}"}).json()
    assert verified["valid"] is True and verified["token_id"] and verified["expires_at"]
    assert verified["organization"] == {"id": member.workspace.id, "name": "fern", "role": "owner"}
    assert world.services.accounts.authenticate(told["token"]).token.workspace_id == member.workspace.id

    again = callback(consent(browser))
    assert again["revoked_count"] == "1"
    gone = browser.get("/api/cli/verify", headers={"Authorization": f"Bearer {told['token']}"})
    assert_flat_error(gone, 401, "TOKEN_REVOKED")


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
    browser: TestClient, member: Member, stranger: Member, world: World
) -> None:
    sign_in(browser)
    for changes in ({"csrf": "C" * 43}, {"workspace": stranger.workspace.id}, {"workspace": ""}):
        refused = consent(browser, **changes)
        assert refused.status_code == 403 and "location" not in refused.headers
    assert {token.kind for token, _ in world.services.accounts.tokens(user_id=member.user.id)} == {
        "web",
        "cli",
    }


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


PAGES = ("evals", "training", "datasets", "models", "secrets", "integrations/git", "api-keys", "members")


def test_every_list_shows_what_the_workspace_has(browser: TestClient, member: Member, world: World) -> None:
    needs("torch")  # without it no training run is accepted
    evaluated = submitted(browser, "/api/cli/eval-runs", submit_body(), member)
    trained = submitted(browser, "/api/cli/training-runs", training_body(), member)
    world.put_secret(member, "MARAS_KEY", "sk-canary-4711", "user")
    sign_in(browser)
    assert browser.get("/").headers["location"] == "http://127.0.0.1:8733/fern/evals"
    everything = text_of(browser.get("/fern"))
    assert evaluated["name"] in everything and trained["name"] in everything
    shown = {page: text_of(browser.get(f"/fern/{page}")) for page in PAGES}
    assert evaluated["name"] in shown["evals"]
    assert trained["name"] in shown["training"]
    assert "multiply uploaded 200" in shown["datasets"]
    assert "mara@fern.example Mara owner" in shown["members"] and "Permissions" in shown["members"]
    assert "osmosis train submit" in shown["models"]
    assert "MARAS_KEY personal" in shown["secrets"]
    assert "fern/agents" in shown["integrations/git"]
    assert "sk-canary" not in "".join(shown.values())


def test_secrets_and_models_are_paged_through_each_once(
    browser: TestClient, member: Member, world: World
) -> None:
    for number in range(65):
        scope = "user" if number % 2 else "workspace"
        world.put_secret(member, f"KEY_{number // 2:02}", "x", scope)
    run = add_run(world, member, "mine")
    for number in range(65):
        add_model(world, run, number, id=f"model_{number:02}", name=f"adapter-{number:02}")
    sign_in(browser)
    wanted = {
        "secrets": [f"KEY_{number // 2:02}" for number in range(65)],
        "models": [f"adapter-{number:02}" for number in reversed(range(65))],
    }
    for section, names in wanted.items():
        pages = [browser.get(f"/fern/{section}")]
        while 'rel="next"' in pages[-1].text:
            pages.append(browser.get(f"/fern/{section}{leads_to(pages[-1], 'next')}"))
        assert len(pages) == 3 and [name for page in pages for name in names_on(page)] == names
        before = browser.get(f"/fern/{section}{leads_to(pages[2], 'prev')}")
        assert names_on(before) == names_on(pages[1])
    for page in (browser.get("/fern/models"), browser.get("/fern/models/adapter-01")):
        assert "Training reward" in text_of(page)


def leads_to(page: Any, direction: str) -> str:
    """Return where a list goes on."""
    found = re.search(rf'rel="{direction}" href="([^"]+)"', page.text)
    assert found is not None
    return unescape(found[1])


def names_on(page: Any) -> list[str]:
    """Return what stands in a list, by the names in its first column."""
    return re.findall(r'<th scope="row" class="text">(?:<a [^>]*>)?([^<]+)<', page.text)


@pytest.mark.parametrize("extension", ["jsonl", "parquet"])
def test_one_walks_and_jumps_through_all_rows_of_a_dataset(
    browser: TestClient, member: Member, world: World, tmp_path: Path, extension: str
) -> None:
    rows = [{"user_prompt": f"row number {number}."} for number in range(12_010)]
    add_dataset(world, member, "large", file=write_rows(tmp_path, extension, rows))
    sign_in(browser)
    jumped = browser.get("/fern/datasets/large", params={"rows": 11_990})
    shown = text_of(jumped)
    assert "11990 row number 11990." in shown and "12009 row number 12009." in shown
    assert "row number 11989." not in shown and 'rel="next"' not in jumped.text
    before = text_of(browser.get("/fern/datasets/large?rows=11965"))
    assert "row number 11965." in before and "11989 row number 11989." in before and "Next" in before
    assert '<input type="number" name="rows" min="0" max="12009" value="11990" required>' in jumped.text
    beyond = browser.get("/fern/datasets/large", params={"rows": 12_010})
    assert beyond.status_code == 404
    assert "The dataset &#39;large&#39; has no row 12,010 (last row: 12,009)." in beyond.text


def test_a_row_that_can_not_be_read_is_told_without_where_the_platform_keeps_it(
    browser: TestClient, member: Member, world: World, tmp_path: Path
) -> None:
    file = tmp_path / "torn.jsonl"
    file.write_text('{"user_prompt": "one"}\n' * 40 + '{"user_prompt": "tw')
    add_dataset(world, member, "torn", file=file)
    sign_in(browser)
    assert "one" in text_of(browser.get("/fern/datasets/torn"))
    page = browser.get("/fern/datasets/torn?rows=25")
    assert page.status_code == 200
    assert "The rows cannot be read: torn.jsonl: line 41: not valid JSON" in text_of(page)
    assert str(world.services.config.home) not in page.text and "/ds_" not in page.text
