"""The rows of a file that a run uses: sorted positions without repetition."""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

import msgspec

from osmosis_ai.errors import OsmosisError

_PART = re.compile(r"\s*(\d{1,18})\s*(?:-\s*(\d{1,18})\s*)?", re.ASCII)


@dataclass(frozen=True)
class RowsDrawn:
    """The number of rows that a run uses, and how they were chosen."""

    rows: int
    total: int | None
    kind: Literal["first", "chosen", "random"] | None = None
    fraction: float | None = None
    seed: int | None = None

    @classmethod
    def read(cls, written: object) -> RowsDrawn | None:
        """Parse what a run recorded; None if it is missing or invalid."""
        try:
            return msgspec.convert(written, cls)
        except msgspec.ValidationError:
            return None

    @property
    def words(self) -> str:
        """Describe the rows, for example ``20 of 200 rows, random 10%, seed 7``."""
        if self.total is None:
            return f"{self.rows:,} row{'' if self.rows == 1 else 's'}"
        if self.rows == self.total:
            return "the only row" if self.total == 1 else f"all {self.total:,} rows"
        share = f" {self.fraction * 100:g}%" if self.fraction is not None else ""
        seed = f", seed {self.seed}" if self.seed is not None else ""
        if self.kind == "first":
            return f"first {self.rows:,} of {self.total:,} rows"
        how = {"chosen": ", chosen by number", "random": f", random{share}{seed}"}
        return f"{self.rows:,} of {self.total:,} rows{how.get(self.kind or '', '')}"


@dataclass(frozen=True)
class Selection:
    """The rows that a run uses."""

    indices: Sequence[int]
    total_rows: int
    kind: Literal["first", "chosen", "random"] = "chosen"
    fraction: float | None = None
    seed: int | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    @property
    def drawn(self) -> RowsDrawn:
        """The number of rows, and how they were chosen."""
        return RowsDrawn(len(self), self.total_rows, self.kind, self.fraction, self.seed)

    def describe(self) -> str:
        """Return the rows in the notation of `--rows`: ``"0-9,12"``; "" if there are none."""
        if isinstance(self.indices, range):
            runs = [(self.indices[0], self.indices[-1])] if self.indices else []
        else:
            # Within a run, numbers and their positions increase together.
            groups = groupby(enumerate(self.indices), key=lambda pair: pair[1] - pair[0])
            members = [[index for _, index in group] for _, group in groups]
            runs = [(run[0], run[-1]) for run in members]
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def select_rows(total_rows: int, *, limit: int | None, rows: str | None) -> Selection:
    """Choose the rows in ``rows``, otherwise the first ``limit``, otherwise all."""
    if rows is not None:
        named = _parse_rows(rows, total_rows)
        # A platform that receives only the positions must describe the selection in the same way.
        first = isinstance(named, range) and named.start == 0
        return Selection(named, total_rows, "first" if first else "chosen")
    if limit is not None and limit < 0:
        raise OsmosisError(f"limit must not be negative, found {limit}.")
    return Selection(range(min(limit or total_rows, total_rows)), total_rows, "first")


def sample_rows(total_rows: int, *, fraction: float, seed: int) -> Selection:
    """Draw a random ``fraction`` of the rows, rounded, at least one; the result depends only on the seed."""
    if not (math.isfinite(fraction) and 0 < fraction <= 1):
        raise OsmosisError(f"the fraction of rows must be above 0 and at most 1, found {fraction}.")
    count = min(total_rows, max(1, math.floor(total_rows * fraction + 0.5)))
    drawn = sorted(random.Random(seed).sample(range(total_rows), count))
    return Selection(_compact(drawn), total_rows, "random", fraction, seed)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def parse_ranges(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first and last row of each part of ``3,7,10-20``."""
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise OsmosisError(
                f"cannot read '{part.strip()[:80]}' in rows '{text[:80]}'; expected row numbers from 0 and ranges, "
                "such as '3,7,10-20'."
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise OsmosisError(f"the range '{part.strip()}' in rows '{text[:80]}' ends before it starts.")
        yield first, last


def _parse_rows(text: str, total_rows: int) -> Sequence[int]:
    chosen: set[int] = set()
    for first, last in parse_ranges(text):
        if last >= total_rows:
            known = f"rows 0-{total_rows - 1}" if total_rows else "no rows"
            raise OsmosisError(f"row {last} in rows '{text}' is out of range: the file has {known}.")
        chosen.update(range(first, last + 1))
    return _compact(sorted(chosen))


def _compact(indices: list[int]) -> Sequence[int]:
    if indices and indices[-1] - indices[0] + 1 == len(indices):
        return range(indices[0], indices[-1] + 1)
    return tuple(indices)
