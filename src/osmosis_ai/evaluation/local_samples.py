"""The samples of a run directory, read from its journal: no more of each line than a comparison needs.

What the journal says is checked as for every other reader: the chain of digests, the last line if it is torn, results
of attempts that the run does not have.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.controller.outcomes import STATUSES
from osmosis_ai.evaluation.comparison.run_samples import (
    PENDING,
    ComparedInputs,
    RowTable,
    RunSamples,
    SampleTable,
)
from osmosis_ai.evaluation.journal import JournalCorruptionError, not_part_of_run, replay, salvage_hint
from osmosis_ai.evaluation.lenient_json import as_table, as_text
from osmosis_ai.evaluation.local_results import pass_threshold_of, unfinished_words
from osmosis_ai.evaluation.manifest import Manifest, inputs_digest
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_lock import is_running

if TYPE_CHECKING:
    from osmosis_ai.evaluation.statistics import Integers

_STATUS_CODES: dict[str, int] = {name: code for code, name in enumerate(STATUSES)}
_OF_THE_ROWS = ("dataset", "n", "versions")


def read_local_samples(directory: Path) -> RunSamples:
    """Read a run of this machine; one that is under way is read as far as it is."""
    found = RunDirectory(directory)
    # The lock first: whoever releases it has written everything before.
    running = is_running(directory.parent, directory.name)
    manifest = Manifest.load(found.manifest)
    places, n = _planned(manifest, found.manifest)
    reader = _Reader(places.size, n, found.events)
    if found.events.exists():
        for entry in replay(found.events):
            reader.take(entry.record)
    inputs = _inputs(manifest, found, reader.judges)
    rows, row_of = reader.rows(places)
    samples = reader.table.structured(row_of)
    planned, pending = places.size * n, reader.table.pending
    return RunSamples(
        name=directory.name,
        run_id=manifest.local_run_id,
        place="local",
        location=str(directory),
        status="running" if running else "incomplete" if pending else "finished",
        inputs=inputs,
        row_keys=rows.keys,
        keyed_by="row_digest",
        source_rows=rows.source_rows(),
        samples=samples,
        planned=planned,
        unfinished=unfinished_words(pending, planned, running=running),
        reward_range=manifest.reward_range,
    )


class _Reader:
    """Takes the lines of a journal, and keeps numbers and one digest a row."""

    def __init__(self, rows: int, n: int, journal: Path) -> None:
        self.table = SampleTable(rows, n)
        self.judges: set[str] = set()
        self._rows, self._n, self._journal = rows, n, journal
        self._digests = [""] * rows
        self._columns = list(self.table.floats.items())

    def take(self, record: TerminalRecord) -> None:
        """Take a record."""
        row, run = record.row_index, record.run_index
        if row >= self._rows or run >= self._n:
            raise not_part_of_run(row, run, self._journal)
        if record.row_digest is None:
            raise JournalCorruptionError(
                f"The journal '{self._journal}' is damaged: the record of row {row}, attempt {run + 1} has no 'row_digest'.",
                hint=salvage_hint(self._journal),
            )
        item = row * self._n + run
        self.table.statuses[item] = _STATUS_CODES[record.status]
        for name, column in self._columns:
            value = getattr(record, name)
            column[item] = math.nan if value is None else value
        if (
            record.tokens is None
            and record.prompt_tokens is not None
            and record.completion_tokens is not None
        ):
            self.table.floats["tokens"][item] = record.prompt_tokens + record.completion_tokens
        self._digests[row] = self._digests[row] or record.row_digest
        models = (judgement.get("model") for judgement in record.judgements or ())
        self.judges.update(model for model in models if isinstance(model, str))

    def rows(self, places: Integers) -> tuple[RowTable, Integers]:
        """Return the distinct rows, and which of them each selected row is."""
        import numpy as np

        tried = np.frombuffer(self.table.statuses, dtype=np.uint8).reshape(places.size, self._n)
        there = np.flatnonzero((tried != PENDING).any(axis=1)).tolist()
        table, row_of = RowTable(), np.full(places.size, -1, dtype=np.int64)
        for row in there:
            place = int(places[row])
            row_of[row] = table.position(self._digests[row], place)
        return table, row_of


def _planned(manifest: Manifest, path: Path) -> tuple[Integers, int]:
    """Return of each selected row its place in the dataset, and how many attempts each is to have."""
    import numpy as np

    _, n = manifest.planned(path)
    described = manifest.inputs["dataset"]["selected_source_rows"]
    parts = [part.partition("-") for part in described.split(",") if part]
    ranges = [np.arange(int(first), int(last or first) + 1) for first, _, last in parts]
    return np.concatenate(ranges) if ranges else np.zeros(0, dtype=np.int64), n


def read_inputs(directory: Path) -> ComparedInputs:
    """Return what a run of this machine was computed from, its journal unread."""
    found = RunDirectory(directory)
    return _inputs(Manifest.load(found.manifest), found)


def recorded_dataset(directory: Path) -> Path | None:
    """Return the dataset's file as the run recorded it, whether or not it is there still."""
    written = as_text(Manifest.load(RunDirectory(directory).manifest).provenance.get("dataset_path"))
    return Path(written) if written is not None else None


def _inputs(manifest: Manifest, found: RunDirectory, judges: Collection[str] = ()) -> ComparedInputs:
    inputs, provenance = manifest.inputs, manifest.provenance
    rollout, dataset = as_table(inputs.get("rollout")), as_table(inputs.get("dataset"))
    functions = as_table(inputs.get("agent_loop")).get("eval_fns")
    facts = as_table((found.read_metrics() or {}).get("eval_run"))
    n, seed, dirty = inputs.get("n"), inputs.get("seed"), provenance.get("git_dirty")
    return ComparedInputs(
        model=as_text(inputs.get("model_path")),
        dataset_name=as_text(provenance.get("dataset_name")) or as_text(facts.get("dataset_name")),
        dataset_sha256=as_text(dataset.get("sha256")),
        rollout=as_text(rollout.get("name")),
        entrypoint=as_text(rollout.get("entrypoint")),
        source_digest=as_text(rollout.get("source_digest")),
        grader_digest=manifest.grader_digest,
        judges=tuple(sorted(judges)),
        commit=as_text(provenance.get("git_head")),
        dirty=dirty if isinstance(dirty, bool) else None,
        config=as_text(provenance.get("config")),
        n=n if type(n) is int else None,
        seed=seed if type(seed) is int else None,
        pass_threshold=pass_threshold_of(found),
        selected_rows=as_text(dataset.get("selected_source_rows")),
        eval_functions=tuple(map(str, functions)) if isinstance(functions, list) else (),
        settings_digest=inputs_digest(
            {name: value for name, value in inputs.items() if name not in _OF_THE_ROWS}
        ),
        env={str(name): str(value) for name, value in as_table(inputs.get("env")).items()},
    )
