"""Secrets as members and runs have them, the vault that they lie in, and the rotation of its key."""

from __future__ import annotations

import json
import logging
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from osmosis_ai.platform.vault import Vault
from tests.platform.conftest import ManualClock, Member, World, assert_flat_error
from tests.platform.evaluations import Code, submit_body
from tests.platform.fake_worker import EVALS, FakeWorker, Killed

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


def values(api: TestClient, world: World, *names: str, **headers: Any) -> dict[str, str]:
    """Submit a run that needs secrets; return what its worker receives."""
    run = api.post(EVALS.route, json=submit_body(secrets={"required": list(names)}), **headers).json()
    worker = FakeWorker.claims(world, run_id=run["id"])
    given = {name: value.get_secret_value() for name, value in worker.assignment.secrets.items()}
    worker.finishes("failed", error="it has its secrets")
    return given


def test_no_value_is_readable_in_any_file_of_the_platform_or_its_log(
    api: TestClient, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        _set(api, "KEY", scope="workspace")
        assert values(api, world, "KEY") == {"KEY": CANARY}
    assert not world.is_stored(CANARY) and CANARY not in caplog.text


def test_a_run_gets_the_members_own_value_before_the_workspaces(
    api: TestClient, world: World, code: Code
) -> None:
    _set(api, "SHARED", "s", "workspace")
    _set(api, "BOTH", "theirs", "workspace")
    _set(api, "BOTH", "mine", "user")
    _set(api, "OWN", "o", "user")
    asked = {"required": ["OWN", "BOTH", "SHARED"]}
    detail = api.get(f"{EVALS.route}/{EVALS.taken(api, secrets=asked)['id']}").json()
    assert detail["resolved_secret_scopes"] == {"OWN": "user", "BOTH": "user_override", "SHARED": "workspace"}
    assert values(api, world, *asked["required"]) == {"OWN": "o", "BOTH": "mine", "SHARED": "s"}
    colleague = world.member("noor", role="member", clone_url=str(code.path))
    assert values(api, world, "BOTH", headers=colleague.headers) == {"BOTH": "theirs"}


def test_all_missing_secrets_are_named_at_once_in_the_order_asked(api: TestClient, stranger: Member) -> None:
    _set(api, "HERE", scope="workspace")
    _set(api, "THEIRS", scope="workspace", headers=stranger.headers)
    asked = {"required": ["ZULU", "HERE", "THEIRS", "ALPHA"]}
    body = EVALS.refused(api, 404, "SECRETS_NOT_FOUND", secrets=asked)
    assert body["missing"] == ["ZULU", "THEIRS", "ALPHA"]
    assert "Secret(s) not found: ZULU, THEIRS, ALPHA" in body["error"]


# -- the key -----------------------------------------------------------------------------------------------

NAMES = [f"KEY_{number}" for number in range(8)]
VALUES = {name: f"sk-of-{name}" for name in NAMES}


@pytest.fixture
def stored(world: World, member: Member) -> list[str]:
    """Store secrets; return their ids in the database."""
    for name, value in VALUES.items():
        world.put_secret(member, name, value)
    return list(sealed_values(world))


def sealed_values(world: World) -> dict[str, bytes]:
    """Return the encrypted values in the database, by secret."""
    with world.services.db.session() as session:
        return {
            row.id: row.sealed for row in session.execute(text("SELECT id, sealed FROM secrets ORDER BY id"))
        }


def put_back(world: World, secret_id: str, sealed: bytes) -> None:
    """Put a value into the database, as a damaged disk or a restored backup does."""
    with world.services.db.transaction() as session:
        session.execute(
            text("UPDATE secrets SET sealed = :sealed WHERE id = :id"), {"sealed": sealed, "id": secret_id}
        )


def keys_used(world: World) -> set[bytes]:
    return {sealed[1:9] for sealed in sealed_values(world).values()}


def rotate(world: World) -> dict[str, Any]:
    """Replace the key, in another process than the platform's."""
    done: dict[str, Any] = world.operate("secret-key", "rotate")["resource"]
    return done


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
        *map(flipped, (0, 3, 20, -1)),
        *(
            lambda _, rubbish=rubbish: rubbish
            for rubbish in (b"", b"\x01", b"\x01" + b"k" * 15, b"plain text")
        ),
    ],
)
def test_a_damaged_value_is_named_and_left_alone(
    api: TestClient, world: World, damage: Callable[[bytes], bytes]
) -> None:
    _set(api, "KEY", scope="workspace")
    [(secret_id, sealed)] = sealed_values(world).items()
    put_back(world, secret_id, damage(sealed))
    for _ in range(2):
        assert rotate(world) == {"resealed": 0, "forgotten_keys": 0, "damaged": [f"secrets:{secret_id}"]}
    assert sealed_values(world) == {secret_id: damage(sealed)}


