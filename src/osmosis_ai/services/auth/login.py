"""Logging in: a login is saved whole or not at all.

The former login is touched only when the new one is safe: the platform vouches for the token, the token is
saved, and only then is the one it replaces revoked. A token made for this login that cannot be saved is revoked
again, so that none stays alive that nobody holds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from osmosis_ai.api.active_platform import active_platform, record_platform
from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.credentials import (
    TOKEN_ENV,
    Credentials,
    CredentialStore,
    keychain,
)
from osmosis_ai.api.credentials.store import DEFAULT_LIFETIME, TOKEN_STORE_ENV
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.wire.auth import DeviceAuthorization, IssuedToken, User, Verification
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.services.auth.account import iso, known_user
from osmosis_ai.services.auth.device_code import Time, await_token, device_name
from osmosis_ai.services.auth.logout import pass_on_warnings, revoke
from osmosis_ai.services.context import Warn, connect, keep_retries_off_stdout, log_warning
from osmosis_ai.workspace.git import checkout_root

LoginSource = Literal["token", "device", "saved"]


@dataclass(frozen=True)
class Login:
    """A login that is saved and that the platform has vouched for.

    Args:
        credentials: the login; its ``source`` is where the token is kept.
        user: whose it is.
        source: what it came from; ``saved`` when it was there already.
    """

    credentials: Credentials
    user: User
    source: LoginSource

    def resource(self) -> dict[str, Any]:
        """Return the login as scripts see it."""
        return {
            "email": self.user.email,
            "name": self.user.name,
            "expires_at": iso(self.credentials.expires_at),
            "platform_url": self.credentials.platform_url,
            "workspace": None,
            "source": self.source,
            "verified": True,
            "saved": True,
            "token_store": self.credentials.source,
        }


def saved_login(store: CredentialStore | None = None, *, warn: Warn = log_warning) -> Login | None:
    """Return the login that is saved for the active platform, if the platform still accepts it.

    Raises:
        PlatformError: the platform cannot be asked.
    """
    try:
        credentials = (store or CredentialStore()).load(active_platform().url)
    except OsmosisError:
        return None
    if credentials is None or credentials.is_expired():
        return None
    try:
        with connect(credentials, warn=warn) as client:
            return Login(credentials, known_user(client.verify().user), "saved")
    except PlatformError as error:
        if error.code != "AUTH_REQUIRED":
            raise
        return None


def login_with_token(token: str, store: CredentialStore | None = None, *, warn: Warn = log_warning) -> Login:
    """Log in to the active platform with a token that the user already has.

    Args:
        token: the token; one in ``OSMOSIS_TOKEN`` does not matter.
        store: where logins are saved.
        warn: takes what went less well than it could have.

    Raises:
        OsmosisError: the platform does not accept the token, or it cannot be saved; the former login is
            then untouched.
    """
    store, platform_url = store or CredentialStore(), active_platform().url
    _require_place_for_token(store)
    with _client(platform_url, token, warn) as client:
        verified = client.verify()
    if not verified.valid:
        raise OsmosisError(f"This token is not valid on {platform_url}.", code="AUTH_REQUIRED")
    return _keep(store, _credentials(platform_url, token, verified), "token", warn)


def use_in_this_directory(platform_url: str) -> Path:
    """Let commands in this checkout, or in the current directory outside Git, use a platform; return the directory.

    Raises:
        OsmosisError: that cannot be recorded.
    """
    directory = checkout_root(Path.cwd()) or Path.cwd()
    record_platform(directory, platform_url)
    return directory


def require_device_login() -> None:
    """Refuse to begin a login that a token in the environment would outrank.

    Raises:
        ConflictError: ``OSMOSIS_TOKEN`` is set.
    """
    if os.environ.get(TOKEN_ENV, "").strip():
        raise ConflictError(
            f"{TOKEN_ENV} is set and would be used instead of a new login.",
            hint=f"unset {TOKEN_ENV} first, or save a token with `osmosis login --token TOKEN`",
        )


def login_with_device(
    announce: Callable[[DeviceAuthorization], None],
    store: CredentialStore | None = None,
    *,
    warn: Warn = log_warning,
    clock: Time = time,
) -> Login:
    """Log in to the active platform by a code that the user confirms in a browser.

    Args:
        announce: shows the user the code and the page.
        store: where logins are saved.
        warn: takes what went less well than it could have.
        clock: tells and passes the time between polls.

    Raises:
        ConflictError: ``OSMOSIS_TOKEN`` is set.
        OsmosisError: ``AUTH_REQUIRED`` when the user declined or did not confirm in time;
            ``TOKEN_REVOKE_FAILED`` when the new token could be neither saved nor revoked.
    """
    require_device_login()
    store, platform_url = store or CredentialStore(), active_platform().url
    _require_place_for_token(store)
    with _client(platform_url, None, warn) as client:
        authorization = client.auth.authorize_device(device_name())
        announce(authorization)
        issued = await_token(client, authorization, clock)
    return _keep(store, _credentials(platform_url, issued.token, issued), "device", warn)


def _keep(store: CredentialStore, new: Credentials, source: Literal["token", "device"], warn: Warn) -> Login:
    """Save a login that the platform vouches for, and revoke the token it replaces."""
    former, unreadable = _former_login(store, new.platform_url)
    try:
        kept_in = store.save(new)
    except BaseException as error:  # Ctrl-C as well: a token that nobody keeps must not stay valid
        if source == "device":
            _take_back(new, error, warn)
        raise
    pass_on_warnings(store, warn)
    if kept_in == "file" and not _expects_file(former):
        warn(
            f"there is no working keyring here: the token is kept in {store.path}, which only you can read.",
            "KEYRING_UNAVAILABLE",
        )
    if unreadable is not None:
        warn(f"the former token was not revoked: {unreadable.message}", "TOKEN_NOT_FOUND")
    if former is not None and not former.is_expired() and not _is_same_token(former, new):
        reason = revoke(former)
        if reason is not None:
            warn(f"the former token could not be revoked: {reason}", "TOKEN_REVOKE_FAILED")
    return Login(replace(new, source=kept_in), known_user(new.user), source)


def _former_login(
    store: CredentialStore, platform_url: str
) -> tuple[Credentials | None, OsmosisError | None]:
    """Return the saved login, and why its token cannot be read when there is one that cannot."""
    try:
        return store.load(platform_url), None
    except OsmosisError as error:
        # A file that cannot be read as a whole is told of, and moved aside, when the new login is saved.
        return None, error if error.code in ("TOKEN_NOT_FOUND", "KEYRING_UNAVAILABLE") else None


def _take_back(new: Credentials, error: BaseException, warn: Warn) -> None:
    """Revoke a token that could not be saved.

    Raises:
        OsmosisError: ``TOKEN_REVOKE_FAILED``, which then tells of both failures.
    """
    reason = revoke(new)
    if reason is None:
        return
    if isinstance(error, OsmosisError):
        raise OsmosisError(
            f"{error.message}\nThe new token could not be revoked either: {reason}",
            code="TOKEN_REVOKE_FAILED",
            details={**error.details, "platform_url": new.platform_url, "save_error": error.code},
            hint=f"revoke it at {new.platform_url}; {error.hint or 'then log in again'}",
        ) from None
    warn(f"the new token was not saved and could not be revoked: {reason}", "TOKEN_REVOKE_FAILED")


def _require_place_for_token(store: CredentialStore) -> None:
    """Find out before anybody confirms anything that the only place allowed for the token is missing."""
    if _token_store_setting() != "keyring":
        return
    try:
        keychain.read("probe")
    except keychain.KeyringUnavailable as error:
        raise OsmosisError(
            f"there is no working keyring, and {TOKEN_STORE_ENV}=keyring allows nothing else: {error}.",
            code="KEYRING_UNAVAILABLE",
            hint=f"set {TOKEN_ENV}, or {TOKEN_STORE_ENV}=file to keep the token in {store.path}",
        ) from None


def _expects_file(former: Credentials | None) -> bool:
    return _token_store_setting() == "file" or (former is not None and former.source == "file")


def _token_store_setting() -> str:
    return os.environ.get(TOKEN_STORE_ENV, "").strip().lower()


def _credentials(platform_url: str, token: str, said: Verification | IssuedToken) -> Credentials:
    now = datetime.now(timezone.utc).replace(microsecond=0)
    credentials = Credentials(
        token=token,
        platform_url=platform_url,
        source="file",
        user=known_user(said.user),
        token_id=said.token_id or None,
        expires_at=said.expires_at or now + DEFAULT_LIFETIME,
    )
    if credentials.is_expired(now):
        raise OsmosisError(
            f"The token expired at {iso(credentials.expires_at)}, by the clock of this machine.",
            code="AUTH_REQUIRED",
            hint="make a new one, or check the clock",
        )
    return credentials


def _is_same_token(one: Credentials, other: Credentials) -> bool:
    return one.token == other.token or (one.token_id is not None and one.token_id == other.token_id)


def _client(platform_url: str, token: str | None, warn: Warn) -> PlatformClient:
    keep_retries_off_stdout()
    return PlatformClient(platform_url, token, on_warning=lambda warning: warn(warning.message, warning.code))
