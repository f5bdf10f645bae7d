"""Secrets as members and runs have them, the vault that they lie in, and the rotation of its key."""

from __future__ import annotations

import json
import logging
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, text

from osmosis_ai.platform.db.tables import DbRun, DbSecret
from osmosis_ai.platform.secrets import MissingSecretsError, resolve_scopes, resolve_secrets
from osmosis_ai.platform.vault import Vault, VaultError, key_id_of, rotate_secret_key
from tests.platform.conftest import ManualClock, Member, World, assert_flat_error
from tests.platform.fake_worker import Killed
from tests.platform.viewer.runs_world import add_run

PATH = "/api/cli/environment-secrets"
CANARY = "canary-4e91c7"
DELETE = "DELETE"  # with a body, which the client's own method for it does not take


def _set(api: TestClient, name: str, value: str = CANARY, scope: str = "user", **options: Any) -> Any:
    return api.post(PATH, json={"name": name, "value": value, "scope": scope}, **options)


def _listed(api: TestClient, **query: Any) -> list[tuple[str, str]]:
    rows = api.get(PATH, params=query).json()["environment_secrets"]
    return [(row["name"], row["scope"]) for row in rows]


def test_a_secret_cannot_have_the_name_of_the_login_token(api: TestClient, member: Member) -> None:
    assert assert_flat_error(_set(api, "OSMOSIS_TOKEN"), 400, "VALIDATION")["field"] == "name"
    assert _listed(api) == []


def test_a_secret_is_stored_told_about_and_its_value_never_comes_back(
    api: TestClient, member: Member
) -> None:
    reply = _set(api, "OPENAI_API_KEY", scope="workspace")

    assert reply.status_code == 200
    told = reply.json()
    assert told.pop("id").startswith("sec_")
    assert told.pop("platform_url") == api.get(PATH).json()["platform_url"]
    assert told == {
        "name": "OPENAI_API_KEY",
        "scope": "workspace",
        "created_at": "2026-11-02T09:30:00.000Z",
        "updated_at": "2026-11-02T09:30:00.000Z",
        "creator_name": "Mara",
        "updater_name": "Mara",
    }
    listed = api.get(PATH).json()
    assert [{**item, "platform_url": listed["platform_url"]} for item in listed["environment_secrets"]] == [
        reply.json()
    ]
    assert (listed["total_count"], listed["has_more"], listed["next_offset"]) == (1, False, None)
    assert CANARY not in reply.text + json.dumps(listed)


def test_the_list_shows_the_workspaces_secrets_and_the_callers_own(api: TestClient, world: World) -> None:
    colleague = world.member("noor", role="member")
    _set(api, "B", scope="workspace")
    _set(api, "A", scope="user")
    _set(api, "B", scope="user")
    _set(api, "HIDDEN", scope="user", headers=colleague.headers)

    assert _listed(api) == [("A", "user"), ("B", "user"), ("B", "workspace")]
    assert _listed(api, scope="all", limit=2, offset=1) == [("B", "user"), ("B", "workspace")]
    assert _listed(api, scope="workspace") == [("B", "workspace")]
    assert _listed(api, scope="user") == [("A", "user"), ("B", "user")]
    assert_flat_error(api.get(PATH, params={"scope": "other"}), 400, "VALIDATION_FAILED")
    assert_flat_error(api.get(PATH, params={"limit": 51}), 400, "VALIDATION_FAILED")


def test_a_deleted_secret_is_gone_in_its_scope_alone_and_not_for_another_workspace(
    api: TestClient, stranger: Member
) -> None:
    _set(api, "KEY", scope="workspace")
    _set(api, "KEY", scope="user")
    assert api.get(PATH, headers=stranger.headers).json()["environment_secrets"] == []
    gone = api.request(DELETE, PATH, json={"name": "KEY", "scope": "workspace"}, headers=stranger.headers)
    assert_flat_error(gone, 404, "NOT_FOUND")

    assert api.request(DELETE, PATH, json={"name": "KEY", "scope": "user"}).json() == {}
    assert _listed(api) == [("KEY", "workspace")]
    again = api.request(DELETE, PATH, json={"name": "KEY", "scope": "user"})
    assert "personal secret 'KEY'" in assert_flat_error(again, 404, "NOT_FOUND")["error"]


