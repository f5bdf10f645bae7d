"""Saved logins and the token of the environment: where they are stored, and where they are sent."""

from __future__ import annotations

import hashlib
import json
import stat
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from keyring.backend import KeyringBackend

from osmosis_ai.api.credentials import KEYRING_SERVICE as SERVICE
from osmosis_ai.api.credentials import Credentials, CredentialStore, require_credentials
from osmosis_ai.api.models.auth import User
from osmosis_ai.api.platform_url import DEFAULT_PLATFORM_URL
from osmosis_ai.errors import OsmosisError
from tests.api.keyrings import DeafKeyring, LockableKeyring, MemoryKeyring, UseKeyring

FERN = "https://osmosis.fern.example"
TOKEN = "osm_canary_7Qd"
LATER = datetime(2100, 2, 1, 9, tzinfo=timezone.utc)


def _login(**changes: Any) -> Credentials:
    values: dict[str, Any] = {
        "token": TOKEN,
        "platform_url": FERN,
        "source": "file",
        "user": User(id="usr_5", email="mara@fern.example", name="Mara"),
        "token_id": "ct_01J8",
        "expires_at": LATER,
    }
    return Credentials(**{**values, **changes})


def _file(home: Path) -> Path:
    return home / ".config" / "osmosis" / "credentials.json"


def _write(home: Path, content: Any) -> Path:
    path = _file(home)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def _entry(**changes: Any) -> dict[str, Any]:
    entry = {
        "version": 2,
        "token_type": "Bearer",
        "expires_at": "2100-02-01T09:00:00+00:00",
        "created_at": "2026-11-03T08:12:44+00:00",
        "user": {"id": "usr_5", "email": "mara@fern.example", "name": None},
        "token_id": "ct_01J8",
        "platform_url": FERN,
        "token_store": "keyring",
        "keyring_account": "platform:abc:def",
    }
    return {**entry, **changes}


def _code(call: Callable[[], object]) -> str:
    with pytest.raises(OsmosisError) as caught:
        call()
    assert TOKEN not in f"{caught.value.message}{caught.value.hint}{caught.value.details}"
    return caught.value.code


def test_token_in_keyring(home: Path, working: MemoryKeyring) -> None:
    assert CredentialStore().save(_login()) == "keyring"
    digits = [hashlib.sha256(text.encode()).hexdigest()[:24] for text in (FERN, "ct_01J8")]
    account = f"platform:{digits[0]}:{digits[1]}"
    assert working.kept == {(SERVICE, account): TOKEN}
    content = json.loads(_file(home).read_text())
    created = content["platforms"][FERN].pop("created_at")
    assert datetime.fromisoformat(created).tzinfo is not None
    assert content == {
        "version": 2,
        "platforms": {
            FERN: {
                "version": 2,
                "token_type": "Bearer",
                "expires_at": "2100-02-01T09:00:00+00:00",
                "user": {"id": "usr_5", "email": "mara@fern.example", "name": "Mara"},
                "token_id": "ct_01J8",
                "platform_url": FERN,
                "token_store": "keyring",
                "keyring_account": account,
            }
        },
    }
    loaded = CredentialStore().load(FERN)
    assert loaded == _login(source="keyring")


@pytest.mark.parametrize("backend", [None, DeafKeyring()])
def test_token_in_private_file(home: Path, use_keyring: UseKeyring, backend: KeyringBackend | None) -> None:
    if backend is not None:
        use_keyring(backend)
    assert CredentialStore().save(_login()) == "file"
    path = _file(home)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert json.loads(path.read_text())["platforms"][FERN]["access_token"] == TOKEN
    assert CredentialStore().load(FERN) == _login()


