"""Read the samples of runs on this machine and on a platform, compare runs, and slice their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from osmosis_ai.api.models.eval_runs import EvalRun, EvalRunDetail
from osmosis_ai.datasets import Selection
from osmosis_ai.decisions import samples
from osmosis_ai.decisions.compare import CompareOptions, RunComparison, compare_runs
from osmosis_ai.decisions.local_runs import find_dataset_file, read_local_samples, require_unchanged
from osmosis_ai.decisions.run_dataset import read_slice_values
from osmosis_ai.decisions.samples import ComparedInputs, RunSamples, RunSlice
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.evaluation.lenient_json import as_number
from osmosis_ai.services.eval_runs.info import DescribedEvaluation, describe_run
from osmosis_ai.services.eval_runs.resolver import Client, names_commit, resolve_run
from osmosis_ai.services.report_files import ReportFile
from osmosis_ai.services.runs.lifecycle import finite, lists_samples, platform_samples
from osmosis_ai.workspace.config_files import decisions_of_run
from osmosis_ai.workspace.layout import find_workspace

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.statistics.estimates import Integers

_MOST_ATTEMPTS = 10**8


def find_run_samples(reference: str, *, client: Client, like: ComparedInputs | None = None) -> RunSamples:
    """Find a run and read its samples; ``like`` is a run of the config that `git:REF` means."""
    found = resolve_run(reference, client=client, like=like)
    if found.directory is None:
        platform = client()
        run = read_platform_samples(platform, found.name)
        return replace(run, open_dataset=lambda: _platform_dataset(platform, run))
    return read_run_directory(found.directory, place=found.place, client=client)


def read_run_directory(
    directory: Path, *, client: Client, place: Literal["local", "platform", "file"] = "local"
) -> RunSamples:
    """Read a local run; its dataset is located on first use."""
    run = replace(read_local_samples(directory), place=place)
    return replace(
        run, open_dataset=lambda: find_dataset_file(run, directory) or _missing_dataset(run, client)
    )


def read_platform_samples(client: PlatformClient, name: str) -> RunSamples:
    """Read a platform's run, or only its counts if the platform does not list samples."""
    found = describe_run(client, name)
    run = _without_samples(found)
    if not lists_samples(client):
        return replace(run, summary=counts_of(found))
    rows, n = _size(found.detail)
    collector = samples.SampleCollector(run, rows=rows, n=n, source=client.platform_url)
    for sample in platform_samples(client, found.run.id):
        collector.add(sample)
    return collector.run()


def counts_of(found: DescribedEvaluation) -> samples.CountsOnly:
    results, metrics = found.detail.results, found.metrics
    overview = metrics.overview if metrics is not None else None

    def first(name: str) -> int | None:
        values = (getattr(part, name, None) for part in (overview, results))
        return next((value for value in values if value is not None), None)

    tried = first("completed_samples")
    if tried is None and results is not None and results.total_runs is not None:
        tried = max(0, results.total_runs - (results.skipped or 0))
    stats = (metrics.reward_stats if metrics is not None else None) or {}
    mean, std = finite(stats.get("mean")), finite(stats.get("std"))
    points = metrics.pass_at_k if metrics is not None else []
    return samples.CountsOnly(
        rows=results.sampled_rows if results is not None else None,
        scored=first("graded"),
        passed=first("passed"),
        failed=first("failed"),
        tried=tried,
        reward=(mean, std) if mean is not None and std is not None else None,
        pass_at_k={
            point.k: point.value
            for point in points
            if finite(point.value) is not None and point.value is not None
        },
    )


def _without_samples(found: DescribedEvaluation) -> RunSamples:
    import numpy as np

    run, detail = found.run, found.detail
    rows, n = _size(detail)
    none: Integers = np.zeros(0, dtype=np.int64)
    return RunSamples(
        name=run.name or run.id,
        # A local run and its upload are the same run.
        run_id=(run.imported.local_run_id if run.imported is not None else None) or run.id,
        place="platform",
        location=run.platform_url or run.name or run.id,
        status=run.status,
        inputs=_inputs(found),
        row_keys=(),
        keyed_by="row_digest",
        source_rows=none,
        samples=np.zeros(0, dtype=np.dtype(samples.SAMPLE_FIELDS)),
        planned=rows * n,
        unfinished=unfinished_there(run),
        imported=run.imported.words if run.imported is not None else None,
        revision=run.revision,
        duration_s=found.duration_ms / 1000 if found.duration_ms and run.status == "finished" else None,
    )


def unfinished_there(run: EvalRun) -> str | None:
    if run.status == "finished":
        return None
    said = f" ({run.error.rstrip('.')})" if run.error else ""
    return f"the run is {run.status}, not finished{said}: partial runs are not used."


