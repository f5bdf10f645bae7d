"""Syntax trees of the package's modules, parsed once per pytest worker."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "osmosis_ai"


@cache
def syntax_trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module by its path below the package."""
    trees = {
        path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text("utf-8"))
        for path in sorted(SOURCE.rglob("*.py"))
    }
    # Millions of nodes that stay: no search for garbage is to visit them.
    gc.freeze()
    return trees
