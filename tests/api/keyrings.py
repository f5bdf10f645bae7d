"""Keyrings for tests: one that works, one that swallows, one that is locked."""

from __future__ import annotations

from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked, PasswordDeleteError


class MemoryKeyring(KeyringBackend):
    """Keeps passwords as long as the test."""

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
    """Takes everything, keeps nothing."""

    def set_password(self, service: str, username: str, password: str) -> None:
        """Keep nothing."""


class LockableKeyring(MemoryKeyring):
    """Can be locked after something was put in."""

    locked = False

    def get_password(self, service: str, username: str) -> str | None:
        if self.locked:
            raise KeyringLocked("the collection is locked\nlong advice")
        return super().get_password(service, username)
