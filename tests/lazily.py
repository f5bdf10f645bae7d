"""Imports of a test file that wait until its first test runs.

Every worker collects every file, and only one runs its tests: what takes seconds to import is not to be imported for
being collected. Such files come first (``tests/conftest.py`` sorts them), so that one worker imports it for all of them.
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
"""The files whose imports wait."""


def needs(*packages: str) -> None:
    """Skip the test, or the file, where one of these is not installed; it is not imported for that."""
    for name in packages:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)


@contextmanager
def lazily(*needed: str) -> Iterator[None]:
    """Let the imports of a test file's ``with`` block happen before its first test.

    The file is skipped where a package that is named here is not installed. ``import package.module as name`` cannot
    wait, ``from package import module as name`` can; what a decorator or a constant of the file uses cannot, either.
    """
    needs(*needed)
    kept = builtins.__import__
    builtins.__import__ = _wait
    try:
        yield
    finally:
        builtins.__import__ = kept


def import_what_waits(module: ModuleType) -> None:
    """Import what waits in ``module``; its first test is about to run."""
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
    """What ``from module import ...`` takes its names from."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> _Waiting:
        return _Waiting(self._module, name)


class _Waiting:
    """Stands for a module, or for a name of it."""

    def __init__(self, module: str, name: str = "") -> None:
        self._module, self._name = module, name

    def bring(self) -> Any:
        module = importlib.import_module(self._module)
        if not self._name:
            return module
        if hasattr(module, self._name):
            return getattr(module, self._name)
        return importlib.import_module(f"{self._module}.{self._name}")
