"""Requests for one workspace's data, on every route and page, by callers without access to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import pytest

from tests.platform.conftest import ManualClock, Member, World
from tests.platform.evaluations import add_dataset
from tests.platform.local_runs import IMPORTS, LocalRun
from tests.platform.one_hop_client import OneHopClient
from tests.platform.pages.browsing import PASSWORD, sign_in
from tests.platform.viewer.runs_world import (
    add_file,
    add_model,
    add_run,
    add_samples,
    add_secret_access,
    kept_of,
)

REGISTER = "/api/cli/rollout-server/register"
MARK = "CANARY"
"""Part of every name and text of the workspace `fern`; a reply with it is a leak."""
ADMINS_ONLY = {("post", "/api/cli/environment-secrets"), ("delete", "/api/cli/environment-secrets")}
MAKERS_ONLY = {
    ("delete", "/api/cli/eval-runs/{name_or_id}"),
    ("delete", "/api/cli/training-runs/{name_or_id}"),
    ("delete", "/api/cli/datasets/{name_or_id}"),
}


@pytest.fixture
def password() -> str:
    return PASSWORD


@pytest.fixture
def owner(client: OneHopClient, world: World) -> Member:
    """The owner of `fern`, which has one of everything."""
    mara = world.member(password=PASSWORD)
    add_dataset(world, mara, f"{MARK}-rows", rows=[{"user_prompt": MARK, "ground_truth": MARK}])
    run = add_run(world, mara, f"{MARK}-eval", error=MARK, commit_sha="c" * 40)
    add_samples(world, run, [{"row": 0, "attempt": 0, "output": MARK}])
    add_file(world, run, "metrics/rewards.json", MARK.encode())
    trained = add_run(world, mara, f"{MARK}-training", kind="training")
    add_model(world, trained)
    add_file(world, trained, "checkpoints/5/adapter.bin", MARK.encode())
    world.put_secret(mara, "KEY_OF_FERN", f"{MARK} value", "workspace")
    server = {"host": "127.0.0.1", "port": 9, "agent_loop_name": "server-of-fern", "api_key": "k"}
    assert client.post(REGISTER, json=server, headers=mara.headers).json()["status"] == "unhealthy"
    add_secret_access(world, run, MARK)
    return mara


def strangers(world: World, owner: Member) -> Iterator[tuple[str, dict[str, str]]]:
    """Return who asks, each with the headers of the requests."""
    fern = {"X-Osmosis-Git": owner.repository.identity}
    by_name = {"X-Osmosis-Git": "", "X-Osmosis-Workspace": owner.workspace.name}
    for role in ("owner", "admin", "member"):
        other = world.member(f"ivo-{role}", workspace="moss", role=role)
        yield f"{role} of moss, in moss", other.headers
        yield f"{role} of moss, in fern", other.headers | fern
    yield "member of moss, in the workspace fern", other.headers | by_name
    yield "API key of moss", world.token(other, "api_key") | fern
    yield "API key of fern", world.token(owner, "api_key") | fern
    world.join(other.workspace.id, owner)
    in_moss = world.token(owner, workspace_id=other.workspace.id)
    yield "owner of fern, with a token for moss", in_moss | fern
    yield "owner of fern, with a token for moss, in the workspace fern", in_moss | by_name
    former = world.member("eva", role="admin")
    world.operate("member", "remove", "fern", former.user.email, "--yes")
    yield "former admin of fern", former.headers
    revoked = world.member("tim", role="admin")
    world.operate("token", "revoke", revoked.token_id, "--yes")
    yield "revoked token", revoked.headers
    disabled = world.member("pia", role="admin")
    world.operate("user", "disable", disabled.user.email, "--yes")
    yield "disabled user", disabled.headers
    yield "unknown token", {"Authorization": "Bearer osm_unknown"} | fern
    yield "nobody", fern


def routes_of(client: OneHopClient) -> list[tuple[str, str]]:
    """Return all routes of the REST API."""
    described = client.get("/api/openapi.json").json()["paths"]
    return [(method, path) for path, methods in described.items() for method in methods]


LISTS = {
    "datasets": ("/api/cli/datasets", "file_name"),
    "eval-runs": ("/api/cli/eval-runs", "name"),
    "training-runs": ("/api/cli/training-runs", "name"),
    "models": ("/api/cli/models/lora", "model_name"),
    "rollout-servers": ("/api/cli/rollout-servers", "name"),
}


def filled(client: OneHopClient, owner: Member, session_id: str, path: str) -> list[str]:
    """Return the paths of a route with names and ids of what `fern` has."""
    noun = path.removeprefix("/api/cli/").partition("/")[0]
    found: list[str] = []
    if noun in LISTS:
        route, name = LISTS[noun]
        listed = client.get(route, headers=owner.headers).json()
        found = [each[key] for each in next(iter(listed.values())) for key in (name, "id")]
        assert found, route
    values = {"session_id": [session_id], "token_id": [owner.token_id], "row": ["0"], "attempt": ["0"]}
    paths = [path]
    for name in re.findall(r"{(\w+)}", path):
        paths = [
            each.replace(f"{{{name}}}", value)
            for each in paths
            for value in values.get(name, found or [MARK])
        ]
    return paths


def body_of(method: str, path: str) -> dict[str, Any] | None:
    """Return a body that would have an effect."""
    if method == "get":
        return None
    bodies: dict[str, dict[str, Any]] = {
        "environment-secrets": {"name": "KEY_OF_FERN", "value": "taken", "scope": "workspace"},
        "download-urls": {"items": [{"path": "metrics/rewards.json"}]},
        "quickstart": {"intent": "evaluate"},
        "uploads": {"paths": ["rewards.jsonl"]},
        "complete": {"file_extension": "jsonl", "path": "rewards.jsonl"},
        "register": {"name": "server-of-fern", "host": "127.0.0.1", "port": 10},
        "completions": {"model": f"{MARK}-training-step-5", "messages": [{"role": "user", "content": "hi"}]},
    }
    return bodies.get(path.rpartition("/")[2], {})


def test_no_route_tells_or_changes_anything_of_another_workspace(
    client: OneHopClient, world: World, owner: Member, clock: ManualClock
) -> None:
    local = LocalRun()
    session_id = client.post(IMPORTS, json=local.start(), headers=owner.headers).json()["session_id"]
    asking = list(strangers(world, owner))
    before, statuses = kept_of(world, owner), Counter[int]()
    own = {"/api/cli/device/authorize", "/api/cli/device/token", "/blobs/{token}"}
    for method, path in routes_of(client):
        if path in own:
            continue
        for address in filled(client, owner, session_id, path):
            for who, headers in asking:
                query = {"organizationId": owner.workspace.id} if path.endswith("/quickstart") else None
                body = body_of(method, path)
                reply = client.request(method, address, headers=headers, params=query, json=body)
                statuses[reply.status_code] += 1
                said = f"{who}: {method.upper()} {address} -> {reply.status_code} {reply.text[:300]}"
                assert reply.status_code < 500, said
                assert f"{MARK} value" not in reply.text, said
                in_fern = headers.get("X-Osmosis-Git") in (owner.repository.identity, "")
                if in_fern and "/api/cli/" in path and not path.endswith(("/workspaces", "/verify")):
                    assert reply.status_code >= 400, said
                if reply.status_code < 300:
                    assert MARK not in reply.text, said
                    assert method != "get" or not re.search("KEY_OF_FERN|server-of-fern", reply.text), said
    assert kept_of(world, owner) == before
    assert statuses.total() > 1_000 and statuses[403] and statuses[404] and statuses[401]


def test_a_member_changes_nothing_that_belongs_to_others(
    client: OneHopClient, world: World, owner: Member
) -> None:
    tom = world.member("tom", role="member")
    before = kept_of(world, owner)
    for method, path in sorted(ADMINS_ONLY | MAKERS_ONLY):
        for address in filled(client, owner, "", path):
            reply = client.request(method, address, headers=tom.headers, json=body_of(method, path))
            assert reply.status_code == 403, f"{method} {address}: {reply.text}"
            assert reply.json()["code"] == "ROLE_REQUIRED"
    assert kept_of(world, owner) == before


def linked(client: OneHopClient, address: str) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the pages and forms that a page leads to: addresses, and actions with their encoded fields."""
    page = client.get(address)
    if page.status_code != 200 or "html" not in page.headers.get("content-type", ""):
        return set(), set()
    base = str(page.url)
    paths = {
        urlsplit(urljoin(base, unescape(href)))._replace(scheme="", netloc="", fragment="").geturl()
        for href in re.findall(r'href="([^"#]+)"', page.text)
    }
    forms = set()
    for form in re.findall(r'<form\b[^>]*method="post".*?</form>', page.text, re.S):
        action = re.search(r'action="([^"]*)"', form)
        fields = re.findall(r'name="([^"]+)"[^>]*value="([^"]*)"', form)
        forms.add((urljoin(base, unescape(action[1] if action else "")), urlencode(fields)))
    return paths, forms


