"""`osmosis eval compare`: find, read and compare runs on this machine and on platforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.decisions.compare import CompareOptions, RunComparison, compare_runs
from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.eval_runs.resolver import find_run_samples, names_commit

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.decisions.samples import ComparedInputs, RunSamples
    from osmosis_ai.services.report_files import ReportFile


def compare(
    baseline: str,
    candidates: Sequence[str],
    options: CompareOptions,
    *,
    client: Callable[[], PlatformClient],
    start: Path | None = None,
    report: ReportFile | None = None,
) -> RunComparison:
    """Find and compare runs.

    If the options give no reward range, the range in the decide file of the last candidate's config applies.

    Args:
        baseline, candidates: run references, see :mod:`~osmosis_ai.services.eval_runs.resolver`.
        options: comparison settings.
        client: connects to the platform; called only if a run is not on this machine.
        start: a directory in the workspace; the current one when None.
        report: file that also receives the comparison.

    Raises:
        OsmosisError: a run does not exist or cannot be compared (see :func:`compare_runs`), or the report
            cannot be written.
    """
    first, *others = find_runs([baseline, *candidates], client=client, start=start)
    if options.reward_range is None:
        options = replace(options, reward_range=_decided_range(others[-1].inputs, start))
    comparison = compare_runs(first, others, options)
    if report is not None:
        from osmosis_ai.viewer.one_file import write_comparison_report

        with report.opened() as file:
            write_comparison_report(file, comparison, [first, *others], text=report.text)
    return comparison


def find_runs(
    references: Sequence[str], *, client: Callable[[], PlatformClient], start: Path | None = None
) -> list[RunSamples]:
    """Find runs, in the given order; `git:REF` means a run of the same config as the other references."""
    found: dict[int, RunSamples] = {}
    like = None
    for place, reference in sorted(enumerate(references), key=lambda each: names_commit(each[1])):
        found[place] = find_run_samples(reference, client=client, start=start, like=like)
        like = like or found[place].inputs
    return [found[place] for place in range(len(references))]


def _decided_range(inputs: ComparedInputs, start: Path | None) -> tuple[float, float] | None:
    """Return the reward range in the decide file next to a run's config."""
    from osmosis_ai.workspace.config_files import decisions_of_run
    from osmosis_ai.workspace.layout import find_workspace

    try:
        workspace = find_workspace(start, require_scaffold=False)
    except OsmosisError:
        return None
    return decisions_of_run(inputs.config, workspace).reward_range
