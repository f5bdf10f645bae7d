"""Logging out: the platform is asked to end the tokens, and this machine forgets them whatever it says."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from osmosis_ai.api.credentials import TOKEN_ENV, CredentialStore, active_platform_url
from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.auth.tokens import pass_on_warnings, revoke
from osmosis_ai.services.context import Warn, log_warning


@dataclass(frozen=True)
class LogoutPlan:
    """What logging out would end.

    Args:
        platform_url: the active platform.
        platforms: those whose saved login ends.
        damaged: whether the saved logins cannot be read and will be moved aside.
        env_token_set: whether ``OSMOSIS_TOKEN`` goes on after that.
    """

    platform_url: str
    platforms: tuple[str, ...]
    damaged: bool
    env_token_set: bool

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to end."""
        return not self.platforms and not self.damaged

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
        }


def plan_logout(store: CredentialStore | None = None, *, everywhere: bool = False) -> LogoutPlan:
    """Return what logging out of the active platform, or ``everywhere``, would end.

    Raises:
        OsmosisError: ``CREDENTIALS_UNAVAILABLE`` when the saved logins cannot be reached.
    """
    platform_url, damaged = active_platform_url(), False
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
