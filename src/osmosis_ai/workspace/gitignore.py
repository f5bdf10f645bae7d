"""Check and extend a workspace's `.gitignore`, which must ignore keys and local state.

Lines are only added, at the end and with the file's own line endings. A workspace that ignores these files with
different patterns is left unchanged.
"""

from __future__ import annotations

import stat
from pathlib import Path

from osmosis_ai.files import write_atomic

FILE_NAME = ".gitignore"
PATTERNS = (".env", ".osmosis/")
_SAME_AS = {
    ".env": (".env", "/.env", ".env*", "*.env", "/.env*", "**/.env"),
    ".osmosis/": (".osmosis/", ".osmosis", "/.osmosis/", "/.osmosis", "**/.osmosis/", "**/.osmosis"),
}


def missing_patterns(root: Path) -> tuple[str, ...]:
    """Return those of :data:`PATTERNS` that the `.gitignore` of ``root`` does not ignore."""
    try:
        content = (root / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return PATTERNS
    lines = [line.rstrip() for line in content.decode("utf-8", "replace").splitlines()]
    return tuple(pattern for pattern in PATTERNS if not _is_ignored(lines, _SAME_AS[pattern]))


def add_patterns(root: Path, patterns: tuple[str, ...]) -> None:
    """Append ``patterns`` to the `.gitignore` of ``root``, which is created if missing."""
    if not patterns:
        return
    path = root / FILE_NAME
    try:
        content, mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        content, mode = b"", 0o644
    ending = b"\r\n" if b"\r\n" in content else b"\n"
    if content and not content.endswith(b"\n"):
        content += ending
    added = b"".join(pattern.encode() + ending for pattern in patterns)
    write_atomic(path, content + added, mode=mode, durable=False)


def obstacle(root: Path) -> str | None:
    """Return the path of a `.gitignore` that must not be written because it is a link or not a file."""
    path = root / FILE_NAME
    return FILE_NAME if path.is_symlink() or (path.exists() and not path.is_file()) else None


def _is_ignored(lines: list[str], spellings: tuple[str, ...]) -> bool:
    ignored = False
    for line in lines:
        if line in spellings:
            ignored = True
        elif line.startswith("!") and line[1:] in spellings:
            ignored = False
    return ignored
