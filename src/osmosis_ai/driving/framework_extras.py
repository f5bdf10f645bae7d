"""Which agent frameworks a rollout's code imports, and whether its project asks for their extras.

An environment takes minutes and hundreds of megabytes to build. That its code then cannot be imported, for want of a
word in ``pyproject.toml``, is known before: the code is read, never run, from the entrypoint along what it imports at
the top of its files. An import inside a function or under a condition is the author's own business.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from osmosis_ai.driving.requirements import RolloutProject, read_project, unmet_requirements
from osmosis_ai.errors import OsmosisError, install_command
from osmosis_ai.installation import DISTRIBUTION
from osmosis_ai.rollout.extras import MODULES

_INTEGRATIONS = "osmosis_ai.rollout.integrations.agents"
_EXTRAS = {"openai_agents": "openai-agents", "strands": "strands"}
# Nobody writes a module of this size by hand; what is larger is data, and slow to parse.
_LARGEST_FILE_BYTES = 1_000_000
# The code is anybody's: reading it may not take longer than what it saves.
_MOST_FILES = 300


@dataclass(frozen=True)
class FrameworkImport:
    """Where a rollout's code imports the integration of a framework."""

    extra: str
    file: str
    line: int


@dataclass(frozen=True)
class MissingFramework:
    """A framework that the code imports and will not find."""

    where: FrameworkImport
    problem: str
    hint: str


def undeclared_framework(rollout_dir: Path, entrypoint: str) -> MissingFramework | None:
    """Return the first framework that the code imports and its project does not ask for."""
    project = read_project(rollout_dir)
    if project is None or project.is_dynamic:
        return None
    for found in framework_imports(rollout_dir, entrypoint):
        if not _brings(project, found.extra, rollout_dir):
            asked = ",".join(sorted({*project.sdk_extras, found.extra}))
            return MissingFramework(
                found,
                f"imports the integration of `{found.extra}`, an extra that `rollouts/{rollout_dir.name}/pyproject.toml` "
                "does not ask for",
                f'write "{DISTRIBUTION}[{asked}]" among the `dependencies` of that file.',
            )
    return None


def require_frameworks(rollout_dir: Path, entrypoint: str) -> str | None:
    """Check, before an environment is built or a server started, that the code's frameworks will be there."""
    project = read_project(rollout_dir)
    runs_here = project is None or not unmet_requirements(project)
    undeclared = undeclared_framework(rollout_dir, entrypoint)
    missing = _uninstalled_framework(rollout_dir, entrypoint) if runs_here else undeclared
    if missing is not None:
        where = missing.where
        raise OsmosisError(
            f"`rollouts/{rollout_dir.name}/{where.file}`, line {where.line}, {missing.problem}.",
            details={"extra": where.extra, "file": where.file, "line": where.line},
            hint=missing.hint,
        )
    if undeclared is None:
        return None
    where = undeclared.where
    return f"{where.file}, line {where.line}, {undeclared.problem}; it is installed here, and may not be elsewhere"


def _uninstalled_framework(rollout_dir: Path, entrypoint: str) -> MissingFramework | None:
    for found in framework_imports(rollout_dir, entrypoint):
        if any(find_spec(module) is None for module in MODULES[found.extra]):
            return MissingFramework(
                found,
                f"imports the integration of `{found.extra}`, an extra that is not installed here",
                f"install it with: {install_command(found.extra)}",
            )
    return None


def framework_imports(rollout_dir: Path, entrypoint: str) -> list[FrameworkImport]:
    """Return the integrations that an entrypoint's modules import when they are imported."""
    root = rollout_dir.resolve()
    pending, seen, found = [root / entrypoint], set[Path](), list[FrameworkImport]()
    while pending and len(seen) < _MOST_FILES:
        path = _file_below(root, pending.pop(0))
        if path is None or path in seen:
            continue
        seen.add(path)
        for module, line in _imported_at_the_top(path):
            package, _, below = module.partition(f"{_INTEGRATIONS}.")
            extra = None if package else _EXTRAS.get(below.partition(".")[0])
            if extra is not None:
                found.append(FrameworkImport(extra, path.relative_to(root).as_posix(), line))
            elif not module.startswith("osmosis_ai."):
                places = (path.parent, root / "src", root, (root / entrypoint).parent)
                pending += _files_of(module, path, places)
    return found


def _imported_at_the_top(path: Path) -> Iterator[tuple[str, int]]:
    """Yield dotted name and line of what a file imports unconditionally; dots in front count from the file."""
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            return
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # whoever imports it says better what is wrong with it
    for node in body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module, node.lineno
            separator = "" if module.endswith(".") else "."
            yield from ((f"{module}{separator}{alias.name}", node.lineno) for alias in node.names)


def _files_of(module: str, importer: Path, places: tuple[Path, ...]) -> Iterator[Path]:
    """Yield where a module and its packages may be."""
    name = module.lstrip(".")
    level = len(module) - len(name)
    if level:
        base = importer.parent
        for _ in range(level - 1):
            base = base.parent
        places = (base,)
    parts = name.split(".") if name else []
    for place in places:
        for count in range(len(parts) + 1):
            stem = place.joinpath(*parts[:count])
            yield stem / "__init__.py"
            if count:
                yield stem.with_name(f"{stem.name}.py")


def _file_below(root: Path, path: Path) -> Path | None:
    """Return the file that a path really is; None when there is none, or none of the rollout's."""
    try:
        real = path.resolve()
        return real if real.is_relative_to(root) and real.is_file() else None
    except (OSError, RuntimeError, ValueError):
        return None  # a link that leads to itself, a name that no file can have


def _brings(project: RolloutProject, extra: str, rollout_dir: Path) -> bool:
    """Tell whether a project's environment will have the framework of an extra."""
    lines = [Requirement(line) for line in metadata.distribution(DISTRIBUTION).requires or ()]
    asked, known = list(project.sdk_extras), set[str]()
    while asked:
        name = asked.pop()
        if name not in known:
            known.add(name)
            asked += [canonicalize_name(each) for line in _lines_of(lines, name) for each in line.extras]
    if extra in known:
        return True
    frameworks = {canonicalize_name(line.name) for line in _lines_of(lines, extra)}
    if frameworks & {canonicalize_name(need.name) for need in project.dependencies}:
        return True
    # Another dependency may bring it along; a lock names everything.
    try:
        lock = (rollout_dir / "uv.lock").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return any(f'\nname = "{name}"\n' in lock for name in frameworks)


def _lines_of(lines: list[Requirement], extra: str) -> list[Requirement]:
    return [
        line
        for line in lines
        if line.marker and line.marker.evaluate({"extra": extra}) and not line.marker.evaluate({"extra": ""})
    ]
