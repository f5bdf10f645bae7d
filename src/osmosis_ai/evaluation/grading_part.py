"""Which statements of a file have to do with grading, where an agent stands beside its grader.

Kept are the graders, what does more than bind a name (a call, an ``if``, a ``with``), and whatever these name,
directly or not. An agent's workflow is named by what puts it together with its grader, and is not followed from
there: only a grader that names it itself brings it in.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def grading_part(tree: ast.Module, graders: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return the top-level statements that grading may depend on, in their order."""
    bound: dict[str, list[ast.stmt]] = {}
    acting = []
    for statement in tree.body:
        names = _bound_names(statement)
        for name in names or ():
            bound.setdefault(name, []).append(statement)
        if names is None and not _is_text(statement):
            acting.append(statement)
    kept = _reached(graders, bound, into_workflows=True) | _reached(acting, bound, into_workflows=False)
    return [statement for statement in tree.body if id(statement) in kept]


def text_of(source: bytes, statements: Iterable[ast.stmt]) -> bytes:
    """Return the lines of a file that its statements stand in, those of their decorators too."""
    lines = source.splitlines()
    found = bytearray()
    for statement in statements:
        decorators = statement.decorator_list if isinstance(statement, _DEFINITIONS) else []
        first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
        found += b"\n".join(lines[first - 1 : statement.end_lineno]) + b"\n"
    return bytes(found)


def last_name(node: ast.expr) -> str:
    """Return what an expression such as ``a.b[c](d)`` is called: ``b``; "" for one without a name."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _reached(
    start: Iterable[ast.stmt], bound: dict[str, list[ast.stmt]], *, into_workflows: bool
) -> set[int]:
    """Return the identities of the statements, and of all that they name, directly or not."""
    found: set[int] = set()
    pending = list(start)
    while pending:
        statement = pending.pop()
        if id(statement) in found:
            continue
        found.add(id(statement))
        named = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        reached = [each for name in named for each in bound.get(name, ())]
        pending += [each for each in reached if into_workflows or not _is_a_workflow(each)]
    return found


def _bound_names(statement: ast.stmt) -> list[str] | None:
    """Return the names that a statement binds and does nothing else; None for others."""
    if isinstance(statement, _DEFINITIONS):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        names = [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
        return None if "*" in names else names
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return names if names and len(names) == len(targets) else None


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_a_workflow(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ClassDef) and any(
        last_name(base).endswith("Workflow") for base in statement.bases
    )
