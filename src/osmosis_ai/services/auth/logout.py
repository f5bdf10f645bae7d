"""Logging out: the platform is asked to end the tokens, and this machine forgets them whatever it says."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from osmosis_ai.api.active_platform import active_platform, forget_directories, recorded_directories
from osmosis_ai.api.credentials import TOKEN_ENV, Credentials, CredentialStore
from osmosis_ai.api.resources.auth import REVOKE_TIMEOUT_S
from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.context import Warn, connect, log_warning


@dataclass(frozen=True)
class LogoutPlan:
    """What logging out would end.

    Args:
        platform_url: the active platform.
        platforms: those whose saved login ends.
        directories: those that no longer use the platform.
        damaged: whether the saved logins cannot be read and will be moved aside.
        env_token_set: whether ``OSMOSIS_TOKEN`` goes on after that.
    """

    platform_url: str
    platforms: tuple[str, ...]
    directories: tuple[str, ...]
    damaged: bool
    env_token_set: bool

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to end."""
        return not (self.platforms or self.directories or self.damaged)

    def resource(self, *, revoked: bool = False) -> dict[str, Any]:
        """Return how things are afterwards, as scripts see it."""
        return {
            "logged_in": self.env_token_set,
            "revoked": revoked,
            "env_token_set": self.env_token_set,
            "persistent_login": False,
            "effective_source": "environment" if self.env_token_set else None,
            "platform_url": self.platform_url,
            "platforms": list(self.platforms),
            "directories": list(self.directories),
        }


def plan_logout(store: CredentialStore | None = None, *, everywhere: bool = False) -> LogoutPlan:
    """Return what logging out of the active platform, or ``everywhere``, would end.

    Raises:
        OsmosisError: ``CREDENTIALS_UNAVAILABLE`` when the saved logins cannot be reached.
    """
    platform_url, damaged = active_platform().url, False
    saved: list[str] = []
    try:
        saved = [login.platform_url for login in (store or CredentialStore()).all()]
    except OsmosisError as error:
        if error.code not in ("CREDENTIALS_PARSE_FAILED", "CREDENTIALS_VERSION_CHANGED"):
            raise
        damaged = True
    return LogoutPlan(
        platform_url,
        tuple(url for url in saved if everywhere or url == platform_url),
        recorded_directories(None if everywhere else platform_url),
        damaged,
        bool(os.environ.get(TOKEN_ENV, "").strip()),
    )


def logout(plan: LogoutPlan, store: CredentialStore | None = None, *, warn: Warn = log_warning) -> bool:
    """Revoke and forget the logins of ``plan``, and return whether every token was revoked.

    Raises:
        OsmosisError: ``CREDENTIALS_UNAVAILABLE`` when the saved logins cannot be changed.
    """
    store = store or CredentialStore()
    revoked = [_end(store, url, warn) for url in plan.platforms]
    if plan.damaged:
        store.delete(plan.platform_url)
    forget_directories(plan.directories)
    pass_on_warnings(store, warn)
    return bool(revoked) and all(revoked)


def _end(store: CredentialStore, platform_url: str, warn: Warn) -> bool:
    revoked = _revoke_saved(store, platform_url, warn)
    store.delete(platform_url)
    return revoked


def _revoke_saved(store: CredentialStore, platform_url: str, warn: Warn) -> bool:
    try:
        credentials = store.load(platform_url)
    except OsmosisError as error:
        warn(f"the token was not revoked: {error.message}", "TOKEN_NOT_FOUND")
        return False
    if credentials is None or credentials.is_expired():
        return False
    reason = revoke(credentials)
    if reason is not None:
        warn(f"the token could not be revoked: {reason}", "TOKEN_REVOKE_FAILED")
    return reason is None


def revoke(credentials: Credentials) -> str | None:
    """Revoke a token and return why that was not possible; one that is no longer valid is as good."""
    try:
        with connect(credentials, timeout_s=REVOKE_TIMEOUT_S) as client:
            token_id = credentials.token_id or client.verify().token_id
            if token_id is None:
                return f"{credentials.platform_url} does not say its id."
            client.auth.revoke(token_id)
    except OsmosisError as error:
        return None if error.code == "AUTH_REQUIRED" else error.message
    return None


def pass_on_warnings(store: CredentialStore, warn: Warn) -> None:
    """Tell what ``store`` has collected, once."""
    for warning in store.warnings:
        warn(warning.message, warning.code)
    store.warnings.clear()
