"""The platform's pages as an adversary uses them: forms, names, addresses and what replies say of others."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from osmosis_ai.platform.pages import runs, workspace
from osmosis_ai.viewer.routes import viewer_router
from osmosis_ai.viewer.source import encode
from tests.platform.conftest import Member, World
from tests.platform.evaluations import add_dataset
from tests.platform.pages.browsing import PASSWORD, csrf_of, sign_in
from tests.platform.viewer.runs_world import add_model, add_run, add_samples

PEOPLE = {"accept": "text/html,application/xhtml+xml"}
PAGES = ["", "/evals", "/training", "/datasets", "/models", "/secrets", "/integrations/git"]
PAGES += [
    "/api-keys",
    "/members",
    "/evals/mine",
    "/evals/mine/samples",
    "/evals/mine/log",
    "/compare?run=mine&run=other",
]


@pytest.fixture
def member(world: World) -> Member:
    mara = world.member(password=PASSWORD)
    run = add_run(world, mara, "mine", status="running", completed_at=None)
    add_run(world, mara, "other")
    add_samples(world, run, [{"row": row, "attempt": 0, "reward": 1.0} for row in range(3)])
    return mara


@pytest.fixture
def browser(client: TestClient, member: Member) -> TestClient:
    """Mara's browser, signed in."""
    client.headers.update(PEOPLE)
    sign_in(client)
    return client


def test_no_page_is_kept_by_what_stands_between(browser: TestClient) -> None:
    for path in [*PAGES, "/evals/nothing", "/evals?since=x", "/evals/mine/stop"]:
        page = browser.get(f"/fern{path}")
        assert page.headers["cache-control"] == "private, no-cache", path
        assert page.headers["content-security-policy"].startswith("default-src 'none'"), path
        assert page.headers["x-content-type-options"] == "nosniff", path
        assert "set-cookie" not in page.headers or "HttpOnly" in page.headers["set-cookie"]


@pytest.mark.parametrize(
    "below",
    [
        *("/evals?cursor=x", "/evals?sort=colour", "/evals?since=yesterday", "/evals?dir=sideways"),
        *("/evals/mine/samples?cursor=%00", "/evals/mine/samples?sort=name"),
        *("/evals/mine/samples?outcome=lucky", "/evals/mine/samples?min_reward=nan"),
        *("/evals/mine/samples?row=-1", "/evals?" + "&".join(f"q{number}=x" for number in range(500))),
        *("/datasets?page=1", "/datasets?cursor=x", "/datasets/none?rows=1&rows=2"),
        f"/datasets?cursor={encode('datasets:created_at:id', ['2026-01-01', 'ds_1'])}",
        f"/models?cursor={encode('datasets:created_at:id', ['2026-01-01T00:00:00+00:00', 'ds_1'])}",
        f"/secrets?cursor={encode('secrets:name:scope', ['A', 1])}",
        f"/secrets?cursor={encode('secrets:name:scope', ['A' + chr(0), 'user'])}",
        f"/secrets?cursor={encode('secrets:name:scope', [chr(0xD800), 'user'])}",
        f"/evals?cursor={encode('runs:started:desc', ['2026-01-01T00:00:00', 'run_1'])}",
        f"/evals?sort=reward&cursor={encode('runs:reward:desc', [10**400, 'run_1'])}",
        f"/evals?sort=name&cursor={encode('runs:name:desc', ['a' + chr(0)])}",
        "/datasets/none?rows=-1",
    ],
)
def test_what_makes_no_sense_is_refused_on_a_page(browser: TestClient, below: str) -> None:
    page = browser.get(f"/fern{below}")
    assert page.status_code == 400, page.text
    assert page.headers["content-type"].startswith("text/html") and "<h1>" in page.text
    assert browser.get(f"/fern{below}", headers={"accept": "application/json"}).status_code == 400


def test_who_has_one_workspace_is_led_to_it_and_others_choose(
    browser: TestClient, member: Member, world: World
) -> None:
    assert browser.get("/").headers["location"].endswith("/fern/evals")
    world.join(world.create_workspace("moss"), member)
    page = browser.get("/")
    assert page.status_code == 200 and "/fern/evals" in page.text and "/moss/evals" in page.text
    world.services.accounts.create_user("noa@fern.example", password=PASSWORD)
    browser.cookies.clear()
    sign_in(browser, "noa@fern.example")
    assert "You are not a member of any workspace" in browser.get("/").text


