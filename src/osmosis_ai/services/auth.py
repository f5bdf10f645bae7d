"""Log in, log out, and look up the account behind a token.

Logging in changes the previous login only when the new one is safe: the platform verifies the token, the token is
saved, and only then is the token it replaces revoked. A token from the device login (RFC 8628) that cannot be saved
is revoked again. Logging out removes the saved logins even if the platform cannot revoke their tokens.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, Protocol

from osmosis_ai.api import routes
from osmosis_ai.api.active_platform import (
    active_platform,
    forget_directories,
    record_platform,
    recorded_directories,
)
from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.credentials import TOKEN_ENV, Credentials, CredentialStore, keychain, require_credentials
from osmosis_ai.api.credentials.login import TokenStoreKind
from osmosis_ai.api.credentials.store import DEFAULT_LIFETIME, TOKEN_STORE_ENV
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.auth import (
    DeviceAuthorization,
    IssuedToken,
    User,
    Verification,
    Workspace,
    WorkspaceMembership,
)
from osmosis_ai.api.resources import REVOKE_TIMEOUT_S
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.services.context import (
    Warn,
    connect,
    find_checkout_if_any,
    keep_retries_off_stdout,
    log_warning,
)
from osmosis_ai.workspace.git import checkout_root

LONGEST_WAIT_S = 900.0
_SHORTEST_INTERVAL_S, _LONGEST_INTERVAL_S, _SLOWER_BY_S = 1.0, 30.0, 5.0
# The connection may drop for a moment during the minutes that a confirmation takes.
_FAILURES_IN_A_ROW = 3
LoginSource = Literal["token", "device", "saved"]


@dataclass(frozen=True)
class Account:
    """The account that the platform reports for a token.

    Args:
        credentials: the token that was checked.
        directory: the directory that selects the platform; None if the environment or the default does.
        user: the token's owner.
        expires_at: when the token expires; None if unknown.
        token_id: the platform's id of the token.
        saved_in: where a login for this platform is saved, even if it is not in use; None if there is none.
        workspace: the current repository's workspace.
        workspaces: all workspaces of the user; None if the platform did not return them.
    """

    credentials: Credentials
    directory: Path | None
    user: User
    expires_at: datetime | None
    token_id: str | None
    saved_in: TokenStoreKind | None
    workspace: WorkspaceMembership | None
    workspaces: tuple[Workspace, ...] | None

    def data(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "email": self.user.email,
            "name": self.user.name,
            "expires_at": iso(self.expires_at),
            "platform_url": self.credentials.platform_url,
            "source": self.credentials.source,
            "effective_source": self.credentials.source,
            "persistent_login": self.saved_in is not None,
        }
        return {
            "account": facts if self.token_id is None else {**facts, "token_id": self.token_id},
            **facts,
            "platform_directory": None if self.directory is None else str(self.directory),
            "workspace": None if self.workspace is None else _membership(self.workspace),
            "workspaces": None
            if self.workspaces is None
            else [_membership(item) for item in self.workspaces],
        }


def whoami(
    start: Path | None = None, store: CredentialStore | None = None, *, warn: Warn = log_warning
) -> Account:
    """Return the account and workspace that the platform reports for the current login.

    Args:
        start: a directory in the repository (default: the current directory).

    Raises:
        OsmosisError: ``AUTH_REQUIRED`` if you are not logged in or the token is no longer valid.
        PlatformError: the request failed.
    """
    store = store or CredentialStore()
    credentials = require_credentials(store)
    checkout = find_checkout_if_any(start)
    identity = checkout.git.identity if checkout else None
    with connect(credentials, git_identity=identity, warn=warn) as client:
        verified = verify_with_workspace(client)
        workspaces = _workspaces_of(client)
    return Account(
        credentials=credentials,
        directory=active_platform().directory,
        user=known_user(verified.user),
        expires_at=verified.expires_at or credentials.expires_at,
        token_id=verified.token_id or credentials.token_id,
        saved_in=_saved_in(store, credentials),
        workspace=verified.workspace,
        workspaces=workspaces,
    )


def verify_with_workspace(client: PlatformClient) -> Verification:
    """Return the owner of the client's token; without a workspace if the platform refuses the repository.

    Raises:
        PlatformError: the token is invalid, or the request failed.
    """
    try:
        return client.verify()
    except PlatformError as error:
        if not error.refuses_git_scope:
            raise
        return client.get(routes.VERIFY, model=Verification, git="never")


def known_user(user: User | None) -> User:
    """Return the user of a reply.

    Raises:
        PlatformError: the reply names no user.
    """
    if user is None or not user.id or not user.email:
        raise PlatformError("the platform does not say whose token this is.")
    return user


def iso(moment: datetime | None) -> str | None:
    """Format a moment as the JSON output shows it: UTC, to the second."""
    if moment is None:
        return None
    return moment.astimezone(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def _membership(workspace: Workspace | WorkspaceMembership) -> dict[str, Any]:
    return {"id": workspace.id, "name": workspace.name, "role": workspace.role}


def _workspaces_of(client: PlatformClient) -> tuple[Workspace, ...] | None:
    try:
        return tuple(client.workspaces.list().workspaces)
    except PlatformError:
        return None


def _saved_in(store: CredentialStore, credentials: Credentials) -> TokenStoreKind | None:
    if credentials.source != "environment":
        return credentials.source
    try:
        saved = {login.platform_url: login.token_store for login in store.all()}
    except OsmosisError:
        return None
    return saved.get(credentials.platform_url)


class Time(Protocol):
    """A clock in seconds, such as the module ``time``."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