NO_NAMES = ["", "key", "1KEY", "_KEY", "A-B", "A B", "KEY\n", "A/B", "..", "ÄKEY", "K" * 256, "K=V", "ＫＥＹ"]
NO_VALUES = ["", CANARY + "\0", CANARY + "x" * 64 * 1024]


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        *((name, CANARY, "^[A-Z][A-Z0-9_]*$") for name in NO_NAMES),
        *(("KEY", value, "the value of a secret") for value in NO_VALUES),
    ],
)
def test_what_no_variable_could_have_is_refused_without_repeating_it(
    api: TestClient, name: str, value: str, problem: str
) -> None:
    reply = _set(api, name, value)
    assert problem in assert_flat_error(reply, 400, "VALIDATION")["error"]
    assert CANARY not in reply.text
    assert _listed(api) == []


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"name": "KEY", "value": [CANARY], "scope": "user"}),
        json.dumps({"name": CANARY, "value": "v", "scope": "user"}),
        json.dumps({"name": {"x": CANARY}, "value": "v", "scope": "user"}),
        json.dumps({"name": "KEY", "value": CANARY}),
        json.dumps({"name": "KEY", "value": CANARY, "scope": CANARY}),
        json.dumps([CANARY]),
        json.dumps(CANARY),
        f'{{"name": "KEY", "value": "{CANARY}"',
        f'{{"name": "KEY", "value": "{CANARY}\\ud800", "scope": "user"}}',
        f'{{"name": "KEY", "value": NaN, "scope": "{CANARY}"}}',
        CANARY,
        "",
    ],
)
def test_a_malformed_request_is_refused_without_repeating_what_it_held(
    api: TestClient, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        reply = api.post(PATH, content=body, headers={"Content-Type": "application/json"})

    assert reply.status_code == 400
    assert isinstance(reply.json()["error"], str)
    assert CANARY not in reply.text + caplog.text


def test_no_value_is_readable_in_any_file_of_the_platform_or_its_log(
    api: TestClient, world: World, caplog: pytest.LogCaptureFixture, member: Member
) -> None:
    with caplog.at_level(logging.DEBUG):
        _set(api, "KEY", scope="workspace")
        _values(world, member, "KEY")

    files = [path for path in world.services.config.home.rglob("*") if path.is_file()]
    assert len(files) > 2
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]
    assert CANARY not in caplog.text


def _values(world: World, member: Member, *names: str) -> dict[str, tuple[str, str]]:
    resolved = resolve_secrets(
        world.services.db, world.services.vault, member.workspace.id, member.user.id, names
    )
    assert CANARY not in f"{resolved} {[*resolved.values()]}", "a resolved secret does not print its value"
    return {name: (secret.value, secret.scope) for name, secret in resolved.items()}


def test_a_run_gets_the_members_own_value_before_the_workspaces(
    api: TestClient, world: World, member: Member
) -> None:
    _set(api, "SHARED", "s", "workspace")
    _set(api, "BOTH", "theirs", "workspace")
    _set(api, "BOTH", "mine", "user")
    _set(api, "OWN", "o", "user")

    assert _values(world, member, "OWN", "BOTH", "SHARED") == {
        "OWN": ("o", "user"),
        "BOTH": ("mine", "user_override"),
        "SHARED": ("s", "workspace"),
    }
    colleague = world.member("noor", role="member")
    assert _values(world, colleague, "BOTH") == {"BOTH": ("theirs", "workspace")}
    assert resolve_scopes(world.services.db, member.workspace.id, member.user.id, ["BOTH"]) == {
        "BOTH": "user_override"
    }
    assert _values(world, member) == {}


def test_all_missing_secrets_are_named_at_once_in_the_order_asked(
    api: TestClient, world: World, member: Member, stranger: Member
) -> None:
    _set(api, "HERE", scope="workspace")
    _set(api, "THEIRS", scope="workspace", headers=stranger.headers)

    with pytest.raises(MissingSecretsError, match=r"^Secret\(s\) not found: ZULU, THEIRS, ALPHA$") as caught:
        _values(world, member, "ZULU", "HERE", "THEIRS", "ALPHA", "ZULU")
    assert caught.value.names == ("ZULU", "THEIRS", "ALPHA")
    assert caught.value.code == "NOT_FOUND"


SEALED = b"canary-6f1d"
NOW = datetime(2026, 11, 2, 9, 30, tzinfo=timezone.utc)
DAY = timedelta(days=1)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "vault.json"


