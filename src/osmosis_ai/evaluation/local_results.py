"""Results of a run directory: its numbers, its attempts for a comparison, and its dataset.

The numbers in ``metrics.json`` are used if they cover the whole journal. Otherwise they are computed from the journal.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from osmosis_ai.config.lines import parse_toml
from osmosis_ai.datasets import file_digest, find_row, row_digest
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError, reason_of
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
from osmosis_ai.evaluation.manifest import Manifest, inputs_digest, is_running
from osmosis_ai.evaluation.metrics import Estimates, RunMetrics, compute_metrics
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.files import size_of
from osmosis_ai.workspace.layout import DATASET_EXTENSIONS, WorkspaceDirectory, find_workspace

# Lists of runs do not read larger journals.
_MAX_LISTED_BYTES = 4 << 20
# These inputs differ between runs with equal settings.
_ROW_INPUTS = ("dataset", "n", "versions")
_SEARCH_TIME_S = 1.0


class LocalResults:
    """The results of a local run, read from its journal as far as :meth:`advance` has come."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # A copy of a run's directory has the run's manifest, but its own name.
        self.name = directory.name
        self.running = False
        self.files = RunDirectory(directory)
        self.manifest = Manifest.load(self.files.manifest)
        self.rows, n = self.manifest.planned(self.files.manifest)
        self.table = AttemptTable(self.rows, n)
        self.pass_threshold = pass_threshold_of(self.files)
        self._metrics: RunMetrics | None = None
        self._read_bytes = 0

    def is_current(self) -> bool:
        """Return whether the directory still has the same run, with a journal that has only grown."""
        try:
            same = Manifest.load(self.files.manifest).local_run_id == self.manifest.local_run_id
            size = self.files.events.stat().st_size if self._read_bytes else 0
        except (OsmosisError, OSError):
            return False
        return same and size >= self._read_bytes and self.pass_threshold == pass_threshold_of(self.files)

    def advance(self, each: Callable[[TerminalRecord], None] = lambda _: None) -> None:
        """Read the results that have been committed since the last call; ``each`` receives their records."""

        def add(record: TerminalRecord) -> None:
            each(record)
            if record.row_digest is not None:
                self.table.set_row_digest(record.row_index, record.row_digest)

        # Check the lock first: a process writes everything before it releases the lock.
        self.running = is_running(self.directory.parent, self.name)
        end = load_results(self.files.events, self.table, start=self._read_bytes, each=add)
        if end != self._read_bytes:
            self._read_bytes, self._metrics = end, None

    @property
    def metrics(self) -> RunMetrics:
        """The numbers of the results that have been read."""
        if self._metrics is None:
            self._metrics = compute_metrics(
                self.table, pass_threshold=self.pass_threshold, reward_range=self.manifest.reward_range
            )
        return self._metrics

    @property
    def status(self) -> Literal["running", "incomplete", "finished"]:
        """``incomplete`` if no process works on the run and attempts are pending."""
        return "running" if self.running else "incomplete" if self.table.open_count else "finished"

    @property
    def unfinished(self) -> str | None:
        """A sentence why the results are incomplete; None if they are complete."""
        pending = f"{self.table.open_count} of {len(self.table)} attempts are pending"
        return {
            "running": f"the run is still running: {pending}.",
            "incomplete": f"the run is not finished: {pending}; run it again to continue.",
            "finished": None,
        }[self.status]


