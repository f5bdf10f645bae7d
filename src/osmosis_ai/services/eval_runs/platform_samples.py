"""Read a platform run's samples page by page, or only its counts if the platform does not list attempts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from osmosis_ai.api.paging import iterate_samples
from osmosis_ai.decisions.samples import ComparedInputs, CountsOnly, RunSamples, SampleCollector
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.services.runs.finite import finite

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.models.eval_runs import EvalResults, EvalRun, EvalRunDetail
    from osmosis_ai.services.eval_runs.info import DescribedEvaluation
    from osmosis_ai.statistics.estimates import Integers

_MOST_ATTEMPTS = 10**8


def read_platform_samples(client: PlatformClient, name: str) -> RunSamples:
    """Read a platform's run.

    Args:
        client: the platform.
        name: the run's name or id.

    Raises:
        PlatformError: the run does not exist or the request failed.
        OsmosisError: the platform's list of attempts is inconsistent.
    """
    from osmosis_ai.api.capabilities import Capability
    from osmosis_ai.services.capabilities import is_offered
    from osmosis_ai.services.eval_runs.info import describe_run

    found = describe_run(client, name)
    # The capabilities are known: describing the run was a request.
    if client.offers is not None and is_offered(client.offers, Capability.EVAL_SAMPLES):
        return _with_samples(client, found)
    return replace(_without_samples(found), summary=counts_of(found))


def counts_of(found: DescribedEvaluation) -> CountsOnly:
    """Return the counts that a platform reports for a run."""
    results, metrics = found.detail.results, found.metrics
    overview = metrics.overview if metrics is not None else None

    def first(name: str) -> int | None:
        values = (getattr(part, name, None) for part in (overview, results))
        return next((value for value in values if value is not None), None)

    stats = (metrics.reward_stats if metrics is not None else None) or {}
    mean, std = finite(stats.get("mean")), finite(stats.get("std"))
    points = metrics.pass_at_k if metrics is not None else []
    return CountsOnly(
        rows=results.sampled_rows if results is not None else None,
        scored=first("graded"),
        passed=first("passed"),
        failed=first("failed"),
        tried=_tried(results) if (tried := first("completed_samples")) is None else tried,
        reward=(mean, std) if mean is not None and std is not None else None,
        pass_at_k={
            point.k: point.value
            for point in points
            if finite(point.value) is not None and point.value is not None
        },
    )


def _tried(results: EvalResults | None) -> int | None:
    """Return the number of attempts without skipped ones, if only the run's results report it."""
    if results is None or results.total_runs is None:
        return None
    return max(0, results.total_runs - (results.skipped or 0))


def _with_samples(client: PlatformClient, found: DescribedEvaluation) -> RunSamples:
    rows, n = _size(found.detail)
    run_id = found.detail.eval_run.id
    collector = SampleCollector(_without_samples(found), rows=rows, n=n, source=client.platform_url)
    for sample in iterate_samples(lambda cursor: client.eval_runs.samples(run_id, cursor=cursor)):
        collector.add(sample)
    return collector.run()


def _without_samples(found: DescribedEvaluation) -> RunSamples:
    import numpy as np

    from osmosis_ai.decisions.samples import SAMPLE_FIELDS

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
        samples=np.zeros(0, dtype=np.dtype(SAMPLE_FIELDS)),
        planned=rows * n,
        unfinished=unfinished_there(run),
        imported=run.imported.words if run.imported is not None else None,
        revision=run.revision,
    )


def unfinished_there(run: EvalRun) -> str | None:
    """Return why a run is incomplete; None if it is complete."""
    if run.status == "finished":
        return None
    said = f" ({run.error.rstrip('.')})" if run.error else ""
    return f"the run is {run.status}, not finished{said}: partial runs are not used."


def _size(detail: EvalRunDetail) -> tuple[int, int]:
    """Return the number of rows, and of attempts per row."""
    n = (detail.config or {}).get("n", 1)
    rows = detail.results.sampled_rows if detail.results is not None else None
    if type(n) is not int or n < 1 or not 0 <= (rows or 0) * n <= _MOST_ATTEMPTS:
        raise OsmosisError(
            f"the run {detail.eval_run.name} of {rows} rows, {n!r} times each, cannot be read."
        )
    if rows is None:
        raise ConflictError(
            f"the run {detail.eval_run.name} is {detail.eval_run.status}: it has no row yet.",
            hint="wait for it with `osmosis eval watch`",
        )
    return rows, n


def _inputs(found: DescribedEvaluation) -> ComparedInputs:
    detail, config = found.detail, found.detail.config or {}
    threshold = finite(detail.results.pass_threshold) if detail.results is not None else None
    seed, n = config.get("seed"), config.get("n", 1)
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
        env=dict(detail.env_config or {}),
    )
