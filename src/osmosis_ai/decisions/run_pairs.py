"""Two runs with their rows matched and laid side by side: what every number about both is computed from.

Rows match by what they are, never by their place in a file. A row has one label for both runs where they are paired; a sample
of a row that only one of them has carries none and is in no number. Runs on different rows keep labels of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from osmosis_ai.config.decisions import LARGEST_REWARD
from osmosis_ai.controller.outcomes import STATUSES
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from osmosis_ai.decisions.run_samples import RunSamples
    from osmosis_ai.statistics.estimates import Floats, Integers


@dataclass(frozen=True)
class ChangedRow:
    """A row that has the same prompt in both runs and is another one all the same: its positions in either."""

    a: int
    b: int


@dataclass(frozen=True, eq=False)
class MatchedRows:
    """The rows of two runs, told apart."""

    index_a: Integers
    index_b: Integers
    only_a: Integers
    only_b: Integers
    changed: tuple[ChangedRow, ...] = ()
    share: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def common(self) -> int:
        """How many rows both have."""
        return int(self.index_a.size)

    @property
    def words(self) -> str:
        """It in words: ``88 rows are in both runs, of 100 and 120``."""
        of_a, of_b = self.common + int(self.only_a.size), self.common + int(self.only_b.size)
        if of_a == of_b == self.common:
            return f"all {self.common:,} rows are in both runs"
        counted = "1 row is" if self.common == 1 else f"{self.common:,} rows are"
        return f"{counted} in both runs, of {of_a:,} and {of_b:,}"


def match_rows(a: RunSamples, b: RunSamples) -> MatchedRows:
    """Match the rows of two runs by what they are; of runs without digests, by dataset and place in it."""
    import numpy as np

    keys_a, keys_b, notes = _shared_keys(a, b)
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
    prompts = _prompts(a, places_a), _prompts(b, places_b)
    if prompts[0] is not None and prompts[1] is not None:
        found = {prompt: place for place, prompt in prompts[1].items()}
        pairs = [(place, found[prompt]) for place, prompt in prompts[0].items() if prompt in found]
        note = "with the same prompt and another answer, or other metadata: not the same row, but changed."
    elif a.inputs.dataset_name is None or a.inputs.dataset_name != b.inputs.dataset_name:
        return (), ()
    else:
        pairs = [(place, place) for place in sorted({*places_a.tolist()} & {*places_b.tolist()})]
        note = (
            f"at the same place of {a.inputs.dataset_name} and not the same: whether it has only changed cannot be "
            "told without both files."
        )
    row_a = dict(zip(places_a.tolist(), only_a.tolist(), strict=True))
    row_b = dict(zip(places_b.tolist(), only_b.tolist(), strict=True))
    rows = tuple(ChangedRow(row_a[place], row_b[other]) for place, other in pairs)
    return rows, ((f"{counted_rows(len(rows))} {note}",) if rows else ())


def _prompts(run: RunSamples, places: Integers) -> dict[int, str] | None:
    """Return by place the digest of each row's prompt; None where the dataset cannot be read."""
    from osmosis_ai.decisions.dataset_columns import read_prompts

    if run.open_dataset is None:
        return None
    try:
        return read_prompts(run.open_dataset(), places)
    except (OsmosisError, OSError):
        return None


def counted_rows(count: int) -> str:
    """Return ``1 row``, ``1,200 rows``."""
    return f"{count:,} row{'' if count == 1 else 's'}"


def _shared_keys(a: RunSamples, b: RunSamples) -> tuple[list[str], list[str], tuple[str, ...]]:
    """Return what the rows of either are known by, in the one way that both know."""
    if a.keyed_by == b.keyed_by == "row_digest":
        return list(a.row_keys), list(b.row_keys), ()
    notes = tuple(dict.fromkeys((*a.notes, *b.notes)))
    return _by_place(a), _by_place(b), notes


def _by_place(run: RunSamples) -> list[str]:
    dataset = run.inputs.dataset_sha256 or run.run_id
    return [f"{dataset}:{place}" for place in run.source_rows.tolist()]


_FAILED, _SKIPPED = STATUSES.index("failed"), STATUSES.index("skipped")
NOWHERE = -1
HUGE = LARGEST_REWARD


class Attempts(NamedTuple):
    """A number of each attempt of a run, and the label of its row."""

    values: Floats
    rows: Integers


