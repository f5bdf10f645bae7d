"""Lines of the run list between two processes: one small file for a directory of runs, each line with its stamp."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter

from osmosis_ai.evaluation.metrics import RunScore
from osmosis_ai.viewer.local.cache_file import CacheFile, forget_all
from osmosis_ai.viewer.source import RunEntry

Stamp = tuple[int, ...]
_SCHEMA = f"""
-- {", ".join(field.name for field in fields(RunEntry))}, {", ".join(RunScore.model_fields)}
CREATE TABLE lines (path TEXT PRIMARY KEY, line BLOB) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class KeptLine:
    """A run's line, and the state of its files that it was read from."""

    stamp: Stamp
    entry: RunEntry


class KeptLines:
    """Cache file of a directory's lines. Read and write errors are ignored."""

    def __init__(self, root: Path, *, cache_dir: Path) -> None:
        self._file = CacheFile(cache_dir, "list", root, _SCHEMA)
        self._cache_dir = cache_dir

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def read(self) -> dict[Path, KeptLine]:
        """Return what is kept, by the runs' paths."""
        try:
            lines = self._file.connection.execute("SELECT path, line FROM lines").fetchall()
            return {Path(path): _lines().validate_json(line) for path, line in lines}
        except (sqlite3.Error, ValueError, TypeError) as error:
            self._file.give_up(error)
            return {}

    def write(self, lines: Mapping[Path, KeptLine], *, gone: Collection[Path]) -> None:
        """Keep lines, and drop those of runs that are gone, with the indexes of their samples."""
        try:
            with self._file.connection as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("INSERT OR REPLACE INTO lines VALUES (?, ?)", _written(lines))
                connection.executemany(
                    "DELETE FROM lines WHERE path = ?",
                    ((os.fsencode(path).decode("utf-8", "replace"),) for path in gone),
                )
        except sqlite3.Error as error:
            self._file.give_up(error)
        for path in gone:
            if not path.exists():
                forget_all(self._cache_dir, "run", path)


def _written(lines: Mapping[Path, KeptLine]) -> Iterator[tuple[str, bytes]]:
    """Yield lines in the file's format. Lines with lone surrogates are left out and read again each time."""
    for path, line in lines.items():
        with suppress(ValueError):
            str(path).encode()
            yield str(path), _lines().dump_json(line)


@lru_cache
def _lines() -> TypeAdapter[KeptLine]:
    return TypeAdapter(KeptLine)
