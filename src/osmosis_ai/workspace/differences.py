"""Unified diffs of files for display, limited in length."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

_LARGEST_BYTES = 256 * 1024
_MOST_LINES = 60


def difference(path: Path, content: bytes, name: str, *, as_text: bool = True) -> str:
    """Return the diff between ``path`` and ``content``; empty if they are equal or the file does not exist."""
    if not path.is_file():
        return ""
    size = path.stat().st_size
    if not as_text or max(size, len(content)) > _LARGEST_BYTES:
        same = size == len(content) and path.read_bytes() == content
        return "" if same else f"{name} differs ({size:,} bytes here, {len(content):,} in the template)\n"
    mine = path.read_bytes()
    if mine == content:
        return ""
    try:
        before, after = mine.decode("utf-8"), content.decode("utf-8")
    except UnicodeDecodeError:
        return f"{name} differs, and is not text\n"
    return shortened(_unified(before, after, name))


def join_differences(differences: Mapping[str, str]) -> str:
    """Join the diffs of several files into one text, shortened as each of them is."""
    return shortened("".join(differences.values()).splitlines()).rstrip("\n")


def _unified(before: str, after: str, name: str) -> list[str]:
    old, new = before.splitlines(), after.splitlines()
    found = list(difflib.unified_diff(old, new, f"{name} (yours)", f"{name} (template)", lineterm="", n=2))
    return found or [f"{name} differs in its line endings alone"]


def shortened(lines: list[str]) -> str:
    """Return the first ``lines`` as a text, and the number of omitted ones."""
    hidden = len(lines) - _MOST_LINES
    shown = lines if hidden <= 0 else [*lines[:_MOST_LINES], f"… and {hidden:,} more lines"]
    return "".join(f"{line}\n" for line in shown)
