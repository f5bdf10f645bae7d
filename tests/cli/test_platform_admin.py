"""Administration on the platform's machine: what an operator types and sees."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.db.tables import DbRun
from tests.cli.conftest import Cli
from tests.logins import hash_passwords_quickly
from tests.platform.fake_worker import claim_request
from tests.workspace.builders import git, make_repository

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def platform_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "platform"))
    hash_passwords_quickly(monkeypatch)
    return tmp_path / "platform"


def envelope(cli: Cli, *arguments: str) -> dict[str, Any]:
    done = cli("--json", "platform", *arguments)
    assert done.status == 0, done.err
    return done.json


@pytest.mark.parametrize(("noun", "scope"), [("token", []), ("worker-token", ["--pool", "gpu"])])
def test_create_list_and_revoke_tokens(cli: Cli, running: Any, noun: str, scope: list[str]) -> None:
    def authorize(token: str) -> None:
        if noun == "token":
            assert running.accounts.authenticate(token).user.email == "admin@localhost"
        else:
            assert running.worker_access.authorize(token, claim_request()).pool == "gpu"

    created = cli("platform", noun, "create", *scope, "--name", "ci", "--plain")
    ci = created.out.strip()
    assert created.status == 0 and len(ci.split()) == 1 and ci not in created.err
    authorize(ci)
    laptop = envelope(cli, noun, "create", *scope, "--name", "laptop")["resource"]
    listed = cli("platform", noun, "list", "--json")
    assert laptop["token"] not in listed.out
    assert [item["name"] for item in listed.json["items"]] == ["laptop", "ci"]

    assert cli("platform", noun, "revoke", laptop["id"], "--plain").status == 1
    authorize(laptop["token"])
    assert cli("platform", noun, "revoke", laptop["id"], "--yes").status == 0
    assert envelope(cli, noun, "revoke", laptop["id"])["status"] == "noop"
    with pytest.raises(OsmosisError, match="revoked"):
        authorize(laptop["token"])
    assert [item["name"] for item in envelope(cli, noun, "list")["items"]] == ["ci"]
    everything = envelope(cli, noun, "list", "--all")["items"]
    assert [item["status"] for item in everything] == ["revoked", "active"]
    missing = cli("platform", noun, "revoke", "none", "--yes")
    assert missing.status == 1 and f"osmosis platform {noun} list" in missing.err


def test_token_of_a_workspace_needs_membership(cli: Cli, running: Any) -> None:
    running.workspaces.create("moss")
    done = cli("platform", "token", "create", "--workspace", "moss")
    assert done.status == 1
    assert "osmosis platform member add moss admin@localhost" in done.err
    assert cli("platform", "member", "add", "moss", "admin@localhost").status == 0
    assert envelope(cli, "token", "create", "-w", "moss")["resource"]["workspace"] == "moss"


def test_add_user(cli: Cli, running: Any) -> None:
    added = envelope(cli, "user", "add", "Mara@fern.example", "--name", "Mara", "-w", "default")["resource"]
    assert added["email"] == "mara@fern.example"
    assert running.accounts.check_password("mara@fern.example", added["password"]) is not None
    listed = cli("platform", "user", "list", "--json")
    assert added["password"] not in listed.out
    assert [user["workspaces"] for user in listed.json["items"]] == [["default"], ["default"]]


def test_password_from_stdin(cli: Cli, running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("correct horse battery\n"))
    done = cli("platform", "user", "add", "mara@fern.example", "--password-stdin", "--json")
    assert done.status == 0 and "correct horse" not in done.out
    assert running.accounts.check_password("mara@fern.example", "correct horse battery") is not None
    changed = envelope(cli, "user", "password", "mara@fern.example")["resource"]
    assert running.accounts.check_password("mara@fern.example", changed["password"]) is not None


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


def test_data_directory_is_private(cli: Cli, platform_home: Path) -> None:
    platform_home.mkdir(mode=0o755)
    assert cli("platform", "user", "add", "mara@fern.example").status == 0
    assert platform_home.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OSMOSIS_PLATFORM_PORT", "many"),
        ("OSMOSIS_DATABASE_URL", "mysql://root:hunter2@host/db"),
        ("OSMOSIS_PUBLIC_URL", "ftp://x"),
    ],
)
def test_invalid_settings(cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    done = cli("platform", "user", "list")
    assert done.status == 1 and "hunter2" not in done.err
    assert name in done.err or "mysql" in done.err


def test_identity_of_a_checkout(cli: Cli, running: Any, tmp_path: Path) -> None:
    root = make_repository(tmp_path / "agents")
    git(root, "remote", "add", "origin", "git@github.com:Fern/Agents.git")
    (root / "rollouts").mkdir()
    resource = envelope(cli, "connect", str(root / "rollouts"))["resource"]
    assert (resource["identity"], resource["clone_url"]) == ("fern/agents", str(root))


def test_identities_of_a_renamed_repository(cli: Cli, running: Any, tmp_path: Path) -> None:
    url = "https://gitlab.fern.example/lab/agents.git"
    sent = "gitlab-fern-example/agents-acc046d7"
    first = envelope(cli, "connect", url, "--no-check")["resource"]
    assert (first["identity"], first["clone_url"], first["workspace"]) == (sent, url, "default")
    named = envelope(cli, "connect", url, "--identity", "Fern/Agents", "--no-check")["resource"]
    assert (named["id"], named["identity"]) == (first["id"], "fern/agents")
    assert named["identities"] == sorted(["fern/agents", sent])
    again = envelope(cli, "connect", url, "--identity", "fern/tools", "--no-check")["resource"]
    assert again["id"] == first["id"]
    assert again["identities"] == sorted(["fern/agents", "fern/tools", sent])
    listed = envelope(cli, "workspace", "list")["items"]
    assert [found["identity"] for found in listed[0]["repositories"]] == ["fern/tools"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere", "does not exist"),
        (".", "not a Git repository"),
        ("ext::sh -c touch%20/tmp/x", "remote helper"),
        ("https://mara:hunter2@git.example/x.git", "credentials"),
        ("https://git.example/", "repository"),
    ],
)
def test_invalid_sources(cli: Cli, running: Any, source: str, words: str) -> None:
    done = cli("platform", "connect", source)
    assert done.status == 1
    assert words in done.err and "hunter2" not in done.err


def test_identity_of_another_workspace(cli: Cli, running: Any) -> None:
    running.workspaces.create("moss")
    url = "https://git.example/x.git"
    assert cli("platform", "connect", url).status == 1  # which of the two?
    assert cli("platform", "connect", url, "-w", "moss", "--no-check").status == 0
    error = cli("--json", "platform", "connect", url, "-w", "default", "--no-check").error
    assert error["code"] == "CONFLICT"


@pytest.mark.parametrize("change", [("add", "--role", "admin"), ("remove", "--yes")])
def test_last_owner_of_a_workspace_stays(cli: Cli, running: Any, change: tuple[str, ...]) -> None:
    moss = running.workspaces.create("moss")
    mara, tom = (running.accounts.create_user(f"{name}@fern.example") for name in ("mara", "tom"))
    running.workspaces.add_member(moss.id, mara.id, "owner")
    running.workspaces.add_member(moss.id, tom.id, "admin")
    verb, *options = change
    refused = cli("platform", "member", verb, "moss", mara.email, *options, "--json")
    assert (refused.status, refused.error["code"]) == (1, "CONFLICT")
    assert refused.error["message"] == "mara@fern.example is the last owner of moss."
    assert refused.error["hint"].endswith("osmosis platform member add moss EMAIL --role owner")
    assert cli("platform", "member", verb, "moss", tom.email, *options).status == 0
    running.workspaces.add_member(moss.id, tom.id, "owner")
    assert cli("platform", "member", verb, "moss", mara.email, *options).status == 0


def test_disable_enable_and_remove_users(cli: Cli, running: Any) -> None:
    envelope(cli, "user", "add", "mara@fern.example")
    moss = running.workspaces.create("moss")
    mara = running.accounts.find_user("mara@fern.example")
    running.workspaces.add_member(moss.id, mara.id, "owner")
    running.accounts.create_token(mara.id, "cli", name="laptop")
    assert cli("platform", "user", "disable", "mara@fern.example", "--plain").status == 1
    assert envelope(cli, "user", "disable", "mara@fern.example", "--yes")["status"] == "success"
    assert envelope(cli, "user", "disable", "mara@fern.example", "--yes")["status"] == "noop"
    assert {user["email"]: user["status"] for user in envelope(cli, "user", "list")["items"]} == {
        "admin@localhost": "active",
        "mara@fern.example": "disabled",
    }
    (token,) = envelope(cli, "token", "list", "-u", "mara@fern.example")["items"]
    assert token["status"] == "disabled"
    refused = cli("platform", "token", "create", "-u", "mara@fern.example", "--plain")
    assert refused.status == 1 and "user enable mara@fern.example" in refused.err
    assert envelope(cli, "user", "enable", "mara@fern.example")["status"] == "success"
    remove = ("platform", "user", "remove", "mara@fern.example", "--yes", "--json")
    assert cli(*remove).error["message"] == "mara@fern.example is the last owner of moss."
    assert cli("platform", "member", "add", "moss", "admin@localhost", "--role", "owner").status == 0
    assert cli(*remove).status == 0
    assert [user["email"] for user in envelope(cli, "user", "list")["items"]] == ["admin@localhost"]


def test_last_administrator_and_secret_key_rotation(cli: Cli, running: Any) -> None:
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
    assert plain.status == 0 and "Encrypted 1 secret with a new key." in plain.out


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a commit on its branch ``main``."""
    root = make_repository(tmp_path / "agents")
    git(root, "commit", "--quiet", "--allow-empty", "--message", "first")
    return root


