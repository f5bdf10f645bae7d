"""An installation is brought up to date from where it came, never from an index that has another project's package."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import pytest

from osmosis_ai.errors import install_command
from osmosis_ai.installation import InstallationSource, installation_source
from osmosis_ai.services import upgrade
from osmosis_ai.services.upgrade import CommandRun
from tests.cli.conftest import Cli
from tests.workspace.builders import git, make_repository

OURS = "0.3.10"


class Installation:
    """An installation that a test describes, and what was run to upgrade it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._info, self.prefix = root / "osmosis_ai.dist-info", root / "environment"
        self._info.mkdir()
        self.prefix.mkdir()
        self.ran: list[list[str]] = []
        self.answers: Callable[[Sequence[str]], CommandRun] = lambda words: CommandRun(0, "done\n")
        distribution = metadata.PathDistribution(self._info)
        monkeypatch.setattr(upgrade, "installed_distribution", lambda: distribution)
        monkeypatch.setattr(upgrade, "__version__", OURS)
        monkeypatch.setattr(upgrade.upgrade, "__defaults__", (self._run,))
        monkeypatch.setattr(sys, "prefix", str(self.prefix))

    def came_from(self, direct_url: object, installer: str = "pip") -> None:
        if direct_url is not None:
            (self._info / "direct_url.json").write_text(json.dumps(direct_url))
        (self._info / "INSTALLER").write_text(f"{installer}\n")

    def _run(self, words: Sequence[str]) -> CommandRun:
        self.ran.append(list(words))
        return self.answers(words)


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    return Installation(tmp_path, monkeypatch)