def minutes_to_confirm(authorization: DeviceAuthorization) -> int:
    """Return how many minutes the user has left to confirm, at least one."""
    return max(1, round(_wait_s(authorization) / 60))


def await_token(
    client: PlatformClient, authorization: DeviceAuthorization, clock: Time = time
) -> IssuedToken:
    """Poll for the token, as often as the platform allows, until the user has decided.

    Raises:
        OsmosisError: ``AUTH_REQUIRED`` if the user declined or did not confirm in time.
        PlatformError: the platform failed several times in a row.
    """
    deadline = clock.monotonic() + _wait_s(authorization)
    interval = min(max(authorization.interval, _SHORTEST_INTERVAL_S), _LONGEST_INTERVAL_S)
    failures = 0
    while True:
        try:
            answer = client.auth.poll_device_token(authorization.device_code)
        except PlatformError as error:
            failures += 1
            if failures >= _FAILURES_IN_A_ROW or not _may_pass(error):
                raise
        else:
            failures = 0
            if isinstance(answer, IssuedToken):
                return answer
            if answer == "slow_down":
                interval = min(interval + _SLOWER_BY_S, _LONGEST_INTERVAL_S)
        remaining = deadline - clock.monotonic()
        if remaining <= 0:
            raise OsmosisError(
                "The login was not confirmed in time.",
                code="AUTH_REQUIRED",
                hint="run `osmosis login` again",
            )
        clock.sleep(min(interval, remaining))


def _wait_s(authorization: DeviceAuthorization) -> float:
    return max(0.0, min(LONGEST_WAIT_S, authorization.expires_in))


def _may_pass(error: PlatformError) -> bool:
    return error.status is None or error.status == 429 or error.status >= 500


