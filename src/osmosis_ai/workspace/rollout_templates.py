"""Rollout templates with their configs and data; new rollouts and the sample workspace made from them.

Templates come from the workspace in this package, or from a directory of the user's (``OSMOSIS_WORKSPACE_TEMPLATE_PATH``).
It downloads nothing. A directory is untrusted: links in it are not followed, and its size is limited.

A rollout is written completely or not at all; existing files are replaced only if forced. Conflicts are found before the
first write and reported with diffs. All files are first written next to their targets and then renamed; if a rename
fails, the earlier ones are undone.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.config.issues import closest
from osmosis_ai.config.toml_text import parse_toml
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.workspace.doctor import AGENT_GUIDES, guide_text, obstacle_on_the_way
from osmosis_ai.workspace.git import add_patterns, missing_patterns, run_git
from osmosis_ai.workspace.layout import REQUIRED_DIRECTORIES, WorkspaceDirectory, find_dataset_file

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
    "`multiply-local-strands` is the same agent on this machine"
}


_LEFT_BEHIND = ("__pycache__", ".venv")


@dataclass(frozen=True)
class RolloutFiles:
    """A rollout's directory, configs and data."""

    name: str
    contents: Mapping[str, bytes]

    def renamed(self, name: str) -> RolloutFiles:
        """Return the rollout under another name; data files keep their names."""
        own = re.escape(self.name)
        path = re.compile(rf"(rollouts/|configs/(?:eval|training)/){own}(?=/|\.toml\b|\b(?![-\w]))".encode())
        key = re.compile(rf"((?:\bname|\brollout)\s*=\s*\"){own}(?=\")".encode())
        heading = re.compile(rf"\A(# ){own}$".encode(), re.MULTILINE)
        new = name.encode()

        def put(text: bytes) -> bytes:
            for pattern in (path, key, heading):
                text = pattern.sub(lambda found: found[1] + new, text)
            return text

        code = {
            where: text if where.startswith("data/") else put(text) for where, text in self.contents.items()
        }
        return RolloutFiles(name, {put(where.encode()).decode(): text for where, text in code.items()})

    @property
    def targets(self) -> tuple[str, ...]:
        """The units that are replaced as a whole: the rollout's directory, then each file outside it."""
        directory = f"rollouts/{self.name}"
        return directory, *(path for path in self.contents if not path.startswith(f"{directory}/"))


@dataclass(frozen=True)
class PlacedRollout:
    """The written paths, relative to the workspace's root."""

    name: str
    destinations: tuple[str, ...]
    files: tuple[str, ...]
    ignored: tuple[str, ...] = ()


def place(
    workspace: WorkspaceDirectory, rollout: RolloutFiles, *, force: bool, keep_same: bool = False
) -> PlacedRollout:
    """Write a rollout's files into ``workspace``: all of them, or none."""
    root = workspace.root
    if keep_same and all(_is_same(root, target, rollout) for target in rollout.targets):
        return PlacedRollout(rollout.name, rollout.targets, ())
    pending = [
        target
        for target in rollout.targets
        if not (target.startswith("data/") and _is_same_file(root / target, rollout.contents[target]))
    ]
    _check_targets(root, pending, rollout, force=force)
    with tempfile.TemporaryDirectory(prefix=".osmosis-new-", dir=root, ignore_cleanup_errors=True) as staging:
        written = [path for path in rollout.contents if _target_of(path, pending) is not None]
        for path in written:
            new = Path(staging) / "new" / path
            new.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(rollout.contents[path])
            new.chmod(0o644)
        _move_in(root, Path(staging), pending)
    ignored = missing_patterns(root)
    add_patterns(root, ignored)
    return PlacedRollout(rollout.name, rollout.targets, tuple(sorted(written)), ignored)


def _target_of(path: str, targets: Sequence[str]) -> str | None:
    return next((target for target in targets if path == target or path.startswith(f"{target}/")), None)


def _is_same(root: Path, target: str, rollout: RolloutFiles) -> bool:
    """Tell whether a file or directory equals what would be written, ignoring files of Python and uv."""
    if obstacle_on_the_way(root, target) is not None:
        return False
    if target in rollout.contents:
        return _is_same_file(root / target, rollout.contents[target])
    if not _is_of_its_kind(root, target, rollout):
        return False
    own = {path: content for path, content in rollout.contents.items() if path.startswith(f"{target}/")}
    found = {path.relative_to(root).as_posix() for path in files_below(root / target, _LEFT_BEHIND)}
    return found == own.keys() and all(_is_same_file(root / path, content) for path, content in own.items())