class Passes(NamedTuple):
    """Of each row of a pair, how many attempts a run has with a score, and how many of them passed."""

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
        import numpy as np

        mine = self.rows >= 0
        index, first, labels = np.unique(
            self.run.samples["selected"][mine], return_index=True, return_inverse=True
        )
        rows = np.full(self.rows.shape, NOWHERE, dtype=np.int64)
        rows[mine] = labels.reshape(-1)
        return replace(self, rows=rows, index=index), self.rows[mine][first]

    def tried(self) -> NDArray[np.bool_]:
        """Of each sample, whether it takes part and was not skipped."""
        found: NDArray[np.bool_] = (self.rows >= 0) & (self.run.samples["status"] != _SKIPPED)
        return found

    def rewards(self, unscored_as: float | None = None) -> Attempts:
        """Return the rewards of scored attempts; of the unscored ones what is given, if anything is."""
        return self._scored_or(self.run.samples["reward"], unscored_as)

    def passed(self, unscored_as: float | None = None) -> Attempts:
        """Return 1 for each scored attempt that passed and 0 for the others, the unscored as :meth:`rewards`."""
        return self._scored_or(self.run.passed.astype("f8"), unscored_as)

    def unscored(self) -> Attempts:
        """Return 1 for each attempt without a score and 0 for the others."""
        tried = self.tried()
        return Attempts((~self.run.scored[tried]).astype("f8"), self.rows[tried])

    def failed(self) -> Attempts:
        """Return 1 for each attempt that failed and 0 for the others."""
        tried = self.tried()
        return Attempts((self.run.samples["status"][tried] == _FAILED).astype("f8"), self.rows[tried])

    def row_costs(self) -> Attempts:
        """Return what all attempts of a row cost together, in US dollars, of rows where each attempt tells."""
        import numpy as np

        tried = self.tried()
        costs, rows = self.run.samples["cost_usd"][tried], self.rows[tried]
        # One that is not known makes the sum not known.
        sums = np.bincount(rows, weights=costs, minlength=self.index.size).astype(np.float64)
        known = np.flatnonzero((np.bincount(rows, minlength=self.index.size) > 0) & (np.abs(sums) < HUGE))
        return Attempts(sums[known], known)

    def recorded(self, field: str) -> Attempts:
        """Return a quantity of every attempt that has it recorded."""
        import numpy as np

        values = self.run.samples[field]
        known = self.tried() & (np.abs(values) < HUGE)
        return Attempts(values[known], self.rows[known])

    def unreported(self, metric: str) -> int:
        """Return how many attempts did not report an amount."""
        import numpy as np

        field = {"cost_per_row": "cost_usd", "tokens": "tokens", "latency": "duration_ms"}[metric]
        return int((self.tried() & ~(np.abs(self.run.samples[field]) < HUGE)).sum())

    def pass_counts(self, unscored_as: float | None = None) -> Passes:
        """Return scored attempts and passes of each label."""
        import numpy as np

        values, rows = self.passed(unscored_as)
        counts = np.bincount(rows, minlength=self.index.size)
        passes = np.bincount(rows, weights=values, minlength=self.index.size)
        return Passes(counts, np.rint(passes).astype(np.int64))

    def _scored_or(self, values: Floats, unscored_as: float | None) -> Attempts:
        import numpy as np

        scored = self.run.scored & (self.rows >= 0)
        if unscored_as is None:
            return Attempts(values[scored], self.rows[scored])
        tried = self.tried()
        return Attempts(np.where(scored, values, unscored_as)[tried], self.rows[tried])


@dataclass(frozen=True, eq=False)
class RunPair:
    """A baseline and a candidate."""

    a: LabelledRun
    b: LabelledRun
    paired: bool

    @classmethod
    def of(cls, a: RunSamples, b: RunSamples, matched: MatchedRows | None) -> RunPair:
        """Lay two runs side by side by the rows that they share; without ``matched`` all rows of either take part."""
        import numpy as np

        if matched is None:
            every_a, every_b = (np.arange(len(run.row_keys)) for run in (a, b))
            return cls(_labelled(a, every_a), _labelled(b, every_b), paired=False)
        return cls(_labelled(a, matched.index_a), _labelled(b, matched.index_b), paired=True)

    def of_rows(self, chosen_a: Sequence[bool], chosen_b: Sequence[bool]) -> RunPair:
        """Return the pair with only the chosen labels of either run; of a paired one, the same labels."""
        return replace(self, a=_only(self.a, chosen_a), b=_only(self.b, chosen_b))


def mean_rewards(a: RunSamples, b: RunSamples, matched: MatchedRows) -> tuple[Floats, Integers]:
    """Return the pairs of mean rewards (to three digits) that common rows have in two runs, and how many have
    each."""
    import numpy as np

    pair, means = RunPair.of(a, b, matched), []
    for side in (pair.a, pair.b):
        values, labels = side.rewards()
        counts = np.bincount(labels, minlength=matched.common)
        sums = np.bincount(labels, weights=values, minlength=matched.common)
        means.append(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))
    both = np.round(np.stack(means, axis=1), 3)
    return np.unique(both[~np.isnan(both).any(axis=1)], axis=0, return_counts=True)


def _labelled(run: RunSamples, index: Integers) -> LabelledRun:
    import numpy as np

    labels = np.full(len(run.row_keys), NOWHERE, dtype=np.int64)
    labels[index] = np.arange(index.size)
    rows = labels[run.samples["row"]] if labels.size else np.zeros(0, dtype=np.int64)
    return LabelledRun(run, rows, index)


def _only(side: LabelledRun, chosen: Sequence[bool]) -> LabelledRun:
    import numpy as np

    # One more for NOWHERE, which is the last place.
    labels = np.append(np.where(chosen, np.arange(len(chosen)), NOWHERE), NOWHERE)
    return replace(side, rows=labels[side.rows])
