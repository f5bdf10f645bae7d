"""Digests of a rollout's code: of all its files, and of what its grader depends on."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from osmosis_ai.config.toml_text import parse_toml
from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.rollout.cli_utils import binds_eval_fns, is_agent_loop_module, last_name

# Tools leave these in a source directory; they are not part of the agent.
_BY_PRODUCTS = {
    *("__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache"),
    *(".git", ".venv", "venv", "uv.lock", "node_modules", "dist", "build"),
}
_COMPUTED_IMPORTS = frozenset({"__import__", "import_module", "exec", "eval", "globals", "vars"})
_READS_BY_NAME = re.compile(
    rb"""(?:\benviron(?:\.get\(|\[)|\bgetenv\()\s*(?:"[^"{]*"|'[^'{]*')\s*(?=[\]),])"""
)


def digest_files(files: Iterable[tuple[str, Path]]) -> str:
    """Return the SHA-256 (hex) over the names and bytes of files."""
    digest = hashlib.sha256()
    for name, path in files:
        digest.update(os.fsencode(name) + b"\0" + bytes.fromhex(file_digest(path)))
    return digest.hexdigest()


def grader_digest(
    directory: Path,
    *,
    grader_timeout_s: float | None,
    env: Mapping[str, str],
    output_root: Path | None = None,
) -> str:
    """Return the SHA-256 (hex) over everything that a rollout's grader depends on.

    Runs with equal grader digests were graded alike. The converse does not hold, since a comment in a grader changes
    its digest. The digest covers

    - the Python files that define a grader (a class derived from ``...Grader``, a function under ``@osmosis_reward``
      or ``@osmosis_rubric``, ``eval_fns``, an agent loop, which may give its own reward), and what these import;
    - all files that are not Python, such as rubrics, without a project's name, version and description;
    - the grader's time limit and the config's variables, except those that only the agent's code names.

    In a file with both an agent and a grader it covers only the statements that grading may depend on. If no grader
    is found, or a grader imports by a computed name, it covers the whole rollout.
    """
    files = {name: path.read_bytes() for name, path in source_files(directory, output_root)}
    sources = {name: files.pop(name) for name in list(files) if name.endswith(".py")}
    if "pyproject.toml" in files:
        files["pyproject.toml"] = _without_ignored_keys(files["pyproject.toml"])
    grading = _grading_code(sources)
    digest = hashlib.sha256()
    for name, content in sorted({**files, **grading}.items()):
        digest.update(os.fsencode(name) + b"\0" + hashlib.sha256(content).digest())
    variables = _grading_variables(env, b"\n".join(grading.values()), b"\n".join(sources.values()))
    config = {"grader_timeout_s": grader_timeout_s, "env": variables}
    digest.update(json.dumps(config, sort_keys=True, separators=(",", ":")).encode())
    return digest.hexdigest()


def source_files(rollout_dir: Path, output_root: Path | None) -> list[tuple[str, Path]]:
    """Return the files of a rollout, each with its path relative to it, sorted."""
    found, pending = [], [rollout_dir]
    while pending:
        for path in pending.pop().iterdir():
            if path.name in _BY_PRODUCTS or path.name.endswith(".egg-info"):
                continue
            if path.is_file():
                found.append((path.relative_to(rollout_dir).as_posix(), path))
            elif path.is_symlink():
                raise OsmosisError(
                    f"'{path}' is a symbolic link to {'a directory' if path.is_dir() else 'nothing'}. "
                    "Its content could change between two sessions of a run. Copy the files in, or remove the link."
                )
            elif path.is_dir() and (output_root is None or path.resolve() != output_root.resolve()):
                pending.append(path)
    return sorted(found)


def _without_ignored_keys(content: bytes) -> bytes:
    """Return a ``pyproject.toml`` without the keys that do not count; unchanged if it is invalid."""
    try:
        document = parse_toml(content.decode(), "pyproject.toml")
    except (OsmosisError, UnicodeDecodeError):
        return content
    if isinstance(project := document.get("project"), dict):
        for key in ("name", "version", "description"):
            project.pop(key, None)
    return json.dumps(document, sort_keys=True, separators=(",", ":"), default=str).encode()


def _grading_variables(env: Mapping[str, str], grading: bytes, code: bytes) -> dict[str, str]:
    """Return the variables that grading may depend on: all except those that only other code names."""
    computed = _READS_BY_NAME.sub(b"", grading)
    if b"environ" in computed or b"getenv" in computed:
        return dict(env)
    quoted = {name for name in env if any(f"{quote}{name}{quote}".encode() in code for quote in "'\"")}
    return {name: env[name] for name in env if name.encode() in grading or name not in quoted}


def _grading_code(sources: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return the grading statements of the files that grade, and the files that they import; or all files."""
    try:
        trees = {name: ast.parse(content) for name, content in sources.items()}
    except (SyntaxError, ValueError, RecursionError):
        return sources
    statements = {name: _grading_statements(tree) for name, tree in trees.items()}
    pending = [name for name in trees if statements[name]]
    code = {name: _source_lines(sources[name], statements[name]) for name in pending}
    while pending:
        name = pending.pop()
        nodes = [node for statement in statements[name] for node in ast.walk(statement)]
        if any(isinstance(node, ast.Call) and last_name(node.func) in _COMPUTED_IMPORTS for node in nodes):
            return sources
        for file in _imported_files(name, nodes):
            if file in trees and statements[file] is not trees[file].body:
                statements[file], code[file] = trees[file].body, sources[file]
                pending.append(file)
    return code or sources


def _grading_statements(tree: ast.Module) -> list[ast.stmt]:
    """Return the statements of a file that grading may depend on; none for a file that does not grade.

    These are the graders, the statements that do more than bind a name (a call, an ``if``), and everything that these
    name, directly or not. A workflow counts only if a grader names it.
    """
    if binds_eval_fns(tree) or is_agent_loop_module(tree):
        return tree.body
    graders = [node for node in tree.body if any(map(_is_grader, ast.walk(node)))]
    if not graders:
        return []
    bound: dict[str, list[ast.stmt]] = {}
    acting = []
    for statement in tree.body:
        names = _bound_names(statement)
        for name in names or ():
            bound.setdefault(name, []).append(statement)
        if names is None:
            acting.append(statement)
    found: set[ast.stmt] = set()
    for pending, skips_workflows in ((graders, False), (acting, True)):
        while pending:
            statement = pending.pop()
            if statement in found or (skips_workflows and _is_class(statement, "Workflow")):
                continue
            found.add(statement)
            for node in ast.walk(statement):
                if isinstance(node, ast.Name):
                    pending += bound.get(node.id, ())
    return [statement for statement in tree.body if statement in found]


def _is_grader(node: ast.AST) -> bool:
    decorators = [last_name(each) for each in getattr(node, "decorator_list", ())]
    return _is_class(node, "Grader") or not {"osmosis_reward", "osmosis_rubric"}.isdisjoint(decorators)


def _is_class(node: ast.AST, base_suffix: str) -> bool:
    return isinstance(node, ast.ClassDef) and any(last_name(b).endswith(base_suffix) for b in node.bases)


def _bound_names(statement: ast.stmt) -> list[str] | None:
    """Return the names that a statement binds if it does nothing else; None for other statements."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        names = [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
        return None if "*" in names else names
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return []  # a docstring
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return None
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return names if names and len(names) == len(targets) else None


def _source_lines(source: bytes, statements: Iterable[ast.stmt]) -> bytes:
    """Return the lines of statements, decorators included."""
    lines = source.splitlines()
    found: list[bytes] = []
    for statement in statements:
        starts = [statement, *getattr(statement, "decorator_list", [])]
        found += lines[min(each.lineno for each in starts) - 1 : statement.end_lineno]
    return b"\n".join(found)


def _imported_files(name: str, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the files that the imports of a file may refer to, whether they exist or not."""
    package = PurePosixPath(name).parent.parts
    modules: list[tuple[str, ...]] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            modules += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # A relative import begins in the file's own package, an absolute one in the rollout's directory.
            base = package[: len(package) - (node.level - 1)] if node.level else ()
            module = (*base, *node.module.split(".")) if node.module else base
            modules += [module, *((*module, alias.name) for alias in node.names)]
    for module in modules:
        yield "/".join(module) + ".py"
        yield from ("/".join((*module[:length], "__init__.py")) for length in range(1, len(module) + 1))