def test_unreachable_repository(cli: Cli, running: Any, tmp_path: Path) -> None:
    gone = f"file://{tmp_path / 'gone.git'}"
    error = cli("--json", "platform", "connect", gone).error
    assert "does not appear to be a git repository" in error["message"]
    assert "--no-check" in error["hint"]
    assert envelope(cli, "repository", "list")["items"] == []
    assert cli("platform", "connect", gone, "--no-check").status == 0


def test_disconnect_by_any_name(cli: Cli, running: Any, repository: Path, platform_home: Path) -> None:
    connect = ("connect", str(repository), "--identity", "fern/agents")
    names = envelope(cli, *connect)["resource"]["identities"]
    assert len(names) == 2
    for name in (*names, str(repository)):
        connected = envelope(cli, *connect)["resource"]
        running.rollouts.sync(connected["id"])
        mirror = platform_home / "git" / f"{connected['id']}.git"
        assert mirror.is_dir()
        asked = cli("--json", "platform", "disconnect", name).error
        assert asked["code"] == "INTERACTIVE_REQUIRED" and mirror.is_dir()
        done = envelope(cli, "disconnect", name, "--yes")
        assert (done["operation"], done["resource"]["identity"]) == ("platform.disconnect", "fern/agents")
        assert not mirror.exists()
        assert envelope(cli, "repository", "list")["items"] == []


