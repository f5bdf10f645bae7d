"""Imports of a test file that are deferred until its first test runs.

Every pytest worker collects every file, so slow imports would be executed by each. ``tests/conftest.py`` runs such files
first, so one worker imports them for all.
"""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

WAITING: set[str] = set()
"""The files with deferred imports."""


def needs(*packages: str) -> None:
    """Skip the test or file if a package is not installed, without importing it."""
    for name in packages:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)


@contextmanager
def lazily(*needed: str) -> Iterator[None]:
    """Defer the imports of a test file's ``with`` block until its first test; skip the file if a package is missing.

    ``import package.module as name`` cannot be deferred, nor what decorators or constants of the file use.
    """
    needs(*needed)
    kept = builtins.__import__
    builtins.__import__ = _wait
    try:
        yield
    finally:
        builtins.__import__ = kept


def import_what_waits(module: ModuleType) -> None:
    """Execute the deferred imports of ``module`` before its first test."""
    if module.__name__ in WAITING:
        WAITING.discard(module.__name__)
        for name, value in list(vars(module).items()):
            if isinstance(value, _Waiting):
                setattr(module, name, value.bring())


def _wait(
    name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] = (), level: int = 0
) -> _Names | _Waiting:
    WAITING.add(globals["__name__"])
    return _Names(name) if fromlist else _Waiting(name)


class _Names:
    """The module of a deferred ``from module import ...``."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> _Waiting:
        return _Waiting(self._module, name)


class _Waiting:
    """Placeholder of a module or of a name in it."""

    def __init__(self, module: str, name: str = "") -> None:
        self._module, self._name = module, name

    def bring(self) -> Any:
        module = importlib.import_module(self._module)
        if not self._name:
            return module
        if hasattr(module, self._name):
            return getattr(module, self._name)
        return importlib.import_module(f"{self._module}.{self._name}")
