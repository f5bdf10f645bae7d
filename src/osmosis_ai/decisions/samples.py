"""Runs as decisions see them: their inputs, rows and attempts, and two runs with their rows matched.

Invariant: a row is what the agent and its grader got (``datasets.row_digest``), never a place in a file. Rows that
are copies of each other are one row here, with the attempts of all of them. An imported run whose conversations lack
row digests has none: a row is then the file's SHA-256 and the position in it, and ``keyed_by`` says so.

A row has one label for both runs of a pair. A sample of a row that only one of them has carries no label and is in no
number. Runs on different rows keep labels of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from osmosis_ai.config.decisions import LARGEST_REWARD
from osmosis_ai.controller.outcomes import STATUSES
from osmosis_ai.decisions.differences import number_data
from osmosis_ai.errors import OsmosisError
from osmosis_ai.statistics.estimates import estimate_rate, estimate_reward, fitting_range

if TYPE_CHECKING:
    from osmosis_ai.statistics.estimates import Estimate, Floats, Integers


Place = Literal["local", "platform", "file"]
KeyedBy = Literal["row_digest", "dataset-and-index"]

SUCCESS = STATUSES.index("success")
SAMPLE_FIELDS = [
    ("row", "i4"),  # position in RunSamples.row_keys
    ("selected", "i4"),  # position among the selected rows, where copies of a row are apart
    ("attempt", "i4"),  # from 0, as the run numbered it
    ("status", "u1"),  # position in controller.outcomes.STATUSES
    ("reward", "f8"),  # NaN: absent, as in all floats here
    ("cost_usd", "f8"),
    ("tokens", "f8"),
    ("duration_ms", "f8"),
    ("model_latency_ms", "f8"),
]
"""The fields of a sample, as NumPy's ``dtype`` takes them."""
_FLOATS = [name for name, kind in SAMPLE_FIELDS if kind == "f8"]
_STATUS_CODES: dict[str, int] = {name: code for code, name in enumerate(STATUSES, start=1)}


@dataclass(frozen=True)
class ComparedInputs:
    """The inputs of a run's results; None if unknown."""

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
    env: Mapping[str, str] | None = None
    time_limits_s: tuple[float | None, float | None] | None = None
    """Of the agent and of the grader; each is None without a limit."""
    eval_functions: tuple[str, ...] = ()
    settings_digest: str | None = None


@dataclass(frozen=True)
class CountsOnly:
    """The counts that a platform reports of a run whose attempts it does not list."""

    rows: int | None = None
    scored: int | None = None
    passed: int | None = None
    failed: int | None = None
    tried: int | None = None
    reward: tuple[float, float] | None = None
    pass_at_k: Mapping[int, float] = field(default_factory=dict)

    @property
    def unscored(self) -> int | None:
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
    revision: int = 0
    notes: tuple[str, ...] = ()
    summary: CountsOnly | None = None
    open_dataset: Callable[[], Path] | None = field(default=None, repr=False)
    reward_range: tuple[float, float] | None = None
    duration_s: float | None = None
    """Run time; None if unknown or if the run has not finished."""

    @property
    def scored(self) -> NDArray[np.bool_]:
        """Whether each sample has a reward that counts."""
        rewards = self.samples["reward"]
        # NaN is the one value that differs from itself.
        scored: NDArray[np.bool_] = (self.samples["status"] == SUCCESS) & (rewards == rewards)
        return scored

    @property
    def passed(self) -> NDArray[np.bool_]:
        """Whether each sample passed."""
        passed: NDArray[np.bool_] = self.scored & (self.samples["reward"] >= self.inputs.pass_threshold)
        return passed

    def slice_values(self, column: str) -> list[str | None]:
        """Return of each distinct row the value of a column of the dataset, None where it has none."""
        from osmosis_ai.decisions.run_dataset import read_slice_values

        if self.open_dataset is None:
            raise OsmosisError(f"The dataset of the run {self.name} is unknown, so slices are not available.")
        path = self.open_dataset()
        return read_slice_values(path, column, self.source_rows, self.inputs.dataset_name or path.stem)


