from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
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
def test_a_named_env_file_is_read_instead_and_is_allowed_by_its_name(
    cli: Cli, tmp_path: Path, through: str
) -> None:
    Path(".env").write_text("XAI_API_KEY=1\n")
    named = tmp_path / "named.env"
    named.write_text("OPENAI_API_KEY=1\nOSMOSIS_TOKEN=t\nLD_PRELOAD=/evil.so\n")
    if through == "variable":
        os.environ["OSMOSIS_ENV_FILE"] = str(named)
    outcome = cli(*(["--env-file", str(named)] if through == "option" else []), "fleet", "bare", "--plain")
    assert outcome.status == 0
    assert outcome.err == f"warning: {named}: ignored LD_PRELOAD (never taken from a file)\n"
    assert {"OPENAI_API_KEY", "OSMOSIS_TOKEN"} <= os.environ.keys()
    assert not {"XAI_API_KEY", "LD_PRELOAD"} & os.environ.keys()


@pytest.mark.parametrize("name", ["absent.env", "."])
def test_an_env_file_that_is_no_file_is_a_usage_error(cli: Cli, name: str) -> None:
    outcome = cli("--env-file", name, "fleet", "bare", "--json")
    assert (outcome.status, outcome.out) == (2, "")
    assert json.loads(outcome.err)["error"]["code"] == "VALIDATION"
    assert json.loads(outcome.err)["error"]["details"] == {"parameter": "--env-file"}


def test_a_bad_line_is_warned_of_by_number_and_never_quoted(cli: Cli) -> None:
    Path(".env").write_text("XAI_API_KEY=1\nmy secret = 'open\nOPENAI_API_KEY=2\n")
    outcome = cli("fleet", "bare", "--plain")
    assert outcome.status == 0
    assert outcome.err == f"warning: {Path.cwd() / '.env'}, line 2: not `NAME=value`, ignored.\n"


def test_an_env_file_that_is_not_utf8_is_an_error(cli: Cli) -> None:
    Path(".env").write_bytes(b"A=\xff\n")
    outcome = cli("fleet", "bare")
    assert outcome.status == 1
    assert "cannot read the environment file" in outcome.err


@pytest.mark.parametrize(
    "name",
    [
        *(
            "LD_PRELOAD",
            "DYLD_INSERT_LIBRARIES",
            "PATH",
            "PYTHONPATH",
            "PYTHONSTARTUP",
            "BASH_ENV",
            "ENV",
            "IFS",
        ),
        *(
            "GIT_CONFIG_COUNT",
            "GIT_SSH_COMMAND",
            "SSH_ASKPASS",
            "PIP_INDEX_URL",
            "UV_INDEX_URL",
            "npm_config_registry",
        ),
        *("HTTPS_PROXY", "https_proxy", "SSL_CERT_FILE", "NODE_OPTIONS", "AWS_CONFIG_FILE", "HOME", "EDITOR"),
        *(
            "OSMOSIS_CONFIG_DIR",
            "OSMOSIS_ENV_FILE",
            "OSMOSIS_ALLOW_INSECURE_PLATFORM_URL",
            "_OSMOSIS_LIFELINE_FD",
        ),
    ],
)
def test_what_changes_how_programs_start_is_never_taken_from_a_file(cli: Cli, name: str) -> None:
    Path(".env").write_text(f"{name}=/evil\n")
    before = os.environ.get(name)
    outcome = cli("fleet", "bare", "--plain")
    assert (outcome.status, outcome.out) == (0, "fleet.noop: noop\n")
    assert outcome.err == f"warning: {Path.cwd() / '.env'}: ignored {name} (never taken from a file)\n"
    assert os.environ.get(name) == before
    assert "/evil" not in outcome.err


def test_names_of_nobodys_are_kept_for_rollouts_which_is_said_once(cli: Cli) -> None:
    Path(".env").write_text("SEARCH_KEY=1\nOPENAI_API_KEY=2\n")
    first = cli("fleet", "bare", "--plain")
    assert "ignored SEARCH_KEY (only for a rollout whose config lists it as a secret)\n" in first.err
    assert "OPENAI_API_KEY" not in first.err
    assert cli("fleet", "bare") == (0, "fleet.noop: noop\n", "")
    assert "SEARCH_KEY" not in os.environ
    Path(".env").write_text("SEARCH_KEY=1\nOTHER=2\n")
    assert "SEARCH_KEY, OTHER" in cli("fleet", "bare").err


