"""Start-up stays fast because of what is not imported; that is exact, where a clock is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

PROBE = """
import sys
import osmosis_ai.cli.main
sys.stdout, real = sys.stderr, sys.stdout
status = osmosis_ai.cli.main.main(sys.argv[1:])
print(status, *sys.modules, file=real)
"""
HEAVY = {
    "aiohttp",
    "fastapi",
    "git",
    "httpx",
    "jinja2",
    "keyring",
    "litellm",
    "mcp",
    "numpy",
    "openai",
    "orjson",
    "pyarrow",
    "pydantic",
    "rich",
    "safetensors",
    "scipy",
    "stamina",
    "tokenizers",
    "uvicorn",
    "yaml",
}
MODULES = {
    "eval": "osmosis_ai.cli.eval_runs",
    "dataset": "osmosis_ai.cli.datasets",
    "rollout": "osmosis_ai.cli.rollouts",
    "doctor": "osmosis_ai.cli.workspaces",
}
GROUPS = set(MODULES.values())


def modules_after(*arguments: str) -> tuple[int, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    status, *modules = done.stdout.split()
    return int(status), set(modules)


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith("osmosis_ai")}


def test_the_version_imports_nothing_but_the_entry() -> None:
    status, modules = modules_after("--version")
    assert status == 0
    assert ours(modules) == {
        "osmosis_ai",
        "osmosis_ai._version",
        "osmosis_ai.cli",
        "osmosis_ai.cli.main",
    }
    assert not {"typing", "dataclasses", "typer", "inspect", "re"} & modules


def test_help_imports_no_parser_and_no_command() -> None:
    status, modules = modules_after("--help")
    assert status == 0
    assert not (HEAVY | {"typer", "click", "asyncio", "logging", *GROUPS}) & modules


@pytest.mark.parametrize(
    "arguments, status",
    [
        (["eval", "--help"], 0),
        (["dataset", "--help"], 0),
        (["rollout", "--help"], 0),
        (["demo", "--help"], 0),
        (["doctor", "--help"], 0),
        (["evl"], 2),
        (["dataset", "validate"], 2),
        (["dataset", "validate", "--limt", "--json"], 2),
    ],
)
def test_help_and_usage_errors_of_a_command_import_its_own_group_alone(
    arguments: list[str], status: int
) -> None:
    found, modules = modules_after(*arguments)
    assert found == status
    assert not HEAVY & modules
    assert GROUPS & modules == GROUPS & {MODULES.get(arguments[0])}


def test_json_output_never_loads_what_draws() -> None:
    status, modules = modules_after("--json", "dataset", "validate", "absent.jsonl")
    assert status == 1
    assert not {"rich", "httpx", "keyring", "litellm"} & modules


def test_completing_a_command_imports_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_OSMOSIS_COMPLETE", "complete_zsh")
    status, modules = modules_after("ev")
    assert status == 0
    assert not (HEAVY | {"typer", *GROUPS}) & modules


def test_importing_the_package_imports_nothing_else() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, osmosis_ai; print(*sorted(m for m in sys.modules if 'osmosis' in m))",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["osmosis_ai", "osmosis_ai._version"]
