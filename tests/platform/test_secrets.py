from __future__ import annotations

import json
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from osmosis_ai.platform.db.tables import DbSecret
from osmosis_ai.platform.secrets import MissingSecretsError, resolve_scopes, resolve_secrets
from osmosis_ai.platform.services import PlatformServices
from tests.full_disk import files_of_at_most
from tests.platform.conftest import ManualClock, Member, World, assert_flat_error

PATH = "/api/cli/environment-secrets"
CANARY = "canary-4e91c7"
DELETE = "DELETE"  # with a body, which the client's own method for it does not take


def _set(api: TestClient, name: str, value: str = CANARY, scope: str = "user", **options: Any) -> Any:
    return api.post(PATH, json={"name": name, "value": value, "scope": scope}, **options)


def _listed(api: TestClient, **query: Any) -> list[tuple[str, str]]:
    rows = api.get(PATH, params=query).json()["environment_secrets"]
    return [(row["name"], row["scope"]) for row in rows]


def test_a_secret_is_stored_told_about_and_its_value_never_comes_back(
    api: TestClient, member: Member, services: PlatformServices
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


def test_setting_it_again_replaces_the_value_and_keeps_the_secret(
    api: TestClient, services: PlatformServices, world: World, member: Member, clock: ManualClock
) -> None:
    first = _set(api, "KEY", "old", "workspace").json()
    colleague = world.member("noor", role="admin")
    clock.advance(60)
    second = _set(api, "KEY", "new", "workspace", headers=colleague.headers).json()

    assert (second["id"], second["created_at"], second["creator_name"]) == (
        *(first["id"], first["created_at"], "Mara"),
    )
    assert (second["updater_name"], second["updated_at"]) == ("Noor", "2026-11-02T09:31:00.000Z")
    assert _values(services, member, "KEY") == {"KEY": ("new", "workspace")}


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


def test_another_workspace_sees_and_touches_nothing(api: TestClient, stranger: Member) -> None:
    _set(api, "KEY", scope="workspace")

    assert api.get(PATH, headers=stranger.headers).json()["environment_secrets"] == []
    gone = api.request(DELETE, PATH, json={"name": "KEY", "scope": "workspace"}, headers=stranger.headers)
    assert_flat_error(gone, 404, "NOT_FOUND")
    assert _listed(api) == [("KEY", "workspace")]


def test_a_deleted_secret_is_gone_in_its_scope_alone(api: TestClient) -> None:
    _set(api, "KEY", scope="workspace")
    _set(api, "KEY", scope="user")

    assert api.request(DELETE, PATH, json={"name": "KEY", "scope": "user"}).json() == {}
    assert _listed(api) == [("KEY", "workspace")]
    again = api.request(DELETE, PATH, json={"name": "KEY", "scope": "user"})
    assert "personal secret 'KEY'" in assert_flat_error(again, 404, "NOT_FOUND")["error"]


@pytest.mark.parametrize("name", ["", "key", "K\0", "../KEY", "Ä" * 300])
def test_deleting_what_is_no_name_finds_nothing(api: TestClient, name: str) -> None:
    reply = api.request(DELETE, PATH, json={"name": name, "scope": "user"})
    assert_flat_error(reply, 404, "NOT_FOUND")


def test_a_member_keeps_their_own_secrets_and_only_reads_the_workspaces(
    api: TestClient, world: World
) -> None:
    plain = world.member("noor", role="member")
    _set(api, "KEY", scope="workspace")

    refused = _set(api, "KEY", "other", "workspace", headers=plain.headers)
    assert "'admin'" in assert_flat_error(refused, 403, "ROLE_REQUIRED")["error"]
    delete = api.request(DELETE, PATH, json={"name": "KEY", "scope": "workspace"}, headers=plain.headers)
    assert_flat_error(delete, 403, "ROLE_REQUIRED")
    assert _set(api, "KEY", scope="user", headers=plain.headers).status_code == 200


@pytest.mark.parametrize(
    "name",
    ["", "key", "1KEY", "_KEY", "A-B", "A B", "KEY\n", "A/B", "..", "ÄKEY", "K" * 256, "K=V", "ＫＥＹ"],
)
def test_a_name_no_variable_could_have_is_refused(api: TestClient, name: str) -> None:
    error = assert_flat_error(_set(api, name), 400, "VALIDATION")
    assert "^[A-Z][A-Z0-9_]*$" in error["error"]
    assert _listed(api) == []


def test_the_longest_name_and_the_largest_value_are_taken(
    api: TestClient, services: PlatformServices, member: Member
) -> None:
    value = "ä" * (32 * 1024)
    assert _set(api, "K" * 255, value).status_code == 200
    assert _values(services, member, "K" * 255)["K" * 255] == (value, "user")


@pytest.mark.parametrize("value", ["", CANARY + "\0", CANARY + "x" * 64 * 1024])
def test_a_value_no_variable_could_hold_is_refused_without_repeating_it(api: TestClient, value: str) -> None:
    reply = _set(api, "KEY", value)

    assert "the value of a secret" in assert_flat_error(reply, 400, "VALIDATION")["error"]
    assert CANARY not in reply.text


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
    api: TestClient, services: PlatformServices, caplog: pytest.LogCaptureFixture, member: Member
) -> None:
    with caplog.at_level(logging.DEBUG):
        _set(api, "KEY", scope="workspace")
        _values(services, member, "KEY")

    files = [path for path in services.config.home.rglob("*") if path.is_file()]
    assert len(files) > 2
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]
    assert CANARY not in caplog.text


