"""Administration on the platform's machine: what an operator types and sees."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.api.git_identity import identify_origin
from osmosis_ai.platform.accounts import TokenRejected, bootstrap
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.services import PlatformServices, build_services
from tests.cli.conftest import Cli
from tests.logins import hash_passwords_quickly
from tests.platform.databases import put_migrated_database

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def platform_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "platform"))
    hash_passwords_quickly(monkeypatch)
    return tmp_path / "platform"


@pytest.fixture
def running(platform_home: Path) -> PlatformServices:
    """A platform that has been started once and is open in this process."""
    put_migrated_database(platform_home)
    services = build_services(PlatformConfig(home=platform_home))
    bootstrap(services.db, services.clock)
    return services


def envelope(cli: Cli, *arguments: str) -> dict[str, Any]:
    done = cli("--json", "platform", *arguments)
    assert done.status == 0, done.err
    parsed: dict[str, Any] = json.loads(done.out)
    return parsed


def test_a_token_is_printed_alone_on_stdout_and_works(cli: Cli, running: PlatformServices) -> None:
    done = cli("platform", "token", "create", "--plain")
    assert done.status == 0
    plain = done.out.strip()
    assert plain.startswith("osm_") and len(plain.split()) == 1
    assert "admin@localhost" in done.err and plain not in done.err
    assert running.accounts.authenticate(plain).user.email == "admin@localhost"


def test_a_token_in_json_says_what_it_is_good_for(cli: Cli, running: PlatformServices) -> None:
    running.accounts.create_user("mara@fern.example")
    created = envelope(
        cli, "token", "create", "-u", "mara@fern.example", "--kind", "api_key", "--name", "ci", "--no-expiry"
    )
    resource = created["resource"]
    assert created["operation"] == "platform.token.create"
    assert (resource["kind"], resource["name"], resource["expires_at"]) == ("api_key", "ci", None)
    assert resource["platform_url"] == "http://127.0.0.1:8733"
    assert running.accounts.authenticate(resource["token"], kinds=("api_key",))


def test_json_holds_what_is_shown_once_once(cli: Cli, running: PlatformServices) -> None:
    made = [
        ("token", envelope(cli, "token", "create")),
        ("password", envelope(cli, "user", "add", "mara@fern.example")),
        ("password", envelope(cli, "user", "password", "mara@fern.example")),
    ]
    for key, document in made:
        assert document["message"] and json.dumps(document).count(document["resource"][key]) == 1
    plain = cli("platform", "user", "password", "mara@fern.example", "--plain")
    assert "Password: " in plain.out


def test_tokens_are_listed_and_revoked(cli: Cli, running: PlatformServices) -> None:
    first = envelope(cli, "token", "create", "--name", "laptop")["resource"]
    envelope(cli, "token", "create", "--name", "ci")
    listed = cli("platform", "token", "list", "--json")
    assert first["token"] not in listed.out
    assert [item["name"] for item in json.loads(listed.out)["items"]] == ["ci", "laptop"]

    assert cli("platform", "token", "revoke", first["id"], "--plain").status == 1
    assert cli("platform", "token", "revoke", first["id"], "--yes").status == 0
    assert envelope(cli, "token", "revoke", first["id"])["status"] == "noop"
    with pytest.raises(TokenRejected):
        running.accounts.authenticate(first["token"])
    assert [item["name"] for item in envelope(cli, "token", "list")["items"]] == ["ci"]
    everything = envelope(cli, "token", "list", "--all")["items"]
    assert [item["status"] for item in everything] == ["active", "revoked"]


def test_a_token_of_one_workspace_needs_a_member_of_it(cli: Cli, running: PlatformServices) -> None:
    running.workspaces.create("moss")
    done = cli("platform", "token", "create", "--workspace", "moss")
    assert done.status == 1
    assert "osmosis platform member add moss admin@localhost" in done.err
    assert cli("platform", "member", "add", "moss", "admin@localhost").status == 0
    assert envelope(cli, "token", "create", "-w", "moss")["resource"]["workspace"] == "moss"


def test_a_user_is_added_with_a_password_that_is_shown_once(cli: Cli, running: PlatformServices) -> None:
    added = envelope(cli, "user", "add", "Mara@fern.example", "--name", "Mara", "-w", "default")["resource"]
    assert added["email"] == "mara@fern.example"
    assert running.accounts.check_password("mara@fern.example", added["password"]) is not None
    listed = cli("platform", "user", "list", "--json")
    assert added["password"] not in listed.out
    assert [user["workspaces"] for user in json.loads(listed.out)["items"]] == [["default"], ["default"]]


def test_a_password_can_come_from_standard_input(
    cli: Cli, running: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("correct horse battery\n"))
    done = cli("platform", "user", "add", "mara@fern.example", "--password-stdin", "--json")
    assert done.status == 0 and "correct horse" not in done.out
    assert running.accounts.check_password("mara@fern.example", "correct horse battery") is not None
    changed = envelope(cli, "user", "password", "mara@fern.example")["resource"]
    assert running.accounts.check_password("mara@fern.example", changed["password"]) is not None


def test_workspaces_and_members(cli: Cli, running: PlatformServices) -> None:
    assert envelope(cli, "workspace", "add", "fern")["resource"]["owner"] == "admin@localhost"
    running.accounts.create_user("tom@fern.example")
    assert envelope(cli, "member", "add", "fern", "tom@fern.example", "--role", "admin")
    fern = envelope(cli, "workspace", "list")["items"][1]
    assert fern["members"] == [
        {"email": "admin@localhost", "role": "owner"},
        {"email": "tom@fern.example", "role": "admin"},
    ]
    assert cli("platform", "member", "remove", "fern", "tom@fern.example", "-y").status == 0
    assert len(envelope(cli, "workspace", "list")["items"][1]["members"]) == 1
    assert cli("platform", "workspace", "add", "FERN").status == 1
    assert cli("platform", "member", "add", "fern", "tom@fern.example", "--role", "king").status == 2


def test_each_operation_prints_the_next_step(cli: Cli, running: PlatformServices) -> None:
    url = "https://git.fern.example/agents.git"
    added = cli("platform", "user", "add", "mara@fern.example").out
    assert "Added mara@fern.example. Password: " in added and "http://127.0.0.1:8733/device" in added
    disabled = cli("platform", "user", "disable", "mara@fern.example", "--yes").out
    assert "osmosis platform user enable mara@fern.example" in disabled
    workspace = cli("platform", "workspace", "add", "moss", "--owner", "admin@localhost").out
    assert "osmosis platform connect URL --workspace moss" in workspace
    assert cli("platform", "connect", url, "--workspace", "moss", "--no-check").status == 0
    assert f"osmosis platform connect {url}" in cli("platform", "disconnect", url, "--yes").out
    assert "Backups made before this" in cli("platform", "secret-key", "rotate").out


def test_what_is_missing_is_named_with_what_to_do(cli: Cli) -> None:
    done = cli("platform", "token", "create")
    assert done.status == 1
    assert "osmosis platform start" in done.err
    error = json.loads(cli("--json", "platform", "user", "password", "nobody@fern.example").err)["error"]
    assert error["code"] == "NOT_FOUND"


def test_several_users_make_the_choice_explicit(cli: Cli, running: PlatformServices) -> None:
    running.accounts.create_user("mara@fern.example")
    done = cli("platform", "token", "create")
    assert done.status == 1 and "--user" in done.err and "mara@fern.example" in done.err


def test_the_data_directory_is_private(cli: Cli, platform_home: Path) -> None:
    platform_home.mkdir(mode=0o755)
    assert cli("platform", "user", "add", "mara@fern.example").status == 0
    assert platform_home.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OSMOSIS_PLATFORM_PORT", "many"),
        ("OSMOSIS_EXECUTOR_SLOTS", "-1"),
        ("OSMOSIS_DATABASE_URL", "mysql://root:hunter2@host/db"),
        ("OSMOSIS_MINIMUM_CLI_VERSION", "newest"),
        ("OSMOSIS_PUBLIC_URL", "ftp://x"),
    ],
)
def test_a_setting_that_is_no_good_is_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    done = cli("platform", "user", "list")
    assert done.status == 1 and "hunter2" not in done.err
    assert name in done.err or "mysql" in done.err


# -- connect ---------------------------------------------------------------------------------------


def repository(path: Path, origin: str | None = None) -> Path:
    path.mkdir()
    subprocess.run(["git", "init", "-q", str(path)], check=True)
    if origin is not None:
        subprocess.run(["git", "-C", str(path), "remote", "add", "origin", origin], check=True)
    return path


def test_a_url_is_connected_under_the_identity_its_clients_send(cli: Cli, running: PlatformServices) -> None:
    url = "https://gitlab.fern.example/lab/agents.git"
    resource = envelope(cli, "connect", url, "--no-check")["resource"]
    assert resource["identity"] == identify_origin(url).identity
    assert (resource["clone_url"], resource["workspace"]) == (url, "default")
    named = envelope(
        cli, "connect", "ssh://git@host/x.git", "--identity", "Fern/Agents", "--branch", "main", "--no-check"
    )
    assert named["resource"]["identity"] == "fern/agents"
    assert named["resource"]["default_branch"] == "main"


def test_a_checkout_is_cloned_from_where_it_is_and_known_by_its_origin(
    cli: Cli, running: PlatformServices, tmp_path: Path
) -> None:
    root = repository(tmp_path / "agents", "git@github.com:Fern/Agents.git")
    (root / "rollouts").mkdir()
    resource = envelope(cli, "connect", str(root / "rollouts"))["resource"]
    assert (resource["identity"], resource["clone_url"]) == ("fern/agents", str(root))


def test_a_repository_without_an_origin_is_known_by_its_path(
    cli: Cli, running: PlatformServices, tmp_path: Path
) -> None:
    root = repository(tmp_path / "agents")
    done = envelope(cli, "connect", str(root))
    assert done["resource"]["identity"] == identify_origin(str(root)).identity
    assert "remote add origin" in cli("platform", "connect", str(root), "--plain").out
    bare = tmp_path / "bare.git"
    subprocess.run(["git", "init", "-q", "--bare", str(bare)], check=True)
    assert envelope(cli, "connect", str(bare))["resource"]["clone_url"] == str(bare)


def test_a_repository_that_is_its_own_origin_is_not_told_to_connect_itself_again(
    cli: Cli, running: PlatformServices, tmp_path: Path
) -> None:
    root = repository(tmp_path / "agents", str(tmp_path / "agents"))
    done = cli("platform", "connect", str(root), "--plain")
    assert done.status == 0
    assert "nothing needs to be pushed" in done.out
    assert "osmosis platform connect" not in done.out


def test_a_relative_origin_is_named_by_its_place(cli: Cli, running: PlatformServices, tmp_path: Path) -> None:
    bare = tmp_path / "bare.git"
    subprocess.run(["git", "init", "-q", "--bare", str(bare)], check=True)
    root = repository(tmp_path / "agents", "../bare.git")
    done = cli("platform", "connect", str(root), "--plain")
    assert f"osmosis platform connect {bare}" in done.out
    assert envelope(cli, "connect", str(root))["resource"]["identity"] == identify_origin(str(bare)).identity


def test_whatever_a_repository_is_called_its_origin_goes_on_to_mean_it(
    cli: Cli, running: PlatformServices, tmp_path: Path
) -> None:
    url = "https://gitlab.fern.example/lab/agents.git"
    sent = identify_origin(url).identity
    first = envelope(cli, "connect", url, "--no-check")["resource"]
    named = envelope(cli, "connect", url, "--identity", "Fern/Agents", "--no-check")["resource"]
    assert (named["id"], named["identity"]) == (first["id"], "fern/agents")
    assert named["identities"] == sorted(["fern/agents", sent])
    again = envelope(cli, "connect", url, "--identity", "fern/tools", "--no-check")["resource"]
    assert again["id"] == first["id"]
    assert again["identities"] == sorted(["fern/agents", "fern/tools", sent])
    listed = envelope(cli, "workspace", "list")["items"]
    assert [found["identity"] for found in listed[0]["repositories"]] == ["fern/tools"]


def test_an_identity_can_be_given_to_an_origin_that_names_none(
    cli: Cli, running: PlatformServices, tmp_path: Path
) -> None:
    root = repository(tmp_path / "agents", "https://www.github.com/fern/agents.git")
    assert cli("platform", "connect", str(root)).status == 1
    resource = envelope(cli, "connect", str(root), "--identity", "fern/agents")["resource"]
    assert resource["identities"] == sorted(["fern/agents", identify_origin(str(root)).identity])


def test_an_origin_that_means_another_repository_is_told(
    cli: Cli, running: PlatformServices, tmp_path: Path
) -> None:
    running.workspaces.create("moss")
    url = "https://git.example/x.git"
    assert cli("platform", "connect", url, "-w", "default", "--no-check").status == 0
    done = cli("platform", "connect", url, "-w", "moss", "--identity", "moss/x", "--no-check", "--json")
    assert done.status == 0
    assert json.loads(done.out)["resource"]["identities"] == ["moss/x"]
    assert identify_origin(url).identity in json.loads(done.err)["warning"]["message"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere", "no directory"),
        (".", "not a Git repository"),
        ("ext::sh -c touch%20/tmp/x", "remote helper"),
        ("https://mara:hunter2@git.example/x.git", "credentials"),
        ("https://git.example/", "repository"),
    ],
)
def test_what_cannot_be_cloned_is_refused(
    cli: Cli, running: PlatformServices, source: str, words: str
) -> None:
    done = cli("platform", "connect", source)
    assert done.status == 1
    assert words in done.err and "hunter2" not in done.err


def test_an_identity_of_another_workspace_is_a_conflict(cli: Cli, running: PlatformServices) -> None:
    running.workspaces.create("moss")
    url = "https://git.example/x.git"
    assert cli("platform", "connect", url).status == 1  # which of the two?
    assert cli("platform", "connect", url, "-w", "moss", "--no-check").status == 0
    error = json.loads(cli("--json", "platform", "connect", url, "-w", "default", "--no-check").err)["error"]
    assert error["code"] == "CONFLICT"


def test_users_are_disabled_enabled_and_removed(cli: Cli, running: PlatformServices) -> None:
    envelope(cli, "user", "add", "mara@fern.example")
    moss = running.workspaces.create("moss")
    mara = running.accounts.find_user("mara@fern.example")
    running.workspaces.add_member(moss.id, mara.id, "owner")
    assert cli("platform", "user", "disable", "mara@fern.example", "--plain").status == 1
    assert envelope(cli, "user", "disable", "mara@fern.example", "--yes")["status"] == "success"
    assert envelope(cli, "user", "disable", "mara@fern.example", "--yes")["status"] == "noop"
    assert {user["email"]: user["status"] for user in envelope(cli, "user", "list")["items"]} == {
        "admin@localhost": "active",
        "mara@fern.example": "disabled",
    }
    refused = cli("platform", "token", "create", "-u", "mara@fern.example", "--plain")
    assert refused.status == 1 and "user enable mara@fern.example" in refused.err
    assert envelope(cli, "user", "enable", "mara@fern.example")["status"] == "success"
    removed = cli("platform", "user", "remove", "mara@fern.example", "--yes", "--plain")
    assert removed.status == 0
    assert "moss has no owner now" in removed.out + removed.err
    again = cli("platform", "user", "remove", "mara@fern.example", "--yes", "--plain")
    assert again.status == 1 and "no user mara@fern.example" in again.err


def test_the_last_administrator_stays(cli: Cli, running: PlatformServices) -> None:
    for verb in ("disable", "remove"):
        refused = cli("platform", "user", verb, "admin@localhost", "--yes", "--plain")
        assert refused.status == 1
        assert "last administrator" in refused.err and "--admin" in refused.err


def test_the_secret_key_is_rotated(cli: Cli, running: PlatformServices) -> None:
    moss = running.workspaces.create("moss")
    admin = running.accounts.find_user("admin@localhost")
    running.secrets.put(moss.id, admin.id, "API_KEY", "sk-canary", "workspace")
    done = envelope(cli, "secret-key", "rotate")
    assert done["resource"] == {"resealed": 1, "forgotten_keys": 0, "damaged": []}
    plain = cli("platform", "secret-key", "rotate", "--plain")
    assert plain.status == 0 and "1 secret sealed anew" in plain.out


def committed(path: Path) -> Path:
    """A repository with a commit on its branch ``main``."""
    repository(path)
    who = ("-c", "user.name=Mara", "-c", "user.email=mara@fern.example")
    for command in (("checkout", "-q", "-b", "main"), ("commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", "-C", str(path), *who, *command], check=True)
    return path


def test_what_does_not_clone_is_not_connected_unless_it_is_to_be(
    cli: Cli, running: PlatformServices, tmp_path: Path
) -> None:
    gone = f"file://{tmp_path / 'gone.git'}"
    error = json.loads(cli("--json", "platform", "connect", gone).err)["error"]
    assert "does not appear to be a git repository" in error["message"]
    assert "--no-check" in error["hint"]
    assert envelope(cli, "repository", "list")["items"] == []
    assert cli("platform", "connect", gone, "--no-check").status == 0


def test_a_branch_that_is_not_there_is_not_connected(
    cli: Cli, running: PlatformServices, tmp_path: Path
) -> None:
    root = committed(tmp_path / "agents")
    done = cli("platform", "connect", str(root), "--branch", "mian")
    assert (done.status, "has no branch 'mian'" in done.err, "did you mean main?" in done.err) == (
        1,
        True,
        True,
    )
    assert envelope(cli, "connect", str(root), "--branch", "main")["resource"]["default_branch"] == "main"
    empty = repository(tmp_path / "empty")
    assert "has no commit yet" in cli("platform", "connect", str(empty), "--plain").err


def test_repositories_are_listed_with_where_they_are_cloned_from(
    cli: Cli, running: PlatformServices, tmp_path: Path
) -> None:
    assert "osmosis platform connect" in cli("platform", "repository", "list").out
    root = committed(tmp_path / "agents")
    connected = envelope(cli, "connect", str(root), "--identity", "fern/agents")["resource"]
    running.rollouts.sync(connected["id"])
    running.workspaces.create("moss")
    (item,) = envelope(cli, "repository", "list")["items"]
    assert (item["identity"], item["workspace"], item["clone_url"]) == ("fern/agents", "default", str(root))
    assert (item["identities"], item["sync_error"]) == (connected["identities"], None)
    assert len(item["last_synced_sha"]) == 40 and item["last_synced_at"].endswith("Z")
    assert envelope(cli, "repository", "list", "-w", "moss")["items"] == []
    for mode in ((), ("--plain",)):
        assert "fern/agents" in cli("platform", "repository", "list", *mode).out
    assert cli("platform", "repository", "list", "-w", "mos").status == 1


def test_a_repository_is_disconnected_by_any_of_its_names(
    cli: Cli, running: PlatformServices, tmp_path: Path, platform_home: Path
) -> None:
    root = committed(tmp_path / "agents")
    for name in ("fern/agents", identify_origin(str(root)).identity, str(root)):
        connected = envelope(cli, "connect", str(root), "--identity", "fern/agents")["resource"]
        running.rollouts.sync(connected["id"])
        mirror = platform_home / "git" / f"{connected['id']}.git"
        assert mirror.is_dir()
        asked = json.loads(cli("--json", "platform", "disconnect", name).err)["error"]
        assert asked["code"] == "INTERACTIVE_REQUIRED" and mirror.is_dir()
        done = envelope(cli, "disconnect", name, "--yes")
        assert (done["operation"], done["resource"]["identity"]) == ("platform.disconnect", "fern/agents")
        assert not mirror.exists()
        assert envelope(cli, "repository", "list")["items"] == []


def test_a_repository_that_is_not_connected_is_told_with_the_one_that_is(
    cli: Cli, running: PlatformServices, tmp_path: Path
) -> None:
    assert "osmosis platform repository list" in cli("platform", "disconnect", "fern/agents", "-y").err
    envelope(cli, "connect", str(committed(tmp_path / "agents")), "--identity", "fern/agents")
    done = cli("platform", "disconnect", "fern/agnets", "-y")
    assert (done.status, "did you mean fern/agents?" in done.err) == (1, True)


def test_runs_that_have_not_begun_are_told_before_their_repository_goes(
    cli: Cli, running: PlatformServices, tmp_path: Path
) -> None:
    connected = envelope(cli, "connect", str(committed(tmp_path / "agents")))["resource"]
    described = {
        "kind": "eval",
        "status": "pending",
        "request": {},
        "rollout_name": "x",
        "dataset_name": "x",
        "model_path": "x",
    }
    home = running.workspaces.find("default")
    with running.db.transaction() as session:
        session.add(
            DbRun(
                **described,
                id="run_1",
                workspace_id=home.id,
                repository_id=connected["id"],
                name="amber-otter-42",
                created_at=running.clock.now(),
            )
        )
    done = cli("platform", "disconnect", connected["identity"], "--yes", "--plain")
    assert (done.status, "1 pending run will fail without its code: amber-otter-42" in done.err) == (0, True)
    with running.db.session() as session:
        run = session.get(DbRun, "run_1")
        assert run is not None and run.repository_id is None
