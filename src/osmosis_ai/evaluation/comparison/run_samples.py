"""A run as a comparison sees it: what it was computed from, which rows it has, and every attempt's numbers.

Invariant: a row is what the agent and its grader got (``datasets.row_digest``), never a place in a file. Rows that
are copies of each other are one row here, with the attempts of all of them. Imported runs have no row digests: a row
is then the file's SHA-256 and the position in it, and ``keyed_by`` says so.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from osmosis_ai.driving.classify import STATUSES
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from osmosis_ai.evaluation.statistics import Integers

Place = Literal["local", "platform", "file"]
KeyedBy = Literal["row_digest", "dataset-and-index"]

SUCCESS = STATUSES.index("success")
PENDING = 255
"""The status of an attempt without a result."""
SAMPLE_FIELDS = [
    ("row", "i4"),  # position in RunSamples.row_keys
    ("selected", "i4"),  # position among the selected rows, where copies of a row are apart
    ("attempt", "i4"),  # from 0, as the run numbered it
    ("status", "u1"),  # position in driving.classify.STATUSES
    ("reward", "f8"),  # NaN: absent, as in all floats here
    ("cost_usd", "f8"),
    ("tokens", "f8"),
    ("duration_ms", "f8"),
    ("model_latency_ms", "f8"),
]
"""The fields of a sample, as NumPy's ``dtype`` takes them."""


@dataclass(frozen=True)
class ComparedInputs:
    """What a run's results were computed from; None where nobody wrote it down."""

    model: str | None = None
    dataset_name: str | None = None
    dataset_sha256: str | None = None
    rollout: str | None = None
    entrypoint: str | None = None
    source_digest: str | None = None
    grader_digest: str | None = None
    judges: tuple[str, ...] = ()
    commit: str | None = None
    dirty: bool | None = None
    config: str | None = None
    n: int | None = None
    seed: int | None = None
    pass_threshold: float = 1.0
    selected_rows: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    eval_functions: tuple[str, ...] = ()
    settings_digest: str | None = None

    def data(self) -> dict[str, Any]:
        """Return them as scripts see them."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class CountsOnly:
    """What is known of a run whose platform does not tell its attempts: counts, each None where it is not
    told."""

    rows: int | None = None
    scored: int | None = None
    passed: int | None = None
    failed: int | None = None
    tried: int | None = None
    reward: tuple[float, float] | None = None
    pass_at_k: Mapping[int, float] = field(default_factory=dict)

    @property
    def unscored(self) -> int | None:
        """How many attempts have no score; None if the platform does not report it."""
        return None if self.tried is None or self.scored is None else max(0, self.tried - self.scored)


@dataclass(frozen=True, eq=False)
class RunSamples:
    """A run and its samples."""

    name: str
    run_id: str
    place: Place
    location: str
    status: str
    inputs: ComparedInputs
    row_keys: tuple[str, ...]
    keyed_by: KeyedBy
    source_rows: Integers
    samples: NDArray[np.void]
    planned: int
    unfinished: str | None = None
    imported: str | None = None
    notes: tuple[str, ...] = ()
    summary: CountsOnly | None = None
    open_dataset: Callable[[], Path] | None = field(default=None, repr=False)
    reward_range: tuple[float, float] | None = None

    @property
    def scored(self) -> NDArray[np.bool_]:
        """Of each sample, whether it has a reward that counts."""
        rewards = self.samples["reward"]
        # NaN is the one value that differs from itself.
        scored: NDArray[np.bool_] = (self.samples["status"] == SUCCESS) & (rewards == rewards)
        return scored

    @property
    def passed(self) -> NDArray[np.bool_]:
        """Of each sample, whether it passed."""
        passed: NDArray[np.bool_] = self.scored & (self.samples["reward"] >= self.inputs.pass_threshold)
        return passed

    def slice_values(self, column: str) -> list[str | None]:
        """Return of each distinct row the value of a column of the dataset, None where it has none."""
        from osmosis_ai.evaluation.dataset_columns import read_slice_values

        if self.open_dataset is None:
            raise OsmosisError(
                f"which dataset the run {self.name} used is not known here, so it can not be cut into slices."
            )
        return read_slice_values(self.open_dataset(), column, self.source_rows)


@dataclass
class RowTable:
    """Tells distinct rows apart while samples are read, in memory for one key each."""

    positions: dict[str, int] = field(default_factory=dict)
    first_places: list[int] = field(default_factory=list)

    def position(self, key: str, source_row: int) -> int:
        """Return the position of a row, which is a new one when its key is."""
        found = self.positions.setdefault(key, len(self.first_places))
        if found == len(self.first_places):
            self.first_places.append(source_row)
        elif source_row < self.first_places[found]:
            self.first_places[found] = source_row
        return found

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys by position."""
        return tuple(self.positions)

    def source_rows(self) -> Integers:
        """Return of each row its first place in the dataset."""
        import numpy as np

        return np.array(self.first_places, dtype=np.int64)


class SampleTable:
    """Takes the numbers of attempts one by one; a second result of an attempt replaces the first."""

    def __init__(self, rows: int, n: int) -> None:
        self.n = n
        self.statuses = bytearray([PENDING]) * (rows * n)
        self.floats = {
            name: array("d", [math.nan]) * (rows * n) for name, kind in SAMPLE_FIELDS if kind == "f8"
        }

    def structured(self, row_of: Integers) -> NDArray[np.void]:
        """Return the samples that there are, sorted by row."""
        import numpy as np

        status = np.frombuffer(self.statuses, dtype=np.uint8)
        there = np.flatnonzero(status != PENDING)
        there = there[np.argsort(row_of[there // self.n], kind="stable")]
        samples = np.zeros(there.size, dtype=np.dtype(SAMPLE_FIELDS))
        samples["row"], samples["selected"], samples["attempt"], samples["status"] = (
            row_of[there // self.n],
            there // self.n,
            there % self.n,
            status[there],
        )
        for name, column in self.floats.items():
            values = np.frombuffer(column, dtype=np.float64)[there]
            samples[name] = np.where(np.isfinite(values), values, math.nan)
        return samples

    @property
    def pending(self) -> int:
        """Attempts without a result."""
        return self.statuses.count(PENDING)