def flipped(position: int) -> Callable[[bytes], bytes]:
    """Return what alters one byte of a sealed value."""

    def flip(sealed: bytes) -> bytes:
        altered = bytearray(sealed)
        altered[position] ^= 1
        return bytes(altered)

    return flip


@pytest.mark.parametrize(
    "damage",
    [
        *map(flipped, (0, 3, 12, -1)),
        *(
            lambda _, rubbish=rubbish: rubbish
            for rubbish in (b"", b"\x01", b"\x01" + b"k" * 15, b"plain text")
        ),
    ],
)
def test_a_damaged_value_or_that_of_another_row_does_not_open(
    key_file: Path, damage: Callable[[bytes], bytes]
) -> None:
    vault = Vault(key_file)
    sealed = vault.seal(SEALED, context="secrets:sec_1")
    with pytest.raises(VaultError, match="`secrets:sec_2` is damaged, or was made for another row"):
        vault.open(sealed, context="secrets:sec_2")
    with pytest.raises(VaultError, match=r"`secrets:sec_1` (is damaged|was sealed with the key)") as caught:
        vault.open(damage(sealed), context="secrets:sec_1")
    assert "canary" not in str(caught.value)


def test_the_keys_are_for_their_owner_alone_and_never_printed(key_file: Path) -> None:
    vault = Vault(key_file)
    vault.seal(b"", context="c")

    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(key_file.parent.stat().st_mode) == 0o700
    for key in json.loads(key_file.read_text())["keys"].values():
        assert key not in repr(vault) + repr(vault.__dict__)


def test_old_values_open_until_their_key_is_forgotten_which_was_replaced_long_ago_and_seals_nothing(
    key_file: Path,
) -> None:
    vault, other_process = Vault(key_file), Vault(key_file)
    first = vault.seal(SEALED, context="c")
    other_process.seal(b"", context="c")
    vault.rotate(NOW)
    second = vault.seal(SEALED, context="c")
    assert (vault.is_stale(first), vault.is_stale(second)) == (True, False)
    assert vault.open(first, context="c") == other_process.open(second, context="c") == SEALED
    vault.rotate(NOW + DAY)

    assert vault.forget_replaced_keys(before=NOW) == 0
    assert vault.forget_replaced_keys(before=NOW + DAY, in_use={key_id_of(first)}) == 0
    assert vault.forget_replaced_keys(before=NOW + DAY) == 1
    assert Vault(key_file).open(second, context="c") == SEALED
    with pytest.raises(VaultError):
        Vault(key_file).open(first, context="c")


@pytest.mark.parametrize(
    ("content", "mode", "problem", "hint"),
    [
        *(
            (content, 0o600, "is damaged", "restore it from a backup")
            for content in ("", "null", "[]", "{}", '{"version": 1, "active": 7')
        ),
        (
            '{"version": 1, "active": "00", "keys": {"00": "c2hvcnQ="}}',
            *(0o600, "is damaged", "restore it from a backup"),
        ),
        ("{}", 0o644, "every user", "chmod 600 {}"),
    ],
)
def test_a_key_file_that_is_damaged_or_readable_by_everyone_is_reported_and_left_alone(
    key_file: Path, content: str, mode: int, problem: str, hint: str
) -> None:
    key_file.parent.mkdir()
    key_file.write_text(content)
    key_file.chmod(mode)
    with pytest.raises(VaultError, match=problem) as caught:
        Vault(key_file).seal(SEALED, context="c")
    assert caught.value.hint == hint.format(key_file)
    assert key_file.read_text() == content


def test_processes_that_start_together_agree_on_one_key(key_file: Path) -> None:
    vaults = [Vault(key_file) for _ in range(8)]
    barrier = threading.Barrier(len(vaults))

    def start(vault: Vault) -> bytes:
        barrier.wait()
        return vault.seal(SEALED, context="c")

    with ThreadPoolExecutor(len(vaults)) as threads:
        sealed = list(threads.map(start, vaults))
    assert [Vault(key_file).open(value, context="c") for value in sealed] == [SEALED] * len(vaults)


NAMES = [f"KEY_{number}" for number in range(8)]
VALUES = {name: f"sk-of-{name}" for name in NAMES}


@pytest.fixture
def stored(world: World, member: Member) -> None:
    for name, value in VALUES.items():
        world.put_secret(member, name, value, "workspace")


def resolved(world: World, member: Member, vault: Vault) -> dict[str, str]:
    found = resolve_secrets(world.services.db, vault, member.workspace.id, member.user.id, NAMES)
    return {name: secret.value for name, secret in found.items()}


