"""A client of the 0.2 line logs in and registers an agent: step by step what it does, and no request more."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.services import PlatformServices
from tests.driving.served_loop import LoopProcess
from tests.platform.conftest import Member, World
from tests.platform.http.pages.browsing import PASSWORD, csrf_of, sign_in

AGENT = "osmosis-cli/0.2.14"
KEY = "osm_rollout_canary-4711"


class OldClient:
    """The login of the 0.2 line: a listener on the first free port of ten, a state, one call to verify."""

    def __init__(self, platform: TestClient) -> None:
        self.platform = platform
        self.state = secrets.token_urlsafe(32)
        self.port = first_free_port()
        self.credentials: dict[str, Any] | None = None
        self.failure: str | None = None
        self.token = ""

    @property
    def url(self) -> str:
        asked = {
            "state": self.state,
            "port": self.port,
            "device_name": "maras-laptop",
            "redirect_uri": f"http://localhost:{self.port}/callback",
        }
        return f"/cli-auth?{urlencode(asked)}"

    @contextmanager
    def listening(self) -> Iterator[None]:
        client = self

        class Callback(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, text = client.called_back(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        server = HTTPServer(("localhost", self.port), Callback)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def called_back(self, path: str) -> tuple[int, str]:
        """Hold the browser until the token is verified, then tell it how that went."""
        address = urlsplit(path)
        if address.path == "/health":
            return 200, "OK"
        told = {name: values[0] for name, values in parse_qs(address.query).items()}
        if address.path != "/callback":
            return 404, "Not found"
        if told.get("state") != self.state or "error" in told or not told.get("token"):
            self.failure = told.get("error_description") or "no token, or another state"
            return 400, "Login failed"
        self.token = told["token"]
        reply = self.platform.get("/api/cli/verify", headers=self.headers)
        found = reply.json()
        if reply.status_code != 200 or not found.get("valid"):
            self.failure = "not verified"
            return 400, "Login failed"
        self.credentials = stored(found, self.token)
        return 200, "Login successful"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "User-Agent": AGENT}


def stored(found: dict[str, Any], token: str) -> dict[str, Any]:
    """What the client keeps; every key that it reads without asking must be there."""
    user, organization = found["user"], found["organization"]
    expires_at = datetime.fromisoformat(found["expires_at"].replace("Z", "+00:00"))
    assert expires_at.tzinfo is not None
    return {
        "access_token": token,
        "expires_at": expires_at,
        "user": {"id": user["id"], "email": user["email"], "name": user.get("name")},
        "organization": {
            "id": organization["id"],
            "name": organization["name"],
            "role": organization.get("role", "member"),
        },
        "token_id": found.get("token_id"),
    }


def first_free_port() -> int:
    for port in range(8976, 8986):
        try:
            with socket.create_server(("localhost", port)):
                return port
        except OSError:
            continue
    pytest.skip("all ten ports of the 0.2 line are taken")


def visit(url: str) -> tuple[int, str]:
    """Follow a browser's redirect to the client."""
    try:
        with build_opener(ProxyHandler({})).open(Request(url), timeout=60) as reply:
            return reply.status, reply.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def member(world: World) -> Member:
    return world.member(password=PASSWORD)


@pytest.fixture
def browser(client: TestClient, member: Member) -> TestClient:
    """Somebody's browser that is signed in."""
    client.headers["accept"] = "text/html"
    assert sign_in(client).status_code == 303
    return client


def decide(browser: TestClient, old: OldClient, decision: str, member: Member, **changes: str) -> Any:
    page = browser.get(old.url)
    assert page.status_code == 200, page.text
    form = {
        "csrf": csrf_of(page),
        "state": old.state,
        "port": str(old.port),
        "device_name": "maras-laptop",
        "workspace": member.workspace.id,
        "decision": decision,
    }
    return browser.post("/cli-auth", data={**form, **changes})


@pytest.mark.integration
def test_a_client_of_the_0_2_line_logs_in_and_registers_its_agent(
    browser: TestClient, member: Member, services: PlatformServices, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    old = OldClient(browser)
    with old.listening():
        sent = decide(browser, old, "approve", member)
        assert sent.status_code == 303
        address = urlsplit(sent.headers["location"])
        assert (address.scheme, address.netloc, address.path) == (
            "http",
            f"localhost:{old.port}",
            "/callback",
        )
        assert (
            sent.headers["referrer-policy"] == "no-referrer" and sent.headers["cache-control"] == "no-store"
        )
        assert visit(sent.headers["location"]) == (200, "Login successful")
    assert old.failure is None and old.credentials is not None
    assert old.credentials["user"]["email"] == "mara@fern.example"
    assert old.credentials["organization"] == {"id": member.workspace.id, "name": "fern", "role": "owner"}
    assert old.credentials["token_id"] and old.credentials["expires_at"] > services.clock.now()
    with LoopProcess(KEY) as agent:
        body = {"host": "127.0.0.1", "port": agent.port, "agent_loop_name": "calculator", "api_key": KEY}
        reply = browser.post("/api/cli/rollout-server/register", json=body, headers=old.headers)
    assert reply.json()["status"] == "healthy", reply.text
    assert reply.json()["health_check_result"]["server_info"]["active_rollouts"] == 0
    assert old.token not in caplog.text and KEY not in caplog.text


def test_a_denied_login_is_told_and_no_token_leaves_for_anywhere_else(
    browser: TestClient, member: Member, services: PlatformServices
) -> None:
    old = OldClient(browser)
    with old.listening():
        assert visit(decide(browser, old, "deny", member).headers["location"])[0] == 400
    assert old.failure == "the login was denied in the browser" and old.credentials is None
    for changes in (
        {"port": "80"},
        {"port": "8976@evil.example"},
        {"state": "x" * 300},
        {"csrf": "C" * 43},
    ):
        refused = decide(browser, old, "approve", member, **changes)
        assert refused.status_code in (400, 403) and "location" not in refused.headers
    elsewhere = old.url.replace("localhost%3A", "evil.example%3A")
    assert elsewhere != old.url and browser.get(elsewhere).status_code == 400
    assert sorted(token.kind for token, _ in services.accounts.tokens()) == ["cli", "web"]
