"""What holds for every request, whatever its resource."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from anyio.from_thread import BlockingPortal
from fastapi import FastAPI
from fastapi.testclient import TestClient

from osmosis_ai._version import __version__
from osmosis_ai.api.capabilities import Capability
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import DatabaseBusyError, StorageFullError
from osmosis_ai.platform.http.authentication import WorkspaceScope
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.middleware import OFFERED
from osmosis_ai.platform.http.routing import LogPaging, Paging, api_router
from tests.platform.conftest import Member, World, application, assert_flat_error
from tests.platform.one_hop_client import OneHopClient, running

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def probe(world: World, member: Member, portal: BlockingPortal) -> Iterator[OneHopClient]:
    """The platform with a few routes that do what a test needs to see from the outside."""
    app = application(world, _add_probe)
    with running(app, portal) as client:
        client.headers.update(member.headers)
        yield client


def _add_probe(app: FastAPI) -> None:
    router = api_router("/api/cli/probe")

    @router.get("/names/{name}")
    def show(name: str) -> dict[str, str]:
        return {"name": name}

    @router.get("/names/{name}/deep/{other}")
    def show_two(name: str, other: str) -> dict[str, str]:
        return {"name": name, "other": other}

    @router.get("/scope")
    def scope(scope: WorkspaceScope) -> dict[str, str]:
        return {"workspace": scope.workspace.name, "role": scope.role, "user": scope.user.email}

    @router.get("/admin")
    def admin(scope: WorkspaceScope) -> dict[str, str]:
        scope.require_role("admin")
        return {}

    @router.get("/page")
    def page(page: Paging) -> dict[str, Any]:
        return {"limit": page.limit, "offset": page.offset}

    @router.get("/log")
    def log(page: LogPaging) -> dict[str, Any]:
        return {"limit": page.limit, "direction": page.direction, "cursor": page.cursor}

    @router.post("/body")
    def take(body: dict[str, Any]) -> dict[str, Any]:
        return body

    @router.post("/fail/{how}")
    def fail(how: str, body: dict[str, Any]) -> None:
        raise {
            "bug": ValueError(f"it broke with {body}"),
            "full": OSError(errno.ENOSPC, "No space left on device"),
            "storage": StorageFullError("the platform's disk is full."),
            "busy": DatabaseBusyError("the database is busy."),
            "refused": ApiError(409, "NAME_TAKEN", "the name is taken.", "name", existing_dataset_id="ds_1"),
        }[how]

    app.include_router(router)


@pytest.mark.parametrize(
    "name",
    [
        *("multiply", "a/b", "..", "../../etc/passwd", "two words", "größe/名前", "a%2Fb", "a+b"),
        *("x" * 300, "?#&="),
    ],
)
def test_a_name_is_one_segment_of_the_path_whatever_it_holds(probe: TestClient, name: str) -> None:
    from urllib.parse import quote

    # `.` and `..` are not escaped by clients; a dot segment that the client keeps must arrive.
    segment = quote(name, safe="").replace("..", "%2E%2E")
    assert probe.get(f"/api/cli/probe/names/{segment}").json() == {"name": name}
    reply = probe.get(f"/api/cli/probe/names/{segment}/deep/%2F")
    assert reply.json() == {"name": name, "other": "/"}


@pytest.mark.parametrize("segment", ["%FF", "%C3%28", "a%00b"])
def test_a_path_that_is_no_text_is_refused(probe: TestClient, segment: str) -> None:
    assert_flat_error(probe.get(f"/api/cli/probe/names/{segment}"), 400, "INVALID_PATH")


def test_an_unknown_route_and_a_wrong_method_get_flat_errors(client: TestClient) -> None:
    for path in ("/", "/api/cli", "/api/cli/nothing", "/api/cli/verify/"):
        reply = client.get(path, headers={"accept": "application/json"})
        assert path in assert_flat_error(reply, 404, "ROUTE_NOT_FOUND")["error"]
    refused = client.put("/api/cli/verify")
    assert_flat_error(refused, 405, "METHOD_NOT_ALLOWED")
    assert refused.headers["allow"] == "GET"


@pytest.mark.parametrize(
    "content",
    [b"{", b'{"a": NaN}', b'{"a": Infinity}', b'{"a": -Infinity}', b'{"a": "\\ud800"}', b"\xff", b"["],
)
def test_a_body_that_is_no_json_is_refused(probe: TestClient, content: bytes) -> None:
    reply = probe.post("/api/cli/probe/body", content=content, headers=JSON)
    assert_flat_error(reply, 400, "INVALID_JSON")


def test_a_body_of_another_shape_is_refused_with_issues_and_not_repeated(probe: TestClient) -> None:
    reply = probe.post("/api/cli/device/token", json={"device_code": {"value": "canary-4711"}})
    body = assert_flat_error(reply, 400, "VALIDATION_FAILED")
    assert body["field"] == "device_code"
    assert body["issues"] == [{"key": "device_code", "message": "Input should be a valid string"}]
    assert "canary-4711" not in reply.text
    for content in (b"[]", b'"text"', b"null", b"1"):
        reply = probe.post("/api/cli/probe/body", content=content, headers=JSON)
        assert_flat_error(reply, 400, "VALIDATION_FAILED")


def test_a_body_over_the_limit_is_refused_before_it_is_read(probe: TestClient) -> None:
    reply = probe.post("/api/cli/probe/body", content=b" " * (8 * 1024**2 + 1), headers=JSON)
    assert_flat_error(reply, 413, "BODY_TOO_LARGE")
    announced = probe.post(
        "/api/cli/probe/body", content=b"{}", headers={**JSON, "Content-Length": str(1024**3)}
    )
    assert_flat_error(announced, 413, "BODY_TOO_LARGE")
    assert announced.headers["connection"] == "close"


async def test_a_body_of_unknown_length_is_cut_off_at_the_limit(world: World, member: Member) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 1024**3:
            sent += 1024**2
            yield b" " * 1024**2
            await asyncio.sleep(0)

    transport = httpx.ASGITransport(application(world), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://platform") as client:
        reply = await client.post("/api/cli/device/token", content=endless(), headers=JSON)
    assert_flat_error(reply, 413, "BODY_TOO_LARGE")
    assert sent <= 10 * 1024**2


def test_an_unexpected_error_is_hidden_from_the_client_and_logged_without_secrets(
    probe: TestClient, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        reply = probe.post(
            "/api/cli/probe/fail/bug",
            json={"secrets": {"provided": {"KEY": "canary-4711"}}, "token": member.token},
        )
    body = assert_flat_error(reply, 500, "INTERNAL_ERROR")
    assert "it broke" not in reply.text
    assert body["reference"] in caplog.text and "it broke with" in caplog.text
    assert "canary-4711" not in caplog.text and member.token not in caplog.text


def test_a_refusal_carries_its_field_and_extra_keys(probe: TestClient) -> None:
    body = assert_flat_error(probe.post("/api/cli/probe/fail/refused", json={}), 409, "NAME_TAKEN")
    assert body == {
        "error": "the name is taken.",
        "code": "NAME_TAKEN",
        "field": "name",
        "existing_dataset_id": "ds_1",
    }


@pytest.mark.parametrize(
    ("how", "status", "code"),
    [("full", 507, "STORAGE_FULL"), ("storage", 507, "STORAGE_FULL"), ("busy", 503, "DATABASE_BUSY")],
)
def test_a_full_disk_and_a_busy_database_say_so(probe: TestClient, how: str, status: int, code: str) -> None:
    assert_flat_error(probe.post(f"/api/cli/probe/fail/{how}", json={}), status, code)


# -- scope -----------------------------------------------------------------------------------------


def test_the_header_names_the_workspace(probe: TestClient) -> None:
    assert probe.get("/api/cli/probe/scope").json() == {
        "workspace": "fern",
        "role": "owner",
        "user": "mara@fern.example",
    }


@pytest.mark.parametrize(
    ("header", "status", "code"),
    [
        (None, 400, "GIT_SCOPE_HEADER_REQUIRED"),
        ("  ", 400, "GIT_SCOPE_HEADER_REQUIRED"),
        ("fern", 400, "GIT_SCOPE_HEADER_INVALID"),
        ("fern/agents/more", 400, "GIT_SCOPE_HEADER_INVALID"),
        ("fern/..", 400, "GIT_SCOPE_HEADER_INVALID"),
        ("fern/other", 404, "GIT_REPOSITORY_NOT_CONNECTED"),
    ],
)
def test_a_header_that_gives_no_workspace_is_refused(
    probe: TestClient, member: Member, header: str | None, status: int, code: str
) -> None:
    probe.headers.pop("X-Osmosis-Git")
    headers = {} if header is None else {"X-Osmosis-Git": header}
    assert_flat_error(probe.get("/api/cli/probe/scope", headers=headers), status, code)


def test_a_token_of_one_workspace_opens_no_other(probe: TestClient, world: World, member: Member) -> None:
    moss = world.services.workspaces.create("moss")
    world.services.workspaces.add_member(moss.id, member.user.id)
    _, plain = world.services.accounts.create_token(member.user.id, workspace_id=moss.id)
    headers = {**member.headers, "Authorization": f"Bearer {plain}"}
    assert_flat_error(
        probe.get("/api/cli/probe/scope", headers=headers), 403, "GIT_SCOPE_HEADER_ACCESS_DENIED"
    )
    listed = probe.get("/api/cli/workspaces", headers=headers).json()["workspaces"]
    assert [workspace["name"] for workspace in listed] == ["moss"]


def test_a_route_can_ask_for_a_role(probe: TestClient, world: World, member: Member) -> None:
    assert probe.get("/api/cli/probe/admin").status_code == 200
    tom = world.member("tom", role="member")
    assert_flat_error(probe.get("/api/cli/probe/admin", headers=tom.headers), 403, "ROLE_REQUIRED")


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "AUTH_HEADER_MISSING"),
        ("Bearer", "TOKEN_MISSING"),
        ("Bearer  ", "TOKEN_MISSING"),
        ("Basic bWFyYTpwdw==", "TOKEN_MISSING"),
        ("Bearer osm_nobody", "TOKEN_INVALID"),
    ],
)
def test_a_request_without_a_good_token_is_refused_with_the_reason(
    client: TestClient, header: str | None, code: str
) -> None:
    headers = {} if header is None else {"Authorization": header}
    for path in ("/api/cli/verify", "/api/cli/workspaces"):
        assert_flat_error(client.get(path, headers=headers), 401, code)


def test_expired_and_revoked_tokens_are_told_apart(
    api: TestClient, world: World, member: Member, clock: Any
) -> None:
    world.services.accounts.revoke_token(member.token_id)
    assert_flat_error(api.get("/api/cli/verify"), 401, "TOKEN_REVOKED")
    _, plain = world.services.accounts.create_token(member.user.id)
    clock.advance(91 * 86_400)
    reply = api.get("/api/cli/verify", headers={"Authorization": f"Bearer {plain}"})
    assert_flat_error(reply, 401, "TOKEN_EXPIRED")


# -- pages and versions ----------------------------------------------------------------------------


def test_pages_have_defaults_and_limits(probe: TestClient) -> None:
    assert probe.get("/api/cli/probe/page").json() == {"limit": 50, "offset": 0}
    assert probe.get("/api/cli/probe/page?limit=7&offset=3").json() == {"limit": 7, "offset": 3}
    for query in ("limit=51", "limit=0", "offset=-1", "limit=x", f"offset={10**30}"):
        body = assert_flat_error(probe.get(f"/api/cli/probe/page?{query}"), 400, "VALIDATION_FAILED")
        assert body["field"] == query.split("=")[0]
    assert probe.get("/api/cli/probe/log").json() == {"limit": 50, "direction": "older", "cursor": None}
    for query in ("limit=201", "direction=sideways", f"cursor={'9' * 65}"):
        assert_flat_error(probe.get(f"/api/cli/probe/log?{query}"), 400, "VALIDATION_FAILED")


@pytest.mark.parametrize(
    ("stated", "http_status", "version_status"),
    [
        (None, 200, "current"),
        (__version__, 200, "current"),
        ("0.3.4", 200, "upgrade_available"),
        ("0.2.14", 200, "upgrade_available"),
        ("0.2.13", 426, "unsupported"),
        ("0.2.14rc1", 426, "unsupported"),
        ("what?", 200, "current"),
    ],
)
def test_old_clients_are_told_and_older_ones_refused(
    config: PlatformConfig,
    world: World,
    member: Member,
    stated: str | None,
    http_status: int,
    version_status: str,
) -> None:
    from dataclasses import replace

    world.services.config = replace(config, recommended_cli_version="0.3.5")
    client = TestClient(application(world))
    headers = {**member.headers, **({"X-Osmosis-Cli-Version": stated} if stated else {})}
    reply = client.get("/api/cli/verify", headers=headers)
    assert reply.status_code == http_status
    assert reply.headers["x-osmosis-version-status"] == version_status
    assert ("x-osmosis-version-message" in reply.headers) == (version_status != "current")
    if http_status == 426:
        body = assert_flat_error(reply, 426, "UPGRADE_REQUIRED")
        assert body["status"] == "unsupported" and "0.2.14 or newer" in body["message"]


def test_every_reply_of_the_api_says_what_is_offered_refusals_included(client: TestClient) -> None:
    for path in ("/api/cli/verify", "/api/cli/nothing"):
        assert client.get(path).headers["x-osmosis-capabilities"] == ", ".join(
            sorted(x.value for x in OFFERED)
        )
    assert "x-osmosis-capabilities" not in client.get("/health").headers


ROUTES = {
    Capability.EVAL_IMPORTS: ("post", "/api/cli/eval-runs/imports"),
    Capability.DELETION: ("delete", "/api/cli/eval-runs/{name_or_id}"),
    Capability.EVAL_JOURNALS: ("get", "/api/cli/eval-runs/{name_or_id}/samples/manifest"),
    Capability.EVAL_RETRIES: ("post", "/api/cli/eval-runs/{name_or_id}/retry"),
    Capability.EVAL_SAMPLES: ("get", "/api/cli/eval-runs/{name_or_id}/samples"),
    Capability.MODEL_DOWNLOADS: ("get", "/api/cli/models/{name}/download"),
    Capability.QUICKSTART: ("get", "/api/cli/quickstart"),
    Capability.SERVED_AGENTS: ("get", "/api/cli/rollout-servers"),
    Capability.TRAINING_RESUME: ("post", "/api/cli/training-runs/{name_or_id}/resume"),
    Capability.SECRET_AUDIT: ("get", "/api/cli/environment-secrets/audit"),
    Capability.TRAINING_VALIDATION: ("get", "/api/cli/training-runs/{name_or_id}/validation"),
}


def test_everything_that_is_offered_has_its_route(client: TestClient) -> None:
    paths = client.get("/api/openapi.json").json()["paths"]
    for capability in OFFERED:
        method, path = ROUTES[capability]
        assert method in paths[path], capability