def test_no_page_shows_or_changes_anything_of_another_workspace(
    client: OneHopClient, world: World, owner: Member
) -> None:
    client.headers["accept"] = "text/html"
    sign_in(client)
    forms, ahead = set[tuple[str, str]](), [f"/{owner.workspace.name}/evals"]
    found: dict[tuple[str, ...], str] = {}
    """One address of each page with each set of query parameters."""
    while ahead:
        address = ahead.pop()
        parts = urlsplit(address)
        page = (parts.path, *sorted(parse_qs(parts.query)))
        if page in found or not parts.path.startswith(f"/{owner.workspace.name}/"):
            continue
        found[page] = address
        further, posts = linked(client, address)
        ahead += sorted(further)
        forms |= {each for each in posts if f"/{owner.workspace.name}/" in each[0]}
    seen = found.values()
    shown = [address for address in seen if MARK in client.get(address).text]
    assert len(seen) > 30 and len(shown) > 20 and len(forms) > 3
    client.cookies.clear()
    for role in (None, "member", "owner"):
        if role is not None:
            world.member(f"una-{role}", workspace="moss", role=role, password=PASSWORD)  # type: ignore[arg-type]
            sign_in(client, f"una-{role}@moss.example")
        before = kept_of(world, owner)
        for address in sorted(seen):
            reply = client.get(address)
            assert reply.status_code in ((303,) if role is None else (404,)), (address, reply.status_code)
            assert MARK not in re.sub(r"next=[^\"\s]*", "", reply.text), address
        for action, fields in sorted(forms):
            reply = client.post(
                action, content=fields, headers={"content-type": "application/x-www-form-urlencoded"}
            )
            assert reply.status_code in (303, 403, 404), (action, reply.status_code)
            assert reply.status_code != 303 or "/login" in reply.headers["location"], action
            assert MARK not in re.sub(r"next=[^\"\s]*", "", reply.text), action
        assert kept_of(world, owner) == before
        client.cookies.clear()
