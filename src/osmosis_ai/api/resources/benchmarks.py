"""Benchmarks: the catalogue, and the runs of agents on them."""

from __future__ import annotations

from osmosis_ai.api import routes
from osmosis_ai.api.resources.resource import LARGEST_PAGE, Resource
from osmosis_ai.api.resources.runs import RunsWithFiles
from osmosis_ai.api.wire.benchmarks import (
    BenchmarkDetail,
    BenchmarkList,
    BenchmarkRunDetail,
    BenchmarkRunList,
    BenchmarkRunSubmit,
    SubmittedBenchmarkRun,
)


class Benchmarks(Resource):
    """The benchmarks that agents can be run on."""

    def list(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> BenchmarkList:
        """Return one page of the catalogue."""
        return self._page(routes.BENCHMARKS, model=BenchmarkList, limit=limit, offset=offset)

    def get(self, key: str) -> BenchmarkDetail:
        """Return one benchmark by its key, its name or its id."""
        return self._client.get(routes.benchmark(key), model=BenchmarkDetail)


class BenchmarkRuns(RunsWithFiles[BenchmarkRunSubmit]):
    """The benchmark runs of the repository's workspace."""

    path = routes.BENCHMARK_RUNS
    files = "outputs"

    def list(
        self, *, limit: int = LARGEST_PAGE, offset: int = 0, benchmark: str | None = None
    ) -> BenchmarkRunList:
        """Return one page, the newest first; of one ``benchmark`` (its id) where that is given."""
        return self._page(self.path, model=BenchmarkRunList, limit=limit, offset=offset, benchmark=benchmark)

    def get(self, name_or_id: str) -> BenchmarkRunDetail:
        """Return one run."""
        return self._client.get(routes.run(self.path, name_or_id), model=BenchmarkRunDetail)

    def submit(self, run: BenchmarkRunSubmit) -> SubmittedBenchmarkRun:
        """Submit a run, exactly once; secret values in it stay out of every error."""
        return self._submit(run, SubmittedBenchmarkRun)
