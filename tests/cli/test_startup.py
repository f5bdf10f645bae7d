"""What each command takes from a `.env` file and from the root options, and what it ignores."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.agent_loops.classic_project import AGENT
from tests.cli.conftest import Cli
from tests.cli.rubric_judging import KEY, configure, score, texts
from tests.rubric.judge_server import JudgeServer
from tests.workspace.builders import git, make_repository

REMOTE, LOCAL = "https://elsewhere.example/v1", "http://localhost:8000/v1"


@pytest.fixture(autouse=True)
def restored_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())


def start(cli: Cli, *root_options: str) -> str:
    """Run a command that succeeds; return what it printed to stderr."""
    outcome = cli(*root_options, "fleet", "bare", "--plain")
    assert (outcome.status, outcome.out) == (0, "fleet.noop: noop\n"), outcome.err
    return outcome.err


# Which file is read


def test_env_file_of_the_workspace(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "export OPENAI_API_KEY='from the root'\nXAI_API_KEY=file\nMISTRAL_API_KEY=\"x y\"\n"
    root = make_repository(tmp_path / "work")
    (root / ".env").write_text(content)
    inner = root / "a" / "b"
    inner.mkdir(parents=True)
    (root / "a" / ".env").write_text("OPENAI_API_KEY=from between\n")
    monkeypatch.chdir(inner)
    os.environ["XAI_API_KEY"] = "before"
    assert start(cli) == ""
    names = ("OPENAI_API_KEY", "XAI_API_KEY", "MISTRAL_API_KEY")
    assert [os.environ.get(name) for name in names] == ["from the root", "before", "x y"]


def test_no_env_file_from_parent_directories(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / ".env").write_text("OPENAI_API_KEY=above\n")
    monkeypatch.chdir(tmp_path / "a")
    start(cli)
    assert "OPENAI_API_KEY" not in os.environ
    Path(".env").write_text("OPENAI_API_KEY=here\n")
    assert start(cli) == ""
    assert os.environ["OPENAI_API_KEY"] == "here"


@pytest.mark.parametrize("through", ["option", "variable"])
def test_named_env_file(cli: Cli, tmp_path: Path, through: str) -> None:
    Path(".env").write_text("XAI_API_KEY=1\n")
    named = tmp_path / "named.env"
    named.write_text("OPENAI_API_KEY=1\nOSMOSIS_TOKEN=t\nLD_PRELOAD=/evil.so\n")
    named.chmod(0o666)
    if through == "variable":
        os.environ["OSMOSIS_ENV_FILE"] = str(named)
    warnings = start(cli, *(["--env-file", str(named)] if through == "option" else []))
    assert warnings == f"warning: {named}: ignored OSMOSIS_TOKEN, LD_PRELOAD (not accepted from a file)\n"
    assert "OPENAI_API_KEY" in os.environ
    assert not {"XAI_API_KEY", "LD_PRELOAD", "OSMOSIS_TOKEN"} & os.environ.keys()


@pytest.mark.parametrize("name", ["absent.env", "."])
def test_named_env_file_missing(cli: Cli, name: str) -> None:
    outcome = cli("--env-file", name, "fleet", "bare", "--json")
    assert (outcome.status, outcome.error["code"]) == (2, "VALIDATION")
    assert outcome.error["details"] == {"parameter": "--env-file"}


@pytest.mark.parametrize("tracked_as", [".env", ".ENV"])
def test_tracked_env_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracked_as: str) -> None:
    """It is ignored, and no code that the repository configures runs."""
    root = make_repository(tmp_path / "work")
    (root / ".env").write_text("OPENAI_API_KEY=theirs\n")
    monkeypatch.chdir(root)
    blob = git(root, "hash-object", "-w", ".env")
    git(root, "update-index", "--add", "--cacheinfo", f"100644,{blob},{tracked_as}")
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    git(root, "config", "core.fsmonitor", str(trap))
    assert start(cli) == f"warning: {root}/.env is ignored: Git tracks it (git rm --cached {root}/.env)\n"
    assert "OPENAI_API_KEY" not in os.environ
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "name", ["keys/prod.env", "keys/[p]rod.env", "link.env", "keys/there.env", "../way/prod.env"]
)
def test_named_tracked_env_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Also through a link to the file, to its directory, and when the link is what Git tracks."""
    root = make_repository(tmp_path / "work")
    (root / "keys").mkdir()
    for file in ("prod.env", "[p]rod.env"):
        (root / "keys" / file).write_text("OPENAI_API_KEY=theirs\n")
    (tmp_path / "mine.env").write_text("OPENAI_API_KEY=theirs\n")
    (root / "keys" / "there.env").symlink_to(tmp_path / "mine.env")
    git(root, "add", "keys")
    (root / "link.env").symlink_to(root / "keys" / "prod.env")
    (tmp_path / "way").symlink_to(root / "keys")
    monkeypatch.chdir(root)
    assert "is ignored: Git tracks it" in start(cli, "--env-file", name)
    assert "OPENAI_API_KEY" not in os.environ