def test_token_store_setting(
    home: Path, working: MemoryKeyring, monkeypatch: pytest.MonkeyPatch, use_keyring: UseKeyring
) -> None:
    monkeypatch.setenv("OSMOSIS_TOKEN_STORE", "file")
    assert CredentialStore().save(_login()) == "file"
    assert working.kept == {}
    monkeypatch.setenv("OSMOSIS_TOKEN_STORE", "keyring")
    use_keyring(DeafKeyring())
    before = _file(home).read_bytes()
    assert _code(lambda: CredentialStore().save(_login(token="osm_other"))) == "KEYRING_UNAVAILABLE"
    assert _file(home).read_bytes() == before
    monkeypatch.setenv("OSMOSIS_TOKEN_STORE", "vault")
    assert _code(lambda: CredentialStore().save(_login())) == "VALIDATION"


def test_several_platforms(working: MemoryKeyring) -> None:
    store = CredentialStore()
    store.save(_login())
    store.save(_login(platform_url=DEFAULT_PLATFORM_URL, token="osm_hosted", token_id=None))
    assert [login.platform_url for login in store.all()] == [FERN, DEFAULT_PLATFORM_URL]
    assert store.delete(FERN) is True
    assert store.delete(FERN) is False
    assert store.load(FERN) is None
    hosted = store.load(DEFAULT_PLATFORM_URL)
    assert hosted.token == "osm_hosted"
    assert list(working.kept.values()) == ["osm_hosted"]


