"""Administration on the platform's machine: what an operator types and sees."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import OsmosisError
from tests.cli.conftest import Cli
from tests.cli.own_platform import add_pending_run, repository_of
from tests.logins import hash_passwords_quickly
from tests.platform.fake_worker import claim_request


@pytest.fixture(autouse=True)
def platform_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "platform"))
    hash_passwords_quickly(monkeypatch)
    return tmp_path / "platform"


def envelope(cli: Cli, *arguments: str) -> dict[str, Any]:
    done = cli("--json", "platform", *arguments)
    assert done.status == 0, done.err
    parsed: dict[str, Any] = json.loads(done.out)
    return parsed


@pytest.mark.integration
def test_a_token_is_printed_alone_on_stdout_and_works(cli: Cli, running: Any) -> None:
    done = cli("platform", "token", "create", "--plain")
    assert done.status == 0
    plain = done.out.strip()
    assert plain.startswith("osm_") and len(plain.split()) == 1
    assert "admin@localhost" in done.err and plain not in done.err
    assert running.accounts.authenticate(plain).user.email == "admin@localhost"


@pytest.mark.integration
def test_tokens_are_listed_and_revoked(cli: Cli, running: Any) -> None:
    first = envelope(cli, "token", "create", "--name", "laptop")["resource"]
    envelope(cli, "token", "create", "--name", "ci")
    listed = cli("platform", "token", "list", "--json")
    assert first["token"] not in listed.out
    assert [item["name"] for item in json.loads(listed.out)["items"]] == ["ci", "laptop"]

    assert cli("platform", "token", "revoke", first["id"], "--plain").status == 1
    assert cli("platform", "token", "revoke", first["id"], "--yes").status == 0
    assert envelope(cli, "token", "revoke", first["id"])["status"] == "noop"
    with pytest.raises(OsmosisError, match="revoked"):
        running.accounts.authenticate(first["token"])
    assert [item["name"] for item in envelope(cli, "token", "list")["items"]] == ["ci"]
    everything = envelope(cli, "token", "list", "--all")["items"]
    assert [item["status"] for item in everything] == ["active", "revoked"]


@pytest.mark.integration
def test_a_token_of_one_workspace_needs_a_member_of_it(cli: Cli, running: Any) -> None:
    running.workspaces.create("moss")
    done = cli("platform", "token", "create", "--workspace", "moss")
    assert done.status == 1
    assert "osmosis platform member add moss admin@localhost" in done.err
    assert cli("platform", "member", "add", "moss", "admin@localhost").status == 0
    assert envelope(cli, "token", "create", "-w", "moss")["resource"]["workspace"] == "moss"


@pytest.mark.integration
def test_a_user_is_added_with_a_password_that_is_shown_once(cli: Cli, running: Any) -> None:
    added = envelope(cli, "user", "add", "Mara@fern.example", "--name", "Mara", "-w", "default")["resource"]
    assert added["email"] == "mara@fern.example"
    assert running.accounts.check_password("mara@fern.example", added["password"]) is not None
    listed = cli("platform", "user", "list", "--json")
    assert added["password"] not in listed.out
    assert [user["workspaces"] for user in json.loads(listed.out)["items"]] == [["default"], ["default"]]


@pytest.mark.integration
def test_a_password_can_come_from_standard_input(
    cli: Cli, running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("correct horse battery\n"))
    done = cli("platform", "user", "add", "mara@fern.example", "--password-stdin", "--json")
    assert done.status == 0 and "correct horse" not in done.out
    assert running.accounts.check_password("mara@fern.example", "correct horse battery") is not None
    changed = envelope(cli, "user", "password", "mara@fern.example")["resource"]
    assert running.accounts.check_password("mara@fern.example", changed["password"]) is not None


@pytest.mark.integration
def test_workspaces_and_members(cli: Cli, running: Any) -> None:
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


@pytest.mark.integration
def test_the_data_directory_is_private(cli: Cli, platform_home: Path) -> None:
    platform_home.mkdir(mode=0o755)
    assert cli("platform", "user", "add", "mara@fern.example").status == 0
    assert platform_home.stat().st_mode & 0o777 == 0o700


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OSMOSIS_PLATFORM_PORT", "many"),
        ("OSMOSIS_DATABASE_URL", "mysql://root:hunter2@host/db"),
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


@pytest.mark.integration
def test_a_url_is_connected_under_the_identity_its_clients_send(cli: Cli, running: Any) -> None:
    url = "https://gitlab.fern.example/lab/agents.git"
    resource = envelope(cli, "connect", url, "--no-check")["resource"]
    assert resource["identity"] == "gitlab-fern-example/agents-acc046d7"
    assert (resource["clone_url"], resource["workspace"]) == (url, "default")
    named = envelope(
        cli, "connect", "ssh://git@host/x.git", "--identity", "Fern/Agents", "--branch", "main", "--no-check"
    )
    assert named["resource"]["identity"] == "fern/agents"
    assert named["resource"]["default_branch"] == "main"


@pytest.mark.integration
def test_a_checkout_is_cloned_from_where_it_is_and_known_by_its_origin(
    cli: Cli, running: Any, tmp_path: Path
) -> None:
    root = repository(tmp_path / "agents", "git@github.com:Fern/Agents.git")
    (root / "rollouts").mkdir()
    resource = envelope(cli, "connect", str(root / "rollouts"))["resource"]
    assert (resource["identity"], resource["clone_url"]) == ("fern/agents", str(root))


@pytest.mark.integration
def test_whatever_a_repository_is_called_its_origin_goes_on_to_mean_it(
    cli: Cli, running: Any, tmp_path: Path
) -> None:
    url = "https://gitlab.fern.example/lab/agents.git"
    sent = "gitlab-fern-example/agents-acc046d7"
    first = envelope(cli, "connect", url, "--no-check")["resource"]
    named = envelope(cli, "connect", url, "--identity", "Fern/Agents", "--no-check")["resource"]
    assert (named["id"], named["identity"]) == (first["id"], "fern/agents")
    assert named["identities"] == sorted(["fern/agents", sent])
    again = envelope(cli, "connect", url, "--identity", "fern/tools", "--no-check")["resource"]
    assert again["id"] == first["id"]
    assert again["identities"] == sorted(["fern/agents", "fern/tools", sent])
    listed = envelope(cli, "workspace", "list")["items"]
    assert [found["identity"] for found in listed[0]["repositories"]] == ["fern/tools"]


@pytest.mark.integration
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
def test_what_cannot_be_cloned_is_refused(cli: Cli, running: Any, source: str, words: str) -> None:
    done = cli("platform", "connect", source)
    assert done.status == 1
    assert words in done.err and "hunter2" not in done.err


@pytest.mark.integration
def test_an_identity_of_another_workspace_is_a_conflict(cli: Cli, running: Any) -> None:
    running.workspaces.create("moss")
    url = "https://git.example/x.git"
    assert cli("platform", "connect", url).status == 1  # which of the two?
    assert cli("platform", "connect", url, "-w", "moss", "--no-check").status == 0
    error = json.loads(cli("--json", "platform", "connect", url, "-w", "default", "--no-check").err)["error"]
    assert error["code"] == "CONFLICT"


@pytest.mark.integration
def test_users_are_disabled_enabled_and_removed(cli: Cli, running: Any) -> None:
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


@pytest.mark.integration
def test_the_last_administrator_stays_and_the_secret_key_is_rotated(cli: Cli, running: Any) -> None:
    for verb in ("disable", "remove"):
        refused = cli("platform", "user", verb, "admin@localhost", "--yes", "--plain")
        assert refused.status == 1
        assert "last administrator" in refused.err and "--admin" in refused.err

    moss = running.workspaces.create("moss")
    admin = running.accounts.find_user("admin@localhost")
    running.secrets.put(moss.id, admin.id, "API_KEY", "sk-canary", "workspace")
    done = envelope(cli, "secret-key", "rotate")
    assert done["resource"] == {"resealed": 1, "forgotten_keys": 0, "damaged": []}
    plain = cli("platform", "secret-key", "rotate", "--plain")
    assert plain.status == 0 and "1 secret resealed" in plain.out


def committed(path: Path) -> Path:
    """A repository with a commit on its branch ``main``."""
    repository(path)
    who = ("-c", "user.name=Mara", "-c", "user.email=mara@fern.example")
    for command in (("checkout", "-q", "-b", "main"), ("commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", "-C", str(path), *who, *command], check=True)
    return path


@pytest.mark.integration
def test_what_does_not_clone_is_not_connected_unless_it_is_to_be(
    cli: Cli, running: Any, tmp_path: Path
) -> None:
    gone = f"file://{tmp_path / 'gone.git'}"
    error = json.loads(cli("--json", "platform", "connect", gone).err)["error"]
    assert "does not appear to be a git repository" in error["message"]
    assert "--no-check" in error["hint"]
    assert envelope(cli, "repository", "list")["items"] == []
    assert cli("platform", "connect", gone, "--no-check").status == 0


@pytest.mark.integration
def test_a_repository_is_disconnected_by_any_of_its_names(
    cli: Cli, running: Any, tmp_path: Path, platform_home: Path
) -> None:
    root = committed(tmp_path / "agents")
    names = envelope(cli, "connect", str(root), "--identity", "fern/agents")["resource"]["identities"]
    assert len(names) == 2
    for name in (*names, str(root)):
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


@pytest.mark.integration
def test_runs_that_have_not_begun_are_told_before_their_repository_goes(
    cli: Cli, running: Any, tmp_path: Path
) -> None:
    connected = envelope(cli, "connect", str(committed(tmp_path / "agents")))["resource"]
    run = add_pending_run(running, connected["id"], "amber-otter-42")
    done = cli("platform", "disconnect", connected["identity"], "--yes", "--plain")
    assert (done.status, "1 pending run will fail without its code: amber-otter-42" in done.err) == (0, True)
    assert repository_of(running, run) is None


def test_a_worker_token_is_printed_alone_on_stdout_and_lets_a_machine_in(cli: Cli, running: Any) -> None:
    done = cli("platform", "worker-token", "create", "--pool", "gpu", "--plain")
    plain = done.out.strip()
    assert done.status == 0 and plain.startswith("osmw_") and len(plain.split()) == 1
    assert plain not in done.err
    assert running.worker_access.authorize(plain, claim_request()).pool == "gpu"


def test_a_worker_token_is_written_for_its_owner_alone_and_never_shown(
    cli: Cli, running: Any, tmp_path: Path
) -> None:
    file = tmp_path / "gpu.token"
    home = running.workspaces.all()[0]
    made = cli("platform", "worker-token", "create", "--pool", "gpu", "-w", home.name, "--output", str(file))
    plain = file.read_text().strip()
    assert made.status == 0 and plain not in made.out + made.err and str(file) in made.out
    assert f"--pool gpu --token-file {file.name}" in made.out
    assert file.stat().st_mode & 0o777 == 0o600
    assert running.worker_access.authorize(plain, claim_request()).workspaces == {home.id}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".gpu")] == []


def test_a_file_is_replaced_only_with_force_and_no_token_is_left_of_one_that_was_not_written(
    cli: Cli, running: Any, tmp_path: Path
) -> None:
    file = tmp_path / "gpu.token"
    file.write_text("precious")
    asked = ("platform", "worker-token", "create", "--pool", "gpu", "--output")
    refused = cli(*asked, str(file))
    assert refused.status == 1 and "exists" in refused.err and "--force" in refused.err
    assert file.read_text() == "precious"
    refused = cli(*asked, str(tmp_path), "--force")
    assert refused.status == 1 and "is a directory" in refused.err
    assert f"--output {tmp_path / 'worker.token'}" in refused.err.replace("\n", "")
    assert running.worker_access.tokens() == []
    assert cli(*asked, str(file), "--force").status == 0
    assert file.read_text().startswith("osmw_")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--pool", "gpu box"], 1, "'gpu box' must be the name of a pool of workers"),
        (["--pool", "gpu", "--workspace", "moss"], 1, "moss"),
        ([], 2, "--pool"),
        (["--pool", "gpu", "--output", "-"], 2, "without --output it is printed"),
    ],
)
def test_what_is_no_scope_for_a_token_is_refused_in_a_sentence(
    cli: Cli, running: Any, arguments: list[str], status: int, said: str
) -> None:
    done = cli("platform", "worker-token", "create", *arguments)
    assert done.status == status and said in done.err and done.out == ""
    assert running.worker_access.tokens() == []


def test_worker_tokens_are_listed_and_revoked(cli: Cli, running: Any) -> None:
    made = envelope(cli, "worker-token", "create", "--pool", "gpu", "--name", "basement")["resource"]
    envelope(cli, "worker-token", "create", "--pool", "cpu")
    listed = cli("platform", "worker-token", "list", "--json")
    assert made["token"] not in listed.out
    assert [item["pool"] for item in json.loads(listed.out)["items"]] == ["cpu", "gpu"]

    assert cli("platform", "worker-token", "revoke", made["id"], "--plain").status == 1
    assert cli("platform", "worker-token", "revoke", made["id"], "--yes").status == 0
    assert envelope(cli, "worker-token", "revoke", made["id"])["status"] == "noop"
    with pytest.raises(OsmosisError, match="revoked"):
        running.worker_access.authorize(made["token"], claim_request())
    assert [item["pool"] for item in envelope(cli, "worker-token", "list")["items"]] == ["cpu"]
    assert [item["status"] for item in envelope(cli, "worker-token", "list", "--all")["items"]] == [
        "active",
        "revoked",
    ]
    missing = cli("platform", "worker-token", "revoke", "wkt_none", "--yes")
    assert missing.status == 1 and "osmosis platform worker-token list" in missing.err


def test_a_branch_that_is_not_there_is_not_connected(cli: Cli, running: Any, tmp_path: Path) -> None:
    root = committed(tmp_path / "agents")
    done = cli("platform", "connect", str(root), "--branch", "mian")
    assert (done.status, "has no branch 'mian'" in done.err, "did you mean main?" in done.err) == (
        1,
        True,
        True,
    )
    assert envelope(cli, "connect", str(root), "--branch", "main")["resource"]["default_branch"] == "main"
    empty = repository(tmp_path / "empty")
    assert "has no commits yet" in cli("platform", "connect", str(empty), "--plain").err
