"""Keyrings for tests, and fixtures that use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import keyring
import keyring.core
import pytest
from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked, PasswordDeleteError


class MemoryKeyring(KeyringBackend):
    """Stores passwords in memory."""

    priority = 1  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        if (service, username) not in self.kept:
            raise PasswordDeleteError("no such password")
        del self.kept[service, username]


class DeafKeyring(MemoryKeyring):
    """Stores nothing and reports no error."""

    def set_password(self, service: str, username: str, password: str) -> None:
        """Store nothing."""


class LockableKeyring(MemoryKeyring):
    """Can be locked after passwords were stored."""

    locked = False

    def get_password(self, service: str, username: str) -> str | None:
        if self.locked:
            raise KeyringLocked("the collection is locked\nlong advice")
        return super().get_password(service, username)


UseKeyring = Callable[[KeyringBackend], None]


@pytest.fixture
def use_keyring() -> Iterator[UseKeyring]:
    former = keyring.core._keyring_backend
    yield keyring.set_keyring
    keyring.core._keyring_backend = former


@pytest.fixture
def working(use_keyring: UseKeyring) -> LockableKeyring:
    backend = LockableKeyring()
    use_keyring(backend)
    return backend