@pytest.mark.parametrize("again", [True, False])
def test_load_during_login_or_logout(
    working: MemoryKeyring, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    CredentialStore().save(_login())
    look, looks = MemoryKeyring.get_password, list[str]()

    def look_late(ring: MemoryKeyring, service: str, account: str) -> str | None:
        looks.append(account)
        if len(looks) == 1 and again:
            CredentialStore().save(_login(token="osm_newer", token_id="ct_02"))
        elif len(looks) == 1:
            CredentialStore().delete(FERN)
        return look(ring, service, account)

    monkeypatch.setattr(MemoryKeyring, "get_password", look_late)
    found = CredentialStore().load(FERN)
    assert (found and found.token) == ("osm_newer" if again else None)


def test_concurrent_logins(home: Path) -> None:
    urls = [f"https://p{number}.example" for number in range(8)]
    threads = [
        threading.Thread(target=lambda url=url: CredentialStore().save(_login(platform_url=url)))
        for url in urls
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [login.platform_url for login in CredentialStore().all()] == urls


@pytest.mark.parametrize(
    "platform, account",
    [
        (FERN, "platform:abc:def"),
        (FERN, "platform:" + hashlib.sha256(FERN.encode()).hexdigest()[:24]),
        (DEFAULT_PLATFORM_URL, "mara@fern.example"),
        (DEFAULT_PLATFORM_URL, "default"),
    ],
)
def test_tokens_of_the_public_cli(home: Path, working: MemoryKeyring, platform: str, account: str) -> None:
    _write(home, {"version": 2, "platforms": {platform: _entry(platform_url=platform)}})
    working.kept[SERVICE, account] = TOKEN
    found = CredentialStore().load(platform)
    assert found.token == TOKEN
    CredentialStore().delete(platform)
    assert working.kept == {}


@pytest.mark.parametrize("account", ["mara@fern.example", "default"])
def test_hosted_accounts_are_not_sent_elsewhere(home: Path, working: MemoryKeyring, account: str) -> None:
    _write(home, {"version": 2, "platforms": {FERN: _entry()}})
    working.kept[SERVICE, account] = TOKEN
    assert _code(lambda: CredentialStore().load(FERN)) == "TOKEN_NOT_FOUND"


def test_flat_file(home: Path) -> None:
    _write(home, _entry(token_store="file", access_token="osm_flat", platform_url=DEFAULT_PLATFORM_URL))
    store = CredentialStore()
    flat = store.load(DEFAULT_PLATFORM_URL)
    assert flat.token == "osm_flat"
    assert store.load(FERN) is None
    store.save(_login())
    assert store.load(DEFAULT_PLATFORM_URL) == flat


_UNUSABLE = [
    ("{", "CREDENTIALS_PARSE_FAILED"),
    ("[]", "CREDENTIALS_PARSE_FAILED"),
    ("\x00\xff", "CREDENTIALS_PARSE_FAILED"),
    ({"version": 2, "platforms": []}, "CREDENTIALS_PARSE_FAILED"),
    ({"version": 2, "platforms": {FERN: 5}}, "CREDENTIALS_PARSE_FAILED"),
    ({"version": 1, "active_workspace": "fern-lab", "workspaces": {}}, "CREDENTIALS_VERSION_CHANGED"),
    ({"version": 3}, "CREDENTIALS_VERSION_CHANGED"),
    ({}, "CREDENTIALS_VERSION_CHANGED"),
]


@pytest.mark.parametrize("content, code", _UNUSABLE)
def test_unreadable_file_is_backed_up(home: Path, content: Any, code: str) -> None:
    path = _write(home, content)
    before = path.read_bytes()
    assert _code(lambda: CredentialStore().load(FERN)) == code
    path.with_name("credentials.json.bak").write_text("an older backup")
    warned: list[tuple[str, str]] = []
    store = CredentialStore(lambda *warning: warned.append(warning))
    store.save(_login())
    assert path.with_name("credentials.json.bak.1").read_bytes() == before
    assert [code for _, code in warned] == ["CREDENTIALS_METADATA_BACKED_UP"]
    assert store.load(FERN) == _login()


@pytest.mark.parametrize(
    "changes",
    [
        {"user": None},
        {"user": {"id": 5}},
        {"expires_at": None},
        {"expires_at": "soon"},
        {"token_store": "cloud"},
    ],
)
def test_damaged_entry(home: Path, changes: dict[str, Any]) -> None:
    _write(home, {"version": 2, "platforms": {FERN: _entry(**changes)}})
    assert _code(lambda: CredentialStore().load(FERN)) == "CREDENTIALS_PARSE_FAILED"


def test_locked_keyring(home: Path, working: LockableKeyring) -> None:
    CredentialStore().save(_login())
    working.locked = True
    assert _code(lambda: CredentialStore().load(FERN)) == "KEYRING_UNAVAILABLE"
    warned: list[tuple[str, str]] = []
    assert CredentialStore(lambda *warning: warned.append(warning)).delete(FERN) is True
    assert [code for _, code in warned] == ["KEYRING_CLEANUP_FAILED"]
    assert "long advice" not in warned[0][0]


def test_unusable_credentials_path(home: Path) -> None:
    path = _file(home)
    path.mkdir(parents=True)
    assert _code(lambda: CredentialStore().load(FERN)) == "CREDENTIALS_UNAVAILABLE"
    assert _code(lambda: CredentialStore().save(_login())) == "CREDENTIALS_UNAVAILABLE"


def test_token_is_not_in_repr(home: Path) -> None:
    assert TOKEN not in repr(_login())
    CredentialStore().save(_login())
    assert TOKEN not in repr(CredentialStore().all())


def test_environment_token_has_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    CredentialStore().save(_login(platform_url=DEFAULT_PLATFORM_URL))
    monkeypatch.setenv("OSMOSIS_TOKEN", " osm_env \n")
    found = require_credentials()
    assert (found.token, found.source, found.platform_url) == ("osm_env", "environment", DEFAULT_PLATFORM_URL)
    assert not found.is_expired()


@pytest.mark.parametrize(
    "platform, bound, code",
    [
        (FERN, None, "ENV_TOKEN_PLATFORM_REQUIRED"),
        (FERN, DEFAULT_PLATFORM_URL, "ENV_TOKEN_PLATFORM_MISMATCH"),
        (None, FERN, "ENV_TOKEN_PLATFORM_MISMATCH"),
        (FERN, "https://a:port", "VALIDATION"),
    ],
)
def test_environment_token_is_bound_to_its_platform(
    monkeypatch: pytest.MonkeyPatch, platform: str | None, bound: str | None, code: str
) -> None:
    monkeypatch.setenv("OSMOSIS_TOKEN", TOKEN)
    if platform:
        monkeypatch.setenv("OSMOSIS_PLATFORM_URL", platform)
    if bound:
        monkeypatch.setenv("OSMOSIS_TOKEN_PLATFORM_URL", bound)
    assert _code(require_credentials) == code
