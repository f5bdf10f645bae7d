"""Training runs: submit, follow, measure, stop, resume."""

from __future__ import annotations

from osmosis_ai.api import routes
from osmosis_ai.api.resources.resource import LARGEST_PAGE
from osmosis_ai.api.resources.runs import Runs
from osmosis_ai.api.wire.runs import TrainingRunSubmit
from osmosis_ai.api.wire.training_runs import (
    CheckpointList,
    ResumeReply,
    TrainingMetrics,
    TrainingRunDetail,
    TrainingRunList,
    ValidationConversation,
    ValidationPage,
)


class TrainingRuns(Runs[TrainingRunSubmit]):
    """The training runs of the repository's workspace."""

    path = routes.TRAINING_RUNS

    def list(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> TrainingRunList:
        """Return one page, the newest first."""
        return self._page(self.path, model=TrainingRunList, limit=limit, offset=offset)

    def get(self, name_or_id: str) -> TrainingRunDetail:
        """Return one run."""
        return self._client.get(routes.run(self.path, name_or_id), model=TrainingRunDetail)

    def metrics(self, name_or_id: str) -> TrainingMetrics:
        """Return every point of every metric so far."""
        return self._client.get(routes.run_metrics(self.path, name_or_id), model=TrainingMetrics)

    def resume(self, name_or_id: str) -> ResumeReply:
        """Let a run that failed or was stopped go on from its last checkpoint."""
        return self._client.post(routes.training_run_resume(name_or_id), None, model=ResumeReply)

    def checkpoints(self, name_or_id: str) -> CheckpointList:
        """Return the adapters that a run has saved, the earliest first."""
        return self._client.get(routes.training_run_checkpoints(name_or_id), model=CheckpointList)

    def validation(self, name_or_id: str, *, cursor: str | None = None) -> ValidationPage:
        """Return samples of the newest validation, those without a score first, then the worst."""
        path = routes.training_run_validation(name_or_id)
        return self._client.get(path, model=ValidationPage, params={"cursor": cursor})

    def validation_conversation(self, name_or_id: str, row: int, attempt: int) -> ValidationConversation:
        """Return what was said in one of these samples."""
        path = routes.training_run_conversation(name_or_id, row, attempt)
        return self._client.get(path, model=ValidationConversation)
