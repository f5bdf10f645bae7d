"""What makes a grader, as one digest: runs whose digests are equal were graded alike.

It covers the Python files that define a grader (a class derived from ``…Grader``, a function under
``@osmosis_reward`` or ``@osmosis_rubric``, ``eval_fns`` or an agent loop, which may give its own reward), the files of the rollout that these import, every file that is not Python
(rubrics, answer keys, requirements), the grader's time limit and the variables of the config. It leaves out Python
files that no grader imports, of a file that defines one beside an agent what only the agent needs
(``grading_part.py``), and variables that only such code names: an agent that changes leaves it as it is. Where no grader is
found, or one imports by a computed name, the whole rollout counts. Names of runs, datasets and models are not in it, nor
what a rollout's ``pyproject.toml`` says of its name, version and description.

Equal digests are a promise, different ones only a doubt: a comment in a grader changes the digest, too.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from osmosis_ai.config.lines import parse_toml
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.grading_part import grading_part, last_name, text_of
from osmosis_ai.evaluation.manifest import source_files
from osmosis_ai.rollout.loop import entrypoints

_DECORATORS = frozenset({"osmosis_reward", "osmosis_rubric"})
_COMPUTED_IMPORTS = frozenset({"__import__", "import_module", "exec", "eval", "globals", "vars"})

_READS_BY_NAME = re.compile(
    rb"""(?:\benviron(?:\.get\(|\[)|\bgetenv\()\s*(?:"[^"{]*"|'[^'{]*')\s*(?=[\]),])"""
)

_PROJECT = "pyproject.toml"
_ONLY_NAMES = ("name", "version", "description")
"""Of a project, what decides about nothing that grades."""


def grader_digest(
    rollout_dir: Path,
    *,
    grader_timeout_s: float | None,
    env: Mapping[str, str],
    output_root: Path | None = None,
) -> str:
    """Return the digest of what makes the rollout's grader: a SHA-256 in hexadecimal."""
    files = {name: path.read_bytes() for name, path in source_files(rollout_dir, output_root=output_root)}
    sources = {name: content for name, content in files.items() if name.endswith(".py")}
    others = {name: content for name, content in files.items() if name not in sources}
    if _PROJECT in others:
        others[_PROJECT] = _without_names(others[_PROJECT])
    grading = _grader_sources(sources)
    digest = hashlib.sha256()
    for name, content in sorted({**others, **grading}.items()):
        digest.update(os.fsencode(name) + b"\0" + hashlib.sha256(content).digest())
    variables = _variables_of_graders(env, b"\n".join(grading.values()), b"\n".join(sources.values()))
    config = {"grader_timeout_s": grader_timeout_s, "env": variables}
    digest.update(json.dumps(config, sort_keys=True, separators=(",", ":")).encode())
    return digest.hexdigest()


def _without_names(content: bytes) -> bytes:
    """Return what a ``pyproject.toml`` says but for how its project is called; as it is where it can not be read."""
    try:
        document = parse_toml(content.decode(), _PROJECT)
    except (OsmosisError, UnicodeDecodeError):
        return content
    if isinstance(project := document.get("project"), dict):
        document["project"] = {key: value for key, value in project.items() if key not in _ONLY_NAMES}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), default=str).encode()


def _variables_of_graders(env: Mapping[str, str], grading: bytes, code: bytes) -> dict[str, str]:
    """Return the variables that grading may depend on: all but those that the code names, and grading does
    not."""
    if b"environ" in (rest := _READS_BY_NAME.sub(b"", grading)) or b"getenv" in rest:
        return dict(env)

    def is_the_agents(name: str) -> bool:
        written = re.compile(rb"""["']""" + re.escape(name.encode()) + rb"""["']""")
        return name.encode() not in grading and written.search(code) is not None

    return {name: value for name, value in env.items() if not is_the_agents(name)}


def _grader_sources(sources: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return what grades of the files that do, and the files that it imports; all when that cannot be told."""
    try:
        trees = {name: ast.parse(content) for name, content in sources.items()}
    except (SyntaxError, ValueError, RecursionError):
        return sources
    parts = {name: _part_that_grades(tree) for name, tree in trees.items() if _grades(tree)}
    imported: set[str] = set()
    pending = list(parts.items())
    while pending:
        name, statements = pending.pop()
        if any(_imports_by_a_computed_name(node) for each in statements for node in ast.walk(each)):
            return sources
        new = {file for file in _imported_files(name, statements) if file in sources} - imported
        imported |= new
        pending += [(file, trees[file].body) for file in new]
    whole = imported | {name for name, statements in parts.items() if statements is trees[name].body}
    found = {name: text_of(sources[name], statements) for name, statements in parts.items()}
    return {**found, **{name: sources[name] for name in whole}} or sources


def _part_that_grades(tree: ast.Module) -> list[ast.stmt]:
    """Return the statements of a file that may have to do with grading: all of an agent loop, which may grade itself."""
    graders = [node for node in tree.body if any(map(_is_grader, ast.walk(node)))]
    return grading_part(tree, graders) if graders and not _scores_a_loop(tree) else tree.body


def _grades(tree: ast.Module) -> bool:
    return any(map(_is_grader, ast.walk(tree))) or _scores_a_loop(tree)


def _scores_a_loop(tree: ast.Module) -> bool:
    return entrypoints.binds_eval_fns(tree) or entrypoints.is_agent_loop_module(tree)


def _is_grader(node: ast.AST) -> bool:
    if isinstance(node, ast.ClassDef):
        return any(last_name(base).endswith("Grader") for base in node.bases)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return any(last_name(decorator) in _DECORATORS for decorator in node.decorator_list)
    return False


def _imports_by_a_computed_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in _COMPUTED_IMPORTS


def _imported_files(name: str, statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the files of the rollout that statements of ``name`` may import, whether or not they are there."""
    here = PurePosixPath(name).parent.parts
    for node in (node for each in statements for node in ast.walk(each)):
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
