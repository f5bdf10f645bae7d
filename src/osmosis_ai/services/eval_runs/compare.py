"""`osmosis eval compare`: runs of this machine and of platforms, found, read and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.comparison.engine import CompareOptions, RunComparison, compare_runs
from osmosis_ai.services.eval_runs.resolver import find_run_samples, names_commit

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.evaluation.comparison.run_samples import ComparedInputs, RunSamples
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
    """Find runs and compare them; where nobody says a reward's range, the decide file of the last run's config does.

    Args:
        baseline, candidates: as the user named them.
        options: how they are compared.
        client: connects with the platform, when it has to be asked.
        start: a directory of the workspace; the current one when None.
        report: the file that the comparison is also written into.

    Raises:
        OsmosisError: a run is not found or cannot be compared (see :func:`compare_runs`), or the report cannot be written.
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
    """Find runs in the order in which they are named; `git:REF` means one of the config that the others are of.

    Raises:
        OsmosisError: as :func:`find_run_samples`.
    """
    found: dict[int, RunSamples] = {}
    like = None
    for place, reference in sorted(enumerate(references), key=lambda each: names_commit(each[1])):
        found[place] = find_run_samples(reference, client=client, start=start, like=like)
        like = like or found[place].inputs
    return [found[place] for place in range(len(references))]


def _decided_range(inputs: ComparedInputs, start: Path | None) -> tuple[float, float] | None:
    """Return the range of rewards that the decide file beside a run's config gives."""
    from osmosis_ai.workspace.config_files import decisions_of_run
    from osmosis_ai.workspace.layout import find_workspace

    try:
        workspace = find_workspace(start, require_scaffold=False)
    except OsmosisError:
        return None
    return decisions_of_run(inputs.config, workspace).reward_range