def test_untracked_env_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_repository(tmp_path / "work")
    (tmp_path / "mine.env").write_text("OPENAI_API_KEY=1\n")
    (root / ".env").symlink_to(tmp_path / "mine.env")
    monkeypatch.chdir(root)
    assert start(cli) == ""
    assert os.environ.pop("OPENAI_API_KEY") == "1"
    (root / "*.env").write_text("OPENAI_API_KEY=2\n")
    git(root, "add", ".env")
    assert start(cli, "--env-file", "*.env") == ""
    assert os.environ["OPENAI_API_KEY"] == "2"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("pipe", "it is not a regular file"),
        ("writable", "every user of this machine may write to it"),
        ("foreign", "it belongs to another user"),
        ("damaged repository", "Git cannot tell whether it is tracked ("),
    ],
)
def test_untrusted_env_file(cli: Cli, kind: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "pipe":
        os.mkfifo(".env")
    else:
        Path(".env").write_text("OPENAI_API_KEY=1\n")
    if kind == "writable":
        Path(".env").chmod(0o646)
    elif kind == "foreign":
        others, found = os.geteuid() + 1, os.fstat
        monkeypatch.setattr(
            os, "fstat", lambda fd: os.stat_result([*found(fd)[:4], others, *found(fd)[5:10]])
        )
    elif kind == "damaged repository":
        make_repository(Path.cwd())
        Path(".git/HEAD").write_text("nonsense")
    assert f".env is ignored: {reason}" in start(cli)
    assert "OPENAI_API_KEY" not in os.environ


# Which variables are taken from it

STARTS_PROGRAMS = """
LD_PRELOAD DYLD_INSERT_LIBRARIES PATH PYTHONPATH PYTHONSTARTUP BASH_ENV ENV IFS GIT_CONFIG_COUNT GIT_SSH_COMMAND
SSH_ASKPASS PIP_INDEX_URL UV_INDEX_URL npm_config_registry HTTPS_PROXY https_proxy SSL_CERT_FILE NODE_OPTIONS
AWS_CONFIG_FILE HOME EDITOR OSMOSIS_CONFIG_DIR OSMOSIS_ENV_FILE OSMOSIS_ALLOW_INSECURE_PLATFORM_URL OSMOSIS_TOKEN
OSMOSIS_TOKEN_PLATFORM_URL OSMOSIS_INFERENCE_URL _OSMOSIS_LIFELINE_FD AWS_REGION_NAME
"""
FROM_A_FILE = "not accepted from a file"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, FROM_A_FILE) for name in STARTS_PROGRAMS.split()),
        ("OSMOSIS_PLATFORM_URL", f"{FROM_A_FILE}; use `osmosis --platform URL login`"),
    ],
)
def test_ignored_variables(cli: Cli, name: str, reason: str) -> None:
    Path(".env").write_text(f"AWS_REGION=eu-west-1\n{name}=/evil\n")
    before = os.environ.get(name)
    assert start(cli) == f"warning: {Path.cwd() / '.env'}: ignored {name} ({reason})\n"
    assert (os.environ.get(name), os.environ["AWS_REGION"]) == (before, "eu-west-1")