def test_a_platform_whose_key_is_lost_fails_without_showing_anything(
    api: TestClient, services: PlatformServices, caplog: pytest.LogCaptureFixture
) -> None:
    services.vault.key_file.parent.mkdir(exist_ok=True)
    services.vault.key_file.write_text("damaged")
    services.vault.key_file.chmod(0o600)

    reply = _set(api, "KEY")

    assert_flat_error(reply, 500, "INTERNAL_ERROR")
    assert CANARY not in reply.text + caplog.text
    assert "vault.json is damaged" in caplog.text


def _values(services: PlatformServices, member: Member, *names: str) -> dict[str, tuple[str, str]]:
    resolved = resolve_secrets(services.db, services.vault, member.workspace.id, member.user.id, names)
    return {name: (secret.value, secret.scope) for name, secret in resolved.items()}


def test_a_run_gets_the_members_own_value_before_the_workspaces(
    api: TestClient, services: PlatformServices, member: Member, world: World
) -> None:
    _set(api, "SHARED", "s", "workspace")
    _set(api, "BOTH", "theirs", "workspace")
    _set(api, "BOTH", "mine", "user")
    _set(api, "OWN", "o", "user")

    assert _values(services, member, "OWN", "BOTH", "SHARED") == {
        "OWN": ("o", "user"),
        "BOTH": ("mine", "user_override"),
        "SHARED": ("s", "workspace"),
    }
    colleague = world.member("noor", role="member")
    assert _values(services, colleague, "BOTH") == {"BOTH": ("theirs", "workspace")}
    assert resolve_scopes(services.db, member.workspace.id, member.user.id, ["BOTH"]) == {
        "BOTH": "user_override"
    }
    assert _values(services, member) == {}


def test_all_missing_secrets_are_named_at_once_in_the_order_asked(
    api: TestClient, services: PlatformServices, member: Member, stranger: Member
) -> None:
    _set(api, "HERE", scope="workspace")
    _set(api, "THEIRS", scope="workspace", headers=stranger.headers)

    with pytest.raises(MissingSecretsError, match=r"^Secret\(s\) not found: ZULU, THEIRS, ALPHA$") as caught:
        _values(services, member, "ZULU", "HERE", "THEIRS", "ALPHA", "ZULU")
    assert caught.value.names == ("ZULU", "THEIRS", "ALPHA")
    assert caught.value.code == "NOT_FOUND"


def test_a_resolved_secret_does_not_print_its_value(
    api: TestClient, services: PlatformServices, member: Member
) -> None:
    _set(api, "KEY")
    resolved = resolve_secrets(services.db, services.vault, member.workspace.id, member.user.id, ["KEY"])

    assert CANARY not in f"{resolved} {resolved['KEY']!r}"
    value, scope = resolved["KEY"]
    assert (value, scope) == (CANARY, "user")


def test_a_value_sealed_with_a_replaced_key_is_sealed_anew_when_it_is_used(
    api: TestClient, services: PlatformServices, member: Member
) -> None:
    _set(api, "KEY")
    services.vault.rotate(services.clock.now())
    assert _values(services, member, "KEY") == {"KEY": (CANARY, "user")}

    assert services.vault.forget_replaced_keys(before=services.clock.now() + timedelta(seconds=1)) == 1
    assert _values(services, member, "KEY") == {"KEY": (CANARY, "user")}


def test_a_sealed_value_moved_to_another_row_does_not_open(
    api: TestClient, services: PlatformServices, member: Member
) -> None:
    _set(api, "MINE", "mine")
    _set(api, "OTHER", "other")
    with services.db.transaction() as session:
        rows = {row.name: row for row in session.scalars(select(DbSecret))}
        rows["MINE"].sealed = rows["OTHER"].sealed

    with pytest.raises(Exception, match="made for another row"):
        _values(services, member, "MINE")


def test_the_vault_lies_outside_of_the_database(services: PlatformServices, tmp_path: Path) -> None:
    assert services.vault.key_file == services.config.home / "keys" / "vault.json"


def test_the_first_secret_on_a_full_disk_is_refused_as_such_and_can_be_set_later(
    api: TestClient, services: PlatformServices
) -> None:
    assert not services.vault.key_file.exists()
    body = {"name": "KEY", "value": CANARY, "scope": "user"}
    with files_of_at_most(16):
        reply = api.post("/api/cli/environment-secrets", json=body)
    assert_flat_error(reply, 507, "STORAGE_FULL")
    assert not services.vault.key_file.exists()
    assert api.post("/api/cli/environment-secrets", json=body).status_code == 200
