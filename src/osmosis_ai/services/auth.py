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
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from osmosis_ai.api.client import PlatformClient, segment
from osmosis_ai.api.credentials import (
    DEFAULT_LIFETIME,
    Credentials,
    CredentialStore,
    TokenStoreKind,
    require_credentials,
    token_store_setting,
)
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.auth import (
    DeviceAuthorization,
    DeviceAuthorizeRequest,
    DeviceTokenRequest,
    IssuedToken,
    User,
    Verification,
    Workspace,
    WorkspaceList,
    WorkspaceMembership,
)
from osmosis_ai.api.platform_url import (
    TOKEN_ENV,
    active_platform,
    forget_directories,
    record_platform,
    recorded_directories,
)
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
_REVOKE_TIMEOUT_S = 5.0
_SHORTEST_INTERVAL_S, _LONGEST_INTERVAL_S, _SLOWER_BY_S = 1.0, 30.0, 5.0
# The connection may drop for a moment during the minutes that a confirmation takes.
_FAILURES_IN_A_ROW = 3
_ENDINGS = {
    "expired_token": ("The login was not confirmed in time.", "run `osmosis login` again"),
    "access_denied": (
        "The login was declined in the browser.",
        "run `osmosis login` again if that was a mistake",
    ),
}
LoginSource = Literal["token", "device", "saved"]


@dataclass(frozen=True)
class Account:
    """The account that the platform reports for a token.

    ``directory`` is the one that selects the platform. ``saved_in`` is where a login for this platform is saved, even
    if it is not in use. ``workspaces`` is None if the platform did not return them.
    """

    credentials: Credentials
    directory: Path | None
    user: User
    expires_at: datetime | None
    token_id: str | None
    saved_in: TokenStoreKind | None
    workspace: WorkspaceMembership | None
    workspaces: list[Workspace] | None

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


def whoami(*, warn: Warn = log_warning) -> Account:
    """Return the account and workspace that the platform reports for the current login."""
    credentials = require_credentials()
    saved_in = None if credentials.source == "environment" else credentials.source
    if credentials.source == "environment":
        with suppress(OsmosisError):
            saved = {login.platform_url: login.token_store for login in CredentialStore().all()}
            saved_in = saved.get(credentials.platform_url)
    checkout = find_checkout_if_any()
    identity = checkout.git.identity if checkout else None
    with connect(credentials, git_identity=identity, warn=warn) as client:
        verified = verify_with_workspace(client)
        try:
            workspaces = list_memberships(client)
        except PlatformError:
            workspaces = None
    return Account(
        credentials=credentials,
        directory=active_platform().directory,
        user=known_user(verified.user),
        expires_at=verified.expires_at or credentials.expires_at,
        token_id=verified.token_id or credentials.token_id,
        saved_in=saved_in,
        workspace=verified.workspace,
        workspaces=workspaces,
    )


def verify_with_workspace(client: PlatformClient) -> Verification:
    """Return the owner of the client's token; without a workspace if the platform refuses the repository."""
    try:
        return client.verify()
    except PlatformError as error:
        if not error.refuses_git_scope:
            raise
        return client.get("/api/cli/verify", model=Verification, git="never")


def list_memberships(client: PlatformClient) -> list[Workspace]:
    """Return every workspace of the user; needs no repository."""
    return client.get("/api/cli/workspaces", model=WorkspaceList, git="never").workspaces


def known_user(user: User | None) -> User:
    """Return the user of a reply; raise PlatformError if there is none."""
    if user is None or not user.id or not user.email:
        raise PlatformError("Response of the platform has no user.")
    return user