def test_the_value_of_another_secret_does_not_open(world: World, stored: list[str]) -> None:
    first, second, *_ = stored
    sealed = sealed_values(world)
    put_back(world, first, sealed[second])
    put_back(world, second, sealed[first])
    assert sorted(rotate(world)["damaged"]) == [f"secrets:{first}", f"secrets:{second}"]


def test_the_keys_are_for_their_owner_alone(api: TestClient, world: World) -> None:
    _set(api, "KEY", scope="workspace")
    key_file = world.services.vault.key_file
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(key_file.parent.stat().st_mode) == 0o700


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
        ("{}", 0o644, "every user", "chmod 600"),
    ],
)
def test_a_key_file_that_is_damaged_or_readable_by_everyone_is_reported_and_left_alone(
    world: World, content: str, mode: int, problem: str, hint: str
) -> None:
    key_file = world.services.vault.key_file
    key_file.parent.mkdir(exist_ok=True)
    key_file.write_text(content)
    key_file.chmod(mode)
    with pytest.raises(AssertionError, match=problem) as caught:
        rotate(world)
    assert hint in str(caught.value)
    assert key_file.read_text() == content


def test_processes_that_start_together_agree_on_one_key(tmp_path: Path) -> None:
    key_file = tmp_path / "keys" / "vault.json"
    vaults = [Vault(key_file) for _ in range(8)]
    barrier = threading.Barrier(len(vaults))

    def start(vault: Vault) -> bytes:
        barrier.wait()
        return vault.seal(b"value", context="c")

    with ThreadPoolExecutor(len(vaults)) as threads:
        sealed = list(threads.map(start, vaults))
    assert [Vault(key_file).open(value, context="c") for value in sealed] == [b"value"] * len(vaults)


def test_every_secret_has_the_new_key_and_the_platform_that_runs_goes_on(
    api: TestClient, world: World, stored: list[str]
) -> None:
    former = keys_used(world)
    assert rotate(world) == {"resealed": len(NAMES), "forgotten_keys": 0, "damaged": []}
    assert not former & keys_used(world)
    assert values(api, world, *NAMES) == VALUES
    _set(api, NAMES[0], "sk-new", "workspace")
    assert len(keys_used(world)) == 1
    assert values(api, world, *NAMES) == {**VALUES, NAMES[0]: "sk-new"}


def test_a_backup_of_before_a_rotation_opens_for_a_day(
    api: TestClient, world: World, stored: list[str], clock: ManualClock
) -> None:
    before = sealed_values(world)
    rotate(world)
    put_back(world, stored[0], before[stored[0]])
    assert values(api, world, *NAMES) == VALUES
    assert rotate(world) == {"resealed": len(NAMES), "forgotten_keys": 0, "damaged": []}
    clock.advance(25 * 3600)
    assert rotate(world)["forgotten_keys"] == 2
    put_back(world, stored[0], before[stored[0]])
    assert rotate(world)["damaged"] == [f"secrets:{stored[0]}"]


def test_the_key_of_a_damaged_value_is_kept(world: World, stored: list[str], clock: ManualClock) -> None:
    sealed = sealed_values(world)[stored[3]]
    put_back(world, stored[3], flipped(-1)(sealed))
    for _ in range(2):
        assert rotate(world)["damaged"] == [f"secrets:{stored[3]}"]
        clock.advance(25 * 3600)
    put_back(world, stored[3], sealed)
    assert rotate(world)["damaged"] == []


def test_a_rotation_that_is_killed_half_way_has_lost_nothing_and_is_repeated(
    api: TestClient, world: World, stored: list[str], monkeypatch: pytest.MonkeyPatch
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
            rotate(world)
    assert len(keys_used(world)) == 2
    assert values(api, world, *NAMES) == VALUES
    assert rotate(world)["resealed"] == len(NAMES)
    assert len(keys_used(world)) == 1
    assert values(api, world, *NAMES) == VALUES


def test_values_given_for_one_run_get_the_new_key_too(api: TestClient, world: World) -> None:
    given = {"required": ["KEY"], "provided": {"KEY": CANARY}}
    run = EVALS.taken(api, secrets=given)
    assert rotate(world)["resealed"] == 1
    assignment = FakeWorker.claims(world, run_id=run["id"]).assignment
    assert assignment.secrets["KEY"].get_secret_value() == CANARY
    assert _listed(api) == []


def test_keys_are_in_no_repr_and_for_their_owner_alone(world: World, api: TestClient) -> None:
    _set(api, "OPENAI_API_KEY")
    services = world.services
    shown = repr([services.vault, services.vault.__dict__, services.url_signer, services.config])
    files = [path for path in (services.config.home / "keys").iterdir() if path.suffix != ".lock"]
    assert len(files) == 2
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        content = path.read_bytes()
        keys = json.loads(content)["keys"].values() if path.suffix == ".json" else [content.hex()]
        assert not any(key in shown for key in keys), path
