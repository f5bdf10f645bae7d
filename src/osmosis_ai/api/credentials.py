"""Credentials for platforms: the token in use, and the logins saved in a file and the operating system's keyring.

The keyring may be missing, locked or silently ignore writes. No ``repr`` or error contains a token.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from osmosis_ai.api.models.auth import User
from osmosis_ai.api.models.base import Timestamp
from osmosis_ai.api.platform_url import (
    DEFAULT_PLATFORM_URL,
    PLATFORM_URL_ENV,
    TOKEN_ENV,
    TOKEN_PLATFORM_ENV,
    active_platform,
    normalize_platform_url,
)
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import CONFIG_DIR_ENV, config_dir, write_json

TOKEN_STORE_ENV = "OSMOSIS_TOKEN_STORE"
KEYRING_SERVICE = "osmosis-cli"
FILE_VERSION = 2
DEFAULT_LIFETIME = timedelta(days=90)
_LOCK_TIMEOUT_S = 10.0
_ACCOUNT_DIGITS = 24
TokenStoreKind = Literal["keyring", "file"]


@dataclass(frozen=True)
class Credentials:
    """The token for requests to one platform."""

    token: str = field(repr=False)
    platform_url: str
    source: Literal["environment", "keyring", "file"]
    user: User | None = None
    token_id: str | None = None
    expires_at: datetime | None = None

    @property
    def token_origin(self) -> Literal["environment", "saved"]:
        return "environment" if self.source == "environment" else "saved"

    def is_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= datetime.now(timezone.utc)


class SavedLogin(BaseModel):
    """A login as the credentials file records it, without the token."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    platform_url: str
    token_store: TokenStoreKind
    user: User
    expires_at: Timestamp
    token_id: Any = None


def require_credentials() -> Credentials:
    """Return the token to use with the active platform: the environment's, otherwise the saved one."""
    if from_environment := _environment_credentials():
        return from_environment
    store, platform = CredentialStore(), active_platform()
    saved = store.load(platform.url)
    if saved is None:
        own = "for your own platform: `osmosis --platform URL login`"
        notes = [own if platform.url == DEFAULT_PLATFORM_URL else f"the active platform is {platform}"]
        if others := [login.platform_url for login in store.all()]:
            notes.append(
                f"logins are saved for {', '.join(others)} (choose one with `osmosis --platform URL login`)"
            )
        raise OsmosisError(
            "Not logged in. Run 'osmosis auth login' first.",
            code="AUTH_REQUIRED",
            details={"platform_url": platform.url},
            hint="; ".join(notes) or None,
        )
    if saved.is_expired():
        raise OsmosisError(
            f"Your session on {platform.url} has expired.",
            code="AUTH_REQUIRED",
            hint="log in again with `osmosis login`",
        )
    return saved


def _environment_credentials() -> Credentials | None:
    """Return the environment's token for the active platform, never one of another platform."""
    token = os.environ.get(TOKEN_ENV, "").strip()
    if not token:
        return None
    platform = active_platform()
    url = platform.url
    bound = os.environ.get(TOKEN_PLATFORM_ENV, "").strip()
    if not bound:
        if url != DEFAULT_PLATFORM_URL:
            raise OsmosisError(
                f"{TOKEN_PLATFORM_ENV} is not set (required by {TOKEN_ENV} for {url}).",
                code="ENV_TOKEN_PLATFORM_REQUIRED",
                details={"platform_url": url},
                hint=f"export {TOKEN_PLATFORM_ENV}={url}",
            )
    elif normalize_platform_url(bound) != url:
        raise OsmosisError(
            f"{TOKEN_ENV} is for {normalize_platform_url(bound)}, and the active platform is {platform}.",
            code="ENV_TOKEN_PLATFORM_MISMATCH",
            details={"platform_url": url, "token_platform_url": normalize_platform_url(bound)},
            hint=f"set {PLATFORM_URL_ENV} and {TOKEN_PLATFORM_ENV} to the same platform, or unset {TOKEN_ENV}",
        )
    return Credentials(token=token, platform_url=url, source="environment")


