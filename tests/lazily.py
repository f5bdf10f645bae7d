"""Modules that are imported when a test first asks for a name of theirs.

Every worker collects every file, and only some run a file's tests: what takes seconds to import is not to be imported
for being collected.
"""

from __future__ import annotations

import importlib
from typing import Any


class Lazily:
    """Stands for a module that is not imported yet."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)