def _size(detail: EvalRunDetail) -> tuple[int, int]:
    n = (detail.config or {}).get("n", 1)
    rows = detail.results.sampled_rows if detail.results is not None else None
    if type(n) is not int or n < 1 or not 0 <= (rows or 0) * n <= _MOST_ATTEMPTS:
        raise OsmosisError(f"Run '{detail.eval_run.name}' has an invalid size: {rows} rows × {n!r} attempts.")
    if rows is None:
        raise ConflictError(
            f"Run '{detail.eval_run.name}' has no rows yet (it is {detail.eval_run.status}).",
            hint="wait for it with `osmosis eval watch`",
        )
    return rows, n


def _inputs(found: DescribedEvaluation) -> ComparedInputs:
    detail, config = found.detail, found.detail.config or {}
    threshold = finite(detail.results.pass_threshold) if detail.results is not None else None
    seed, n = config.get("seed"), config.get("n", 1)
    limits = as_number(config.get("agent_workflow_timeout_s")), as_number(config.get("grader_timeout_s"))
    origin = detail.eval_run.imported
    return ComparedInputs(
        model=found.model,
        dataset_name=detail.dataset.name if detail.dataset is not None else None,
        dataset_sha256=detail.dataset_sha256,
        rollout=detail.rollout.name if detail.rollout is not None else None,
        entrypoint=detail.entrypoint,
        grader_digest=detail.grader_digest,
        commit=detail.commit_sha or (origin.git_head if origin is not None else None),
        dirty=origin.git_dirty if origin is not None else False,
        n=n if type(n) is int else None,
        seed=seed if type(seed) is int else None,
        pass_threshold=1.0 if threshold is None else threshold,
        env=dict(detail.env_config or {}) if origin is None else None,
        time_limits_s=limits if origin is None else None,
    )


def _missing_dataset(run: RunSamples, client: Client) -> Path:
    """Return the platform's dataset of a run whose dataset is not in the workspace."""
    name = run.inputs.dataset_name
    if name is None:
        raise NotFoundError(f"Run '{run.name}' does not record its dataset.")
    try:
        return _platform_dataset(client(), run)
    except ConflictError:
        raise
    except OsmosisError as error:
        raise NotFoundError(
            f"Dataset '{name}' of the run '{run.name}' is neither in data/ nor on a platform: "
            f"{error.message}",
            hint="bring the file back; a comparison without slices does not need it",
        ) from None


def _platform_dataset(client: PlatformClient, run: RunSamples) -> Path:
    from osmosis_ai.services.datasets import fetch_dataset

    fetched = fetch_dataset(client, run.inputs.dataset_name or "")
    require_unchanged(
        run, fetched.sha256, where=f"the dataset {run.inputs.dataset_name} of {client.platform_url}"
    )
    return fetched.path


def require_sliceable(columns: Sequence[str], dataset: Path, selection: Selection) -> None:
    """Check before a run starts that its results can be sliced by the columns."""
    if not columns:
        return
    import numpy as np

    places = np.asarray(selection.indices, dtype=np.int64)
    for column in columns:
        read_slice_values(dataset, column, places, dataset.stem)


def local_slices(run_dir: Path, dataset: Path, columns: Sequence[str]) -> tuple[RunSlice, ...]:
    if not columns:
        return ()
    return samples.run_slices(replace(read_local_samples(run_dir), open_dataset=lambda: dataset), columns)


def compare(
    baseline: str,
    candidates: Sequence[str],
    options: CompareOptions,
    *,
    client: Client,
    report: ReportFile | None = None,
) -> RunComparison:
    """Find and compare runs.

    If the options give no reward range, the range in the decide file of the last candidate's config applies.
    """
    found: dict[int, RunSamples] = {}
    like = None
    # `git:REF` means a run of the same config as the other references.
    for place, reference in sorted(
        enumerate((baseline, *candidates)), key=lambda each: names_commit(each[1])
    ):
        found[place] = find_run_samples(reference, client=client, like=like)
        like = like or found[place].inputs
    first, *others = (found[place] for place in range(len(found)))
    if options.reward_range is None:
        options = replace(options, reward_range=_decided_range(others[-1].inputs))
    comparison = compare_runs(first, others, options)
    if report is not None:
        from osmosis_ai.viewer.reports import write_comparison_report

        with report.opened() as file:
            write_comparison_report(file, comparison, [first, *others], text=report.text)
    return comparison


def _decided_range(inputs: ComparedInputs) -> tuple[float, float] | None:
    """Return the reward range in the decide file next to a run's config."""
    try:
        workspace = find_workspace(require_scaffold=False)
    except OsmosisError:
        return None
    return decisions_of_run(inputs.config, workspace).reward_range
