"""The pages of reference say what the code says: commands, config keys, variables, settings, formats."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from annotated_types import Ge, Le
from tests.package_source import SOURCE, syntax_trees

from osmosis_ai import rollout
from osmosis_ai.rollout import RolloutClientSettings, RolloutServerSettings, RolloutSettings

REPOSITORY = Path(__file__).parents[2]
VARIABLE = re.compile(r"_?OSMOSIS_[A-Z0-9_]*[A-Z0-9]")


def page(name: str) -> str:
    return (REPOSITORY / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.integration
def test_the_command_reference_is_what_the_commands_say() -> None:
    result = subprocess.run(
        [sys.executable, "scripts/make_cli_reference.py", "--check"],
        cwd=REPOSITORY,
        # Neither the caller's variables nor the width of a terminal may show on the page.
        env={name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.imports_much
def test_what_the_docs_say_of_config_keys_is_what_the_code_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "argv", ["make_config_tables.py", "--check"])
    written = runpy.run_path(str(REPOSITORY / "scripts" / "make_config_tables.py"))
    assert written["main"]() == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "name, tables",
    [
        (
            "reference/config.md",
            [
                "advanced",
                "checkpoints",
                "decide",
                "evaluation",
                "execution",
                "experiment",
                "sampling",
                "training",
            ],
        ),
        ("guides/training.md", ["memory"]),
    ],
)
def test_every_table_is_there(name: str, tables: list[str]) -> None:
    named = re.findall(r"<!-- table: ([a-z-]+) -->", page(name))
    assert sorted(named) == tables
    assert page(name).count("<!-- end of table -->") == len(named)


def test_the_page_has_every_format_of_tool_calls_and_its_mark() -> None:
    from osmosis_ai.inference.catalog import FORMAT_NAMES
    from osmosis_ai.inference.chat import MARKS

    rows = re.findall(
        r"(?m)^\| `([a-z0-9_]+)` \| .+ \| `(\S+)` \| [^|]+ \|$",
        page("guides/training.md").partition("### Tool calls")[2],
    )
    assert [name for name, _ in rows] == list(FORMAT_NAMES)
    assert {(mark.replace("\\|", "|"), name) for name, mark in rows} == set(MARKS)


@pytest.mark.imports_much
def test_every_variable_of_the_source_is_documented_and_no_other() -> None:
    found: dict[str, str] = {}
    for path, tree in syntax_trees().items():
        source = (SOURCE / path).read_text(encoding="utf-8")
        for node in ast.walk(tree) if VARIABLE.search(source) else ():
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and VARIABLE.fullmatch(text):
                found.setdefault(text, path)
    documented = set(VARIABLE.findall(page("reference/environment.md")))
    missing = {name: path for name, path in found.items() if name not in documented}
    assert not missing, f"say what these are in docs/reference/environment.md: {missing}"
    gone = sorted(documented - set(found))
    assert not gone, f"docs/reference/environment.md tells of variables that nothing reads: {gone}"


def test_the_table_of_an_agent_loops_settings_has_each_variable_with_its_default_and_range() -> None:
    told = {
        name: (float(default), float(low), float(high))
        for name, default, low, high in re.findall(
            r"(?m)^\| `(OSMOSIS_ROLLOUT_\w+)` \| ([\d.]+) \| ([\d.]+) – ([\d.]+) \|$",
            page("guides/agent-loops.md"),
        )
    }
    declared = {}
    for model in (RolloutClientSettings, RolloutServerSettings, RolloutSettings):
        for name, field in model.model_fields.items():
            bounds = {type(bound): bound for bound in field.metadata}
            if bounds:
                declared[f"{model.env_prefix}{name}".upper()] = (field.default, bounds[Ge].ge, bounds[Le].le)
    assert told == declared


def test_the_code_of_the_page_about_agent_loops_is_python_and_every_name_it_imports_is_there() -> None:
    for block in re.findall(r"(?ms)^```python\n(.*?)^```$", page("guides/agent-loops.md")):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "osmosis_ai.rollout":
                assert {alias.name for alias in node.names} <= set(rollout.__all__)
