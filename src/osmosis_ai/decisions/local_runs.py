"""Runs of this machine for a comparison: their attempts, their inputs and the dataset that they used."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.datasets import file_digest
from osmosis_ai.decisions.run_dataset import dataset_files, dataset_name
from osmosis_ai.decisions.samples import ComparedInputs, RunSamples, distinct_rows, sample_array
from osmosis_ai.errors import ConflictError, NotFoundError
from osmosis_ai.evaluation.journal import JournalCorruptionError, salvage_hint
from osmosis_ai.evaluation.lenient_json import as_number, as_table, as_text
from osmosis_ai.evaluation.local_results import LocalResults, pass_threshold_of
from osmosis_ai.evaluation.manifest import Manifest, inputs_digest
from osmosis_ai.evaluation.run_directory import RunDirectory

# These inputs differ between runs with equal settings.
_ROW_INPUTS = ("dataset", "n", "versions")


def read_local_samples(path: Path) -> RunSamples:
    """Read the attempts of a local run, complete or not."""
    results = LocalResults(path)
    manifest, table, events = results.manifest, results.table, results.directory.events
    digests = [""] * table.rows
    judges: set[str] = set()

    def add(record: TerminalRecord) -> None:
        row, attempt = record.row_index, record.run_index
        if record.row_digest is None:
            raise JournalCorruptionError(
                f"The journal '{events}' is damaged: the record of row {row}, attempt {attempt} has no 'row_digest'.",
                hint=salvage_hint(events),
            )
        digests[row] = record.row_digest
        models = (judgement.get("model") for judgement in record.judgements or ())
        judges.update(model for model in models if isinstance(model, str))

    results.advance(add)
    metrics = results.directory.read_metrics() or {} if results.unfinished is None else {}
    duration_ms = as_number(as_table(metrics.get("eval_run")).get("duration_ms"))
    source_rows = (source_row for part in manifest.selected_rows() for source_row in part)
    known = ((row, digests[row], place) for row, place in enumerate(source_rows) if digests[row])
    keys, places, row_of = distinct_rows(table.rows, known)
    return RunSamples(
        name=results.name,
        run_id=manifest.local_run_id,
        place="local",
        location=str(path),
        status=results.status,
        inputs=read_inputs(path, judges),
        row_keys=keys,
        keyed_by="row_digest",
        source_rows=places,
        samples=sample_array(table.columns, row_of, table.n),
        planned=len(table),
        unfinished=results.unfinished,
        reward_range=manifest.reward_range,
        duration_s=duration_ms and duration_ms / 1000,
    )


def read_inputs(path: Path, judges: Collection[str] = ()) -> ComparedInputs:
    """Return the inputs of a local run without reading its journal; ``judges`` are the models that judged it."""
    directory = RunDirectory(path)
    manifest = Manifest.load(directory.manifest)
    inputs, provenance = manifest.inputs, manifest.provenance
    rollout, dataset = as_table(inputs.get("rollout")), as_table(inputs.get("dataset"))
    functions = as_table(inputs.get("agent_loop")).get("eval_fns")
    limits = as_table(inputs.get("timeouts"))
    n, seed, dirty = inputs.get("n"), inputs.get("seed"), provenance.get("git_dirty")
    settings = {name: value for name, value in inputs.items() if name not in _ROW_INPUTS}
    return ComparedInputs(
        model=as_text(inputs.get("model_path")),
        dataset_name=dataset_name(manifest, directory),
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
        pass_threshold=pass_threshold_of(directory),
        selected_rows=as_text(dataset.get("selected_source_rows")),
        eval_functions=tuple(map(str, functions)) if isinstance(functions, list) else (),
        settings_digest=inputs_digest(settings),
        env={str(name): str(value) for name, value in as_table(inputs.get("env")).items()},
        time_limits_s=(
            as_number(limits.get("agent_timeout_sec")),
            as_number(limits.get("grader_timeout_sec")),
        ),
    )


def find_dataset_file(run: RunSamples, path: Path, start: Path | None = None) -> Path | None:
    """Return the unchanged dataset file of the local run at ``path``; None if it is not found.

    ``start`` is a directory in the workspace to search; by default, ``path``. A file that was changed, or a run that did
    not record its digest, is a ConflictError.
    """
    if run.inputs.dataset_sha256 is None:
        raise ConflictError(f"the run {run.name} did not record the digest of its dataset.")
    changed = []
    for file in dataset_files(path, start or path):
        digest = file_digest(file)
        if digest == run.inputs.dataset_sha256:
            return file
        changed.append((file, digest))
    for file, digest in changed:
        require_unchanged(run, digest, where=f"`{file}`")
    return None


def require_dataset_file(run: RunSamples, path: Path) -> Path:
    """Return the dataset file of a local run, or raise NotFoundError."""
    found = find_dataset_file(run, path)
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
