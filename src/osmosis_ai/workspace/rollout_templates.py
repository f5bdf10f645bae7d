"""Rollout templates with their configs and data; new rollouts and the sample workspace made from them.

Templates come from the workspace in this package, or from a directory of the user's (``OSMOSIS_WORKSPACE_TEMPLATE_PATH``).
Nothing is downloaded. A directory is untrusted: links in it are not followed, and its size is limited.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.config.issues import closest
from osmosis_ai.config.toml_text import parse_toml
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.workspace.doctor import AGENT_GUIDES, guide_text
from osmosis_ai.workspace.git import run_git
from osmosis_ai.workspace.layout import REQUIRED_DIRECTORIES, WorkspaceDirectory, find_dataset_file
from osmosis_ai.workspace.placement import PlacedRollout, RolloutFiles, files_below, place

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
        readable = path.is_file() and not path.is_symlink()
        description = _table(path, "project").get("description") if readable else None
        return description if isinstance(description, str) else ""

    @property
    def config_paths(self) -> tuple[str, ...]:
        """Its configs, relative to a workspace's root."""
        candidates = (f"configs/{kind}/{self.name}.toml" for kind in ("eval", "training"))
        return tuple(path for path in candidates if (self.root / path).is_file())

    def paths(self) -> tuple[str, ...]:
        """Return its files relative to a workspace's root: the rollout, its configs, their data."""
        directory = self.root / "rollouts" / self.name
        found = [path.relative_to(self.root).as_posix() for path in files_below(directory, _LEFT_OUT)]
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
        name = _table(self.root / config, "experiment").get("dataset")
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


def _table(path: Path, name: str) -> dict[str, Any]:
    text = path.read_bytes()[:_MOST_BYTES].decode("utf-8", "replace")
    table = parse_toml(text, str(path)).get(name)
    return table if isinstance(table, dict) else {}


def init_rollout(workspace: WorkspaceDirectory, name: str, *, force: bool = False) -> PlacedRollout:
    """Write a small working rollout with both configs and 20 rows, unless its dataset exists already."""
    _check_name(name)
    templates = {
        f"rollouts/{name}/main.py": "main.py.txt",
        f"rollouts/{name}/pyproject.toml": "pyproject.toml",
        f"rollouts/{name}/README.md": "README.md",
        f"configs/eval/{name}.toml": "eval.toml",
        f"configs/training/{name}.toml": "training.toml",
    }
    if find_dataset_file(workspace, name) is None:
        templates[f"data/{name}.jsonl"] = "data.jsonl"
    contents = {path: _render(template, name).encode() for path, template in templates.items()}
    return place(workspace, RolloutFiles(name, contents), force=force)


def init_example(
    workspace: WorkspaceDirectory, name: str | None = None, *, force: bool = False
) -> PlacedRollout:
    """Write the first template with its data, optionally under a new name."""
    example = RolloutTemplate(own_root(), EXAMPLE).read()
    if name is not None:
        _check_name(name)
        example = example.renamed(name)
    return place(workspace, example, force=force)


def _check_name(name: str) -> None:
    if not ROLLOUT_NAME.fullmatch(name):
        likely = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        raise OsmosisError(
            f"'{name}' is not a name for a rollout: it must match ^{ROLLOUT_NAME.pattern}$ "
            "(lower-case letters, digits and hyphens, a letter first).",
            hint=f"try `{likely}`" if ROLLOUT_NAME.fullmatch(likely) else None,
        )
    if name == "default":
        raise OsmosisError(f"'{name}' is a reserved name; choose another for the rollout.")


def _render(template: str, name: str) -> str:
    # A text template, because no TOML library writes the comments that explain each key.
    from osmosis_ai.config.checks import commented_keys

    text = (Path(__file__).parent / "templates" / "rollout" / template).read_text(encoding="utf-8")
    text = text.replace("{{rollout}}", name)

    def unset_keys(section: re.Match[str]) -> str:
        lines = commented_keys(section[1]).splitlines()
        return "\n".join(line for line in lines if f"\n{line[2:].split()[0]} = " not in text)

    return re.sub(r"\{\{keys:([a-z]+)\}\}", unset_keys, text)


_NO_USER_CONFIG = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "0",
    "GIT_CONFIG_PARAMETERS": "",
}


def copy_sample_workspace(target: Path) -> WorkspaceDirectory:
    """Create a sample workspace at ``target``: a Git repository with one commit on `main`.

    It has the first template. The user's Git configuration is neither read nor changed.
    """
    sample = RolloutTemplate(own_root(), EXAMPLE).read()
    if target.exists() and any(target.iterdir()):
        raise ConflictError(f"{target} is not empty.")
    root = target.absolute()
    for name in REQUIRED_DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / ".gitignore").write_text("__pycache__/\n.venv/\n.env\n.osmosis/\n", encoding="utf-8")
    place(WorkspaceDirectory(root), sample, force=False)
    for name in AGENT_GUIDES:
        (root / name).write_text(guide_text(name), encoding="utf-8")
    _first_commit(root)
    return WorkspaceDirectory(root.resolve())


def _first_commit(root: Path) -> None:
    """Commit the files in ``root`` with GitPython, which applies no configuration, ignore file or hook here."""
    git = _import_git()
    # `git init` runs as a binary: GitPython would pass on the variables of a Git hook that this runs in.
    done = run_git(["init", "--quiet", "--template="], cwd=root, env=_NO_USER_CONFIG)
    if done.returncode != 0:
        raise OsmosisError(f"Git could not set up {root}: {done.stderr.strip()}")
    files = sorted(path for path in root.rglob("*") if path.is_file() and ".git" not in path.parts)
    author = git.Actor("Osmosis", "osmosis@localhost")
    with git.Repo(root) as repository:
        own = repository.config_reader("repository")
        repository.config_reader = lambda *_: own
        repository.git.update_environment(**_NO_USER_CONFIG)
        repository.head.reference = git.Head(repository, "refs/heads/main")
        repository.index.add(files)
        repository.index.commit("The sample workspace", author=author, committer=author, skip_hooks=True)


def _import_git() -> Any:
    """Import GitPython. It asks Git for its version, which fails if the user's configuration is broken."""
    users = {name: os.environ[name] for name in _NO_USER_CONFIG if name in os.environ}
    os.environ.update(_NO_USER_CONFIG)
    try:
        import git
    finally:
        for name in _NO_USER_CONFIG:
            del os.environ[name]
        os.environ.update(users)
    return git
