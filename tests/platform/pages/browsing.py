"""A browser of the tests: how somebody signs in, and what a page says."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from urllib.parse import urlsplit

from fastapi.testclient import TestClient

from tests.platform.conftest import Member

PASSWORD = "correct horse battery"
HOSTILE = "<script>alert(1)</script>"


def csrf_of(page: Any) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page.text)
    assert found, page.text
    return found[1]


def sign_in(browser: TestClient, email: str = "mara@fern.example", wanted: str = "/", **changes: str) -> Any:
    page = browser.get("/login", params={"next": wanted})
    form = {"csrf": csrf_of(page), "email": email, "password": PASSWORD, "next": wanted}
    return browser.post("/login", data={**form, **changes})


def text_of(page: Any) -> str:
    """Return what a person reads."""
    assert page.status_code == 200, page.text
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page.text)))


def path_of(url: str) -> str:
    assert url.startswith("http://127.0.0.1:8733/")
    return urlsplit(url).path


def submitted(api: TestClient, path: str, body: dict[str, Any], member: Member) -> dict[str, Any]:
    reply = api.post(path, json=body, headers=member.headers)
    assert reply.status_code == 200, reply.text
    run: dict[str, Any] = reply.json()
    return run