def test_references_in_values(cli: Cli) -> None:
    """They mean a name of the file, never one of the shell."""
    os.environ["CANARY"] = "of-the-shell"
    Path(".env").write_text(
        "XAI_API_KEY=mine\nOPENAI_API_KEY=k-${XAI_API_KEY}\nGROQ_API_KEY=${CANARY}\nMISTRAL_API_KEY=${CANARY:-none}\n"
        "HOSTED_VLLM_API_BASE=https://a.example\nHOSTED_VLLM_API_BASE=https://evil.example/${CANARY}\n"
    )
    ignored = "ignored GROQ_API_KEY, HOSTED_VLLM_API_BASE (refers to a name that the file does not set)"
    assert ignored in start(cli)
    assert (os.environ["OPENAI_API_KEY"], os.environ["MISTRAL_API_KEY"]) == ("k-mine", "none")
    assert not {"GROQ_API_KEY", "HOSTED_VLLM_API_BASE"} & os.environ.keys()


def test_invalid_line(cli: Cli) -> None:
    Path(".env").write_text("XAI_API_KEY=1\nmy secret = 'open\nOPENAI_API_KEY=2\n")
    assert start(cli) == f"warning: {Path.cwd() / '.env'}, line 2: ignored, not `NAME=value`\n"


# Addresses and keys


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
def test_address_with_key_from_same_file(cli: Cli, file: dict[str, str], shell: dict[str, str]) -> None:
    Path(".env").write_text(variables(file))
    os.environ.update(shell)
    assert start(cli) == ""
    assert {**file, **shell}.items() <= os.environ.items()


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
def test_address_without_key_from_same_file(
    cli: Cli, address: str, url: str, in_file: str, in_shell: str
) -> None:
    Path(".env").write_text(variables({address: url, **({in_file: "bait"} if in_file else {})}))
    os.environ.update({in_shell: "mine"} if in_shell else {})
    key, before = in_shell or "OPENAI_API_KEY", dict(os.environ)
    outcome = cli("fleet", "bare", "--json")
    error = outcome.error
    assert (outcome.status, error["code"]) == (1, "CONFLICT")
    assert error["details"] == {"variable": address, "key": key, "env_file": str(Path.cwd() / ".env")}
    assert key in error["message"]
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
def test_shell_key_is_not_sent_to_address_of_file(cli: Cli, address: str, value: str, key: str) -> None:
    Path(".env").write_text(f"{address}={value}\n")
    os.environ[key] = "mine"
    file = Path.cwd() / ".env"
    assert start(cli) == f"warning: {key} from the environment is not used: {address} is from {file}\n"
    assert os.environ[address] == value and key not in os.environ


