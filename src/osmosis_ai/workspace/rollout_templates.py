"""Rollout templates, with their configs and the data that these name.

They come from the workspace in this package, or from a directory of the user's (``OSMOSIS_WORKSPACE_TEMPLATE_PATH``).
Nothing is downloaded. A directory is untrusted: links in it are not followed, and its size is limited.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.config.issues import closest
from osmosis_ai.config.toml_text import parse_toml
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.workspace.layout import WorkspaceDirectory, find_dataset_file
from osmosis_ai.workspace.placement import RolloutFiles

PATH_ENV = "OSMOSIS_WORKSPACE_TEMPLATE_PATH"
REPO_ENV = "OSMOSIS_WORKSPACE_TEMPLATE_REPO"
REF_ENV = "OSMOSIS_WORKSPACE_TEMPLATE_REF"
EXAMPLE = "multiply"
"""The first template: `osmosis demo` evaluates it, and new rollouts with an example start from it."""

ROLLOUT_NAME = re.compile(r"[a-z][a-z0-9-]*")
# Created by using a rollout, or private.
_LEFT_OUT = frozenset({".env", ".git", ".mypy_cache", ".osmosis", ".ruff_cache", ".venv", "__pycache__"})
_MOST_FILES, _MOST_BYTES = 1_000, 64 * 1024 * 1024
_ELSEWHERE = {
    "multiply-harbor-strands": "it runs in containers, which this release does not start; "
    "`multiply-local-strands` is the same agent on this machine",
}


@dataclass(frozen=True)
class RolloutTemplate:
    """A template of a rollout."""

    root: Path
    name: str

    @property
    def summary(self) -> str:
        """The description in its `pyproject.toml`; empty if there is none."""
        path = self.root / "rollouts" / self.name / "pyproject.toml"
        if path.is_symlink() or not path.is_file():
            return ""
        project = parse_toml(_text(path), str(path)).get("project")
        said = project.get("description") if isinstance(project, dict) else None
        return said if isinstance(said, str) else ""

    @property
    def config_paths(self) -> tuple[str, ...]:
        """Its configs, relative to a workspace's root."""
        candidates = (f"configs/{kind}/{self.name}.toml" for kind in ("eval", "training"))
        return tuple(path for path in candidates if (self.root / path).is_file())

    def paths(self) -> tuple[str, ...]:
        """Return its files relative to a workspace's root: the rollout, its configs, their data."""
        directory = self.root / "rollouts" / self.name
        found = [path.relative_to(self.root).as_posix() for path in _files_below(directory)]
        if not 0 < len(found) <= _MOST_FILES:
            wrong = f"more than {_MOST_FILES:,} files" if found else "no files"
            raise OsmosisError(f"The template {directory} has {wrong}.")
        datasets = (self._dataset(path) for path in self.config_paths)
        return (*sorted(found), *self.config_paths, *dict.fromkeys(path for path in datasets if path))

    def read(self) -> RolloutFiles:
        """Return its files with their contents."""
        contents: dict[str, bytes] = {}
        left = _MOST_BYTES
        for path in self.paths():
            source = self.root / path
            if source.is_symlink() or not source.is_file():
                raise OsmosisError(f"The template {self.name} is not copied: {source} is a link, or no file.")
            left -= source.stat().st_size
            if left < 0:
                raise OsmosisError(f"The template {self.name} is larger than {_MOST_BYTES // 2**20} MB.")
            contents[path] = source.read_bytes()
        return RolloutFiles(self.name, contents)

    def _dataset(self, config: str) -> str | None:
        """Return the file in `data/` that the config names, or None if there is none."""
        document = parse_toml(_text(self.root / config), str(self.root / config))
        experiment: Any = document.get("experiment")
        name = experiment.get("dataset") if isinstance(experiment, dict) else None
        if not isinstance(name, str) or Path(name).name != name:
            return None
        found = find_dataset_file(WorkspaceDirectory(self.root), name)
        return found.relative_to(self.root).as_posix() if found else None


def template_names() -> list[str]:
    rollouts = templates_root() / "rollouts"
    return sorted(
        path.name for path in rollouts.iterdir() if ROLLOUT_NAME.fullmatch(path.name) and path.is_dir()
    )


def find_template(name: str) -> RolloutTemplate:
    names = template_names()
    if name in names:
        return RolloutTemplate(templates_root(), name)
    known = ", ".join(names) or "none"
    reason = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    near = None if reason else closest(name, names)
    raise NotFoundError(
        f"There is no template `{name}`{reason}. Templates: {known}.",
        details={"templates": names},
        hint=f"did you mean {near}?" if near else None,
    )


def templates_root() -> Path:
    """Return the workspace directory whose rollouts are the templates."""
    if named := os.environ.get(PATH_ENV):
        root = expanded(named).absolute()
        if not (root / "rollouts").is_dir():
            raise OsmosisError(
                f"{PATH_ENV} is {named!r}, which has no directory `rollouts`.",
                hint=f"name a workspace directory, or unset {PATH_ENV} for the templates that come with Osmosis",
            )
        return root
    if repository := os.environ.get(REPO_ENV):
        raise OsmosisError(
            f"Templates are not fetched, but {REPO_ENV} names {repository!r}.",
            hint=f"clone it, name the clone in {PATH_ENV}, and unset {REPO_ENV} and {REF_ENV}",
        )
    return own_root()


def own_root() -> Path:
    """Return the directory of the workspace in this package, from a wheel or its checkout."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "samples", package.parents[1]):
        if (candidate / "rollouts" / EXAMPLE).is_dir():
            return candidate
    raise OsmosisError(
        f"The templates are not part of this installation ({package}).",
        hint="install Osmosis again, from a wheel or a checkout",
    )


def _files_below(directory: Path) -> Iterator[Path]:
    for place, directories, names in os.walk(directory):
        links = [name for name in directories if (Path(place) / name).is_symlink()]
        directories[:] = sorted({*directories} - _LEFT_OUT - {*links})
        yield from (Path(place) / name for name in [*names, *links] if name not in _LEFT_OUT)


def _text(path: Path) -> str:
    return path.read_bytes()[:_MOST_BYTES].decode("utf-8", "replace")
