"""Worker tokens, as an operator makes and revokes them on the platform's machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.platform.accounts import bootstrap
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.services import PlatformServices, build_services
from osmosis_ai.platform.worker_access import WorkerRefused
from tests.cli.conftest import Cli
from tests.logins import hash_passwords_quickly
from tests.platform.databases import put_migrated_database
from tests.platform.test_worker_access import offer


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlatformServices:
    """A platform that has been started once and is open in this process."""
    home = tmp_path / "platform"
    monkeypatch.setenv("OSMOSIS_HOME", str(home))
    hash_passwords_quickly(monkeypatch)
    put_migrated_database(home)
    services = build_services(PlatformConfig(home=home))
    bootstrap(services.db, services.clock)
    return services


def envelope(cli: Cli, *arguments: str) -> dict[str, Any]:
    done = cli("--json", "platform", "worker-token", *arguments)
    assert done.status == 0, done.err
    parsed: dict[str, Any] = json.loads(done.out)
    return parsed


def test_a_worker_token_is_printed_alone_on_stdout_and_lets_a_machine_in(
    cli: Cli, running: PlatformServices
) -> None:
    done = cli("platform", "worker-token", "create", "--pool", "gpu", "--plain")
    plain = done.out.strip()
    assert done.status == 0 and plain.startswith("osmw_") and len(plain.split()) == 1
    assert plain not in done.err
    assert running.worker_access.authorize_claim(plain, offer()).pool == "gpu"


def test_a_worker_token_is_written_for_its_owner_alone_and_never_shown(
    cli: Cli, running: PlatformServices, tmp_path: Path
) -> None:
    file = tmp_path / "gpu.token"
    home = running.workspaces.all()[0]
    made = cli("platform", "worker-token", "create", "--pool", "gpu", "-w", home.name, "--output", str(file))
    plain = file.read_text().strip()
    assert made.status == 0 and plain not in made.out + made.err and str(file) in made.out
    assert f"--pool gpu --token-file {file.name}" in made.out
    assert file.stat().st_mode & 0o777 == 0o600
    assert running.worker_access.authorize_claim(plain, offer()).workspaces == {home.id}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".gpu")] == []


def test_a_file_is_replaced_only_with_force_and_no_token_is_left_of_one_that_was_not_written(
    cli: Cli, running: PlatformServices, tmp_path: Path
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
    cli: Cli, running: PlatformServices, arguments: list[str], status: int, said: str
) -> None:
    done = cli("platform", "worker-token", "create", *arguments)
    assert done.status == status and said in done.err and done.out == ""
    assert running.worker_access.tokens() == []


def test_worker_tokens_are_listed_and_revoked(cli: Cli, running: PlatformServices) -> None:
    made = envelope(cli, "create", "--pool", "gpu", "--name", "basement")["resource"]
    envelope(cli, "create", "--pool", "cpu")
    listed = cli("platform", "worker-token", "list", "--json")
    assert made["token"] not in listed.out
    assert [item["pool"] for item in json.loads(listed.out)["items"]] == ["cpu", "gpu"]

    assert cli("platform", "worker-token", "revoke", made["id"], "--plain").status == 1
    assert cli("platform", "worker-token", "revoke", made["id"], "--yes").status == 0
    assert envelope(cli, "revoke", made["id"])["status"] == "noop"
    with pytest.raises(WorkerRefused):
        running.worker_access.authorize_claim(made["token"], offer())
    assert [item["pool"] for item in envelope(cli, "list")["items"]] == ["cpu"]
    assert [item["status"] for item in envelope(cli, "list", "--all")["items"]] == ["active", "revoked"]
    missing = cli("platform", "worker-token", "revoke", "wkt_none", "--yes")
    assert missing.status == 1 and "osmosis platform worker-token list" in missing.err
