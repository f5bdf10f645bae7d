"""The operating system's keyring, which may be missing, locked or silently ignore writes."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from osmosis_ai.api.platform_url import DEFAULT_PLATFORM_URL

SERVICE = "osmosis-cli"
_DIGITS = 24


class KeyringUnavailable(Exception):
    """The keyring failed; the message is the backend's reason."""


def account_for(platform_url: str, token_id: str | None) -> str:
    """Return the account name for a new token."""
    suffix = _digest(token_id) if token_id else secrets.token_hex(_DIGITS // 2)
    return f"{_platform_account(platform_url)}:{suffix}"


def accounts_to_try(platform_url: str, recorded: str | None, email: str | None) -> list[str]:
    """Return the possible accounts of a saved token, likeliest first; the later names are those of the public CLI."""
    on_default = platform_url == DEFAULT_PLATFORM_URL
    names = [
        recorded,
        email if on_default else None,
        _platform_account(platform_url),
        "default" if on_default else None,
    ]
    return list(dict.fromkeys(name for name in names if name))


def read(account: str) -> str | None:
    """Return the token of ``account``, or None."""
    import keyring

    with _asked():
        return keyring.get_password(SERVICE, account)


def write(account: str, token: str) -> None:
    """Store ``token`` under ``account`` and check that it can be read back."""
    import keyring

    with _asked():
        keyring.set_password(SERVICE, account, token)
    # A null backend accepts every password and returns none.
    if read(account) != token:
        raise KeyringUnavailable("it does not keep what it is given")


def erase(account: str) -> None:
    """Delete the token of ``account``, if any."""
    if read(account) is None:
        return
    import keyring

    with _asked():
        keyring.delete_password(SERVICE, account)


@contextmanager
def _asked() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # backends raise exceptions of any class
        raise KeyringUnavailable(_reason(error)) from None


def _platform_account(platform_url: str) -> str:
    return f"platform:{_digest(platform_url)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _reason(error: Exception) -> str:
    # Backends put no secrets into these messages, but some add a page of advice.
    return (str(error).strip().splitlines() or [""])[0].rstrip(".") or type(error).__name__