def read_local_results(directory: Path) -> LocalResults:
    """Read the results of a local run, complete or not."""
    results = LocalResults(directory)
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
    problem = lost = describe_lost_results(found, written)
    if not (lost and estimates is not None and not found.events.exists()):
        if follow is None and size_of(found.events) > _MAX_LISTED_BYTES:
            return estimates, summary, ()
        try:
            results = follow() if follow is not None else LocalResults(found.path)
            results.advance()
            return results.metrics.estimates, results.metrics.summary, (lost,) if lost else ()
        except OSError as error:
            problem = f"`{found.events}` cannot be read ({reason_of(error)})."
        except OsmosisError as error:
            problem = error.with_hint
        except (ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
            return None, None, (f"`{found.manifest}` does not describe the run ({error}).",)
    if estimates is None:
        return None, None, (problem or "",)
    return estimates, summary, (f"{problem} The numbers are those of the run's last session.",)


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
    """Read the attempts of a local run, complete or not."""
    import numpy as np

    results = LocalResults(directory)
    found, manifest, table = results.files, results.manifest, results.table
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

    results.advance(each=take)
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
        name=results.name,
        run_id=manifest.local_run_id,
        place="local",
        location=str(directory),
        status=results.status,
        inputs=_compared_inputs(manifest, found, judges),
        row_keys=rows.keys,
        keyed_by="row_digest",
        source_rows=rows.source_rows(),
        samples=samples.structured(row_of),
        planned=len(table),
        unfinished=results.unfinished,
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
    n, seed, dirty = inputs.get("n"), inputs.get("seed"), provenance.get("git_dirty")
    return ComparedInputs(
        model=as_text(inputs.get("model_path")),
        dataset_name=_dataset_name(manifest, found),
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


def find_dataset_file(run: RunSamples, directory: Path, start: Path | None = None) -> Path | None:
    """Return the dataset file of a local run; None if it is not found.

    Args:
        run: the run.
        directory: its directory.
        start: a directory in the workspace to search; by default the run's directory.

    Raises:
        ConflictError: the file was changed, or the run did not record its digest.
    """
    if run.inputs.dataset_sha256 is None:
        raise ConflictError(f"the run {run.name} did not record the digest of its dataset.")
    found = RunDirectory(directory)
    candidates = _dataset_files(Manifest.load(found.manifest), found, start or directory)
    digests = {}
    for path in candidates:
        digests[path] = file_digest(path)
        if digests[path] == run.inputs.dataset_sha256:
            return path
    for path, digest in digests.items():
        require_unchanged(run, digest, where=f"`{path}`")
    return None


def require_dataset_file(run: RunSamples, directory: Path) -> Path:
    """Return the dataset file of a local run, and refuse if it is not on this machine."""
    found = find_dataset_file(run, directory)
    if found is None:
        name = run.inputs.dataset_name or "name not recorded"
        raise NotFoundError(f"the dataset of the run {run.name} ({name}) is not on this machine.")
    return found


def require_unchanged(run: RunSamples, sha256: str, *, where: str) -> None:
    """Refuse a dataset other than the one that a run used."""
    if sha256 != run.inputs.dataset_sha256:
        raise ConflictError(
            f"{where} has changed since the run {run.name} used it.",
            details={"found": sha256, "used": run.inputs.dataset_sha256},
            hint="restore the old file, or leave out slices, which need it",
        )


def expected_answer(directory: Path, source_row: int | None, digest: str | None) -> str | None:
    """Return the expected answer of a run's row; None if the row has changed or is not found in time."""
    if source_row is None:
        return None
    found = RunDirectory(directory)
    manifest = Manifest.load(found.manifest)
    sha256 = as_table(manifest.inputs.get("dataset")).get("sha256")
    for path in _dataset_files(manifest, found, directory):
        with suppress(OsmosisError, OSError, ValueError, RecursionError):
            if digest is None and file_digest(path) != sha256:
                continue
            row = find_row(path, source_row, look_s=_SEARCH_TIME_S)
            if row is not None and digest in (None, row_digest(row)):
                return row.label
    return None


def _dataset_name(manifest: Manifest, found: RunDirectory) -> str | None:
    name = as_text(manifest.provenance.get("dataset_name"))
    return name or as_text(as_table((found.read_metrics() or {}).get("eval_run")).get("dataset_name"))


def _dataset_files(manifest: Manifest, found: RunDirectory, start: Path) -> Iterator[Path]:
    """Yield the files that may be the dataset of a run, the likeliest first."""
    recorded = as_text(manifest.provenance.get("dataset_path"))
    # `os.path` also refuses names that no file can have.
    if recorded is not None and os.path.isfile(recorded):  # noqa: PTH113
        yield Path(recorded)
    name = _dataset_name(manifest, found)
    if name is None or Path(name).name != name:
        return
    # Without Git, which would be asked for each of many samples.
    workspace = WorkspaceDirectory(start.parents[2]) if len(start.parts) > 3 else None
    if workspace is None or start.parent != workspace.evals_dir:
        try:
            workspace = find_workspace(start, require_scaffold=False)
        except OsmosisError:
            return
    for extension in DATASET_EXTENSIONS:
        path = workspace.data_dir / f"{name}.{extension}"
        if str(path) != recorded and os.path.isfile(path):  # noqa: PTH113
            yield path