def write_version(root: Path, version: str) -> None:
    (root / "src/osmosis_ai").mkdir(parents=True, exist_ok=True)
    (root / "src/osmosis_ai/_version.py").write_text(f'__version__ = "{version}"\n')


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone whose upstream can be given further commits at ``upstream``."""
    upstream = make_repository(tmp_path / "upstream")
    write_version(upstream, OURS)
    (upstream / "pyproject.toml").write_text("[project]\n")
    git(upstream, "add", "-A")
    git(upstream, "commit", "-qm", "one")
    git(tmp_path, "clone", "-q", str(upstream), str(tmp_path / "checkout"))
    return tmp_path / "checkout"


def commit(root: Path, path: str, text: str) -> str:
    (root / path).write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-qm", path)
    return git(root, "rev-parse", "HEAD")


def editable(root: Path) -> object:
    return {"url": root.as_uri(), "dir_info": {"editable": True}}


def test_a_checkout_takes_the_commits_of_its_upstream(
    cli: Cli, installation: Installation, checkout: Path
) -> None:
    installation.came_from(editable(checkout))
    envelope = json.loads(cli("upgrade", "--json").out)
    assert (envelope["status"], envelope["operation"]) == ("no_update", "upgrade")
    assert envelope["resource"] == {
        "installed_version": OURS,
        "latest_version": OURS,
        "method": "pip",
        "source": {"kind": "directory", "location": str(checkout)},
    }
    write_version(checkout.parent / "upstream", "0.3.11")
    commit(checkout.parent / "upstream", "README.md", "new")
    outcome = cli("upgrade", "--json")
    resource = json.loads(outcome.out)["resource"]
    assert (outcome.status, json.loads(outcome.out)["status"]) == (0, "success")
    assert (resource["latest_version"], resource["stdout"]) == ("0.3.11", "done\n")
    assert resource["command"] == f"git -C {checkout} merge --ff-only origin/main"
    assert installation.ran == [["git", "-C", str(checkout), "merge", "--ff-only", "origin/main"]]


def test_a_checkout_whose_requirements_changed_is_installed_again(
    cli: Cli, installation: Installation, checkout: Path
) -> None:
    installation.came_from(editable(checkout))
    commit(checkout.parent / "upstream", "pyproject.toml", "[project]\nname = 'x'\n")
    assert cli("upgrade", "--plain").out == f"Upgraded Osmosis from {OURS} to {OURS}.\n"
    pip = [sys.executable, "-m", "pip", "install"]
    assert installation.ran[1:] == [
        [*pip, "--force-reinstall", "--no-deps", "-e", str(checkout)],
        [*pip, "-e", str(checkout)],
    ]


def test_a_checkout_without_an_upstream_is_told_what_to_do(
    cli: Cli, installation: Installation, tmp_path: Path
) -> None:
    root = make_repository(tmp_path / "alone")
    installation.came_from(editable(root))
    outcome = cli("upgrade")
    assert (outcome.status, outcome.out) == (1, "")
    assert f"hint: by hand: git -C {root} pull --ff-only" in outcome.err
    assert installation.ran == []


def test_a_wheel_gives_way_to_the_newest_beside_it(
    cli: Cli, installation: Installation, tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for version in (OURS, "0.3.9", "0.3.12", "0.3.11"):
        (wheels / f"osmosis_ai-{version}-py3-none-any.whl").touch()
    for other in ("osmosis_aid-9.0-py3-none-any.whl", "notes.txt", "osmosis_ai-new.whl"):
        (wheels / other).touch()
    installation.came_from(
        {"url": (wheels / f"osmosis_ai-{OURS}-py3-none-any.whl").as_uri(), "archive_info": {}}
    )
    resource = json.loads(cli("upgrade", "--json").out)["resource"]
    assert resource["latest_version"] == "0.3.12"
    assert [words[-1] for words in installation.ran] == [
        str(wheels / "osmosis_ai-0.3.12-py3-none-any.whl")
    ] * 2
    (wheels / "osmosis_ai-0.3.12-py3-none-any.whl").unlink()
    (wheels / "osmosis_ai-0.3.11-py3-none-any.whl").unlink()
    assert json.loads(cli("upgrade", "--json").out)["status"] == "no_update"


def test_a_copy_of_a_repository_follows_its_branch(
    cli: Cli, installation: Installation, checkout: Path
) -> None:
    upstream = checkout.parent / "upstream"
    first = git(upstream, "rev-parse", "HEAD")
    recorded = {"vcs": "git", "requested_revision": "main", "commit_id": first}
    installation.came_from({"url": upstream.as_uri(), "vcs_info": recorded})
    assert json.loads(cli("upgrade", "--json").out)["status"] == "no_update"
    commit(upstream, "README.md", "new")
    assert cli("upgrade").status == 0
    assert installation.ran[-1][-1] == f"osmosis-ai @ git+{upstream.as_uri()}@main"


@pytest.mark.parametrize("by", ["uv_tool", "pipx"])
def test_a_tool_makes_its_environment_anew_with_the_extras_it_had(
    cli: Cli, installation: Installation, tmp_path: Path, by: str
) -> None:
    write_version(tmp_path / "tree", "0.3.11")
    installation.came_from({"url": (tmp_path / "tree").as_uri(), "dir_info": {}}, installer="uv")
    if by == "uv_tool":
        (installation.prefix / "uv-receipt.toml").write_text(
            '[tool]\nrequirements = [{ name = "osmosis-ai", extras = ["eval", "platform"], directory = "/x" }]\n'
        )
        wanted = ["uv", "tool", "install", "--force", "--reinstall-package", "osmosis-ai"]
    else:
        (installation.prefix / "pipx_metadata.json").write_text(
            json.dumps({"main_package": {"package_or_url": "/x[eval,platform]"}})
        )
        wanted = ["pipx", "install", "--force"]
    resource = json.loads(cli("upgrade", "--json").out)["resource"]
    assert resource["method"] == by
    assert installation.ran == [[*wanted, f"{tmp_path / 'tree'}[eval,platform]"]]


@pytest.mark.parametrize(
    "recorded, said",
    [
        (None, "another project's package"),
        ([], "another project's package"),
        ({"url": "https://user:hunter2hunter2@host/osmosis_ai-0.3.10-py3-none-any.whl"}, "names one file"),
        ({"url": "file:///gone/osmosis_ai-0.3.10-py3-none-any.whl", "archive_info": {}}, "cannot be read"),
        ({"url": "file:///gone", "dir_info": {}}, "cannot be read"),
    ],
)
def test_where_nobody_can_tell_what_is_newer_nothing_is_installed_and_the_way_out_is_said(
    cli: Cli, installation: Installation, recorded: object, said: str
) -> None:
    installation.came_from(recorded)
    outcome = cli("upgrade", "--json")
    error = json.loads(outcome.err.splitlines()[-1])["error"]
    assert (outcome.status, outcome.out, error["code"]) == (1, "", "PLATFORM_ERROR")
    assert said in error["message"]
    assert error["hint"].startswith("by hand: pip install ")
    assert "hunter2" not in outcome.err
    assert installation.ran == []


def test_a_command_that_fails_ends_the_upgrade_with_what_is_left_to_run(
    cli: Cli, installation: Installation, tmp_path: Path
) -> None:
    write_version(tmp_path / "tree", "0.3.11")
    installation.came_from({"url": (tmp_path / "tree").as_uri(), "dir_info": {}})
    installation.answers = lambda words: CommandRun(1, stderr="no network\n")
    outcome = cli("upgrade", "--json")
    error = json.loads(outcome.err.splitlines()[-1])["error"]
    assert (outcome.status, error["code"]) == (1, "PLATFORM_ERROR")
    assert "no network" in error["message"]
    assert error["details"].keys() >= {"installed_version", "latest_version", "method", "command", "stderr"}
    assert len(installation.ran) == 1
    assert error["hint"].count("pip install") == 2


@pytest.mark.integration
def test_what_builds_a_newer_version_gets_no_key_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-the-users-own")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example")
    shown = upgrade.run_command(
        [sys.executable, "-c", "import os; print(*sorted(os.environ))"]
    ).stdout.split()
    assert "PIP_INDEX_URL" in shown and "PATH" in shown
    assert "OPENAI_API_KEY" not in shown


@pytest.mark.integration
def test_a_command_that_cannot_be_run_or_takes_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert upgrade.run_command(["/nowhere/installer"]).status == 1
    monkeypatch.setattr(upgrade, "COMMAND_TIMEOUT_S", 0.01)
    stopped = upgrade.run_command([sys.executable, "-c", "import time; time.sleep(60)"])
    assert (stopped.status, "longer than" in stopped.stderr) == (1, True)


def test_no_way_to_install_this_again_names_it_without_its_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
