"""The files of benchmark runs; `services/benchmarks.py` makes the other calls."""

from __future__ import annotations

from typing import Any

from osmosis_ai.api import routes
from osmosis_ai.api.resources.runs import RunsWithFiles


class BenchmarkRuns(RunsWithFiles[Any]):
    """The benchmark runs of the repository's workspace."""

    path = routes.BENCHMARK_RUNS
    files = "outputs"
