"""The page about agent loops says what the code does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from annotated_types import Ge, Le

from osmosis_ai import rollout
from osmosis_ai.rollout.loop.settings import RolloutClientSettings, RolloutServerSettings, RolloutSettings

PAGE = (Path(__file__).parents[2] / "docs" / "agent-loop.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_table_of_settings_has_each_variable_with_its_default_and_range() -> None:
    told = {
        name: (float(default), float(low), float(high))
        for name, default, low, high in re.findall(
            r"^\| `(OSMOSIS_ROLLOUT_\w+)` \| ([\d.]+) \| ([\d.]+) – ([\d.]+) \|$", PAGE, re.MULTILINE
        )
    }
    declared = {}
    for model in (RolloutClientSettings, RolloutServerSettings, RolloutSettings):
        for name, field in model.model_fields.items():
            bounds = {type(bound): bound for bound in field.metadata}
            if bounds:
                declared[model._variable(name)] = (field.default, bounds[Ge].ge, bounds[Le].le)
    assert told == declared


def test_every_name_that_its_code_imports_is_there() -> None:
    for block in BLOCKS:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "osmosis_ai.rollout":
                assert {alias.name for alias in node.names} <= set(rollout.__all__)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_its_code_is_python_of_our_format(block: str) -> None:
    ast.parse(block)
    assert max(len(line) for line in block.splitlines()) <= 110