def _paths(method: str) -> list[str]:
    """Return every path of a page of a workspace that takes a method."""
    routes = [(route, "") for route in [*workspace.router.routes, *runs.actions.routes]]
    routes += [(route, "/{workspace}") for route in viewer_router(lambda: None, home="").routes]  # type: ignore[arg-type,return-value]
    found = [
        f"{prefix}{route.path}"
        for route, prefix in routes
        if isinstance(route, APIRoute) and method in route.methods
    ]
    return sorted(path for path in found if path.startswith("/{workspace}"))


def _filled(path: str, workspace: str) -> str:
    name = "trained" if "/training/" in path else "mine"
    known = {
        "workspace": workspace,
        "run": name,
        "name": name,
        "item": "0.0",
        "path:path": "a",
        "dataset_id": "a",
    }
    return re.sub(r"{([^}]+)}", lambda found: known[found[1]], path)


@pytest.mark.parametrize("attack", ["no token", "another session's", "another site", "another port", "stale"])
def test_no_form_is_taken_that_a_page_of_ours_did_not_send(
    browser: TestClient, world: World, member: Member, attack: str
) -> None:
    token = csrf_of(browser.get("/fern/api-keys"))
    form = {"csrf": token, "once": "x", "action": "everywhere"}
    headers = {}
    if attack == "no token":
        form.pop("csrf")
    elif attack == "another site":
        headers = {"sec-fetch-site": "cross-site"}
    elif attack == "another port":
        headers = {"origin": "http://127.0.0.1:1"}
    elif attack == "stale":
        browser.cookies.delete("osmosis_csrf")
        browser.get("/fern/api-keys")
    else:
        session = browser.cookies["osmosis_session"]
        browser.cookies.clear()
        form["csrf"] = csrf_of(browser.get("/login"))
        browser.cookies.clear()
        browser.cookies.set("osmosis_session", session)
        browser.get("/fern/api-keys")
    add_model(world, add_run(world, member, "trained", kind="training"), name="mine")
    for path in _paths("POST"):
        refused = browser.post(_filled(path, "fern"), data=form, headers=headers)
        assert refused.status_code == 403, (path, refused.status_code)
    run = browser.get("/api/cli/eval-runs/mine", headers=member.headers).json()["eval_run"]
    assert run["status"] == "running"
    assert browser.get("/fern/evals").status_code == 200


def test_no_name_gets_into_a_header(browser: TestClient, world: World, member: Member) -> None:
    name = 'x"\r\nSet-Cookie: evil=1\r\n/../ünï\u202e'
    run = add_run(world, member, name, status="pending", completed_at=None)
    add_samples(world, run, [{"row": 0, "attempt": 0, "reward": 1.0}])
    below = f"/fern/evals/{quote(name, safe='')}"
    asked = browser.get(f"{below}/stop")
    form = {"csrf": csrf_of(asked), "once": "one"}
    for reply in (browser.get(f"{below}/samples.csv"), browser.post(f"{below}/stop", data=form)):
        said = str(reply.headers.multi_items())
        assert reply.status_code in (200, 303) and "evil=1" not in said.replace("evil%3D1", "")
        assert "\n" not in "".join(reply.headers.values())


def test_a_platform_of_this_machine_has_no_page_under_another_s_name(
    browser: TestClient, world: World
) -> None:
    for host in ("evil.example:8733", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1:8733"):
        refused = browser.get("/login", headers={"host": host})
        assert refused.status_code == 403 and "<h1>Forbidden</h1>" in refused.text, host
        assert browser.post("/login", data={"email": "x"}, headers={"host": host}).status_code == 403
    for host in ("127.0.0.1:8733", "localhost:9000", "[::1]:8733"):
        assert browser.get("/login", headers={"host": host}).status_code == 200, host


def test_a_dataset_of_very_many_columns_with_very_long_names_is_a_page_all_the_same(
    browser: TestClient, world: World, member: Member
) -> None:
    row = {f"{number} {'x' * 1000}": "y" * 1000 for number in range(2000)}
    add_dataset(world, member, "wide", rows=[row] * 30)
    page = browser.get("/fern/datasets/wide")
    assert page.status_code == 200 and len(page.text) < 500_000
    assert "1,950 more columns" in page.text and "0 xxx" in page.text
