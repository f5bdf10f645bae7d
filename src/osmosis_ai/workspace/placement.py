"""Write a rollout into a workspace, completely or not at all; existing files are replaced only if forced.

Conflicts are found before the first write and reported with diffs. All files are first written next to their
targets and then renamed; if a rename fails, the earlier ones are undone.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from osmosis_ai.errors import ConflictError
from osmosis_ai.workspace.git import add_patterns, missing_patterns
from osmosis_ai.workspace.layout import WorkspaceDirectory

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


def obstacle_on_the_way(root: Path, name: str) -> str | None:
    """Return the first path between ``root`` and ``name`` that is a link or not a directory, or None."""
    for parent in reversed(PurePosixPath(name).parents[:-1]):
        place = root / parent
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            return parent.as_posix()
    return None


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
