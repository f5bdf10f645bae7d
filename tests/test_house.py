"""House rules that a program can check. import-linter checks layers and import cycles (pyproject.toml)."""

from __future__ import annotations

import ast
import tokenize
from collections import defaultdict
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

from tests.package_source import SOURCE, syntax_trees

pytestmark = pytest.mark.imports_much

# Paths of 0.2, which users' code imports: each is a module of today's under its name of then. `utils` is 0.3's, too.
PATHS_OF_0_2 = {
    "consts.py",
    "rollout/client.py",
    "rollout/cli_utils.py",
    "rollout/config.py",
    "rollout/core/base.py",
    "rollout/core/exceptions.py",
    "rollout/core/llm_client.py",
    "rollout/core/schemas.py",
    "rollout/eval/common/__init__.py",
    "rollout/eval/common/cli.py",
    "rollout/eval/common/dataset.py",
    "rollout/eval/common/errors.py",
    "rollout/eval/common/llm_client.py",
    "rollout/eval/common/runner.py",
    "rollout/eval/evaluation/cli.py",
    "rollout/eval/evaluation/eval_fn.py",
    "rollout/eval/evaluation/report.py",
    "rollout/eval/evaluation/runner.py",
    "rollout/eval/test_mode/cli.py",
    "rollout/eval/test_mode/interactive.py",
    "rollout/eval/test_mode/runner.py",
    "rollout/network.py",
    "rollout/registry.py",
    "rollout/server/api_key.py",
    "rollout/server/registration.py",
    "rollout/server/serve.py",
    "rollout/server/state.py",
    "rollout/testing.py",
    "rollout/tools.py",
    "rollout/utils/__init__.py",
    "rollout/utils/imports.py",
    "rollout/utils/messages.py",
    "rollout/validator.py",
    "utils.py",
}

# Names that users import from two modules, one for each framework.
CLASSES_OF_TWO_FRAMEWORKS = {"OsmosisRolloutModel"}


@cache
def modules() -> dict[str, ast.Module]:
    """Return path below the package -> syntax tree of every module, but for the schema's steps."""
    return {path: tree for path, tree in syntax_trees().items() if "versions" not in Path(path).parts}


def test_a_public_class_name_stands_once() -> None:
    homes = defaultdict(list)
    for path, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path)
    twice = {name for name, where in homes.items() if len(where) > 1}
    assert {name: homes[name] for name in twice - CLASSES_OF_TWO_FRAMEWORKS} == {}


def test_no_module_is_named_after_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "misc", "shared", "base_classes"}
    named = {path for path in modules() if empty & set(Path(path).with_suffix("").parts)}
    assert named - PATHS_OF_0_2 == set()


def test_no_two_modules_of_a_package_differ_by_one_letter() -> None:
    known = {path.removesuffix(".py").removesuffix("/__init__") for path in modules()}
    assert sorted(path for path in known if f"{path}s" in known) == []


# The viewer

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """Return the lines of a module that do something: no comment, no blank line, no string that stands for itself."""
    told: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        # Python knows the first one in a class or function as its docstring; one below a name is the name's.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            told |= lines_of(node) if isinstance(node.value.value, str) else set()
    read = tokenize.generate_tokens(StringIO(source).readline)
    tokens = [each for each in read if each.type not in _LAYOUT]
    return len({line for each in tokens for line in range(each.start[0], each.end[0] + 1)} - told)


def lines_of(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def test_what_only_tells_is_no_line_of_code() -> None:
    told = ['"""Why."""', "", "# How.", '"""What the name above', 'stands for."""']
    does = [
        "from os import (",
        "    path,",
        ")",
        "def lines() -> str:",
        '    """Tell."""',
        '    return """one',
        "",
        'two"""',
    ]
    assert code_lines("\n".join(told)) == 0
    assert code_lines("\n".join([*told, *does])) == 7


def test_the_viewer_stays_small() -> None:
    viewer = [SOURCE / path for path in modules() if path.startswith(("ui/", "viewer/"))]
    assert sum(code_lines(path.read_text("utf-8")) for path in viewer) < 5_050
    for pattern, most in (("*.js", 1_000), ("*.css", 600)):
        files = list((SOURCE / "ui" / "kit").rglob(pattern))
        assert files and sum(len(file.read_text("utf-8").splitlines()) for file in files) < most