def files_below(directory: Path, left_out: Collection[str]) -> Iterator[Path]:
    """Yield the files and links below a directory, except those with some names."""
    for path in directory.iterdir():
        if path.name not in left_out:
            is_directory = path.is_dir() and not path.is_symlink()
            yield from files_below(path, left_out) if is_directory else (path,)


def _is_same_file(path: Path, content: bytes) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    return path.stat().st_size == len(content) and path.read_bytes() == content


def _is_of_its_kind(root: Path, target: str, rollout: RolloutFiles) -> bool:
    path = root / target
    return not path.is_symlink() and (path.is_file() if target in rollout.contents else path.is_dir())


def _check_targets(root: Path, targets: Sequence[str], rollout: RolloutFiles, *, force: bool) -> None:
    present = [target for target in targets if os.path.lexists(root / target)]
    obstacles = filter(None, (obstacle_on_the_way(root, target) for target in targets))
    wrong = (target for target in present if not _is_of_its_kind(root, target, rollout))
    irregular = list(dict.fromkeys([*obstacles, *wrong]))
    if present and not force:
        raise ConflictError(
            "\n  - ".join(["These paths already exist:", *present]),
            details={"conflicts": present, "differences": _differences(root, present, rollout)},
            hint="show the differences with `--diff`, or replace the files with `--force`",
        )
    if irregular:
        raise ConflictError(
            "\n  - ".join(
                ["These are not replaced, because they are links or not of the expected kind:", *irregular]
            ),
            details={"conflicts": irregular},
            hint="remove them by hand",
        )


def _differences(root: Path, present: Sequence[str], rollout: RolloutFiles) -> dict[str, str]:
    """Return the changes that `--force` would make, by path."""
    changed = [
        (path, _difference(root / path, content, path))
        for path, content in rollout.contents.items()
        if _target_of(path, present)
        and not (root / path).is_symlink()
        and not obstacle_on_the_way(root, path)
    ]
    directory = root / f"rollouts/{rollout.name}"
    inside = directory.rglob("*") if directory.is_dir() and not directory.is_symlink() else ()
    existing = {path.relative_to(root).as_posix() for path in inside if not path.is_dir()}
    gone = [
        f"{path} is not in the template and would be removed"
        for path in sorted(existing - rollout.contents.keys())
    ]
    lost = [(f"rollouts/{rollout.name}", _shortened(gone))] if gone else []
    return {path: shown for path, shown in [*lost, *changed] if shown}


def _move_in(root: Path, staging: Path, targets: Sequence[str]) -> None:
    """Replace ``targets`` in ``root`` with the files in ``staging``: all, or none."""
    replaced = staging / "old"
    replaced.mkdir()
    with contextlib.ExitStack() as undo:
        for number, target in enumerate(targets):
            place, ready, old = root / target, staging / "new" / target, replaced / str(number)
            for parent in reversed(place.relative_to(root).parents[:-1]):
                if not (root / parent).is_dir():
                    (root / parent).mkdir()
                    undo.callback((root / parent).rmdir)
            if place.exists():
                place.rename(old)
                undo.callback(old.rename, place)
            ready.rename(place)
            undo.callback(place.rename, ready)
        undo.pop_all()


_LARGEST_BYTES = 256 * 1024
_MOST_LINES = 60


def _difference(path: Path, content: bytes, name: str) -> str:
    """Return the diff between ``path`` and ``content``; empty if they are equal or the file does not exist."""
    if not path.is_file() or _is_same_file(path, content):
        return ""
    size = path.stat().st_size
    if name.startswith("data/") or max(size, len(content)) > _LARGEST_BYTES:
        return f"{name} differs ({size:,} bytes here, {len(content):,} in the template)\n"
    try:
        old, new = path.read_bytes().decode("utf-8").splitlines(), content.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        return f"{name} differs, and is not text\n"
    found = list(difflib.unified_diff(old, new, f"{name} (yours)", f"{name} (template)", lineterm="", n=2))
    return _shortened(found or [f"{name} differs in its line endings alone"])


def join_differences(differences: Mapping[str, str]) -> str:
    """Join the diffs of several files into one text, shortened as each of them is."""
    return _shortened("".join(differences.values()).splitlines()).rstrip("\n")


def _shortened(lines: list[str]) -> str:
    """Return the first ``lines`` as a text, and the number of omitted ones."""
    hidden = len(lines) - _MOST_LINES
    shown = lines if hidden <= 0 else [*lines[:_MOST_LINES], f"… and {hidden:,} more lines"]
    return "".join(f"{line}\n" for line in shown)


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
    # The comments stay in one column.
    text = re.sub(
        r'^(\w+ = )"\{\{rollout\}\}" +#', lambda key: f'{key[1]}"{name}"'.ljust(40) + " #", text, flags=re.M
    )
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