def keys_in_database(world: World) -> set[bytes]:
    with world.services.db.session() as session:
        return {key_id_of(sealed) for sealed in session.scalars(select(DbSecret.sealed))}


@pytest.mark.usefixtures("stored")
def test_every_secret_has_the_new_key_and_the_platform_that_runs_goes_on(
    world: World, member: Member, clock: ManualClock
) -> None:
    running, former = world.services.vault, keys_in_database(world)
    done = rotate_secret_key(world.services.db, Vault(running.key_file), clock)

    assert (done.resealed, done.forgotten, done.damaged) == (len(NAMES), 0, [])
    assert not former & keys_in_database(world)
    assert resolved(world, member, running) == VALUES
    world.put_secret(member, NAMES[0], "sk-new", "workspace")
    assert len(keys_in_database(world)) == 1
    assert resolved(world, member, Vault(running.key_file)) == {**VALUES, NAMES[0]: "sk-new"}


@pytest.mark.usefixtures("stored")
def test_a_backup_taken_before_opens_with_the_key_file_of_after_and_a_day_later_the_key_goes(
    world: World, clock: ManualClock
) -> None:
    vault = world.services.vault
    with world.services.db.session() as session:
        secret = session.scalars(select(DbSecret)).first()
    assert secret is not None
    rotate_secret_key(world.services.db, vault, clock)
    assert Vault(vault.key_file).open(secret.sealed, context=f"secrets:{secret.id}").startswith(b"sk-of-")

    clock.advance(25 * 3600)
    assert rotate_secret_key(world.services.db, vault, clock).forgotten == 1
    assert key_id_of(secret.sealed).hex() not in vault.key_file.read_text()


@pytest.mark.usefixtures("stored")
def test_what_cannot_be_opened_is_named_and_its_key_is_kept(world: World, clock: ManualClock) -> None:
    with world.services.db.transaction() as session:
        secret = session.scalars(select(DbSecret).order_by(DbSecret.id)).all()[3]
        secret.sealed = secret.sealed[:-1] + bytes([secret.sealed[-1] ^ 1])
    kept = key_id_of(secret.sealed).hex()
    for _ in range(2):
        done = rotate_secret_key(world.services.db, world.services.vault, clock)
        assert done.damaged == [f"secrets:{secret.id}"]
        clock.advance(25 * 3600)
    assert kept in world.services.vault.key_file.read_text()


@pytest.mark.usefixtures("stored")
def test_a_rotation_that_is_killed_half_way_has_lost_nothing_and_is_repeated(
    world: World, member: Member, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal, sealed = Vault.seal, list[str]()

    def seal_five(vault: Vault, plaintext: bytes, *, context: str) -> bytes:
        sealed.append(context)
        if len(sealed) == 6:
            raise Killed
        return seal(vault, plaintext, context=context)

    with monkeypatch.context() as patch:
        patch.setattr("osmosis_ai.platform.vault._BATCH", 2)
        patch.setattr(Vault, "seal", seal_five)
        with pytest.raises(Killed):
            rotate_secret_key(world.services.db, Vault(world.services.vault.key_file), clock)
    assert len(keys_in_database(world)) == 2
    assert resolved(world, member, Vault(world.services.vault.key_file)) == VALUES
    done = rotate_secret_key(world.services.db, world.services.vault, clock)
    assert done.resealed == len(NAMES)
    assert len(keys_in_database(world)) == 1
    assert resolved(world, member, world.services.vault) == VALUES


def test_values_given_for_one_run_are_sealed_anew_too(
    world: World, member: Member, clock: ManualClock
) -> None:
    add_run(world, member, "waiting", id="run_waiting", status="pending")
    sealed = world.services.vault.seal(b"{}", context="runs:run_waiting")
    with world.services.db.transaction() as session:
        session.execute(text("UPDATE runs SET sealed_secrets = :sealed"), {"sealed": sealed})
    assert rotate_secret_key(world.services.db, world.services.vault, clock).resealed == 1
    with world.services.db.session() as session:
        fresh = session.get_one(DbRun, "run_waiting").sealed_secrets
    assert fresh is not None and key_id_of(fresh) != key_id_of(sealed)
    assert world.services.vault.open(fresh, context="runs:run_waiting") == b"{}"
    with world.services.db.session() as session:
        assert session.scalar(select(func.count()).select_from(DbSecret)) == 0
