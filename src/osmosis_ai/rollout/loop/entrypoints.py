"""Find the agent loops in rollout entrypoints by parsing them, without running user code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

AGENT_NAME = "agent_loop"
APP_NAME = "app"
EVAL_FNS_NAME = "eval_fns"

_CREATE_APP = "create_app"
_SERVES_BY_ITSELF = "create_rollout_server"


def names_an_attribute(entrypoint: str) -> bool:
    """Return whether an entrypoint is ``module:attribute`` rather than a file."""
    module, colon, attribute = entrypoint.rpartition(":")
    return bool(colon and attribute.isidentifier() and all(map(str.isidentifier, module.split("."))))


def holds_an_agent_loop(entrypoint: Path) -> bool:
    """Return whether a file binds ``agent_loop``, or this package's ``app = create_app(…)``, at its top level.

    False for a file that creates its own rollout server, and for one that cannot be read.
    """
    try:
        return is_agent_loop_module(ast.parse(entrypoint.read_bytes()))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False


def binds_eval_fns(tree: ast.Module) -> bool:
    """Return whether a module binds ``eval_fns`` at its top level."""
    return any(name == EVAL_FNS_NAME for name, _ in _bindings(tree.body))


def is_agent_loop_module(tree: ast.Module) -> bool:
    """Apply :func:`holds_an_agent_loop` to a parsed module."""
    if any(_last_name(node) == _SERVES_BY_ITSELF for node in ast.walk(tree)):
        return False
    ours = set(_names_of_this_package(tree))
    bound = dict(_bindings(tree.body))
    if AGENT_NAME in bound:
        return True
    made = bound.get(APP_NAME)
    return isinstance(made, ast.Call) and _is_create_app(made.func, ours)


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names bound at the top level, with their value if it is an expression.

    Includes ``if`` and ``try`` blocks, except those for the main program or a type checker.
    """
    for node in body:
        if isinstance(node, ast.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, None) for alias in node.names)
        elif isinstance(node, ast.If):
            yield from _bindings(node.orelse if _is_for_others(node.test) else node.body + node.orelse)
        elif isinstance(node, ast.Try):
            handled = (statement for handler in node.handlers for statement in handler.body)
            yield from _bindings([*node.body, *handled, *node.orelse, *node.finalbody])


def _is_for_others(test: ast.expr) -> bool:
    """Return whether a condition selects the main program (`__name__ == …`) or a type checker."""
    return any(_last_name(node) in ("__name__", "TYPE_CHECKING") for node in ast.walk(test))


def _names_of_this_package(tree: ast.Module) -> Iterator[str]:
    """Yield the module's local names for imports from this package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "osmosis_ai":
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "osmosis_ai":
                    yield alias.asname or "osmosis_ai"


def _is_create_app(called: ast.expr, ours: set[str]) -> bool:
    """Return whether the call is to this package's ``create_app`` and not to a user function of that name."""
    root = called
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name) or root.id not in ours:
        return False
    return called is root or (isinstance(called, ast.Attribute) and called.attr == _CREATE_APP)


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.alias):
        return node.name
    return node.id if isinstance(node, ast.Name) else ""
