"""Saved logins for several platforms."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal, NamedTuple

from osmosis_ai.api.credentials import keychain
from osmosis_ai.api.credentials.login import Credentials, SavedLogin, TokenStoreKind
from osmosis_ai.api.models.auth import User
from osmosis_ai.api.platform_url import DEFAULT_PLATFORM_URL
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import CONFIG_DIR_ENV, config_dir, write_json

TOKEN_STORE_ENV = "OSMOSIS_TOKEN_STORE"
FILE_VERSION = 2
DEFAULT_LIFETIME = timedelta(days=90)
_LOCK_TIMEOUT_S = 10.0


class CredentialWarning(NamedTuple):
    """A warning about a login or logout that succeeded."""

    code: Literal["CREDENTIALS_METADATA_BACKED_UP", "KEYRING_CLEANUP_FAILED", "KEYRING_UNAVAILABLE"]
    message: str


class CredentialStore:
    def __init__(self, directory: Path | None = None, *, env: Mapping[str, str] | None = None) -> None:
        self._env = os.environ if env is None else env
        self.path = (directory or config_dir(self._env)) / "credentials.json"
        # A directory that the user named may be shared, so its permissions are not changed.
        self._is_own_directory = directory is None and not self._env.get(CONFIG_DIR_ENV)
        self.warnings: list[CredentialWarning] = []

    def load(self, platform_url: str) -> Credentials | None:
        """Return the saved login of a platform, or None."""
        former = None
        while (entry := self._read().get(platform_url)) is not None:
            login = _parse(platform_url, entry, self.path)
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
                token_id=login.token_id,
                expires_at=login.expires_at,
            )
        return None

    def all(self) -> tuple[SavedLogin, ...]:
        """Return every saved login without its token, sorted by platform URL."""
        return tuple(_parse(url, entry, self.path) for url, entry in sorted(self._read().items()))

    def save(self, credentials: Credentials) -> TokenStoreKind:
        """Save a login, replace the platform's previous one, and return where the token is stored."""
        if credentials.user is None:
            raise ValueError("credentials without a user cannot be saved")
        with self._locked():
            platforms = self._read_or_move_aside()
            former = platforms.get(credentials.platform_url)
            account = self._keep_in_keyring(credentials)
            entry = _entry_of(credentials, credentials.user, account)
            try:
                self._write({**platforms, credentials.platform_url: entry})
            except BaseException:
                if account is not None and account != (former or {}).get("keyring_account"):
                    self._clean_keyring([account])
                raise
            if former is not None:
                self._clean_keyring([name for name in _recorded_accounts(former) if name != account])
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
                self._clean_keyring(_accounts(platform_url, entry))
        return True

    def _token_of(self, login: SavedLogin, entry: Mapping[str, Any]) -> str:
        if login.token_store == "file":
            token = entry.get("access_token")
        elif self._preference() == "file":
            raise OsmosisError(
                f"the token for {login.platform_url} is in the keyring, which {TOKEN_STORE_ENV}=file turns off.",
                code="KEYRING_UNAVAILABLE",
                hint=f"unset {TOKEN_STORE_ENV}, or log in again with `osmosis login`",
            )
        else:
            token = self._search_keyring(login.platform_url, entry)
        if not isinstance(token, str) or not token:
            raise OsmosisError(
                f"the saved login for {login.platform_url} has lost its token.",
                code="TOKEN_NOT_FOUND",
                details={"platform_url": login.platform_url, "token_store": login.token_store},
                hint="log in again with `osmosis login`",
            )
        return token

    def _search_keyring(self, platform_url: str, entry: Mapping[str, Any]) -> str | None:
        try:
            for account in _accounts(platform_url, entry):
                token = keychain.read(account)
                if token:
                    return token
        except keychain.KeyringUnavailable as error:
            raise OsmosisError(
                f"the keyring that holds the token for {platform_url} does not answer: {error}.",
                code="KEYRING_UNAVAILABLE",
                details={"platform_url": platform_url},
                hint=f"unlock it, set OSMOSIS_TOKEN, or log in again with {TOKEN_STORE_ENV}=file",
            ) from None
        return None

    def _keep_in_keyring(self, credentials: Credentials) -> str | None:
        """Store the token in the keyring and return the account; None if it must go into the file."""
        preference = self._preference()
        if preference == "file":
            return None
        account = keychain.account_for(credentials.platform_url, credentials.token_id)
        try:
            keychain.write(account, credentials.token)
        except keychain.KeyringUnavailable as error:
            if preference == "keyring":
                raise OsmosisError(
                    f"there is no working keyring, and {TOKEN_STORE_ENV}=keyring allows nothing else: {error}.",
                    code="KEYRING_UNAVAILABLE",
                    hint=f"set OSMOSIS_TOKEN, or {TOKEN_STORE_ENV}=file to keep the token in {self.path}",
                ) from None
            return None
        return account

    def _preference(self) -> Literal["auto", "keyring", "file"]:
        value = self._env.get(TOKEN_STORE_ENV, "").strip().lower()
        if value in ("", "auto"):
            return "auto"
        if value == "file":
            return "file"
        if value == "keyring":
            return "keyring"
        raise OsmosisError(f"{TOKEN_STORE_ENV} must be `keyring` or `file`, not '{value}'.")

    def _clean_keyring(self, accounts: list[str]) -> None:
        for account in accounts:
            try:
                keychain.erase(account)
            except keychain.KeyringUnavailable as error:
                message = f"an old token may still be in the keyring (service {keychain.SERVICE}): {error}."
                self.warnings.append(CredentialWarning("KEYRING_CLEANUP_FAILED", message))
                return

    def _read(self) -> dict[str, dict[str, Any]]:
        """Return the entries by platform."""
        try:
            content = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise OsmosisError(
                f"cannot read {self.path}: {error.strerror}.", code="CREDENTIALS_UNAVAILABLE"
            ) from None
        except (ValueError, RecursionError):
            raise _unparsable(self.path) from None
        if not isinstance(content, dict):
            raise _unparsable(self.path)
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
            raise _unparsable(self.path)
        return platforms

    def _read_or_move_aside(self) -> dict[str, dict[str, Any]]:
        try:
            return self._read()
        except OsmosisError as error:
            if error.code not in ("CREDENTIALS_VERSION_CHANGED", "CREDENTIALS_PARSE_FAILED"):
                raise
        backup = self._free_backup_name()
        self.path.rename(backup)
        self.warnings.append(
            CredentialWarning(
                "CREDENTIALS_METADATA_BACKED_UP",
                f"the saved logins could not be read; the file is kept as {backup}.",
            )
        )
        return {}

    def _free_backup_name(self) -> Path:
        candidate, number = self.path.with_name(f"{self.path.name}.bak"), 0
        while candidate.exists():
            number += 1
            candidate = self.path.with_name(f"{self.path.name}.bak.{number}")
        return candidate

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
            if self._is_own_directory and directory.stat().st_mode & 0o077:
                directory.chmod(0o700)
            with FileLock(directory / ".credentials.lock", timeout=_LOCK_TIMEOUT_S, mode=0o600):
                yield
        except Timeout:
            raise OsmosisError(
                f"another command has held {self.path} for {_LOCK_TIMEOUT_S:g} s.",
                code="CREDENTIALS_UNAVAILABLE",
            ) from None
        except OSError as error:
            raise OsmosisError(
                f"cannot write {self.path}: {error.strerror}.",
                code="CREDENTIALS_UNAVAILABLE",
                hint=f"set {CONFIG_DIR_ENV} to a directory you can write, or use OSMOSIS_TOKEN",
            ) from None


