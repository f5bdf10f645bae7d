"""A platform with replies written by hand, a keyring, and recorded warnings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import respx

from osmosis_ai.api.credentials import CredentialStore
from tests.api.keyrings import use_keyring as use_keyring
from tests.api.keyrings import working as working
from tests.logins import FERN, use_platform


class Warnings(list[tuple[str, "str | None"]]):
    def __call__(self, message: str, code: str | None) -> None:
        self.append((message, code))

    @property
    def codes(self) -> list[str | None]:
        return [code for _, code in self]


@pytest.fixture(autouse=True)
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[respx.MockRouter]:
    use_platform(monkeypatch)
    with respx.mock(base_url=FERN, assert_all_called=False) as router:
        yield router


@pytest.fixture
def warn() -> Warnings:
    return Warnings()


def saved() -> str | None:
    found = CredentialStore().load(FERN)
    return found.token if found else None
