"""Every environment variable of the product has its place in docs/environment.md, and no other has."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from tests.package_source import SOURCE, syntax_trees

pytestmark = pytest.mark.imports_much

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "environment.md"
VARIABLE = re.compile(r"_?OSMOSIS_[A-Z0-9_]*[A-Z0-9]")


@cache
def variables_in_the_source() -> dict[str, str]:
    """Return each variable that some string of the code consists of, and a file that has it."""
    found: dict[str, str] = {}
    for path, tree in syntax_trees().items():
        source = (SOURCE / path).read_text(encoding="utf-8")
        for node in ast.walk(tree) if VARIABLE.search(source) else ():
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and VARIABLE.fullmatch(text):
                found.setdefault(text, path)
    return found


def test_every_variable_of_the_source_is_documented() -> None:
    documented = set(VARIABLE.findall(PAGE.read_text(encoding="utf-8")))
    missing = {name: path for name, path in variables_in_the_source().items() if name not in documented}
    assert not missing, f"say what these are in docs/{PAGE.name}: {missing}"


def test_every_documented_variable_is_in_the_source() -> None:
    documented = set(VARIABLE.findall(PAGE.read_text(encoding="utf-8")))
    gone = documented - set(variables_in_the_source())
    assert not gone, f"docs/{PAGE.name} tells of variables that nothing reads: {sorted(gone)}"
