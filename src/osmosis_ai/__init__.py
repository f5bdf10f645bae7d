"""Osmosis: evaluate and train LLM agents.

Agents are written against :mod:`osmosis_ai.rollout`. The names here are resolved on first use, so
that importing the package costs nothing.
"""

from __future__ import annotations

from osmosis_ai._version import __version__

TYPE_CHECKING = False  # what type checkers take for true; `typing` itself costs a third of a start
if TYPE_CHECKING:
    from osmosis_ai.errors import OsmosisError

__all__ = ["OsmosisError", "__version__"]

_HOMES = {"OsmosisError": "osmosis_ai.errors"}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
