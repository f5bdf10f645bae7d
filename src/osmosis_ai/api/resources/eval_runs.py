"""Evaluation runs: submit, follow, stop, fetch."""

from __future__ import annotations

from osmosis_ai.api import routes
from osmosis_ai.api.resources.resource import LARGEST_PAGE
from osmosis_ai.api.resources.runs import RunsWithFiles
from osmosis_ai.api.wire.eval_runs import EvalMetrics, EvalRunDetail, EvalRunList
from osmosis_ai.api.wire.runs import EvalRunSubmit


class EvalRuns(RunsWithFiles[EvalRunSubmit]):
    """The evaluation runs of the repository's workspace."""

    path = routes.EVAL_RUNS
    files = "samples"

    def list(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> EvalRunList:
        """Return one page, the newest first."""
        return self._page(self.path, model=EvalRunList, limit=limit, offset=offset)

    def get(self, name_or_id: str) -> EvalRunDetail:
        """Return one run."""
        return self._client.get(routes.run(self.path, name_or_id), model=EvalRunDetail)

    def metrics(self, name_or_id: str) -> EvalMetrics:
        """Return a run's numbers so far."""
        return self._client.get(routes.run_metrics(self.path, name_or_id), model=EvalMetrics)
