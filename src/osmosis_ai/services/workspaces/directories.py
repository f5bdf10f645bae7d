"""Where on this machine each workspace is checked out, as far as commands have seen it.

A hint and nothing more: what is written here decides nothing, a directory that is gone is forgotten, and a
file that cannot be read or written is as good as an empty one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from osmosis_ai.files import config_dir, write_json

FILE_VERSION = 1


class WorkspaceDirectories:
    """The checkouts of one platform's workspaces.

    Args:
        platform_url: the platform, normalised.
        directory: where ``workspace-directories.json`` is (default: this user's settings).
    """

    def __init__(self, platform_url: str, directory: Path | None = None) -> None:
        self.path = (directory or config_dir()) / "workspace-directories.json"
        self._platform_url = platform_url

    def find(self, workspace_id: str) -> Path | None:
        """Return the checkout of a workspace, if it is still there."""
        recorded = self._read().get(self._platform_url, {}).get(workspace_id)
        if not isinstance(recorded, str):
            return None
        directory = Path(recorded)
        return directory if directory.is_absolute() and (directory / ".git").exists() else None

    def remember(self, workspace_id: str, directory: Path) -> None:
        """Note that ``directory`` is a checkout of the workspace."""
        platforms = self._read()
        known = platforms.get(self._platform_url, {})
        if known.get(workspace_id) == str(directory):
            return
        changed = {**platforms, self._platform_url: {**known, workspace_id: str(directory)}}
        with contextlib.suppress(OSError, UnicodeEncodeError):
            write_json(self.path, {"version": FILE_VERSION, "platforms": changed})

    def _read(self) -> dict[str, Mapping[str, Any]]:
        try:
            content = json.loads(self.path.read_bytes())
            platforms = content["platforms"] if content["version"] == FILE_VERSION else {}
            return {url: known for url, known in platforms.items() if isinstance(known, dict)}
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
            return {}
