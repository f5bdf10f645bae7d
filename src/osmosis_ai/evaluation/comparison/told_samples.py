"""Samples of a run that somebody tells one by one: a platform's pages, or its rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from osmosis_ai.driving.classify import STATUSES
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.comparison.run_samples import PENDING, RowTable, RunSamples, SampleTable

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
        for field in _FLOATS:
            value = getattr(sample, field)
            self._table.floats[field][item] = math.nan if value is None else value
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
