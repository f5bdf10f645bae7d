"""Evaluation runs: submit, follow, stop, fetch."""

from __future__ import annotations

from collections.abc import Mapping

from osmosis_ai.api import routes
from osmosis_ai.api.resources.resource import LARGEST_PAGE
from osmosis_ai.api.resources.runs import RunsWithFiles
from osmosis_ai.api.retrying import REPEATING
from osmosis_ai.api.wire.eval_runs import (
    EvalMetrics,
    EvalRunDetail,
    EvalRunList,
    EvalSamplePage,
    MergedEvaluation,
    RetryCheck,
)
from osmosis_ai.api.wire.runs import EvalRunSubmit, RunAgain, RunSecrets, SubmittedRun

LARGEST_SAMPLE_PAGE = 5_000


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

    def check_retry(self, name_or_id: str, provided: Mapping[str, str]) -> RetryCheck:
        """Return what a retry of a run would make; no run comes of it. ``provided`` as for :meth:`retry`."""
        path = routes.run_check(routes.eval_run_retry(name_or_id))
        return self._client.post(path, self._again(provided), model=RetryCheck, retry=REPEATING)

    def retry(self, name_or_id: str, provided: Mapping[str, str]) -> SubmittedRun:
        """Submit a run of another one's failed and unscored samples, exactly once."""
        path = routes.eval_run_retry(name_or_id)
        return self._client.post(path, self._again(provided), model=SubmittedRun)

    def merged(self, name_or_id: str) -> MergedEvaluation:
        """Return the numbers of a run and its retries together."""
        return self._client.get(routes.eval_run_merged(name_or_id), model=MergedEvaluation)

    def samples(
        self,
        name_or_id: str,
        *,
        limit: int = LARGEST_SAMPLE_PAGE,
        cursor: str | None = None,
        details: bool = False,
        own: bool = False,
    ) -> EvalSamplePage:
        """Return one page of what a run's attempts came to, those of its retries in place of what they
        replace."""
        params: dict[str, str | int | None] = {"limit": limit, "cursor": cursor}
        if details:
            params["details"] = "true"
        if own:
            params["own"] = "true"
        path = routes.eval_run_samples(name_or_id)
        return self._client.get(path, model=EvalSamplePage, params=params)

    def _again(self, provided: Mapping[str, str]) -> RunAgain:
        self._client.hide(provided.values())
        return RunAgain(secrets=RunSecrets(provided=dict(provided))) if provided else RunAgain()
