"""A run as a comparison sees it: what it was computed from, which rows it has, and every attempt's numbers.

Invariant: a row is what the agent and its grader got (``datasets.row_digest``), never a place in a file. Rows that
are copies of each other are one row here, with the attempts of all of them. Imported runs have no row digests: a row
is then the file's SHA-256 and the position in it, and ``keyed_by`` says so.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from osmosis_ai.controller.outcomes import STATUSES
from osmosis_ai.decisions.numbers import number_data
from osmosis_ai.errors import OsmosisError
from osmosis_ai.statistics.estimates import estimate_rate, estimate_reward, fitting_range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from osmosis_ai.statistics.estimates import Estimate, Integers


Place = Literal["local", "platform", "file"]
KeyedBy = Literal["row_digest", "dataset-and-index"]

SUCCESS = STATUSES.index("success")
PENDING = 255
"""The status of an attempt without a result."""
SAMPLE_FIELDS = [
    ("row", "i4"),  # position in RunSamples.row_keys
    ("selected", "i4"),  # position among the selected rows, where copies of a row are apart
    ("attempt", "i4"),  # from 0, as the run numbered it
    ("status", "u1"),  # position in controller.classify.STATUSES
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
        from osmosis_ai.decisions.dataset_columns import read_slice_values

        if self.open_dataset is None:
            raise OsmosisError(
                f"which dataset the run {self.name} used is not known here, so it cannot be cut into slices."
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


_STATUS_CODES: dict[str, int] = {name: code for code, name in enumerate(STATUSES)}
_FLOATS = ("reward", "cost_usd", "tokens", "duration_ms", "model_latency_ms")
_WITHOUT_DIGESTS = "The rows of {name} are matched by the dataset's digest and their position, because imported runs have no row digests."


class ToldSample(Protocol):
    """What a sample came to; ``row`` and ``attempt`` as the run numbers them, with the fields of a comparison."""

    @property
    def row(self) -> int:
        """The selected row, from 0."""
        ...

    @property
    def attempt(self) -> int:
        """The attempt on it, from 0."""
        ...

    @property
    def status(self) -> str:
        """How it ended."""
        ...

    @property
    def row_digest(self) -> str | None:
        """What the row is."""
        ...

    @property
    def source_row_index(self) -> int | None:
        """The row's place in the dataset."""
        ...


class ToldSamples:
    """Takes the samples of a run one by one, in any order, in memory for their numbers and a digest each row."""

    def __init__(self, empty: RunSamples, *, rows: int, n: int, teller: str) -> None:
        self._empty, self._teller = empty, teller
        self._rows, self._n = rows, n
        self._table = SampleTable(rows, n)
        self._digests, self._places = [""] * rows, [-1] * rows

    def add(self, sample: ToldSample) -> None:
        """Take a sample in; a later one of the same attempt replaces it."""
        if sample.row >= self._rows or sample.attempt >= self._n:
            raise OsmosisError(
                f"{self._teller} tells of row {sample.row}, attempt {sample.attempt + 1}, which the run "
                f"{self._empty.name} does not have."
            )
        item = sample.row * self._n + sample.attempt
        self._table.statuses[item] = _STATUS_CODES.get(sample.status, _STATUS_CODES["failed"])
        for name in _FLOATS:
            value = getattr(sample, name)
            self._table.floats[name][item] = math.nan if value is None else value
        self._digests[sample.row] = self._digests[sample.row] or sample.row_digest or ""
        if sample.source_row_index is not None:
            self._places[sample.row] = sample.source_row_index

    def run(self) -> RunSamples:
        """Return the run with what was told, its rows known by their digests where all have one."""
        dataset = self._empty.inputs.dataset_sha256 or self._empty.run_id
        return _keyed(self._empty, self._table, self._digests, self._places, dataset)


def with_told_samples(
    empty: RunSamples, samples: Iterable[ToldSample], *, rows: int, n: int, teller: str
) -> RunSamples:
    """Return a run with its samples, each attempt told once; arguments and errors as :class:`ToldSamples`."""
    told = ToldSamples(empty, rows=rows, n=n, teller=teller)
    for count, sample in enumerate(samples):
        if count >= rows * n:
            raise OsmosisError(f"{teller} tells of more attempts than the run {empty.name} has.")
        told.add(sample)
    return told.run()


def _keyed(
    empty: RunSamples, table: SampleTable, digests: list[str], places: list[int], dataset: str
) -> RunSamples:
    import numpy as np

    statuses = np.frombuffer(table.statuses, dtype=np.uint8).reshape(len(places), table.n)
    tried = np.flatnonzero((statuses != PENDING).any(axis=1)).tolist()
    keyed = all(digests[row] for row in tried)
    if not keyed and any(places[row] < 0 for row in tried):
        raise OsmosisError(f"the platform does not tell what the rows of {empty.name} are.")
    distinct, row_of = RowTable(), np.full(len(places), -1, dtype=np.int64)
    for row in tried:
        place = places[row]
        row_of[row] = distinct.position(digests[row] if keyed else f"{dataset}:{place}", place)
    return replace(
        empty,
        row_keys=distinct.keys,
        keyed_by="row_digest" if keyed else "dataset-and-index",
        source_rows=distinct.source_rows(),
        samples=table.structured(row_of),
        notes=empty.notes if keyed else (*empty.notes, _WITHOUT_DIGESTS.format(name=empty.name)),
    )


@dataclass(frozen=True, slots=True)
class RunSlice:
    """The rows of one value of a column."""

    column: str
    value: str | None
    rows: int
    reward: Estimate | None
    pass_rate: Estimate | None

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        return {
            "column": self.column,
            "value": self.value,
            "rows": self.rows,
            "reward": number_data(self.reward),
            "pass_rate": number_data(self.pass_rate),
        }


def run_slices(run: RunSamples, columns: Sequence[str]) -> tuple[RunSlice, ...]:
    """Return the slices of every column, columns as they were asked, values by name."""
    if columns and run.summary is not None:
        raise OsmosisError(
            f"the platform does not tell the attempts of {run.name}, so it cannot be cut into slices.",
            hint="leave out --slice",
        )
    return tuple(found for column in dict.fromkeys(columns) for found in _slices(run, column))


def _slices(run: RunSamples, column: str) -> list[RunSlice]:
    import numpy as np

    values = run.slice_values(column)
    names = sorted(set(values), key=lambda value: (value is None, value))
    places = {name: place for place, name in enumerate(names)}
    slice_of_row: Integers = np.array([places[value] for value in values], dtype=np.int64)
    scored = run.samples[run.scored]
    slice_of_sample, passed = slice_of_row[scored["row"]], run.passed[run.scored].astype(np.float64)
    reward_range, _ = fitting_range(scored["reward"], run.reward_range)
    found = []
    for name, place in places.items():
        mine = slice_of_sample == place
        rows = scored["row"][mine].astype(np.int64)
        reward = estimate_reward(scored["reward"][mine], rows, reward_range=reward_range)
        rate = estimate_rate(passed[mine], rows)
        found.append(RunSlice(column, name, int((slice_of_row == place).sum()), reward, rate))
    return found