@pytest.mark.parametrize("address", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_shell_address_wins(cli: Cli, address: str) -> None:
    Path(".env").write_text(f"OPENAI_BASE_URL={REMOTE}\nOPENAI_API_KEY=file\n")
    mine = {address: "https://mine.example/v1", "OPENAI_API_KEY": "mine"}
    os.environ.update(mine)
    assert start(cli) == ""
    assert mine.items() <= os.environ.items() and REMOTE not in os.environ.values()


# Real calls of `eval rubric` and `test`


@pytest.fixture
def remote_judge(judge: JudgeServer) -> JudgeServer:
    """A server whose address the `.env` chooses; the shell has a key of the user and no address."""
    del os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    os.environ["MINE"] = KEY
    texts("fine")
    return judge


def env_file(remote_judge: JudgeServer, *lines: str) -> None:
    Path(".env").write_text("\n".join([f"OPENAI_BASE_URL={remote_judge.base_url}", *lines]) + "\n")


def test_real_call_with_key_and_address_from_same_source(cli: Cli, remote_judge: JudgeServer) -> None:
    env_file(remote_judge, "OPENAI_API_KEY=of-the-file")
    assert score(cli).status == 0
    assert remote_judge.key_seen == "of-the-file"

    Path(".env").write_text("OPENAI_BASE_URL=https://elsewhere.example\nOPENAI_API_KEY=bait\n")
    assert score(cli, "--api-base", remote_judge.base_url, "--api-key", KEY).status == 0
    assert remote_judge.key_seen == KEY


def test_rubric_names_a_variable_of_the_file(cli: Cli, remote_judge: JudgeServer) -> None:
    env_file(remote_judge, "JUDGE_KEY=of-the-file", "OPENAI_API_KEY=other")
    configure(model_info={"provider": "openai", "model": "judge", "api_key_env": "JUDGE_KEY"})
    assert cli("eval", "rubric", "-d", "data.jsonl", "-r", "clarity").status == 0
    assert remote_judge.key_seen == "of-the-file"


@pytest.mark.parametrize("own", [(), ("OPENAI_API_KEY=bait",)])
def test_rubric_names_a_variable_of_the_shell(
    cli: Cli, remote_judge: JudgeServer, own: tuple[str, ...]
) -> None:
    env_file(remote_judge, *own)
    configure(model_info={"provider": "openai", "model": "judge", "api_key_env": "MINE"})
    refused = cli("eval", "rubric", "-d", "data.jsonl", "-r", "clarity")
    assert (refused.status, remote_judge.calls) == (1, 0)
    assert f"OPENAI_BASE_URL in {Path.cwd() / '.env'} is accepted only with a key from the same file." in (
        refused.err
    )
    assert KEY not in refused.err


@pytest.mark.parametrize("command", ["eval rubric", "test"])
def test_key_from_the_command_line(cli: Cli, remote_judge: JudgeServer, command: str) -> None:
    env_file(remote_judge, "OPENAI_API_KEY=bait")
    Path("agent.py").write_text(AGENT)
    Path("rows.jsonl").write_text('{"user_prompt": "hi", "system_prompt": "s", "ground_truth": "g"}\n')
    words = ("test", "-m", "agent:agent_loop", "-d", "rows.jsonl", "--model", "openai/m")
    refused = cli(*words, "--api-key", KEY) if command == "test" else score(cli, "--api-key", KEY)
    assert (refused.status, remote_judge.calls) == (1, 0)
    assert "is accepted only with a key from the same file" in refused.err


def test_local_server_receives_no_shell_key(cli: Cli, remote_judge: JudgeServer) -> None:
    env_file(remote_judge)
    os.environ["OPENAI_API_KEY"] = KEY
    scored = score(cli)
    assert "OPENAI_API_KEY from the environment is not used" in scored.err
    assert (scored.status, remote_judge.calls) == (0, 1)
    assert KEY not in remote_judge.key_seen


# --platform


def test_platform_option(cli: Cli) -> None:
    os.environ["OSMOSIS_PLATFORM_URL"] = "https://shell.example"
    start(cli, "--platform", "Platform.Example/")
    assert os.environ["OSMOSIS_PLATFORM_URL"] == "https://platform.example"


def test_insecure_platform(cli: Cli) -> None:
    outcome = cli("--platform", "http://platform.example", "fleet", "bare", "--json")
    assert (outcome.status, outcome.error["code"]) == (1, "VALIDATION")
    assert json.loads(outcome.err.splitlines()[0])["warning"]["code"] == "INSECURE_PLATFORM_URL"

    assert start(cli, "--platform", "localhost:8000") == "Platform: http://localhost:8000\n"
    assert start(cli, "--platform", "http://localhost:8000") == ""

    os.environ["OSMOSIS_ALLOW_INSECURE_PLATFORM_URL"] = "1"
    assert "http://platform.example is not HTTPS" in start(cli, "--platform", "http://platform.example")
