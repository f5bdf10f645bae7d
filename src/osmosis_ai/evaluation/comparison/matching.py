"""Which rows two runs share: rows match by what they are, never by their place in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.run_samples import RunSamples
    from osmosis_ai.evaluation.statistics import Integers


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
    from osmosis_ai.evaluation.dataset_columns import read_prompts

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
