"""Which environment files this user has allowed: each by its place and its content, so that a change asks again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import config_dir, write_json

FILE_VERSION = 1
_LOCK_TIMEOUT_S = 10.0


class EnvConsents:
    """The file `env-files.json` in the directory of this user's settings, readable by the user alone.

    Args:
        directory: where it is (default: that of the settings).
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.path = (directory or config_dir()) / "env-files.json"

    def allows(self, path: Path, digest: str) -> bool:
        """Whether the user has allowed the file at ``path`` with this content."""
        return bool(self._read()["allowed"].get(str(path)) == digest)

    def allow(self, path: Path, digest: str) -> None:
        """Allow the file at ``path`` as long as it has this content.

        Raises:
            OsmosisError: when that cannot be written down.
        """
        with self._changing() as content:
            content["allowed"][str(path)] = digest

    def revoke(self, path: Path) -> bool:
        """Take the permission back; return whether there was one.

        Raises:
            OsmosisError: when that cannot be written down.
        """
        if str(path) not in self._read()["allowed"]:
            return False
        with self._changing() as content:
            return content["allowed"].pop(str(path), None) is not None

    def told(self, path: Path, digest: str) -> bool:
        """Whether the user was told what is ignored of this content before; from now on it is so."""
        if self._read()["told"].get(str(path)) == digest:
            return True
        try:
            with self._changing() as content:
                content["told"][str(path)] = digest
        except OsmosisError:
            pass  # then it is said every time
        return False

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        from filelock import FileLock, Timeout

        directory = self.path.parent
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(directory / ".env-files.lock", timeout=_LOCK_TIMEOUT_S, mode=0o600):
                content = self._read()
                yield content
                write_json(self.path, {"version": FILE_VERSION, **content, "changed_at": _now()})
        except Timeout:
            raise OsmosisError(f"another command has held {self.path} for {_LOCK_TIMEOUT_S:g} s.") from None
        except OSError as error:
            raise OsmosisError(f"cannot write {self.path}: {error.strerror or error}.") from error

    def _read(self) -> dict[str, Any]:
        """Return what is written down; a file that cannot be read allows nothing."""
        try:
            content = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError):
            content = None
        if not isinstance(content, dict) or content.get("version") != FILE_VERSION:
            content = {}
        return {name: _texts(content.get(name)) for name in ("allowed", "told")}


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {}
    return {name: item for name, item in value.items() if isinstance(item, str)}


def _now() -> str:
    return datetime.now(timezone.utc).replace(microsecond=0).isoformat()
