"""What makes a grader, as one digest: runs whose digests are equal were graded alike.

It covers the Python files that define a grader (a class derived from ``…Grader``, a function under
``@osmosis_reward`` or ``@osmosis_rubric``, ``eval_fns`` or an agent loop, which may give its own reward), the files of the rollout that these import, every file that is not Python
(rubrics, answer keys, requirements), the grader's time limit and the variables of the config. It leaves out Python
files that no grader imports, so an agent that changes in a file of its own leaves it as it is; where no grader is
found, or one imports by a computed name, the whole rollout counts. Names of runs, datasets and models are not in it.

Equal digests are a promise, different ones only a doubt: a comment changes the digest, too.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from osmosis_ai.evaluation.manifest import source_files
from osmosis_ai.rollout.loop import entrypoints

_DECORATORS = frozenset({"osmosis_reward", "osmosis_rubric"})
_COMPUTED_IMPORTS = frozenset({"__import__", "import_module", "exec", "eval"})


def grader_digest(
    rollout_dir: Path,
    *,
    grader_timeout_s: float | None,
    env: Mapping[str, str],
    output_root: Path | None = None,
) -> str:
    """Return the SHA-256 (hex) of what makes the rollout's grader.

    Args:
        rollout_dir: the rollout's directory.
        grader_timeout_s: how long grading may take.
        env: the config's variables.
        output_root: left out when it is inside the directory.

    Raises:
        OsmosisError: for a symbolic link to a directory, or to nothing.
    """
    files = {name: path.read_bytes() for name, path in source_files(rollout_dir, output_root=output_root)}
    sources = {name: content for name, content in files.items() if name.endswith(".py")}
    needed = _grader_sources(sources)
    digest = hashlib.sha256()
    for name in sorted(files):
        if name not in sources or name in needed:
            digest.update(name.encode() + b"\0" + hashlib.sha256(files[name]).digest())
    config = {"grader_timeout_s": grader_timeout_s, "env": dict(env)}
    digest.update(json.dumps(config, sort_keys=True, separators=(",", ":")).encode())
    return digest.hexdigest()


def _grader_sources(sources: Mapping[str, bytes]) -> set[str]:
    """Return the names of the files that define a grader or are imported by one; all when that cannot be told."""
    try:
        trees = {name: ast.parse(content) for name, content in sources.items()}
    except (SyntaxError, ValueError, RecursionError):
        return set(sources)
    pending = [name for name, tree in trees.items() if _grades(tree)]
    found: set[str] = set()
    while pending:
        name = pending.pop()
        if name in found:
            continue
        if any(map(_imports_by_a_computed_name, ast.walk(trees[name]))):
            return set(sources)
        found.add(name)
        pending += [imported for imported in _imported_files(name, trees[name]) if imported in sources]
    return found or set(sources)


def _grades(tree: ast.Module) -> bool:
    return (
        any(map(_is_grader, ast.walk(tree)))
        or entrypoints.binds_eval_fns(tree)
        or entrypoints.is_agent_loop_module(tree)
    )


def _is_grader(node: ast.AST) -> bool:
    if isinstance(node, ast.ClassDef):
        return any(_last_name(base).endswith("Grader") for base in node.bases)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return any(_last_name(decorator) in _DECORATORS for decorator in node.decorator_list)
    return False


def _imports_by_a_computed_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _last_name(node.func) in _COMPUTED_IMPORTS


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _imported_files(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield the files of the rollout that ``name`` may import, whether or not they are there."""
    here = PurePosixPath(name).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(tuple(alias.name.split(".")))
        elif isinstance(node, ast.ImportFrom):
            # A relative import begins in the file's own package, an absolute one in the rollout's directory.
            base = here[: len(here) - (node.level - 1)] if node.level else ()
            module = (*base, *(node.module or "").split(".")) if node.module else base
            yield from _files_of(module)
            for alias in node.names:
                yield from _files_of((*module, alias.name))


def _files_of(module: Iterable[str]) -> Iterator[str]:
    """Yield the file of a module, and those of the packages it is in."""
    parts = tuple(module)
    for length in range(1, len(parts) + 1):
        yield "/".join((*parts[:length], "__init__.py"))
    if parts:
        yield "/".join(parts) + ".py"