def iso(moment: datetime | None) -> str | None:
    """Format a moment as the JSON output shows it: UTC, to the second."""
    if moment is None:
        return None
    return moment.astimezone(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def _membership(workspace: Workspace | WorkspaceMembership) -> dict[str, Any]:
    return workspace.model_dump(include={"id", "name", "role"})


def minutes_to_confirm(authorization: DeviceAuthorization) -> int:
    """Return how many minutes the user has left to confirm, at least one."""
    return max(1, round(_wait_s(authorization) / 60))


def await_token(client: PlatformClient, authorization: DeviceAuthorization) -> IssuedToken:
    """Poll for the token, as often as the platform allows, until the user has decided."""
    deadline = time.monotonic() + _wait_s(authorization)
    interval = min(max(authorization.interval, _SHORTEST_INTERVAL_S), _LONGEST_INTERVAL_S)
    failures = 0
    while True:
        try:
            answer = poll_device_token(client, authorization.device_code)
        except PlatformError as error:
            failures += 1
            may_pass = error.status is None or error.status == 429 or error.status >= 500
            if failures >= _FAILURES_IN_A_ROW or not may_pass:
                raise
        else:
            failures = 0
            if isinstance(answer, IssuedToken):
                return answer
            if answer == "slow_down":
                interval = min(interval + _SLOWER_BY_S, _LONGEST_INTERVAL_S)
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            message, hint = _ENDINGS["expired_token"]
            raise OsmosisError(message, code="AUTH_REQUIRED", hint=hint)
        time.sleep(min(interval, remaining))


def _wait_s(authorization: DeviceAuthorization) -> float:
    return max(0.0, min(LONGEST_WAIT_S, authorization.expires_in))


def authorize_device(client: PlatformClient, device_name: str) -> DeviceAuthorization:
    """Start a login and return the code that the user confirms in a browser."""
    request = DeviceAuthorizeRequest(deviceName=device_name)
    path = "/api/cli/device/authorize"
    return client.post(path, request, model=DeviceAuthorization, git="never", anonymous=True)


def poll_device_token(
    client: PlatformClient, device_code: str
) -> IssuedToken | Literal["authorization_pending", "slow_down"]:
    """Return the token once the user has confirmed; until then, how to continue polling."""
    client.hide([device_code])
    request = DeviceTokenRequest(device_code=device_code)
    try:
        issued = client.post("/api/cli/device/token", request, model=IssuedToken, git="never", anonymous=True)
    except PlatformError as error:
        said = error.body.get("error")
        if said == "authorization_pending":
            return "authorization_pending"
        if said == "slow_down":
            return "slow_down"
        if said in _ENDINGS:
            message, hint = _ENDINGS[said]
            raise PlatformError(
                message, status=error.status, code="AUTH_REQUIRED", details=error.details, hint=hint
            ) from None
        raise
    client.hide([issued.token])
    return issued


@dataclass(frozen=True)
class Login:
    """A saved login that the platform has verified; ``source`` is how it was obtained."""

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


def saved_login(*, warn: Warn) -> Login | None:
    """Return the login saved for the active platform if the platform still accepts it."""
    try:
        credentials = CredentialStore().load(active_platform().url)
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


def login_with_token(token: str, *, warn: Warn = log_warning) -> Login:
    """Log in to the active platform with an existing token; ``OSMOSIS_TOKEN`` is ignored.

    The previous login stays if the platform rejects the token, or if it cannot be saved.
    """
    store, platform_url = CredentialStore(warn), active_platform().url
    store.require_usable()
    with _client(platform_url, token, warn) as client:
        verified = client.verify()
    if not verified.valid:
        raise OsmosisError(f"Token is not valid on {platform_url}.", code="AUTH_REQUIRED")
    return _keep(store, _credentials(platform_url, token, verified), "token", warn)


def use_in_this_directory(platform_url: str) -> Path:
    """Select a platform for this checkout, or for the current directory outside Git, and return the directory."""
    directory = checkout_root(Path.cwd()) or Path.cwd()
    record_platform(directory, platform_url)
    return directory


def require_device_login() -> None:
    """Refuse a device login that a token in the environment would override."""
    if os.environ.get(TOKEN_ENV, "").strip():
        raise ConflictError(
            f"{TOKEN_ENV} is set and overrides a new login.",
            hint=f"unset {TOKEN_ENV}, or save a token with `osmosis login --token -`",
        )


def login_with_device(announce: Callable[[DeviceAuthorization], None], *, warn: Warn = log_warning) -> Login:
    """Log in to the active platform with a code that the user confirms in a browser.

    ``announce`` shows the user the code and the page.
    """
    require_device_login()
    store, platform_url = CredentialStore(warn), active_platform().url
    store.require_usable()
    with _client(platform_url, None, warn) as client:
        authorization = authorize_device(client, socket.gethostname().strip() or "Unknown")
        announce(authorization)
        issued = await_token(client, authorization)
    return _keep(store, _credentials(platform_url, issued.token, issued), "device", warn)


def _keep(store: CredentialStore, new: Credentials, source: Literal["token", "device"], warn: Warn) -> Login:
    """Save a verified login and revoke the token it replaces."""
    former = unreadable = None
    try:
        former = store.load(new.platform_url)
    except OsmosisError as error:
        # If the whole file is unreadable, saving the new login reports it and moves it aside.
        if error.code in ("TOKEN_NOT_FOUND", "KEYRING_UNAVAILABLE"):
            unreadable = error.message
    try:
        kept_in = store.save(new)
    except BaseException as error:  # Ctrl-C too: a token that was not saved must not stay valid
        if source == "device":
            _take_back(new, error, warn)
        raise
    expects_file = token_store_setting() == "file" or (former is not None and former.source == "file")
    if kept_in == "file" and not expects_file:
        warn(
            f"No keyring works here. The token is saved in {store.path}, which only you can read.",
            "KEYRING_UNAVAILABLE",
        )
    if unreadable is not None:
        warn(f"The previous token was not revoked: {unreadable}", "TOKEN_NOT_FOUND")
    is_same = former is not None and (
        former.token == new.token or (former.token_id is not None and former.token_id == new.token_id)
    )
    if former is not None and not former.is_expired() and not is_same:
        reason = revoke(former)
        if reason is not None:
            warn(f"The previous token could not be revoked: {reason}", "TOKEN_REVOKE_FAILED")
    return Login(replace(new, source=kept_in), known_user(new.user), source)


def _take_back(new: Credentials, error: BaseException, warn: Warn) -> None:
    """Revoke a token that could not be saved; raise TOKEN_REVOKE_FAILED, with both failures, if that fails, too."""
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
    warn(f"The new token was not saved and could not be revoked: {reason}", "TOKEN_REVOKE_FAILED")


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
    if credentials.is_expired():
        raise OsmosisError(
            f"Token expired at {iso(credentials.expires_at)} (clock of this machine).",
            code="AUTH_REQUIRED",
            hint="create a new token, or check the clock",
        )
    return credentials


def _client(platform_url: str, token: str | None, warn: Warn) -> PlatformClient:
    keep_retries_off_stdout()
    return PlatformClient(platform_url, token, on_warning=warn)


@dataclass(frozen=True)
class LogoutPlan:
    """The logins that logging out would remove.

    ``damaged`` saved logins are unreadable and are moved aside. With ``env_token_set``, ``OSMOSIS_TOKEN`` still logs
    you in afterwards.
    """

    platform_url: str
    platforms: tuple[str, ...]
    directories: tuple[str, ...]
    damaged: bool
    env_token_set: bool

    @property
    def is_empty(self) -> bool:
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


def plan_logout(*, everywhere: bool = False) -> LogoutPlan:
    """Return what logging out of the active platform, or ``everywhere``, would remove."""
    platform_url, damaged = active_platform().url, False
    saved: list[str] = []
    try:
        saved = [login.platform_url for login in CredentialStore().all()]
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


def logout(plan: LogoutPlan, *, warn: Warn = log_warning) -> bool:
    """Revoke and remove the logins of ``plan``, and return whether every token was revoked."""
    store = CredentialStore(warn)
    revoked = []
    for url in plan.platforms:
        revoked.append(_revoke_saved(store, url, warn))
        store.delete(url)
    if plan.damaged:
        store.delete(plan.platform_url)
    forget_directories(plan.directories)
    return bool(revoked) and all(revoked)


def _revoke_saved(store: CredentialStore, platform_url: str, warn: Warn) -> bool:
    try:
        credentials = store.load(platform_url)
    except OsmosisError as error:
        warn(f"The token was not revoked: {error.message}", "TOKEN_NOT_FOUND")
        return False
    if credentials is None or credentials.is_expired():
        return False
    reason = revoke(credentials)
    if reason is not None:
        warn(f"The token could not be revoked: {reason}", "TOKEN_REVOKE_FAILED")
    return reason is None


def revoke(credentials: Credentials) -> str | None:
    """Revoke a token; return why that failed. A token that is no longer valid counts as revoked."""
    try:
        with connect(credentials, timeout_s=_REVOKE_TIMEOUT_S) as client:
            token_id = credentials.token_id or client.verify().token_id
            if token_id is None:
                return f"{credentials.platform_url} returned no token ID."
            client.delete(f"/api/cli/tokens/{segment(token_id)}", git="never")
    except OsmosisError as error:
        return None if error.code == "AUTH_REQUIRED" else error.message
    return None
