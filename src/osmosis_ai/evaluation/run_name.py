"""Names of runs: one safe path segment, so that a name is also the run's directory."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from datetime import datetime, timezone

from osmosis_ai.errors import OsmosisError

LOCKS_DIRECTORY = ".locks"
MAX_LENGTH = 96
_ARCHIVE = ".archive-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def check_run_name(name: str) -> str:
    """Return ``name`` when a run may be called so."""
    if len(name) > MAX_LENGTH or not _NAME.fullmatch(name):
        raise OsmosisError(
            f"a run cannot be named {name!r}: use at most {MAX_LENGTH} letters, digits, `.`, `_` and `-`, "
            "starting with a letter or digit."
        )
    return name


def archive_name(name: str) -> str:
    """Return what a run is called that makes room for another one of its name."""
    return f"{name}{_ARCHIVE}{stamp()}"


def is_archive(name: str) -> bool:
    """Tell whether a run of this name has made room for another one."""
    return _ARCHIVE in name


def name_before_archiving(name: str) -> str:
    """Return what a run was called before it made room; the name itself where it did not."""
    return name.partition(_ARCHIVE)[0]


def stamp(now: datetime | None = None) -> str:
    """Return the moment as ``20260131T235959Z``."""
    return (now or datetime.now(timezone.utc)).astimezone(timezone.utc).strftime("%Y%m%dT%H%M%SZ")


def new_run_names(config_stem: str, digest: str) -> Iterator[str]:
    """Yield ``<stem>-<UTC stamp>-<first 8 of the inputs' digest>``, then that with ``-2``, ``-3`` and so on behind it."""
    tail = f"-{stamp()}-{digest[:8]}"
    stem = _UNSAFE.sub("-", config_stem).strip("._-") or "eval"
    base = check_run_name(stem[: MAX_LENGTH - len(tail) - 4] + tail)
    yield base
    for again in itertools.count(2):
        yield check_run_name(f"{base}-{again}")
