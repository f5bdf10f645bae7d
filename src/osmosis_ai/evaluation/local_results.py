"""Results of a run directory: its numbers, and its attempts for a comparison.

The numbers in ``metrics.json`` are used if they cover the whole journal. Otherwise they are computed from the journal.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from osmosis_ai.config.lines import parse_toml
from osmosis_ai.errors import OsmosisError, reason_of
from osmosis_ai.evaluation.attempt_files import read_config
from osmosis_ai.evaluation.comparison.run_samples import (
    PENDING,
    ComparedInputs,
    RowTable,
    RunSamples,
    SampleTable,
)
from osmosis_ai.evaluation.journal import JournalCorruptionError, load_results, salvage_hint
from osmosis_ai.evaluation.lenient_json import as_number, as_table, as_text
from osmosis_ai.evaluation.manifest import Manifest, inputs_digest
from osmosis_ai.evaluation.metrics import Estimates, RunMetrics, compute_metrics
from osmosis_ai.evaluation.opened_run import is_running
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.files import size_of

# The journal of a run that is only listed is not read beyond this size.
_MAX_LISTED_BYTES = 4 << 20
# These inputs differ between runs with equal settings.
_ROW_INPUTS = ("dataset", "n", "versions")


class LocalResults:
    """The results of a local run, followed from the first byte of its journal on."""

    def __init__(self, directory: Path, *, running: bool = False) -> None:
        self.directory = directory
        # A copy of a run's directory has the run's manifest, but its own name.
        self.name = directory.name
        self.running = running
        self._files = RunDirectory(directory)
        manifest = Manifest.load(self._files.manifest)
        self._run_id, self._reward_range = manifest.local_run_id, manifest.reward_range
        self.rows, n = manifest.planned(self._files.manifest)
        self.table = AttemptTable(self.rows, n)
        self.pass_threshold = pass_threshold_of(self._files)
        self._metrics: RunMetrics | None = None
        self._read_bytes = 0

    def is_current(self) -> bool:
        """Return whether the directory still has the same run, with a journal that has only grown."""
        try:
            same = Manifest.load(self._files.manifest).local_run_id == self._run_id
            size = self._files.events.stat().st_size if self._read_bytes else 0
        except (OsmosisError, OSError):
            return False
        return same and size >= self._read_bytes and self.pass_threshold == pass_threshold_of(self._files)

    def advance(self) -> None:
        """Read the results that have been committed since the last call."""
        end = load_results(self._files.events, self.table, start=self._read_bytes, each=self._add_digest)
        if end != self._read_bytes:
            self._read_bytes, self._metrics = end, None

    @property
    def metrics(self) -> RunMetrics:
        """The numbers of the results that have been read."""
        if self._metrics is None:
            self._metrics = compute_metrics(
                self.table, pass_threshold=self.pass_threshold, reward_range=self._reward_range
            )
        return self._metrics

    @property
    def pending(self) -> int:
        """Attempts without a result."""
        return self.table.open_count

    @property
    def unfinished(self) -> str | None:
        """A sentence why the results are incomplete; None if they are complete."""
        return _describe_unfinished(self.pending, len(self.table), running=self.running)

    def _add_digest(self, record: TerminalRecord) -> None:
        if record.row_digest is not None:
            self.table.set_row_digest(record.row_index, record.row_digest)


def read_local_results(directory: Path) -> LocalResults:
    """Read the results of a local run; of a running one those so far."""
    # Check the lock first: a process writes everything before it releases the lock.
    results = LocalResults(directory, running=is_running(directory.parent, directory.name))
    results.advance()
    return results


def current_numbers(
    found: RunDirectory, written: Mapping[str, Any], follow: Callable[[], LocalResults] | None
) -> tuple[Estimates | None, Mapping[str, Any] | None, tuple[str, ...]]:
    """Return a run's estimates and summary, and a sentence for each problem.

    ``written`` is the content of ``metrics.json``. ``follow`` returns the run's results; without it, only small journals
    are read.
    """
    estimates, summary = Estimates.read(written.get("estimates")), written.get("summary")
    counted = written.get("journal_bytes")
    is_complete = counted == size_of(found.events) if counted is not None else not found.events.exists()
    if estimates is not None and isinstance(summary, dict) and is_complete:
        return estimates, summary, ()
    lost = describe_lost_results(found, written)
    if lost and estimates is not None and not found.events.exists():
        return estimates, summary, (f"{lost} The numbers are those of the run's last session.",)
    if follow is None and size_of(found.events) > _MAX_LISTED_BYTES:
        return estimates, summary, ()
    try:
        results = follow() if follow is not None else LocalResults(found.path)
        results.advance()
    except (OsmosisError, OSError) as error:
        problem = (
            f"`{found.events}` cannot be read ({reason_of(error)})."
            if isinstance(error, OSError)
            else error.with_hint
        )
        if estimates is not None:
            return estimates, summary, (f"{problem} The numbers are those of the run's last session.",)
        return None, None, (problem,)
    except (ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
        return None, None, (f"`{found.manifest}` does not describe the run ({error}).",)
    return results.metrics.estimates, results.metrics.summary, (lost,) if lost else ()


def describe_lost_results(found: RunDirectory, written: Mapping[str, Any]) -> str | None:
    """Return a sentence if the journal is smaller than when ``metrics.json`` was written; None otherwise."""
    counted = as_number(written.get("journal_bytes")) or 0
    if not found.events.exists():
        return f"`{found.events}` does not exist." if counted else None
    missing = int(counted) - size_of(found.events)
    if missing <= 0:
        return None
    return (
        f"`{found.events}` has {missing:,} bytes less than when the run last ended: results are missing. "
        "Continuing the run repeats them."
    )


def _describe_unfinished(pending: int, planned: int, *, running: bool) -> str | None:
    if running:
        return f"the run is still running: {pending} of {planned} attempts are pending."
    if pending:
        return (
            f"the run is not finished: {pending} of {planned} attempts are pending; run it again to continue."
        )
    return None


def pass_threshold_of(directory: RunDirectory, written: Mapping[str, Any] | None = None) -> float:
    """Return the pass threshold of a run's metrics (``written``, read by default), else of its config."""
    metrics = written if written is not None else directory.read_metrics() or {}
    threshold = as_number(as_table(metrics.get("summary")).get("pass_threshold"))
    if threshold is None:
        try:
            config: Mapping[str, Any] = parse_toml(read_config(directory) or "", directory.config.name)
        except OsmosisError:
            config = {}
        # The config of `osmosis eval -m` has no sections.
        threshold = as_number(as_table(config.get("evaluation", config)).get("pass_threshold"))
    return 1.0 if threshold is None else threshold