ADDRESS = "OPENAI_BASE_URL=https://elsewhere.example/v1\n"


def test_an_address_counts_for_a_key_of_the_same_file(cli: Cli) -> None:
    Path(".env").write_text(ADDRESS + "OPENAI_API_KEY=of-the-file\n")
    assert cli("fleet", "bare") == (0, "fleet.noop: noop\n", "")
    assert os.environ["OPENAI_BASE_URL"] == "https://elsewhere.example/v1"


@pytest.mark.parametrize("file", [ADDRESS, ADDRESS + "OPENAI_API_KEY=of-the-file\n"])
def test_an_address_never_counts_for_a_key_of_the_shell_until_the_file_is_allowed(
    cli: Cli, file: str
) -> None:
    Path(".env").write_text(file)
    os.environ["OPENAI_API_KEY"] = "of-the-shell"
    outcome = cli("fleet", "bare", "--plain")
    assert (outcome.status, outcome.out) == (0, "fleet.noop: noop\n")
    path = Path.cwd() / ".env"
    assert outcome.err == (
        f"warning: {path}: ignored OPENAI_BASE_URL (until you have read the file and allow it: "
        f"osmosis env allow {path})\n"
    )
    assert "OPENAI_BASE_URL" not in os.environ
    assert cli("env", "allow").status == 0
    assert cli("fleet", "bare") == (0, "fleet.noop: noop\n", "")
    assert os.environ["OPENAI_BASE_URL"] == "https://elsewhere.example/v1"


def test_a_permission_is_for_one_content_in_one_place(cli: Cli, tmp_path: Path) -> None:
    Path(".env").write_text(ADDRESS)
    assert cli("env", "allow").status == 0
    Path(".env").write_text(ADDRESS.replace("elsewhere", "nowhere"))
    assert "ignored OPENAI_BASE_URL" in cli("fleet", "bare").err
    other = tmp_path / "other"
    other.mkdir()
    (other / ".env").write_text(ADDRESS)
    os.chdir(other)
    assert "ignored OPENAI_BASE_URL" in cli("fleet", "bare").err
    assert "OPENAI_BASE_URL" not in os.environ


def test_a_token_and_a_platform_of_a_file_count_when_it_is_allowed(cli: Cli) -> None:
    Path(".env").write_text("OSMOSIS_TOKEN=t\nOSMOSIS_PLATFORM_URL=https://a.example\n")
    outcome = cli("fleet", "bare")
    assert "ignored OSMOSIS_TOKEN, OSMOSIS_PLATFORM_URL (until" in outcome.err
    assert not {"OSMOSIS_TOKEN", "OSMOSIS_PLATFORM_URL"} & os.environ.keys()
    assert cli("env", "allow").status == 0
    assert cli("fleet", "bare") == (0, "fleet.noop: noop\n", "")
    assert (os.environ["OSMOSIS_TOKEN"], os.environ["OSMOSIS_PLATFORM_URL"]) == ("t", "https://a.example")


def test_a_reference_in_a_value_means_a_name_of_the_file_never_one_of_the_shell(cli: Cli) -> None:
    os.environ["CANARY"] = "of-the-shell"
    Path(".env").write_text(
        "XAI_API_KEY=mine\nOPENAI_API_KEY=k-${XAI_API_KEY}\nGROQ_API_KEY=${CANARY}\nMISTRAL_API_KEY=${CANARY:-none}\n"
    )
    outcome = cli("fleet", "bare", "--plain")
    assert "ignored GROQ_API_KEY (refers to a name that the file does not set)" in outcome.err
    assert (os.environ["OPENAI_API_KEY"], os.environ["MISTRAL_API_KEY"]) == ("k-mine", "none")
    assert "GROQ_API_KEY" not in os.environ


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
    assert outcome.err == (
        f"warning: {root}/.env is ignored: Git tracks it, so that whoever writes to the repository writes it; "
        f"to mend that: git rm --cached {root}/.env\n"
    )
    assert "OPENAI_API_KEY" not in os.environ
    assert not (tmp_path / "sprung").exists()
    assert cli("env", "allow").status == 1


