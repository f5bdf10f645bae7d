"""The command line: a folder per command group, a file per command, one place that renders.

A command file parses options, calls one service function and returns a result
(:mod:`osmosis_ai.cli.output.results`); everything else is the frame's.
"""

from __future__ import annotations


def __getattr__(name: str) -> object:
    if name != "main":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module("osmosis_ai.cli.main")