def distinct_rows(
    rows: int, known: Iterable[tuple[int, str, int]]
) -> tuple[tuple[str, ...], Integers, Integers]:
    """Return the distinct keys, the first place of each in the dataset, and the key's position for each of the rows.

    ``known`` has the number, key and place of each row that takes part; the others have the position -1.
    """
    positions: dict[str, int] = {}
    places: list[int] = []
    row_of = np.full(rows, -1, dtype=np.int64)
    for row, key, place in known:
        position = row_of[row] = positions.setdefault(key, len(places))
        if position == len(places):
            places.append(place)
        places[position] = min(places[position], place)
    return tuple(positions), np.array(places, dtype=np.int64), row_of


def sample_array(columns: Any, row_of: Integers, n: int) -> NDArray[np.void]:
    """Return the samples of finished attempts, sorted by row.

    ``columns`` has each attempt's status (a position in ``STATUSES`` from 1; 0 is pending) and floats, ``row_of`` the
    distinct row of each selected row.
    """
    finished = np.flatnonzero(columns["status"])
    finished = finished[np.argsort(row_of[finished // n], kind="stable")]
    samples = np.zeros(finished.size, dtype=np.dtype(SAMPLE_FIELDS))
    samples["row"], samples["selected"] = row_of[finished // n], finished // n
    samples["attempt"], samples["status"] = finished % n, columns["status"][finished] - 1
    for name in _FLOATS:
        samples[name] = columns[name][finished]
    return samples


class ReportedSample(Protocol):
    """An attempt as its platform reports it, with the floats of a sample; rows and attempts count from 0."""

    @property
    def row(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def status(self) -> str: ...
    @property
    def row_digest(self) -> str | None: ...
    @property
    def source_row_index(self) -> int | None: ...


class SampleCollector:
    """Collects the samples of a run that a platform reports, one by one and in any order."""

    def __init__(self, empty: RunSamples, *, rows: int, n: int, source: str) -> None:
        self._empty, self._source = empty, source
        self._rows, self._n = rows, n
        self._added = 0
        self._status = np.zeros(rows * n, dtype=np.uint8)
        self._floats = {name: np.full(rows * n, math.nan) for name in _FLOATS}
        self._digests, self._places = [""] * rows, [-1] * rows

    def add(self, sample: ReportedSample) -> None:
        """Add a sample; a later one of the same attempt replaces it."""
        if sample.row >= self._rows or sample.attempt >= self._n:
            raise OsmosisError(
                f"{self._source} reports row {sample.row}, attempt {sample.attempt}, which the run "
                f"{self._empty.name} does not have."
            )
        self._added += 1
        if self._added > self._rows * self._n:
            raise OsmosisError(f"{self._source} reports more attempts than the run {self._empty.name} has.")
        item = sample.row * self._n + sample.attempt
        self._status[item] = _STATUS_CODES.get(sample.status, _STATUS_CODES["failed"])
        for name in _FLOATS:
            value = getattr(sample, name)
            self._floats[name][item] = math.nan if value is None or not math.isfinite(value) else value
        self._digests[sample.row] = self._digests[sample.row] or sample.row_digest or ""
        if sample.source_row_index is not None:
            self._places[sample.row] = sample.source_row_index

    def run(self) -> RunSamples:
        """Return the run with its samples, the rows identified by their digests if all have one."""
        empty, digests, places = self._empty, self._digests, self._places
        tried = np.flatnonzero(self._status.reshape(self._rows, self._n).any(axis=1)).tolist()
        keyed = all(digests[row] for row in tried)
        if not keyed and any(places[row] < 0 for row in tried):
            raise OsmosisError(f"the platform does not identify the rows of {empty.name}.")
        dataset = empty.inputs.dataset_sha256 or empty.run_id
        keys, source_rows, row_of = distinct_rows(
            self._rows,
            ((row, digests[row] if keyed else f"{dataset}:{places[row]}", places[row]) for row in tried),
        )
        note = (
            f"The rows of {empty.name} are matched by the dataset's digest and their position, because the run was "
            "imported without row digests."
        )
        return replace(
            empty,
            row_keys=keys,
            keyed_by="row_digest" if keyed else "dataset-and-index",
            source_rows=source_rows,
            samples=sample_array({"status": self._status, **self._floats}, row_of, self._n),
            notes=empty.notes if keyed else (*empty.notes, note),
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
            f"The platform does not list the attempts of {run.name}, so slices are not available.",
            hint="leave out --slice",
        )
    scored = run.samples[run.scored]
    reward_range, _ = fitting_range(scored["reward"], run.reward_range)
    found = []
    for column in dict.fromkeys(columns):
        values = run.slice_values(column)
        for name in sorted(set(values), key=lambda value: (value is None, value)):
            chosen = np.array([value == name for value in values], dtype=np.bool_)
            mine = scored[chosen[scored["row"]]]
            rows = mine["row"].astype(np.int64)
            passed = (mine["reward"] >= run.inputs.pass_threshold).astype(np.float64)
            reward = estimate_reward(mine["reward"], rows, reward_range=reward_range)
            found.append(RunSlice(column, name, int(chosen.sum()), reward, estimate_rate(passed, rows)))
    return tuple(found)


class ChangedRow(NamedTuple):
    """The positions in two runs of a row whose prompt is the same and whose answer or metadata is not."""

    a: int
    b: int


@dataclass(frozen=True, eq=False)
class MatchedRows:
    """The rows of two runs: common, in one of them only, and changed."""

    index_a: Integers
    index_b: Integers
    only_a: Integers
    only_b: Integers
    changed: tuple[ChangedRow, ...] = ()
    share: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def common(self) -> int:
        return int(self.index_a.size)

    @property
    def words(self) -> str:
        of_a, of_b = self.common + int(self.only_a.size), self.common + int(self.only_b.size)
        if of_a == of_b == self.common:
            return f"all {self.common:,} rows are in both runs"
        counted = "1 row is" if self.common == 1 else f"{self.common:,} rows are"
        return f"{counted} in both runs, of {of_a:,} and {of_b:,}"


def match_rows(a: RunSamples, b: RunSamples) -> MatchedRows:
    """Match the rows of two runs by what they are; of runs without digests, by dataset and place in it."""
    notes: tuple[str, ...] = ()
    keys_a, keys_b = a.row_keys, b.row_keys
    if not a.keyed_by == b.keyed_by == "row_digest":
        notes = tuple(dict.fromkeys((*a.notes, *b.notes)))
        keys_a, keys_b = (
            tuple(f"{run.inputs.dataset_sha256 or run.run_id}:{place}" for place in run.source_rows.tolist())
            for run in (a, b)
        )
    place_b = {key: place for place, key in reversed(list(enumerate(keys_b)))}
    pairs = [(place, place_b[key]) for place, key in enumerate(keys_a) if key in place_b]
    index = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    only_a = np.setdiff1d(np.arange(len(keys_a)), index[:, 0])
    only_b = np.setdiff1d(np.arange(len(keys_b)), index[:, 1])
    smaller = min(len(keys_a), len(keys_b))
    changed, said = _changed_rows(a, b, only_a, only_b)
    return MatchedRows(
        index_a=index[:, 0],
        index_b=index[:, 1],
        only_a=only_a,
        only_b=only_b,
        changed=changed,
        share=len(pairs) / smaller if smaller else 0.0,
        notes=(*notes, *said),
    )


def _changed_rows(
    a: RunSamples, b: RunSamples, only_a: Integers, only_b: Integers
) -> tuple[tuple[ChangedRow, ...], tuple[str, ...]]:
    """Return the rows that one run has with another answer than the other, and how that was found out."""
    if not only_a.size or not only_b.size or a.inputs.dataset_sha256 == b.inputs.dataset_sha256:
        return (), ()
    places_a, places_b = a.source_rows[only_a], b.source_rows[only_b]

    def prompts_of(run: RunSamples, places: Integers) -> dict[int, str] | None:
        from osmosis_ai.decisions.run_dataset import read_prompts

        if run.open_dataset is None:
            return None
        try:
            return read_prompts(run.open_dataset(), places)
        except (OsmosisError, OSError):
            return None

    prompts = prompts_of(a, places_a), prompts_of(b, places_b)
    if prompts[0] is not None and prompts[1] is not None:
        found = {prompt: place for place, prompt in prompts[1].items()}
        pairs = [(place, found[prompt]) for place, prompt in prompts[0].items() if prompt in found]
        note = "with the same prompt but another answer or other metadata: changed rows are different rows."
    elif a.inputs.dataset_name is None or a.inputs.dataset_name != b.inputs.dataset_name:
        return (), ()
    else:
        pairs = [(place, place) for place in sorted({*places_a.tolist()} & {*places_b.tolist()})]
        note = (
            f"at the same position of {a.inputs.dataset_name} with different content; the prompts cannot be compared "
            "without both files."
        )
    row_a = dict(zip(places_a.tolist(), only_a.tolist(), strict=True))
    row_b = dict(zip(places_b.tolist(), only_b.tolist(), strict=True))
    rows = tuple(ChangedRow(row_a[place], row_b[other]) for place, other in pairs)
    return rows, ((f"{counted_rows(len(rows))} {note}",) if rows else ())


def counted_rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


_FAILED, _SKIPPED = STATUSES.index("failed"), STATUSES.index("skipped")
_AMOUNTS = {"cost_per_row": "cost_usd", "tokens": "tokens", "latency": "duration_ms"}
NOWHERE = -1
HUGE = LARGEST_REWARD


class Attempts(NamedTuple):
    """A number of each attempt of a run, and the label of its row."""

    values: Floats
    rows: Integers


class Passes(NamedTuple):
    """Numbers of scored and of passing attempts of a run, for each row of a pair."""

    counts: Integers
    passes: Integers


@dataclass(frozen=True, eq=False)
class LabelledRun:
    """A run of a pair."""

    run: RunSamples
    rows: Integers
    index: Integers

    def with_copies_apart(self) -> tuple[LabelledRun, Integers]:
        """Return the run with a label for each copy of a row, and for each label the one that its copies share."""
        mine = self.rows >= 0
        index, first, labels = np.unique(
            self.run.samples["selected"][mine], return_index=True, return_inverse=True
        )
        rows = np.full(self.rows.shape, NOWHERE, dtype=np.int64)
        rows[mine] = labels.reshape(-1)
        return replace(self, rows=rows, index=index), self.rows[mine][first]

    def tried(self) -> NDArray[np.bool_]:
        """Whether each sample takes part and was not skipped."""
        found: NDArray[np.bool_] = (self.rows >= 0) & (self.run.samples["status"] != _SKIPPED)
        return found

    def values(self, metric: str, unscored_as: float | None = None) -> Attempts:
        """Return a number of each attempt; for ``cost_per_row``, of each row.

        Rewards and passes are those of scored attempts, and of the others if ``unscored_as`` is their score. Tokens and
        seconds are those of attempts that report them.
        """
        if metric == "cost_per_row":
            return self._row_costs()
        samples, chosen, scored = self.run.samples, self.tried(), self.run.scored
        if metric in _AMOUNTS:
            numbers = samples[_AMOUNTS[metric]]
            chosen &= np.abs(numbers) < HUGE
            numbers = numbers / 1000 if metric == "latency" else numbers
        elif metric == "unscored":
            numbers = ~scored
        elif metric == "failed":
            numbers = samples["status"] == _FAILED
        else:
            numbers = samples["reward"] if metric == "reward" else self.run.passed
            if unscored_as is None:
                chosen = scored & (self.rows >= 0)
            else:
                numbers = np.where(scored, numbers, unscored_as)
        return Attempts(numbers[chosen].astype(np.float64), self.rows[chosen])

    def _row_costs(self) -> Attempts:
        """Return the cost of all attempts of a row, in US dollars, for rows where each attempt reports it."""
        tried = self.tried()
        costs, rows = self.run.samples["cost_usd"][tried], self.rows[tried]
        # An unknown cost makes the sum unknown.
        sums = np.bincount(rows, weights=costs, minlength=self.index.size).astype(np.float64)
        known = np.flatnonzero((np.bincount(rows, minlength=self.index.size) > 0) & (np.abs(sums) < HUGE))
        return Attempts(sums[known], known)

    def unreported(self, metric: str) -> int:
        """Return how many attempts did not report an amount."""
        return int((self.tried() & ~(np.abs(self.run.samples[_AMOUNTS[metric]]) < HUGE)).sum())

    def pass_counts(self, unscored_as: float | None = None) -> Passes:
        """Return scored attempts and passes of each label."""
        values, rows = self.values("pass_rate", unscored_as)
        counts = np.bincount(rows, minlength=self.index.size)
        passes = np.bincount(rows, weights=values, minlength=self.index.size)
        return Passes(counts, np.rint(passes).astype(np.int64))


@dataclass(frozen=True, eq=False)
class RunPair:
    """A baseline and a candidate."""

    a: LabelledRun
    b: LabelledRun
    paired: bool

    @classmethod
    def of(cls, a: RunSamples, b: RunSamples, matched: MatchedRows | None) -> RunPair:
        """Lay two runs side by side by the rows that they share; without ``matched`` all rows of either take part."""

        def labelled(run: RunSamples, index: Integers) -> LabelledRun:
            labels = np.full(len(run.row_keys), NOWHERE, dtype=np.int64)
            labels[index] = np.arange(index.size)
            rows = labels[run.samples["row"]] if labels.size else np.zeros(0, dtype=np.int64)
            return LabelledRun(run, rows, index)

        if matched is None:
            every_a, every_b = (np.arange(len(run.row_keys)) for run in (a, b))
            return cls(labelled(a, every_a), labelled(b, every_b), paired=False)
        return cls(labelled(a, matched.index_a), labelled(b, matched.index_b), paired=True)


def by_slice(pair: RunPair, column: str) -> dict[tuple[str, str | None], RunPair]:
    """Return the pair of each value of a column; paired rows have the values of the baseline's dataset."""

    def values_of(side: LabelledRun) -> list[str | None]:
        of_rows = side.run.slice_values(column)
        return [of_rows[row] for row in side.index.tolist()]

    def only(side: LabelledRun, chosen: list[bool]) -> LabelledRun:
        # One more for NOWHERE, which is the last place.
        labels = np.append(np.where(chosen, np.arange(len(chosen)), NOWHERE), NOWHERE)
        return replace(side, rows=labels[side.rows])

    values_a = values_of(pair.a)
    values_b = values_a if pair.paired else values_of(pair.b)
    names = sorted({*values_a, *values_b}, key=lambda value: (value is None, value))
    return {
        (column, name): replace(
            pair,
            a=only(pair.a, [value == name for value in values_a]),
            b=only(pair.b, [value == name for value in values_b]),
        )
        for name in names
    }


def mean_rewards(a: RunSamples, b: RunSamples, matched: MatchedRows) -> tuple[Floats, Integers]:
    """Return the pairs of mean rewards (to three digits) that common rows have in two runs, and how many have
    each."""
    pair, means = RunPair.of(a, b, matched), []
    for side in (pair.a, pair.b):
        values, labels = side.values("reward")
        counts = np.bincount(labels, minlength=matched.common)
        sums = np.bincount(labels, weights=values, minlength=matched.common)
        means.append(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))
    both = np.round(np.stack(means, axis=1), 3)
    return np.unique(both[~np.isnan(both).any(axis=1)], axis=0, return_counts=True)
