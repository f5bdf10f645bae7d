"""Add keys and local state to a workspace's `.gitignore`. Other lines, and the file's line endings, stay as they are."""

from __future__ import annotations

import stat
from pathlib import Path

from osmosis_ai.files import write_atomic

PATTERNS = (".env", ".osmosis/")
_SPELLINGS = {".env": (".env", ".env*", "*.env"), ".osmosis/": (".osmosis/", ".osmosis")}


def missing_patterns(root: Path) -> tuple[str, ...]:
    """Return the patterns that the `.gitignore` of ``root`` lacks; none if it is a link or not a file."""
    path = root / ".gitignore"
    if path.is_symlink() or (path.exists() and not path.is_file()):
        return ()
    text = path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
    ignored = dict.fromkeys(PATTERNS, False)
    for line in text.splitlines():
        spelling = line.rstrip().removeprefix("!").removeprefix("**").removeprefix("/")
        for pattern in PATTERNS:
            if spelling in _SPELLINGS[pattern]:
                ignored[pattern] = not line.startswith("!")
    return tuple(pattern for pattern in PATTERNS if not ignored[pattern])


def add_patterns(root: Path, patterns: tuple[str, ...]) -> None:
    """Append ``patterns`` to the `.gitignore` of ``root``, which is created if missing."""
    if not patterns:
        return
    path = root / ".gitignore"
    content, mode = b"", 0o644
    if path.exists():
        content, mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
    ending = b"\r\n" if b"\r\n" in content else b"\n"
    if content and not content.endswith(b"\n"):
        content += ending
    added = b"".join(pattern.encode() + ending for pattern in patterns)
    write_atomic(path, content + added, mode=mode, durable=False)