def read_local_samples(directory: Path) -> RunSamples:
    """Read the attempts of a local run; of a running one those so far."""
    import numpy as np

    found = RunDirectory(directory)
    # Check the lock first: a process writes everything before it releases the lock.
    running = is_running(directory.parent, directory.name)
    manifest = Manifest.load(found.manifest)
    table = AttemptTable(*manifest.planned(found.manifest))
    digests = [""] * table.rows
    judges: set[str] = set()

    def take(record: TerminalRecord) -> None:
        row, run = record.row_index, record.run_index
        if record.row_digest is None:
            raise JournalCorruptionError(
                f"The journal '{found.events}' is damaged: the record of row {row}, attempt {run + 1} has no 'row_digest'.",
                hint=salvage_hint(found.events),
            )
        digests[row] = digests[row] or record.row_digest
        models = (judgement.get("model") for judgement in record.judgements or ())
        judges.update(model for model in models if isinstance(model, str))

    load_results(found.events, table, each=take)
    rows, row_of = RowTable(), np.full(table.rows, -1, dtype=np.int64)
    source_rows = (source_row for each in manifest.selected_rows() for source_row in each)
    for row, (digest, source_row) in enumerate(zip(digests, source_rows, strict=True)):
        if digest:
            row_of[row] = rows.position(digest, source_row)
    samples = SampleTable(table.rows, table.n)
    status = table.columns["status"].astype(np.int64) - 1
    samples.statuses[:] = np.where(status < 0, PENDING, status).astype(np.uint8).tobytes()
    for name in samples.floats:
        values = table.columns[name].astype(np.float64)
        samples.floats[name] = array("d", values.tobytes())
    return RunSamples(
        name=directory.name,
        run_id=manifest.local_run_id,
        place="local",
        location=str(directory),
        status="running" if running else "incomplete" if table.open_count else "finished",
        inputs=_compared_inputs(manifest, found, judges),
        row_keys=rows.keys,
        keyed_by="row_digest",
        source_rows=rows.source_rows(),
        samples=samples.structured(row_of),
        planned=len(table),
        unfinished=_describe_unfinished(table.open_count, len(table), running=running),
        reward_range=manifest.reward_range,
    )


def read_inputs(directory: Path) -> ComparedInputs:
    """Return the inputs of a local run without reading its journal."""
    found = RunDirectory(directory)
    return _compared_inputs(Manifest.load(found.manifest), found)


def _compared_inputs(manifest: Manifest, found: RunDirectory, judges: Collection[str] = ()) -> ComparedInputs:
    inputs, provenance = manifest.inputs, manifest.provenance
    rollout, dataset = as_table(inputs.get("rollout")), as_table(inputs.get("dataset"))
    functions = as_table(inputs.get("agent_loop")).get("eval_fns")
    eval_run = as_table((found.read_metrics() or {}).get("eval_run"))
    n, seed, dirty = inputs.get("n"), inputs.get("seed"), provenance.get("git_dirty")
    return ComparedInputs(
        model=as_text(inputs.get("model_path")),
        dataset_name=as_text(provenance.get("dataset_name")) or as_text(eval_run.get("dataset_name")),
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
            {name: value for name, value in inputs.items() if name not in _ROW_INPUTS}
        ),
        env={str(name): str(value) for name, value in as_table(inputs.get("env")).items()},
    )