class CredentialStore:
    """The saved logins of this user, for several platforms.

    ``warn`` receives a message and its code if a login or logout succeeds only in part.
    """

    def __init__(self, warn: Callable[[str, str], None] = lambda _message, _code: None) -> None:
        self.path = config_dir() / "credentials.json"
        self._warn = warn

    def load(self, platform_url: str) -> Credentials | None:
        former = None
        while (entry := self._read().get(platform_url)) is not None:
            login = self._parse(platform_url, entry)
            try:
                token = self._token_of(login, entry)
            except OsmosisError as error:
                # A concurrent login or logout changes the file first, then deletes the previous token.
                if error.code != "TOKEN_NOT_FOUND" or entry == former:
                    raise
                former = entry
                continue
            return Credentials(
                token=token,
                platform_url=platform_url,
                source=login.token_store,
                user=login.user,
                token_id=login.token_id if isinstance(login.token_id, str) and login.token_id else None,
                expires_at=login.expires_at,
            )
        return None

    def all(self) -> tuple[SavedLogin, ...]:
        """Return every saved login, sorted by platform URL."""
        return tuple(self._parse(url, entry) for url, entry in sorted(self._read().items()))

    def save(self, credentials: Credentials) -> TokenStoreKind:
        """Save a login, replace the platform's previous one, and return where the token is stored."""
        if credentials.user is None:
            raise ValueError("credentials without a user cannot be saved")
        with self._locked():
            platforms = self._read_or_move_aside()
            former = _recorded_account(platforms.get(credentials.platform_url, {}))
            account = self._keep_in_keyring(credentials)
            entry = _entry_of(credentials, credentials.user, account)
            try:
                self._write({**platforms, credentials.platform_url: entry})
            except BaseException:
                if account is not None and account != former:
                    self._clean_keyring([account])
                raise
            if former is not None and former != account:
                self._clean_keyring([former])
        return "file" if account is None else "keyring"

    def delete(self, platform_url: str) -> bool:
        """Delete a platform's login and token, and return whether there was one."""
        if not self.path.exists():
            return False
        with self._locked():
            platforms = self._read_or_move_aside()
            entry = platforms.pop(platform_url, None)
            if entry is None:
                return False
            self._write(platforms)
            if entry.get("token_store") == "keyring":
                self._clean_keyring(_possible_accounts(platform_url, entry))
        return True

    def require_usable(self) -> None:
        """Raise an error if the only permitted storage of tokens is a keyring that does not work."""
        if token_store_setting() == "keyring":
            try:
                _read_keyring("probe")
            except _KeyringError as error:
                raise self._keyring_required(error) from None

    def _parse(self, platform_url: str, entry: Mapping[str, Any]) -> SavedLogin:
        try:
            return SavedLogin.model_validate({**entry, "platform_url": platform_url})
        except ValueError:
            raise self._unparsable() from None

    def _token_of(self, login: SavedLogin, entry: Mapping[str, Any]) -> str:
        if login.token_store == "file":
            token = entry.get("access_token")
        elif token_store_setting() == "file":
            raise OsmosisError(
                f"Token for {login.platform_url} is in the keyring, which {TOKEN_STORE_ENV}=file disables.",
                code="KEYRING_UNAVAILABLE",
                hint=f"unset {TOKEN_STORE_ENV}, or log in again with `osmosis login`",
            )
        else:
            token = _search_keyring(login.platform_url, entry)
        if not isinstance(token, str) or not token:
            raise OsmosisError(
                f"Saved login for {login.platform_url} has no token.",
                code="TOKEN_NOT_FOUND",
                details={"platform_url": login.platform_url, "token_store": login.token_store},
                hint="log in again with `osmosis login`",
            )
        return token

    def _keep_in_keyring(self, credentials: Credentials) -> str | None:
        """Store the token in the keyring and return the account; None if it must go into the file."""
        setting = token_store_setting()
        if setting == "file":
            return None
        token_id = credentials.token_id
        suffix = _digest(token_id) if token_id else secrets.token_hex(_ACCOUNT_DIGITS // 2)
        account = f"platform:{_digest(credentials.platform_url)}:{suffix}"
        try:
            _write_keyring(account, credentials.token)
        except _KeyringError as error:
            if setting == "keyring":
                raise self._keyring_required(error) from None
            return None
        return account

    def _keyring_required(self, error: _KeyringError) -> OsmosisError:
        return OsmosisError(
            f"Keyring does not work (required by {TOKEN_STORE_ENV}=keyring): {error}.",
            code="KEYRING_UNAVAILABLE",
            hint=f"set {TOKEN_ENV}, or {TOKEN_STORE_ENV}=file to keep the token in {self.path}",
        )

    def _clean_keyring(self, accounts: list[str]) -> None:
        for account in accounts:
            try:
                _erase_keyring(account)
            except _KeyringError as error:
                message = f"An old token may still be in the keyring (service {KEYRING_SERVICE}): {error}."
                self._warn(message, "KEYRING_CLEANUP_FAILED")
                return

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            content = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise OsmosisError(
                f"File cannot be read: {self.path} ({error.strerror}).", code="CREDENTIALS_UNAVAILABLE"
            ) from None
        except (ValueError, RecursionError):
            raise self._unparsable() from None
        if not isinstance(content, dict):
            raise self._unparsable()
        version = content.get("version")
        if version != FILE_VERSION:
            raise OsmosisError(
                f"{self.path} was written by another version of Osmosis (format {version}, not {FILE_VERSION}).",
                code="CREDENTIALS_VERSION_CHANGED",
                details={"path": str(self.path)},
                hint="log in again with `osmosis login`; the old file is kept as a backup",
            )
        # Without `platforms`, the file is from a version that knew only one platform.
        platforms = content.get("platforms", {DEFAULT_PLATFORM_URL: content})
        if not isinstance(platforms, dict) or not all(isinstance(item, dict) for item in platforms.values()):
            raise self._unparsable()
        return platforms

    def _unparsable(self) -> OsmosisError:
        return OsmosisError(
            f"{self.path} is damaged.",
            code="CREDENTIALS_PARSE_FAILED",
            details={"path": str(self.path)},
            hint="log in again with `osmosis login`; the damaged file is kept as a backup",
        )

    def _read_or_move_aside(self) -> dict[str, dict[str, Any]]:
        try:
            return self._read()
        except OsmosisError as error:
            if error.code not in ("CREDENTIALS_VERSION_CHANGED", "CREDENTIALS_PARSE_FAILED"):
                raise
        backup, number = self.path.with_name(f"{self.path.name}.bak"), 0
        while backup.exists():
            number += 1
            backup = self.path.with_name(f"{self.path.name}.bak.{number}")
        self.path.rename(backup)
        message = f"Saved logins could not be read; the file is kept as {backup}."
        self._warn(message, "CREDENTIALS_METADATA_BACKED_UP")
        return {}

    def _write(self, platforms: Mapping[str, Mapping[str, Any]]) -> None:
        if platforms:
            write_json(self.path, {"version": FILE_VERSION, "platforms": platforms})
        else:
            self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file for changes, and translate disk errors."""
        from filelock import FileLock, Timeout

        directory = self.path.parent
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A directory that the user named may be shared, so its permissions are not changed.
            if not os.environ.get(CONFIG_DIR_ENV) and directory.stat().st_mode & 0o077:
                directory.chmod(0o700)
            with FileLock(directory / ".credentials.lock", timeout=_LOCK_TIMEOUT_S, mode=0o600):
                yield
        except Timeout:
            raise OsmosisError(
                f"File is locked by another command: {self.path}.", code="CREDENTIALS_UNAVAILABLE"
            ) from None
        except OSError as error:
            raise OsmosisError(
                f"File cannot be written: {self.path} ({error.strerror}).",
                code="CREDENTIALS_UNAVAILABLE",
                hint=f"set {CONFIG_DIR_ENV} to a directory you can write, or use OSMOSIS_TOKEN",
            ) from None


def token_store_setting() -> str:
    """Return where tokens may be stored: ``auto``, ``keyring`` or ``file``."""
    value = os.environ.get(TOKEN_STORE_ENV, "").strip().lower() or "auto"
    if value not in ("auto", "keyring", "file"):
        raise OsmosisError(f"{TOKEN_STORE_ENV} must be `keyring` or `file`, not '{value}'.")
    return value


def _entry_of(credentials: Credentials, user: User, account: str | None) -> dict[str, Any]:
    now = datetime.now(timezone.utc).replace(microsecond=0)
    expires_at = credentials.expires_at or now + DEFAULT_LIFETIME
    entry: dict[str, Any] = {
        "version": FILE_VERSION,
        "token_type": "Bearer",
        "expires_at": expires_at.astimezone(timezone.utc).isoformat(),
        "created_at": now.isoformat(),
        "user": user.model_dump(),
        "token_id": credentials.token_id,
        "platform_url": credentials.platform_url,
    }
    if account is None:
        return {**entry, "token_store": "file", "access_token": credentials.token}
    return {**entry, "token_store": "keyring", "keyring_account": account}


def _recorded_account(entry: Mapping[str, Any]) -> str | None:
    account = entry.get("keyring_account")
    return account if isinstance(account, str) and account else None


def _possible_accounts(platform_url: str, entry: Mapping[str, Any]) -> list[str]:
    """Return the possible accounts of a saved token, likeliest first; the later names are those of the public CLI."""
    user = entry.get("user")
    email = user.get("email") if isinstance(user, dict) else None
    names = [_recorded_account(entry), f"platform:{_digest(platform_url)}"]
    if platform_url == DEFAULT_PLATFORM_URL:
        names = [names[0], email if isinstance(email, str) else None, names[1], "default"]
    return list(dict.fromkeys(name for name in names if name))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_ACCOUNT_DIGITS]


class _KeyringError(Exception):
    """The keyring failed; the message is the backend's reason."""


def _search_keyring(platform_url: str, entry: Mapping[str, Any]) -> str | None:
    try:
        tokens = map(_read_keyring, _possible_accounts(platform_url, entry))
        return next((token for token in tokens if token), None)
    except _KeyringError as error:
        raise OsmosisError(
            f"Keyring with the token for {platform_url} is unavailable: {error}.",
            code="KEYRING_UNAVAILABLE",
            details={"platform_url": platform_url},
            hint=f"unlock it, set OSMOSIS_TOKEN, or log in again with {TOKEN_STORE_ENV}=file",
        ) from None


def _read_keyring(account: str) -> str | None:
    import keyring

    with _keyring_errors():
        return keyring.get_password(KEYRING_SERVICE, account)


def _write_keyring(account: str, token: str) -> None:
    import keyring

    with _keyring_errors():
        keyring.set_password(KEYRING_SERVICE, account, token)
    # A null backend accepts every password and returns none.
    if _read_keyring(account) != token:
        raise _KeyringError("it does not store passwords")


def _erase_keyring(account: str) -> None:
    import keyring

    if _read_keyring(account) is not None:
        with _keyring_errors():
            keyring.delete_password(KEYRING_SERVICE, account)


@contextlib.contextmanager
def _keyring_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # backends raise exceptions of any class
        # Backends put no secrets into these messages, but some add a page of advice.
        lines = str(error).strip().splitlines() or [""]
        raise _KeyringError(lines[0].rstrip(".") or type(error).__name__) from None