@dataclass(frozen=True)
class Login:
    """A saved login that the platform has verified.

    Args:
        credentials: the login; its ``source`` is where the token is stored.
        source: how it was obtained; ``saved`` for an existing login.
    """

    credentials: Credentials
    user: User
    source: LoginSource

    def resource(self) -> dict[str, Any]:
        """Return the login as the JSON output shows it."""
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
    """Return the login saved for the active platform if the platform still accepts it.

    Raises:
        PlatformError: the request failed.
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
    """Log in to the active platform with an existing token.

    Args:
        token: the token to save; ``OSMOSIS_TOKEN`` is ignored.
        store: where logins are saved.
        warn: receives warnings.

    Raises:
        OsmosisError: the platform rejects the token, or it cannot be saved. The previous login is then unchanged.
    """
    store, platform_url = store or CredentialStore(), active_platform().url
    _require_place_for_token(store)
    with _client(platform_url, token, warn) as client:
        verified = client.verify()
    if not verified.valid:
        raise OsmosisError(f"This token is not valid on {platform_url}.", code="AUTH_REQUIRED")
    return _keep(store, _credentials(platform_url, token, verified), "token", warn)


def use_in_this_directory(platform_url: str) -> Path:
    """Select a platform for this checkout, or for the current directory outside Git, and return the directory.

    Raises:
        OsmosisError: the selection cannot be saved.
    """
    directory = checkout_root(Path.cwd()) or Path.cwd()
    record_platform(directory, platform_url)
    return directory


def require_device_login() -> None:
    """Refuse a device login that a token in the environment would override.

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
    """Log in to the active platform with a code that the user confirms in a browser.

    Args:
        announce: shows the user the code and the page.
        store: where logins are saved.
        warn: receives warnings.
        clock: times the polls.

    Raises:
        ConflictError: ``OSMOSIS_TOKEN`` is set.
        OsmosisError: ``AUTH_REQUIRED`` if the user declined or did not confirm in time;
            ``TOKEN_REVOKE_FAILED`` if the new token could be neither saved nor revoked.
    """
    require_device_login()
    store, platform_url = store or CredentialStore(), active_platform().url
    _require_place_for_token(store)
    with _client(platform_url, None, warn) as client:
        authorization = client.auth.authorize_device(socket.gethostname().strip() or "Unknown")
        announce(authorization)
        issued = await_token(client, authorization, clock)
    return _keep(store, _credentials(platform_url, issued.token, issued), "device", warn)


def _keep(store: CredentialStore, new: Credentials, source: Literal["token", "device"], warn: Warn) -> Login:
    """Save a verified login and revoke the token it replaces."""
    former, unreadable = _former_login(store, new.platform_url)
    try:
        kept_in = store.save(new)
    except BaseException as error:  # Ctrl-C too: a token that was not saved must not stay valid
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
    """Return the saved login, and the error if its token cannot be read."""
    try:
        return store.load(platform_url), None
    except OsmosisError as error:
        # If the whole file is unreadable, saving the new login reports it and moves it aside.
        return None, error if error.code in ("TOKEN_NOT_FOUND", "KEYRING_UNAVAILABLE") else None


def _take_back(new: Credentials, error: BaseException, warn: Warn) -> None:
    """Revoke a token that could not be saved.

    Raises:
        OsmosisError: ``TOKEN_REVOKE_FAILED``, which reports both failures.
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
    """Fail before the user confirms anything if the only permitted token storage is missing."""
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


@dataclass(frozen=True)
class LogoutPlan:
    """What logging out would remove.

    Args:
        platforms: the platforms whose saved login is removed.
        directories: the directories that stop using the platform.
        damaged: whether the saved logins are unreadable and will be moved aside.
        env_token_set: whether ``OSMOSIS_TOKEN`` still logs you in afterwards.
    """

    platform_url: str
    platforms: tuple[str, ...]
    directories: tuple[str, ...]
    damaged: bool
    env_token_set: bool

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to remove."""
        return not (self.platforms or self.directories or self.damaged)

    def resource(self, *, revoked: bool = False) -> dict[str, Any]:
        """Return the state after the logout, as the JSON output shows it."""
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
    """Return what logging out of the active platform, or ``everywhere``, would remove.

    Raises:
        OsmosisError: ``CREDENTIALS_UNAVAILABLE`` if the saved logins cannot be read.
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
    """Revoke and remove the logins of ``plan``, and return whether every token was revoked.

    Raises:
        OsmosisError: ``CREDENTIALS_UNAVAILABLE`` if the saved logins cannot be changed.
    """
    store = store or CredentialStore()
    revoked = []
    for url in plan.platforms:
        revoked.append(_revoke_saved(store, url, warn))
        store.delete(url)
    if plan.damaged:
        store.delete(plan.platform_url)
    forget_directories(plan.directories)
    pass_on_warnings(store, warn)
    return bool(revoked) and all(revoked)


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
    """Revoke a token; return why that failed. A token that is no longer valid counts as revoked."""
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
    """Pass on each warning that ``store`` has collected, once."""
    for warning in store.warnings:
        warn(warning.message, warning.code)
    store.warnings.clear()
