"""Logins to a platform whose replies are written by hand."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from osmosis_ai.api import client
from osmosis_ai.api.credentials import Credentials, CredentialStore
from osmosis_ai.api.models.auth import User
from osmosis_ai.workspace.layout import WorkspaceDirectory
from tests.workspace.builders import make_workspace

FERN = "https://osmosis.fern.example"
TOKEN = "osm_u_canary7Qd"
NEW_TOKEN = "osm_u_canaryNEW"
LATER = "2100-02-01T09:00:00Z"
ORIGIN = "git@github.com:Fern/Maze.git"
IDENTITY = "fern/maze"
MARA = {"id": "usr_5", "email": "mara@fern.example", "name": "Mara"}
WORKSPACE = {"id": "ws_1", "name": "fern-lab", "role": "admin"}
VERIFIED: dict[str, Any] = {
    "user": MARA,
    "expires_at": LATER,
    "token_id": "ct_01J8",
    "workspace": WORKSPACE,
    "valid": True,
    "organization": WORKSPACE,
}
BARELY_VERIFIED: dict[str, Any] = {"user": {"id": "usr_5", "email": "mara@fern.example"}}
NULLS_VERIFIED: dict[str, Any] = {
    "user": {"id": "usr_5", "email": "mara@fern.example", "name": None},
    "expires_at": None,
    "token_id": None,
    "workspace": None,
    "valid": None,
    "organization": None,
    "whatever_comes_next": {"a": [None]},
}
NOT_CONNECTED = {"error": "no such repository", "code": "GIT_REPOSITORY_NOT_CONNECTED"}

# What a platform that is not well may answer, and the code that becomes of it.
REFUSALS = [
    pytest.param({"status_code": 401, "json": {"error": "no", "code": code}}, "AUTH_REQUIRED", id=code)
    for code in ("TOKEN_EXPIRED", "TOKEN_REVOKED", "TOKEN_INVALID")
] + [
    pytest.param({"status_code": 500, "json": {"error": "broken"}}, "PLATFORM_ERROR", id="500"),
    pytest.param({"status_code": 200, "text": "<html>sign in</html>"}, "PLATFORM_ERROR", id="HTML"),
    pytest.param({"status_code": 502, "text": "<html>Bad Gateway</html>"}, "PLATFORM_ERROR", id="HTML 502"),
    pytest.param({"status_code": 429, "json": {"error": "slower"}}, "RATE_LIMITED", id="429"),
    pytest.param(
        {"status_code": 426, "json": {"status": "unsupported", "message": "Upgrade now."}},
        "UPGRADE_REQUIRED",
        id="426",
    ),
]


def save_login(url: str = FERN, **changes: Any) -> CredentialStore:
    """Save a login like an earlier command."""
    values: dict[str, Any] = {
        "token": TOKEN,
        "platform_url": url,
        "source": "file",
        "user": User(**MARA),
        "token_id": "ct_01J8",
        "expires_at": datetime(2100, 2, 1, 9, tzinfo=timezone.utc),
    }
    store = CredentialStore()
    store.save(Credentials(**{**values, **changes}))
    return store


def saved_token(url: str = FERN) -> str | None:
    """Return the token that is saved for a platform."""
    found = CredentialStore().load(url)
    return found.token if found else None


def use_platform(monkeypatch: pytest.MonkeyPatch, url: str = FERN) -> None:
    """Make ``url`` the active platform, and retry calls without a pause."""
    monkeypatch.setenv("OSMOSIS_PLATFORM_URL", url)
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=lambda _: None))
    monkeypatch.setattr(client, "_announced", set())


def make_checkout(root: Path, origin: str = ORIGIN) -> WorkspaceDirectory:
    """Create a workspace directory with an origin."""
    workspace = make_workspace(root)
    with (workspace.root / ".git" / "config").open("a") as config:  # as `git remote add` does
        config.write(f'[remote "origin"]\n\turl = {origin}\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n')
    return workspace


def files_holding(secret: str, directory: Path) -> list[str]:
    """Return the names of the files below ``directory`` that contain ``secret``."""
    return sorted(
        path.name for path in directory.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()
    )


def hash_passwords_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash passwords of a platform in this process fast."""
    from argon2 import PasswordHasher

    quick = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr("osmosis_ai.platform.accounts._hasher", lambda: quick)