def _parse(platform_url: str, entry: Mapping[str, Any], path: Path) -> SavedLogin:
    try:
        user = User.model_validate(entry["user"])
        expires_at = _moment(entry["expires_at"])
        store = entry.get("token_store")
    except (KeyError, TypeError, ValueError):
        raise _unparsable(path) from None
    if store not in ("keyring", "file") or expires_at is None:
        raise _unparsable(path)
    try:
        created_at = _moment(entry.get("created_at"))
    except (TypeError, ValueError):
        created_at = None
    token_id = entry.get("token_id")
    return SavedLogin(
        platform_url=platform_url,
        token_store=store,
        user=user,
        token_id=token_id if isinstance(token_id, str) and token_id else None,
        expires_at=expires_at,
        created_at=created_at,
    )


def _moment(value: Any) -> datetime | None:
    if value is None:
        return None
    moment = datetime.fromisoformat(value.replace("Z", "+00:00") if isinstance(value, str) else value)
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def _entry_of(credentials: Credentials, user: User, account: str | None) -> dict[str, Any]:
    now = datetime.now(timezone.utc).replace(microsecond=0)
    expires_at = credentials.expires_at or now + DEFAULT_LIFETIME
    entry: dict[str, Any] = {
        "version": FILE_VERSION,
        "token_type": "Bearer",
        "expires_at": expires_at.astimezone(timezone.utc).isoformat(),
        "created_at": now.isoformat(),
        "user": {"id": user.id, "email": user.email, "name": user.name},
        "token_id": credentials.token_id,
        "platform_url": credentials.platform_url,
    }
    if account is None:
        return {**entry, "token_store": "file", "access_token": credentials.token}
    return {**entry, "token_store": "keyring", "keyring_account": account}


def _accounts(platform_url: str, entry: Mapping[str, Any]) -> list[str]:
    user = entry.get("user")
    email = user.get("email") if isinstance(user, dict) else None
    recorded = next(iter(_recorded_accounts(entry)), None)
    return keychain.accounts_to_try(platform_url, recorded, email if isinstance(email, str) else None)


def _recorded_accounts(entry: Mapping[str, Any]) -> list[str]:
    account = entry.get("keyring_account")
    return [account] if isinstance(account, str) and account else []


def _unparsable(path: Path) -> OsmosisError:
    return OsmosisError(
        f"{path} is damaged.",
        code="CREDENTIALS_PARSE_FAILED",
        details={"path": str(path)},
        hint="log in again with `osmosis login`; the damaged file is kept as a backup",
    )
