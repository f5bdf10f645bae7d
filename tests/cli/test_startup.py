from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.fixture(autouse=True)
def _environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what the command line sets in this process's environment end with the test."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


def repository(root: Path, env: str | None = None) -> Path:
    """A work tree with a `.env`."""
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    if env is not None:
        (root / ".env").write_text(env)
    return root


def test_the_env_file_of_the_workspaces_root_is_read_and_overrides_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = repository(
        tmp_path / "work",
        "export OPENAI_API_KEY='from the root'\nXAI_API_KEY=file\nMISTRAL_API_KEY=\"x y\"\n",
    )
    inner = root / "a" / "b"
    inner.mkdir(parents=True)
    (root / "a" / ".env").write_text("OPENAI_API_KEY=from between\n")
    monkeypatch.chdir(inner)
    os.environ["XAI_API_KEY"] = "before"
    assert cli("fleet", "bare") == (0, "fleet.noop: noop\n", "")
    names = ("OPENAI_API_KEY", "XAI_API_KEY", "MISTRAL_API_KEY")
    assert [os.environ.get(name) for name in names] == ["from the root", "before", "x y"]


def test_without_a_workspace_no_directory_above_is_looked_at(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "a"
    inner.mkdir()
    (tmp_path / ".env").write_text("OPENAI_API_KEY=above\n")
    monkeypatch.chdir(inner)
    assert cli("fleet", "bare").status == 0
    assert "OPENAI_API_KEY" not in os.environ
    (inner / ".env").write_text("OPENAI_API_KEY=here\n")
    assert cli("fleet", "bare") == (0, "fleet.noop: noop\n", "")
    assert os.environ["OPENAI_API_KEY"] == "here"


@pytest.mark.parametrize("through", ["option", "variable"])
def test_a_named_env_file_is_read_instead_under_the_same_rules(
    cli: Cli, tmp_path: Path, through: str
) -> None:
    Path(".env").write_text("XAI_API_KEY=1\n")
    named = tmp_path / "named.env"
    named.write_text("OPENAI_API_KEY=1\nOSMOSIS_TOKEN=t\nLD_PRELOAD=/evil.so\n")
    named.chmod(0o666)
    if through == "variable":
        os.environ["OSMOSIS_ENV_FILE"] = str(named)
    outcome = cli(*(["--env-file", str(named)] if through == "option" else []), "fleet", "bare", "--plain")
    assert outcome.status == 0
    assert outcome.err == f"warning: {named}: ignored OSMOSIS_TOKEN, LD_PRELOAD (not accepted from a file)\n"
    assert "OPENAI_API_KEY" in os.environ
    assert not {"XAI_API_KEY", "LD_PRELOAD", "OSMOSIS_TOKEN"} & os.environ.keys()


@pytest.mark.parametrize("name", ["absent.env", "."])
def test_an_env_file_that_is_no_file_is_a_usage_error(cli: Cli, name: str) -> None:
    outcome = cli("--env-file", name, "fleet", "bare", "--json")
    assert (outcome.status, outcome.out) == (2, "")
    assert json.loads(outcome.err)["error"]["code"] == "VALIDATION"
    assert json.loads(outcome.err)["error"]["details"] == {"parameter": "--env-file"}


STARTS_PROGRAMS = """
LD_PRELOAD DYLD_INSERT_LIBRARIES PATH PYTHONPATH PYTHONSTARTUP BASH_ENV ENV IFS GIT_CONFIG_COUNT GIT_SSH_COMMAND
SSH_ASKPASS PIP_INDEX_URL UV_INDEX_URL npm_config_registry HTTPS_PROXY https_proxy SSL_CERT_FILE NODE_OPTIONS
AWS_CONFIG_FILE HOME EDITOR OSMOSIS_CONFIG_DIR OSMOSIS_ENV_FILE OSMOSIS_ALLOW_INSECURE_PLATFORM_URL OSMOSIS_TOKEN
OSMOSIS_TOKEN_PLATFORM_URL OSMOSIS_INFERENCE_URL _OSMOSIS_LIFELINE_FD
"""


@pytest.mark.parametrize("name", STARTS_PROGRAMS.split())
def test_what_changes_how_programs_start_is_never_taken_from_a_file(cli: Cli, name: str) -> None:
    Path(".env").write_text(f"{name}=/evil\n")
    before = os.environ.get(name)
    outcome = cli("fleet", "bare", "--plain")
    assert (outcome.status, outcome.out) == (0, "fleet.noop: noop\n")
    assert outcome.err == f"warning: {Path.cwd() / '.env'}: ignored {name} (not accepted from a file)\n"
    assert os.environ.get(name) == before
    assert "/evil" not in outcome.err


def test_a_platform_url_in_a_file_is_answered_with_the_login_that_replaces_it(cli: Cli) -> None:
    Path(".env").write_text("OSMOSIS_PLATFORM_URL=https://evil.example\n")
    outcome = cli("fleet", "bare", "--plain")
    assert outcome.err == (
        f"warning: {Path.cwd() / '.env'}: ignored OSMOSIS_PLATFORM_URL (not accepted from a file; use "
        "`osmosis --platform URL login`)\n"
    )
    assert "OSMOSIS_PLATFORM_URL" not in os.environ


def test_a_cloud_setting_cannot_lead_away_from_the_cloud(cli: Cli) -> None:
    Path(".env").write_text("AWS_REGION=eu-west-1\nAWS_REGION_NAME=evil.example/\n")
    assert "ignored AWS_REGION_NAME (not accepted from a file)" in cli("fleet", "bare").err
    assert os.environ["AWS_REGION"] == "eu-west-1"
    assert "AWS_REGION_NAME" not in os.environ


REMOTE, LOCAL = "https://elsewhere.example/v1", "http://localhost:8000/v1"


def variables(values: dict[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in values.items())


@pytest.mark.parametrize(
    "file, shell",
    [
        ({"OPENAI_BASE_URL": REMOTE, "OPENAI_API_KEY": "file"}, {}),
        ({"OPENAI_BASE_URL": REMOTE, "OPENAI_API_KEY": "same"}, {"OPENAI_API_KEY": "same"}),
        ({"OPENAI_BASE_URL": LOCAL}, {}),
        ({"OPENAI_API_BASE": "http://[::1]:1"}, {}),
        ({"HOSTED_VLLM_API_BASE": REMOTE}, {}),  # takes no key
        ({"OLLAMA_API_BASE": "127.0.0.1:11434"}, {}),
        ({"OPENAI_BASE_URL": REMOTE, "OPENAI_API_KEY": "file"}, {"ANTHROPIC_API_KEY": "k"}),
        ({"TOGETHER_AI_API_BASE": REMOTE, "TOGETHERAI_API_KEY": "file"}, {}),
    ],
)
def test_an_address_counts_for_a_key_of_the_same_file(
    cli: Cli, file: dict[str, str], shell: dict[str, str]
) -> None:
    Path(".env").write_text(variables(file))
    os.environ.update(shell)
    assert cli("fleet", "bare") == (0, "fleet.noop: noop\n", "")
    assert {**file, **shell}.items() <= os.environ.items()


BAIT, MINE = "bait", "mine"


@pytest.mark.parametrize(
    "address, url, in_file, in_shell",
    [
        ("OPENAI_BASE_URL", REMOTE, "", ""),
        ("OPENAI_BASE_URL", REMOTE, "", "OPENAI_API_KEY"),
        ("OPENAI_BASE_URL", REMOTE, "OPENAI_API_KEY", "OPENAI_API_KEY"),
        ("OPENAI_BASE_URL", LOCAL, "OPENAI_API_KEY", "OPENAI_API_KEY"),
        ("TOGETHER_AI_API_BASE", REMOTE, "TOGETHER_API_KEY", "TOGETHERAI_API_KEY"),
        ("ANTHROPIC_API_BASE", REMOTE, "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
        ("AZURE_AI_API_BASE", REMOTE, "AZURE_AI_API_KEY", "AZURE_AD_TOKEN"),
        ("HOSTED_VLLM_API_BASE", REMOTE, "HOSTED_VLLM_API_KEY", "HOSTED_VLLM_API_KEY"),
        ("OPENAI_BASE_URL", "http://localhost@evil.example", "", ""),
        ("OPENAI_BASE_URL", "https://[localhost", "", ""),
        ("OPENAI_BASE_URL", "http://localhost.evil.example", "", ""),
    ],
)
def test_an_address_without_its_own_key_is_an_error_that_names_both(
    cli: Cli, address: str, url: str, in_file: str, in_shell: str
) -> None:
    Path(".env").write_text(variables({address: url, **({in_file: BAIT} if in_file else {})}))
    os.environ.update({in_shell: MINE} if in_shell else {})
    named = in_shell or "OPENAI_API_KEY"
    before = dict(os.environ)
    outcome = cli("fleet", "bare", "--json")
    assert (outcome.status, outcome.out) == (1, "")
    error = json.loads(outcome.err)["error"]
    assert error["code"] == "CONFLICT"
    assert error["details"] == {"variable": address, "key": named, "env_file": str(Path.cwd() / ".env")}
    assert named in error["message"]
    assert "mine" not in outcome.err and "bait" not in outcome.err
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    "address, value, key",
    [
        ("OPENAI_BASE_URL", LOCAL, "OPENAI_API_KEY"),
        ("HOSTED_VLLM_API_BASE", REMOTE, "HOSTED_VLLM_API_KEY"),
        ("ANTHROPIC_API_BASE", LOCAL, "ANTHROPIC_AUTH_TOKEN"),
    ],
)
def test_no_key_of_the_shell_is_sent_to_an_address_that_is_accepted_without_one(
    cli: Cli, address: str, value: str, key: str
) -> None:
    Path(".env").write_text(f"{address}={value}\n")
    os.environ[key] = "mine"
    outcome = cli("fleet", "bare", "--plain")
    assert (outcome.status, outcome.out) == (0, "fleet.noop: noop\n")
    path = Path.cwd() / ".env"
    assert outcome.err == (f"warning: {key} from the environment is not used: {address} is from {path}\n")
    assert os.environ[address] == value
    assert key not in os.environ


def test_a_reference_in_a_value_means_a_name_of_the_file_never_one_of_the_shell(cli: Cli) -> None:
    os.environ["CANARY"] = "of-the-shell"
    Path(".env").write_text(
        "XAI_API_KEY=mine\nOPENAI_API_KEY=k-${XAI_API_KEY}\nGROQ_API_KEY=${CANARY}\nMISTRAL_API_KEY=${CANARY:-none}\n"
    )
    outcome = cli("fleet", "bare", "--plain")
    assert "ignored GROQ_API_KEY (refers to a name that the file does not set)" in outcome.err
    assert (os.environ["OPENAI_API_KEY"], os.environ["MISTRAL_API_KEY"]) == ("k-mine", "none")
    assert "GROQ_API_KEY" not in os.environ


def test_a_key_of_the_shell_does_not_get_into_an_address(cli: Cli) -> None:
    os.environ["ANTHROPIC_API_KEY"] = "mine"
    Path(".env").write_text(
        "HOSTED_VLLM_API_BASE=https://a.example\nHOSTED_VLLM_API_BASE=https://evil.example/${ANTHROPIC_API_KEY}\n"
    )
    assert "ignored HOSTED_VLLM_API_BASE (refers to" in cli("fleet", "bare").err
    assert "HOSTED_VLLM_API_BASE" not in os.environ


@pytest.mark.parametrize("tracked_as", [".env", ".ENV"])
def test_an_env_file_that_git_tracks_is_ignored_and_no_code_of_the_repository_runs(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracked_as: str
) -> None:
    root = repository(tmp_path / "work", "OPENAI_API_KEY=theirs\n")
    monkeypatch.chdir(root)
    blob = subprocess.run(
        ["git", "hash-object", "-w", ".env"], capture_output=True, text=True, check=True
    ).stdout
    entry = f"100644,{blob.strip()},{tracked_as}"
    subprocess.run(["git", "update-index", "--add", "--cacheinfo", entry], check=True)
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    subprocess.run(["git", "config", "core.fsmonitor", str(trap)], check=True)
    outcome = cli("fleet", "bare", "--plain")
    assert (outcome.status, outcome.out) == (0, "fleet.noop: noop\n")
    assert outcome.err == (f"warning: {root}/.env is ignored: Git tracks it (git rm --cached {root}/.env)\n")
    assert "OPENAI_API_KEY" not in os.environ
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "name", ["keys/prod.env", "keys/[p]rod.env", "link.env", "keys/there.env", "../way/prod.env"]
)
def test_a_named_env_file_that_git_tracks_is_ignored(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also through a link to the file, to its directory, and when the link is what Git tracks."""
    root = repository(tmp_path / "work")
    (root / "keys").mkdir()
    for file in ("prod.env", "[p]rod.env"):
        (root / "keys" / file).write_text("OPENAI_API_KEY=theirs\n")
    (tmp_path / "mine.env").write_text("OPENAI_API_KEY=theirs\n")
    (root / "keys" / "there.env").symlink_to(tmp_path / "mine.env")
    subprocess.run(["git", "-C", str(root), "add", "keys"], check=True)
    (root / "link.env").symlink_to(root / "keys" / "prod.env")
    (tmp_path / "way").symlink_to(root / "keys")
    monkeypatch.chdir(root)
    outcome = cli("--env-file", name, "fleet", "bare", "--plain")
    assert (outcome.status, outcome.out) == (0, "fleet.noop: noop\n")
    assert "is ignored: Git tracks it" in outcome.err
    assert "OPENAI_API_KEY" not in os.environ


def test_an_untracked_env_file_is_read_through_a_link_and_by_name(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = repository(tmp_path / "work")
    (tmp_path / "mine.env").write_text("OPENAI_API_KEY=1\n")
    (root / ".env").symlink_to(tmp_path / "mine.env")
    monkeypatch.chdir(root)
    assert cli("fleet", "bare") == (0, "fleet.noop: noop\n", "")
    assert os.environ.pop("OPENAI_API_KEY") == "1"
    (root / "*.env").write_text("OPENAI_API_KEY=2\n")
    subprocess.run(["git", "add", ".env"], check=True)
    assert cli("--env-file", "*.env", "fleet", "bare") == (0, "fleet.noop: noop\n", "")
    assert os.environ["OPENAI_API_KEY"] == "2"


def test_an_env_file_is_ignored_when_git_cannot_say_whether_it_tracks_it(cli: Cli) -> None:
    repository(Path.cwd(), "OPENAI_API_KEY=1\n")
    Path(".git/HEAD").write_text("nonsense")
    assert ".env is ignored: Git cannot tell whether it is tracked (" in cli("fleet", "bare").err
    assert "OPENAI_API_KEY" not in os.environ


@pytest.mark.parametrize("kind", ["pipe", "writable", "foreign"])
def test_an_env_file_that_others_may_have_made_is_ignored(
    cli: Cli, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(".env")
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.write_text("OPENAI_API_KEY=1\n")
    if kind == "writable":
        place.chmod(0o646)
    if kind == "foreign":
        others = os.geteuid() + 1
        found = os.fstat
        monkeypatch.setattr(
            os, "fstat", lambda fd: os.stat_result([*found(fd)[:4], others, *found(fd)[5:10]])
        )
    reason = {
        "pipe": "it is not a regular file",
        "writable": "every user of this machine may write to it",
        "foreign": "it belongs to another user",
    }[kind]
    outcome = cli("fleet", "bare")
    assert (outcome.status, outcome.out) == (0, "fleet.noop: noop\n")
    assert f".env is ignored: {reason}" in outcome.err
    assert "OPENAI_API_KEY" not in os.environ


def test_platform_beats_the_environment(cli: Cli) -> None:
    os.environ["OSMOSIS_PLATFORM_URL"] = "https://shell.example"
    assert cli("--platform", "Platform.Example/", "fleet", "bare").status == 0
    assert os.environ["OSMOSIS_PLATFORM_URL"] == "https://platform.example"


def test_an_insecure_platform_is_refused_unless_it_is_this_machine_or_allowed(cli: Cli) -> None:
    outcome = cli("--platform", "http://platform.example", "fleet", "bare", "--json")
    assert (outcome.status, outcome.out) == (1, "")
    warning, error = map(json.loads, outcome.err.splitlines())
    assert warning["warning"]["code"] == "INSECURE_PLATFORM_URL"
    assert error["error"]["code"] == "VALIDATION"

    noted = (0, "fleet.noop: noop\n", "Platform: http://localhost:8000\n")
    assert cli("--platform", "localhost:8000", "fleet", "bare") == noted
    assert cli("--platform", "http://localhost:8000", "fleet", "bare").err == ""

    os.environ["OSMOSIS_ALLOW_INSECURE_PLATFORM_URL"] = "1"
    outcome = cli("--platform", "http://platform.example", "fleet", "bare")
    assert (outcome.status, outcome.out) == (0, "fleet.noop: noop\n")
    assert outcome.err.startswith("⚠ http://platform.example is not HTTPS")


def test_a_bad_line_is_warned_of_by_number_and_never_quoted(cli: Cli) -> None:
    Path(".env").write_text("XAI_API_KEY=1\nmy secret = 'open\nOPENAI_API_KEY=2\n")
    outcome = cli("fleet", "bare", "--plain")
    assert outcome.status == 0
    assert outcome.err == f"warning: {Path.cwd() / '.env'}, line 2: ignored, not `NAME=value`\n"


@pytest.mark.parametrize("address", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_an_address_of_the_shell_wins_over_the_file(cli: Cli, address: str) -> None:
    Path(".env").write_text(f"OPENAI_BASE_URL={REMOTE}\nOPENAI_API_KEY=file\n")
    mine = {address: "https://mine.example/v1", "OPENAI_API_KEY": "mine"}
    os.environ.update(mine)
    assert cli("fleet", "bare") == (0, "fleet.noop: noop\n", "")
    assert mine.items() <= os.environ.items()
    assert REMOTE not in os.environ.values()