def test_an_env_file_is_ignored_when_git_cannot_say_whether_it_tracks_it(cli: Cli) -> None:
    repository(Path.cwd(), "OPENAI_API_KEY=1\n")
    Path(".git/HEAD").write_text("nonsense")
    assert ".env is ignored: Git does not say whether it tracks it" in cli("fleet", "bare").err
    assert "OPENAI_API_KEY" not in os.environ


@pytest.mark.parametrize("kind", ["link", "pipe", "writable", "foreign"])
def test_an_env_file_that_others_may_have_made_is_ignored(
    cli: Cli, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(".env")
    if kind == "link":
        (tmp_path / "theirs").write_text("OPENAI_API_KEY=1\n")
        place.symlink_to(tmp_path / "theirs")
    elif kind == "pipe":
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
        "link": "it is a symbolic link",
        "pipe": "it is no regular file",
        "writable": "everybody on this machine may write to it",
        "foreign": "it belongs to another user",
    }[kind]
    outcome = cli("fleet", "bare")
    assert (outcome.status, outcome.out) == (0, "fleet.noop: noop\n")
    assert f".env is ignored: {reason}; to mend that: " in outcome.err
    assert "OPENAI_API_KEY" not in os.environ


def test_a_directory_called_env_is_nothing_to_speak_of(cli: Cli) -> None:
    Path(".env").mkdir()
    assert cli("fleet", "bare") == (0, "fleet.noop: noop\n", "")


def test_json_stays_clean_and_the_warning_has_a_code(cli: Cli) -> None:
    Path(".env").write_text("LD_PRELOAD=/evil.so\n")
    outcome = cli("fleet", "bare", "--json")
    assert json.loads(outcome.out)["operation"] == "fleet.noop"
    assert json.loads(outcome.err)["warning"]["code"] == "ENV_FILE_NAMES_IGNORED"


def test_a_profile_that_environment_and_file_disagree_on_is_a_conflict(cli: Cli) -> None:
    Path(".env").write_text("OSMOSIS_TOKEN=from-the-file\nOSMOSIS_PLATFORM_URL=https://a.example\n")
    os.environ["OSMOSIS_TOKEN"] = "from-the-shell"
    outcome = cli("--env-file", ".env", "fleet", "bare", "--json")
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
    assert cli("--env-file", ".env", "fleet", "bare") == (0, "fleet.noop: noop\n", "")
    name, _, value = file.partition("=")
    assert os.environ[name] == (shell.get(name) or value)


def test_platform_beats_environment_and_file_and_leaves_the_comparison(cli: Cli) -> None:
    Path("my.env").write_text("OSMOSIS_PLATFORM_URL=https://file.example\n")
    os.environ["OSMOSIS_PLATFORM_URL"] = "https://shell.example"
    words = ("--env-file", "my.env", "--platform", "Platform.Example/", "fleet", "bare")
    assert cli(*words).status == 0
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
    noted = (0, "fleet.noop: noop\n", "Platform: http://localhost:8000\n")
    assert cli("--platform", "localhost:8000", "fleet", "bare") == noted
    assert cli("--platform", "http://localhost:8000", "fleet", "bare").err == ""


def test_an_invalid_platform_is_refused(cli: Cli) -> None:
    outcome = cli("--platform", "https://a.example:port", "fleet", "bare")
    assert outcome.status == 1
    assert "Invalid platform URL 'https://a.example:port'" in outcome.err


@pytest.mark.integration
def test_ctrl_c_at_the_very_end_leaves_at_once_with_the_status_of_the_command() -> None:
    # A thread that is still at work keeps the interpreter from ending.
    program = """
import signal, sys, threading
from osmosis_ai.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=threading.Event().wait).start()
sys.argv = ["osmosis", "--version"]
status = main()
print("over", flush=True)
sys.exit(status)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("osmosis-ai ")
    assert process.stdout.readline() == "over\n"
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert (process.returncode, errors) == (0, "")