def test_disconnect_with_pending_runs(cli: Cli, running: Any, repository: Path) -> None:
    connected = envelope(cli, "connect", str(repository))["resource"]
    run = {"id": "run_1", "kind": "eval", "name": "amber-otter-42", "status": "pending", "request": {}}
    place = {"workspace_id": running.workspaces.find("default").id, "repository_id": connected["id"]}
    names = dict.fromkeys(("rollout_name", "dataset_name", "model_path"), "x")
    with running.db.transaction() as session:
        session.add(DbRun(**run, **place, **names, created_at=running.clock.now()))
    done = cli("platform", "disconnect", connected["identity"], "--yes", "--plain")
    assert (done.status, "1 pending run will fail without its code: amber-otter-42" in done.err) == (0, True)
    with running.db.session() as session:
        assert session.get_one(DbRun, "run_1").repository_id is None


def test_worker_token_file(cli: Cli, running: Any, tmp_path: Path) -> None:
    file = tmp_path / "gpu.token"
    home = running.workspaces.all()[0]
    made = cli("platform", "worker-token", "create", "--pool", "gpu", "-w", home.name, "--output", str(file))
    plain = file.read_text().strip()
    assert made.status == 0 and plain not in made.out + made.err and str(file) in made.out
    assert f"--pool gpu --token-file {file.name}" in made.out
    assert file.stat().st_mode & 0o777 == 0o600
    assert running.worker_access.authorize(plain, claim_request()).workspaces == {home.id}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".gpu")] == []


def test_existing_worker_token_file(cli: Cli, running: Any, tmp_path: Path) -> None:
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
        (["--pool", "gpu", "--output", "-"], 2, "standard output is the default"),
    ],
)
def test_invalid_worker_token_scopes(
    cli: Cli, running: Any, arguments: list[str], status: int, said: str
) -> None:
    done = cli("platform", "worker-token", "create", *arguments)
    assert done.status == status and said in done.err and done.out == ""
    assert running.worker_access.tokens() == []


def test_missing_branch(cli: Cli, running: Any, repository: Path, tmp_path: Path) -> None:
    connect = ("connect", str(repository), "--branch")
    done = cli("platform", *connect, "mian")
    assert done.status == 1
    assert "has no branch 'mian'" in done.err and "did you mean main?" in done.err
    assert envelope(cli, *connect, "main")["resource"]["default_branch"] == "main"
    empty = make_repository(tmp_path / "empty")
    assert "has no commits yet" in cli("platform", "connect", str(empty), "--plain").err
