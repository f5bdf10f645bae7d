"""The command that upgrades an installation names where it came from, never an index with another project's package."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from osmosis_ai.errors import install_command
from osmosis_ai.installation import InstallationSource, installation_source
from osmosis_ai.services import upgrade
from tests.cli.conftest import Cli

PIP = f"{sys.executable} -m pip install"


Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Pretend that the package was installed from a URL; return the environment's directory."""
    info, prefix = tmp_path / "osmosis_ai.dist-info", tmp_path / "environment"
    info.mkdir()
    prefix.mkdir()
    distribution = metadata.PathDistribution(info)
    monkeypatch.setattr(upgrade, "installed_distribution", lambda: distribution)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")

    def install(direct_url: object, installer: str = "pip") -> Path:
        if direct_url is not None:
            (info / "direct_url.json").write_text(json.dumps(direct_url))
        (info / "INSTALLER").write_text(f"{installer}\n")
        return prefix

    return install


def test_checkout(cli: Cli, install: Install, tmp_path: Path) -> None:
    checkout = tmp_path / "my checkout"
    (checkout / ".git").mkdir(parents=True)
    install({"url": checkout.as_uri(), "dir_info": {"editable": True}})
    outcome = cli("upgrade", "--json")
    command = (
        f"git -C '{checkout}' pull --ff-only && {PIP} --force-reinstall --no-deps -e '{checkout}' "
        f"&& {PIP} -e '{checkout}'"
    )
    assert (outcome.status, outcome.json["status"], outcome.json["operation"]) == (0, "success", "upgrade")
    assert outcome.resource == {
        "installed_version": cli("--version").out.split()[-1],
        "latest_version": None,
        "method": "pip",
        "command": command,
    }
    for mode in ((), ("--plain",)):
        assert cli("upgrade", *mode).out == f"{command}\n"


def test_repository(cli: Cli, install: Install) -> None:
    recorded = {"vcs": "git", "requested_revision": "main", "commit_id": "0" * 40}
    install({"url": "https://user:hunter2hunter2@host/osmosis.git", "vcs_info": recorded}, installer="uv")
    outcome = cli("upgrade")
    assert outcome.status == 0, outcome.err
    assert outcome.out.startswith("uv pip install --python ") and "hunter2" not in outcome.out
    assert outcome.out.endswith("'osmosis-ai @ git+https://host/osmosis.git@main'\n")


def test_environment_without_pip(
    cli: Cli, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade, "find_spec", lambda _: None)
    install({"url": tmp_path.as_uri(), "dir_info": {}})
    assert cli("upgrade", "--json").resource["method"] == "uv"


@pytest.mark.parametrize(
    ("record", "method", "command"),
    [
        ("uv-receipt.toml", "uv_tool", "uv tool upgrade --reinstall osmosis-ai"),
        ("pipx_metadata.json", "pipx", "pipx reinstall osmosis-ai"),
    ],
)
def test_tools(cli: Cli, install: Install, tmp_path: Path, record: str, method: str, command: str) -> None:
    (install({"url": tmp_path.as_uri(), "dir_info": {}}, installer="uv") / record).touch()
    resource = cli("upgrade", "--json").resource
    assert (resource["method"], resource["command"]) == (method, command)


@pytest.mark.parametrize(
    ("recorded", "origin"),
    [
        (None, "an unknown source"),
        ({"url": "https://user:hunter2hunter2@host/osmosis_ai-0.3.10-py3-none-any.whl"}, "https://host/"),
        ({"url": "file:///w/osmosis_ai-0.3.10-py3-none-any.whl", "archive_info": {}}, "/w/osmosis_ai-0.3.10"),
    ],
)
def test_wheel_or_unknown_source(cli: Cli, install: Install, recorded: object, origin: str) -> None:
    install(recorded)
    outcome = cli("upgrade", "--json")
    error = outcome.error
    assert (outcome.status, outcome.out, error["code"]) == (1, "", "PLATFORM_ERROR")
    assert f"came from {origin}" in error["message"] and "hunter2" not in outcome.err
    assert error["hint"] == "get a newer wheel, then run `pip install WHEEL`"


def test_install_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info = tmp_path / "osmosis_ai.dist-info"
    info.mkdir()
    for recorded, said in [
        ({"url": "file:///w/a%20b", "dir_info": {"editable": True}}, 'pip install -e "/w/a b[eval]"'),
        ({"url": "file:///w/o.whl", "archive_info": {}}, 'pip install "/w/o.whl[eval]"'),
        ({"url": "https://h/o.whl", "archive_info": {}}, 'pip install "osmosis-ai[eval] @ https://h/o.whl"'),
        (
            {"url": "https://h/r.git", "vcs_info": {"vcs": "git", "requested_revision": "v1"}},
            'pip install "osmosis-ai[eval] @ git+https://h/r.git@v1"',
        ),
        ({}, 'pip install ".[eval]" (in a checkout of the Osmosis repository)'),
    ]:
        (info / "direct_url.json").write_text(json.dumps(recorded))
        source = installation_source(metadata.PathDistribution(info))
        monkeypatch.setattr("osmosis_ai.installation.installation_source", lambda found=source: found)
        assert install_command("eval") == said
    assert InstallationSource("unknown").arguments("eval") is None
