"""The command line: a module per command group, and one place that renders results."""

from __future__ import annotations


def __getattr__(name: str) -> object:
    if name != "main":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module("osmosis_ai.cli.main")
