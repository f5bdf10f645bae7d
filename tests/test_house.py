"""Rules of this repository that a program can check. import-linter checks layers and import cycles (pyproject.toml)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.cli.registry import COMMANDS
from osmosis_ai.cli.root import PROGRAM, build_root
from tests.package_source import SOURCE, syntax_trees

pytestmark = pytest.mark.imports_much

ROOT = Path(__file__).parents[1]
# Users import this name from two modules, one for each framework.
NAMES_OF_TWO_FRAMEWORKS = {"OsmosisRolloutModel"}
UNIDIOMATIC = re.compile(
    r"\b(can not|anew|mend|mends|mended|goes on|went on|is told|are told|told of|handed out|put aside|set aside|"
    r"is away|heard of|held back|whoever|who may)\b",
    re.IGNORECASE,
)
# These numbers only go down.
MOST_IN_MESSAGES = 0
MOST_IN_PAGES = 0
LONGEST_SUMMARY = 60


def test_a_public_class_has_a_unique_name() -> None:
    homes = defaultdict(list)
    for path, tree in syntax_trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path)
    shared = {name: where for name, where in homes.items() if len(where) > 1}
    assert shared.keys() <= NAMES_OF_TWO_FRAMEWORKS, shared


def test_messages_are_idiomatic_english() -> None:
    found = [
        f"{path}:{node.lineno}: {phrase}"
        for path, tree in syntax_trees().items()
        for node in messages(path, tree)
        for phrase in UNIDIOMATIC.findall(node.value)
    ]
    assert len(found) <= MOST_IN_MESSAGES, "\n".join(found)


def messages(path: str, tree: ast.Module) -> Iterator[Any]:
    """Yield the strings that users may see: all literals, and the docstrings of commands, which are their help."""
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and (path.startswith("cli/") or id(node) not in bare):
            yield node


def test_pages_and_docs_are_idiomatic_english() -> None:
    root = SOURCE.parents[1]
    documents = root.glob("*.md")
    pages = [*SOURCE.rglob("*.html"), *SOURCE.rglob("*.txt"), *root.glob("docs/**/*.md"), *documents]
    found = [
        f"{page.relative_to(root)}: {phrase}"
        for page in pages
        for phrase in UNIDIOMATIC.findall(page.read_text("utf-8"))
    ]
    assert len(found) <= MOST_IN_PAGES, "\n".join(found)


def test_summaries_of_command_groups_are_short() -> None:
    root = build_root(lambda **_: None)
    context = root.context_class(root, info_name=PROGRAM)
    summaries = dict(summaries_of_groups(root, context))
    assert len(summaries) > len(COMMANDS) / 2
    assert not {name: text for name, text in summaries.items() if len(text) > LONGEST_SUMMARY}


def summaries_of_groups(group: Any, context: Any) -> Iterator[tuple[str, str]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            below = command.context_class(command, parent=context, info_name=name)
            yield below.command_path, command.get_short_help_str(1000)
            yield from summaries_of_groups(command, below)


def test_make_names_tests_that_exist() -> None:
    named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", (ROOT / "Makefile").read_text())
    assert ("tests/e2e/test_eval_rubric.py", "test_kills_and_resume") in named
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text() if test else (ROOT / file).is_file(), (file, test)
