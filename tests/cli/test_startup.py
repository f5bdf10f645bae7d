from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.fixture(autouse=True)
def _environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what the command line sets in this process's environment end with the test."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


def test_the_nearest_env_file_upwards_is_loaded_and_overrides_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("export FAR=1\nNEAR=far\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "a" / ".env").write_text("NEAR=near\nSET='from the file'\nNEW=\"x y\"\n")
    monkeypatch.chdir(inner)
    os.environ["SET"] = "before"
    assert cli("fleet", "bare").status == 0
    assert [os.environ.get(name) for name in ("NEAR", "SET", "NEW", "FAR")] == ["near", "before", "x y", None]


@pytest.mark.parametrize("through", ["option", "variable"])
def test_a_named_env_file_replaces_the_nearest(cli: Cli, tmp_path: Path, through: str) -> None:
    Path(".env").write_text("NEAREST=1\n")
    named = tmp_path / "named.env"
    named.write_text("NAMED=1\n")
    if through == "variable":
        os.environ["OSMOSIS_ENV_FILE"] = str(named)
    assert cli(*(["--env-file", str(named)] if through == "option" else []), "fleet", "bare").status == 0
    assert "NAMED" in os.environ and "NEAREST" not in os.environ


@pytest.mark.parametrize("name", ["absent.env", "."])
def test_an_env_file_that_is_no_file_is_a_usage_error(cli: Cli, name: str) -> None:
    outcome = cli("--env-file", name, "fleet", "bare", "--json")
    assert (outcome.status, outcome.out) == (2, "")
    assert json.loads(outcome.err)["error"]["code"] == "VALIDATION"
    assert json.loads(outcome.err)["error"]["details"] == {"parameter": "--env-file"}


def test_a_bad_line_is_warned_of_by_number_and_never_quoted(cli: Cli) -> None:
    Path(".env").write_text("A=1\nmy secret = 'open\nB=2\n")
    outcome = cli("fleet", "bare", "--plain")
    assert outcome.status == 0
    assert outcome.err == f"warning: {Path.cwd() / '.env'}, line 2: not `NAME=value`, ignored.\n"


def test_an_env_file_that_is_not_utf8_is_an_error(cli: Cli) -> None:
    Path(".env").write_bytes(b"A=\xff\n")
    outcome = cli("fleet", "bare")
    assert outcome.status == 1
    assert "cannot read the environment file" in outcome.err


def test_a_profile_that_environment_and_file_disagree_on_is_a_conflict(cli: Cli) -> None:
    Path(".env").write_text("OSMOSIS_TOKEN=from-the-file\nOSMOSIS_PLATFORM_URL=https://a.example\n")
    os.environ["OSMOSIS_TOKEN"] = "from-the-shell"
    outcome = cli("fleet", "bare", "--json")
    assert outcome.status == 1
    error = json.loads(outcome.err)["error"]
    assert error["code"] == "CONFLICT"
    assert error["details"]["variables"] == ["OSMOSIS_TOKEN"]
    assert "from-the" not in outcome.err


@pytest.mark.parametrize(
    "shell, file",
    [
        ({"OSMOSIS_TOKEN": "same"}, "OSMOSIS_TOKEN=same"),
        ({"OSMOSIS_TOKEN": "t"}, "OSMOSIS_PLATFORM_URL=https://a.example"),
        ({"OSMOSIS_PLATFORM_URL": "https://A.example:443/"}, "OSMOSIS_PLATFORM_URL=a.example"),
        ({"OSMOSIS_TOKEN": ""}, "OSMOSIS_TOKEN=from-the-file"),
    ],
)
def test_a_profile_that_agrees_or_does_not_overlap_is_fine(
    cli: Cli, shell: dict[str, str], file: str
) -> None:
    Path(".env").write_text(file + "\n")
    os.environ.update(shell)
    assert cli("fleet", "bare") == (0, "fleet.noop: noop\n", "")
    name, _, value = file.partition("=")
    assert os.environ[name] == (shell.get(name) or value)


def test_platform_beats_environment_and_file_and_leaves_the_comparison(cli: Cli) -> None:
    Path(".env").write_text("OSMOSIS_PLATFORM_URL=https://file.example\n")
    os.environ["OSMOSIS_PLATFORM_URL"] = "https://shell.example"
    assert cli("--platform", "Platform.Example/", "fleet", "bare").status == 0
    assert os.environ["OSMOSIS_PLATFORM_URL"] == "https://platform.example"


def test_an_insecure_platform_is_warned_of_and_refused(cli: Cli) -> None:
    outcome = cli("--platform", "http://platform.example", "fleet", "bare", "--json")
    assert (outcome.status, outcome.out) == (1, "")
    warning, error = map(json.loads, outcome.err.splitlines())
    assert warning["warning"]["code"] == "INSECURE_PLATFORM_URL"
    assert error["error"]["code"] == "VALIDATION"


def test_an_insecure_platform_can_be_allowed_but_not_silently(cli: Cli) -> None:
    os.environ["OSMOSIS_ALLOW_INSECURE_PLATFORM_URL"] = "1"
    outcome = cli("--platform", "http://platform.example", "fleet", "bare")
    assert (outcome.status, outcome.out) == (0, "fleet.noop: noop\n")
    assert outcome.err.startswith("⚠ http://platform.example is not HTTPS")


def test_a_platform_on_this_machine_needs_no_https(cli: Cli) -> None:
    assert cli("--platform", "localhost:8000", "fleet", "bare") == (0, "fleet.noop: noop\n", "")


def test_an_invalid_platform_is_refused(cli: Cli) -> None:
    outcome = cli("--platform", "https://a.example:port", "fleet", "bare")
    assert outcome.status == 1
    assert "Invalid platform URL 'https://a.example:port'" in outcome.err
