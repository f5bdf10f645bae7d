from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from osmosis_ai import process_environment
from osmosis_ai.controller.environments import Uv
from osmosis_ai.process_environment import why_reserved
from osmosis_ai.workspace.git import run_git

CANARIES = {
    "AWS_SECRET_ACCESS_KEY": "canary",
    "OPENAI_API_KEY": "canary",
    "OSMOSIS_TOKEN": "canary",
    "OSMOSIS_PLATFORM_URL": "canary",
    "_OSMOSIS_WORKER_CREDENTIAL": "canary",
    "HF_TOKEN": "canary",
    "LD_PRELOAD": "canary",
    "BASH_ENV": "canary",
    "GIT_DIR": "canary",
    "GIT_EXTERNAL_DIFF": "canary",
}
NEEDED = {
    "PATH": "/bin",
    "HOME": "/home/ada",
    "LC_ALL": "C",
    "https_proxy": "http://proxy",
    "SSL_CERT_FILE": "/ca",
}


@pytest.mark.parametrize(
    "kind, own",
    [
        ("program_environment", {}),
        ("python_environment", {"PYTHONPATH": "/lib", "HF_HOME": "/hub"}),
        ("git_environment", {"SSH_AUTH_SOCK": "/agent", "GIT_CONFIG_GLOBAL": "/config"}),
        ("build_environment", {"UV_INDEX_URL": "https://index", "PIP_NO_INDEX": "1", "CC": "gcc"}),
        ("github_environment", {"GH_TOKEN": "t"}),
    ],
)
def test_child_environment_has_no_keys(kind: str, own: dict[str, str]) -> None:
    environment: Callable[[Mapping[str, str]], dict[str, str]] = getattr(process_environment, kind)
    assert environment({**NEEDED, **own, **CANARIES}) == {**NEEDED, **own}


def test_environment_of_git_and_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\n/usr/bin/env\n")
    program.chmod(0o755)
    for name, value in CANARIES.items():
        # The loader would complain of it in this test's own children.
        monkeypatch.setenv(name, value if name != "LD_PRELOAD" else "")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    given = run_git(["status"], cwd=tmp_path).stdout
    given += Uv(program).run([], cwd=tmp_path, doing="looking")
    assert "canary" not in given
    assert given.count(f"HOME={os.environ['HOME']}") == 2


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "SEARCH_KEY",
        "LOG_LEVEL",
        "DATABASE_URL",
        "GITHUB_TOKEN",
        "AWS_ACCESS_KEY_ID",
        "PATHS",
    ],
)
def test_ordinary_names(name: str) -> None:
    assert why_reserved(name) is None


@pytest.mark.parametrize(
    "name", ["LD_AUDIT", "PYTHONHOME", "Path", "git_ssh", "NPM_CONFIG_REGISTRY", "no_proxy"]
)
def test_reserved_names(name: str) -> None:
    assert why_reserved(name)
