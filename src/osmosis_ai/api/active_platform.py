"""The platform that commands use: from the environment, the directory, or the hosted default."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.api.platform_url import DEFAULT_PLATFORM_URL, PLATFORM_URL_ENV, normalize_platform_url
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import config_dir, write_json

_LOCK_TIMEOUT_S = 10.0
_selected_by_option: str | None = None


@dataclass(frozen=True)
class ActivePlatform:
    """The platform in use, its source, and the directory whose record selected it."""

    url: str
    source: str
    directory: Path | None = None

    def __str__(self) -> str:
        return f"{self.url} ({self.source})"


def active_platform(env: Mapping[str, str] | None = None) -> ActivePlatform:
    """Return the platform that commands in the current directory use."""
    value = (os.environ if env is None else env).get(PLATFORM_URL_ENV, "").strip()
    if value:
        active = normalize_platform_url(value)
        source = "--platform" if active == _selected_by_option else PLATFORM_URL_ENV
        return ActivePlatform(active, source)
    recorded = _read(_path(env))
    here = Path.cwd() if recorded else Path("/")
    for place in (here, *here.parents):
        if url := recorded.get(str(place)):
            return ActivePlatform(url, f"set for {place}", place)
    return ActivePlatform(DEFAULT_PLATFORM_URL, "default")


def select_by_option(url: str | None) -> None:
    """Note the platform of the option `--platform`, which is also in the environment, for messages."""
    global _selected_by_option
    _selected_by_option = url


def describe_platform(url: str) -> str:
    """Return ``URL (what chose it)`` for messages about the platform at ``url``; the bare URL if another is active."""
    try:
        active = active_platform()
    except OsmosisError:
        return url
    return str(active) if active.url == url else url


def record_platform(directory: Path, url: str) -> None:
    """Save ``url`` as the platform of commands in ``directory`` and below."""
    with _changing() as recorded:
        recorded[str(directory)] = url


def recorded_directories(platform_url: str | None = None) -> tuple[str, ...]:
    """Return the directories that use a platform, or all directories with a record if it is None."""
    return tuple(place for place, url in _read(_path()).items() if platform_url in (None, url))


def forget_directories(directories: tuple[str, ...]) -> None:
    """Remove the records of these directories."""
    if directories:
        with _changing() as recorded:
            for place in directories:
                recorded.pop(place, None)


def _path(env: Mapping[str, str] | None = None) -> Path:
    return config_dir(env) / "platforms.json"


@contextmanager
def _changing() -> Iterator[dict[str, str]]:
    from filelock import FileLock, Timeout

    path = _path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(path.with_name(".platforms.lock"), timeout=_LOCK_TIMEOUT_S, mode=0o600):
            recorded = _read(path)
            yield recorded
            write_json(path, recorded)
    except Timeout:
        raise OsmosisError(f"File is locked by another command: {path}.") from None
    except OSError as error:
        raise OsmosisError(f"File cannot be written: {path} ({error.strerror}).") from None


def _read(path: Path) -> dict[str, str]:
    try:
        recorded = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise OsmosisError(f"File cannot be read: {path} ({error.strerror}).") from None
    except (ValueError, RecursionError):
        recorded = None
    if not isinstance(recorded, dict) or not all(isinstance(url, str) for url in recorded.values()):
        raise OsmosisError(f"File is damaged: {path}.", hint=f"rm {path}, then log in again")
    return recorded
