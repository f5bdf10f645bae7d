"""A framework that a rollout imports and will not have is known before an environment is built."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.driving import framework_extras, rollout_runner
from osmosis_ai.driving.framework_extras import framework_imports, require_frameworks, undeclared_framework
from osmosis_ai.errors import OsmosisError

STRANDS = "from osmosis_ai.rollout.integrations.agents.strands import OsmosisStrandsAgent\n"
OPENAI = "import osmosis_ai.rollout.integrations.agents.openai_agents as oa\n"


def rollout(root: Path, dependencies: list[str] | None = None, **files: str) -> Path:
    """Write a rollout of modules by their names; without ``dependencies`` it has no project."""
    directory = root / "mine"
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / f"{name}.py").write_text(text)
    if dependencies is not None:
        text = f'[project]\nname = "mine"\nversion = "1"\ndependencies = {dependencies!r}\n'
        (directory / "pyproject.toml").write_text(text)
    return directory


@pytest.mark.parametrize(
    "dependencies",
    [
        ["osmosis-ai[server,strands]"],
        ["osmosis_ai[Strands]>=0.3.0rc1,<0.4"],
        ["osmosis-ai[server]", "strands-agents>=1.50"],
        ["osmosis-ai", "Strands_Agents[litellm]"],
    ],
)
def test_a_project_that_asks_for_its_framework_is_in_order(tmp_path: Path, dependencies: list[str]) -> None:
    assert undeclared_framework(rollout(tmp_path, dependencies, main=STRANDS), "main.py") is None


@pytest.mark.parametrize(
    "dependencies", [[], ["osmosis-ai[server]"], ["osmosis-ai[openai-agents]", "strands"]]
)
def test_a_project_that_does_not_is_told_what_to_write_and_where(
    tmp_path: Path, dependencies: list[str]
) -> None:
    missing = undeclared_framework(rollout(tmp_path, dependencies, main=f"import os\n{STRANDS}"), "main.py")

    assert missing is not None
    assert (missing.where.file, missing.where.line) == ("main.py", 2)
    assert "`strands`, an extra that `rollouts/mine/pyproject.toml` does not ask for" in missing.problem
    assert "strands]" in missing.hint and "server" in missing.hint


def test_the_extra_of_the_whole_package_brings_every_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sdk:
        requires = ("osmosis-ai[frameworks]; extra == 'all'", "osmosis-ai[strands]; extra == 'frameworks'")

    monkeypatch.setattr(framework_extras.metadata, "distribution", lambda name: Sdk)
    assert undeclared_framework(rollout(tmp_path / "a", ["osmosis-ai[all]"], main=STRANDS), "main.py") is None
    assert undeclared_framework(rollout(tmp_path / "b", ["osmosis-ai[none]"], main=STRANDS), "main.py")


def test_what_cannot_be_told_from_the_project_is_not_held_against_it(tmp_path: Path) -> None:
    without = rollout(tmp_path / "a", main=STRANDS)
    dynamic = rollout(tmp_path / "b", ["osmosis-ai"], main=STRANDS)
    (dynamic / "pyproject.toml").write_text('[project]\nname = "mine"\ndynamic = ["dependencies"]\n')
    locked = rollout(tmp_path / "c", ["house-agents"], main=STRANDS)
    (locked / "uv.lock").write_text(
        'version = 1\n\n[[package]]\nname = "strands-agents"\nversion = "1.62.0"\n'
    )

    assert [undeclared_framework(each, "main.py") for each in (without, dynamic, locked)] == [None] * 3


@pytest.mark.parametrize(
    ("main", "file"),
    [
        ("import agent\n", "agent.py"),
        ("from agent import build\n", "agent.py"),
        ("from . import agent\n", "agent.py"),
        ("from .agent import build\n", "agent.py"),
        ("import mine.flow\n", "src/mine/flow.py"),
        ("from mine import flow\n", "src/mine/flow.py"),
        ("import tools\n", "tools/shapes.py"),
    ],
)
def test_imports_are_followed_through_the_rollouts_own_modules(tmp_path: Path, main: str, file: str) -> None:
    directory = rollout(tmp_path, [], main=main)
    for name, text in {
        "agent.py": OPENAI,
        "src/mine/__init__.py": "",
        "src/mine/flow.py": OPENAI,
        "tools/__init__.py": "from .shapes import square\n",
        "tools/shapes.py": OPENAI,
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)

    assert [(found.extra, found.file) for found in framework_imports(directory, "main.py")] == [
        ("openai-agents", file)
    ]


@pytest.mark.parametrize(
    "main",
    [
        "import os\n",
        f"try:\n    {STRANDS}except ImportError:\n    pass\n",
        f"def build():\n    {STRANDS}",
        "import unrelated_and_absent\n",
        "def broken(:\n",
        "from ....... import somewhere\n",
        "\x00",
        "(" * 100_000,
        "1" + "+1" * 100_000,
        "-" * 100_000 + "1",
        "import looped\n",
        f"import {'x' * 5_000}\n",
        "import main\n",
    ],
)
def test_code_that_imports_none_at_its_top_or_cannot_be_read_says_nothing(tmp_path: Path, main: str) -> None:
    directory = rollout(tmp_path, [], main=main, other=STRANDS)
    outside = tmp_path / "outside.py"
    outside.write_text(STRANDS)
    (directory / "unrelated_and_absent.py").symlink_to(outside)
    (directory / "looped.py").symlink_to("looped.py")

    assert framework_imports(directory, "main.py") == []


def test_a_rollout_of_very_many_modules_is_not_read_to_its_end(tmp_path: Path) -> None:
    chain = {f"m{number}": f"import m{number + 1}\n" for number in range(1_000)}
    directory = rollout(tmp_path, [], main="import m0\n", **chain, m1000=STRANDS)

    assert framework_imports(directory, "main.py") == []


def test_where_the_rollout_runs_here_an_uninstalled_extra_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = rollout(tmp_path, main=STRANDS)
    require_frameworks(directory, "main.py")
    installed = importlib.util.find_spec
    monkeypatch.setattr(
        framework_extras, "find_spec", lambda name: None if name == "strands" else installed(name)
    )

    with pytest.raises(
        OsmosisError, match=r"`rollouts/mine/main\.py`, line 1, imports .*`strands`"
    ) as caught:
        require_frameworks(directory, "main.py")
    assert caught.value.hint is not None
    assert "pip install" in caught.value.hint and "[strands]" in caught.value.hint


def test_an_extra_that_is_installed_here_and_not_asked_for_is_worth_a_note(tmp_path: Path) -> None:
    forgetful = rollout(tmp_path / "a", ["osmosis-ai[server]"], main=STRANDS)
    in_order = rollout(tmp_path / "b", ["osmosis-ai[server,strands]"], main=STRANDS)

    assert require_frameworks(in_order, "main.py") is None
    assert str(require_frameworks(forgetful, "main.py")).startswith(
        "main.py, line 1, imports the integration"
    )


async def test_nothing_is_built_for_a_project_that_forgot_its_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Any] = []
    monkeypatch.setattr(rollout_runner, "prepare_environment", lambda *args, **kwargs: built.append(args))
    directory = rollout(tmp_path, ["no-such-package-at-all"], main=OPENAI)

    with pytest.raises(OsmosisError, match="does not ask for"):
        await asyncio.wait_for(
            rollout_runner.prepare_server(
                rollout_dir=directory,
                entrypoint="main.py",
                environ=os.environ,
                variables={},
                secret_values={},
                artifact_root=tmp_path,
                log_path=tmp_path / "log",
                cache_dir=tmp_path / "cache",
                note=lambda _: None,
            ),
            60,
        )
    assert built == []
