"""The platform's API: one class per resource."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from osmosis_ai.api import routes
from osmosis_ai.api.connections import COMPLETING, REPEATING, SIGNING
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.base import LogPage, Page, WireModel
from osmosis_ai.api.models.datasets import CompletedPart
from osmosis_ai.api.models.eval_imports import (
    EvalImportSession,
    EvalImportStart,
    ImportPart,
    ImportUpload,
    ImportUploadComplete,
    ImportUploads,
    ImportUploadsRequest,
)
from osmosis_ai.api.models.eval_runs import (
    DownloadItem,
    DownloadUrls,
    DownloadUrlsRequest,
    EvalMetrics,
    EvalRunDetail,
    EvalRunList,
    EvalSamplePage,
    RetryCheck,
    SampleManifest,
)
from osmosis_ai.api.models.runs import (
    EvalRetry,
    EvalRunSubmit,
    StopReply,
    SubmitCheck,
    SubmittedRun,
    TrainingRunSubmit,
)
from osmosis_ai.api.models.training_runs import (
    CheckpointList,
    ResumeReply,
    TrainingMetrics,
    TrainingRunDetail,
    TrainingRunList,
    ValidationConversation,
    ValidationPage,
)
from osmosis_ai.api.paging import LARGEST_PAGE

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient

LogDirection = Literal["older", "newer"]

_PageT = TypeVar("_PageT", bound=Page)


class Resource:
    """A group of calls on one client."""

    def __init__(self, client: PlatformClient) -> None:
        self._client = client

    def _page(
        self, path: str, *, model: type[_PageT], limit: int, offset: int, **filters: str | None
    ) -> _PageT:
        """Return one page of a list; filters that are None are not sent."""
        params = {"limit": limit, "offset": offset, **filters}
        return self._client.get(path, model=model, params=params)

    def _log_page(self, path: str, *, limit: int, cursor: str | None, direction: LogDirection) -> LogPage:
        """Return one page of a log, from ``cursor`` in ``direction``."""
        params = {"limit": limit, "direction": direction, "cursor": cursor}
        return self._client.get(path, model=LogPage, params=params)


_NO_ROUTE = (404, 405, 410, 501)

_SubmitT = TypeVar("_SubmitT", EvalRunSubmit, TrainingRunSubmit)
_SubmittedT = TypeVar("_SubmittedT", bound=SubmittedRun)


class Runs(Resource, Generic[_SubmitT]):
    path: ClassVar[str]

    def submit(self, run: _SubmitT) -> SubmittedRun:
        """Submit a run; the request is never retried, and no error contains its secrets."""
        return self._submit(run, SubmittedRun)

    def check(self, run: _SubmitT) -> SubmitCheck | None:
        """Check a submit of ``run`` without creating a run; None if the platform cannot check."""
        if run.secrets is not None:
            self._client.hide(run.secrets.provided.values())
        try:
            found = self._client.post(routes.run_check(self.path), run, model=SubmitCheck, retry=REPEATING)
        except PlatformError as error:
            if error.status in _NO_ROUTE and not _is_verdict(error):
                return None
            raise
        return found if found.dry_run else None

    def logs(
        self,
        name_or_id: str,
        *,
        limit: int = 50,
        cursor: str | None = None,
        direction: LogDirection = "older",
    ) -> LogPage:
        path = routes.run_logs(self.path, name_or_id)
        return self._log_page(path, limit=limit, cursor=cursor, direction=direction)

    def events(self, name_or_id: str) -> Generator[dict[str, Any]]:
        """Yield a run's state, then its updates until it ends; only on self-hosted platforms."""
        return self._client.events(routes.run_events(self.path, name_or_id))

    def stop(self, name_or_id: str) -> StopReply:
        """Request a run to stop; idempotent."""
        path = routes.run_stop(self.path, name_or_id)
        return self._client.post(path, None, model=StopReply, retry=REPEATING)

    def delete(self, name_or_id: str) -> None:
        """Delete a run that has ended; only on self-hosted platforms."""
        self._client.delete(routes.run(self.path, name_or_id))

    def _submit(self, run: _SubmitT, reply: type[_SubmittedT]) -> _SubmittedT:
        if run.secrets is not None:
            self._client.hide(run.secrets.provided.values())
        return self._client.post(self.path, run, model=reply)


class RunsWithFiles(Runs[_SubmitT]):
    files: ClassVar[str]

    def manifest(self, name_or_id: str, *, types: Sequence[str], rows: str | None = None) -> SampleManifest:
        return self._client.get(
            routes.run_manifest(self.path, name_or_id, self.files),
            model=SampleManifest,
            params={"types": ",".join(types), "rows": rows},
        )

    def download_urls(self, name_or_id: str, items: Sequence[DownloadItem]) -> DownloadUrls:
        """Return temporary URLs for files of a manifest."""
        return self._client.post(
            routes.run_download_urls(self.path, name_or_id, self.files),
            DownloadUrlsRequest(items=list(items)),
            model=DownloadUrls,
            retry=SIGNING,
        )


def _is_verdict(error: PlatformError) -> bool:
    """Tell whether an error refuses the submit or its user, rather than means that the route is missing."""
    return error.body.get("dry_run") is True or (error.platform_code or "").startswith("GIT_")


PARTS_TIMEOUT_S = 120.0
LARGEST_SAMPLE_PAGE = 5_000


class EvalRuns(RunsWithFiles[EvalRunSubmit]):
    path = routes.EVAL_RUNS
    files = "samples"

    def list(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> EvalRunList:
        """Return one page, newest first."""
        return self._page(self.path, model=EvalRunList, limit=limit, offset=offset)

    def get(self, name_or_id: str) -> EvalRunDetail:
        return self._client.get(routes.run(self.path, name_or_id), model=EvalRunDetail)

    def metrics(self, name_or_id: str) -> EvalMetrics:
        """Return a run's metrics so far."""
        return self._client.get(routes.run_metrics(self.path, name_or_id), model=EvalMetrics)

    def check_retry(self, name_or_id: str, again: EvalRetry) -> RetryCheck:
        """Return what a retry of a run would repeat, without reopening it."""
        path = routes.run_check(routes.eval_run_retry(name_or_id))
        return self._client.post(path, self._hidden(again), model=RetryCheck, retry=REPEATING)

    def retry(self, name_or_id: str, again: EvalRetry) -> SubmittedRun:
        """Reopen a run to repeat its failed and unscored attempts; the request is never retried."""
        path = routes.eval_run_retry(name_or_id)
        return self._client.post(path, self._hidden(again), model=SubmittedRun)

    def samples(
        self,
        name_or_id: str,
        *,
        limit: int = LARGEST_SAMPLE_PAGE,
        cursor: str | None = None,
        details: bool = False,
    ) -> EvalSamplePage:
        """Return one page of a run's attempts."""
        params: dict[str, str | int | None] = {"limit": limit, "cursor": cursor}
        if details:
            params["details"] = "true"
        path = routes.eval_run_samples(name_or_id)
        return self._client.get(path, model=EvalSamplePage, params=params)

    def _hidden(self, again: EvalRetry) -> EvalRetry:
        """Hide the values of secrets in errors."""
        if again.secrets is not None:
            self._client.hide(again.secrets.provided.values())
        return again


FINALIZE_TIMEOUT_S = 300.0


class EvalImports(Resource):
    """Uploads of local evaluations to the repository's workspace."""

    def start(self, request: EvalImportStart) -> EvalImportSession:
        """Announce a run and its files; for a run that was announced before, the upload is resumed."""
        return self._client.post(
            routes.EVAL_IMPORTS, request, model=EvalImportSession, timeout_s=PARTS_TIMEOUT_S, retry=SIGNING
        )

    def uploads(self, session_id: str, paths: Sequence[str]) -> list[ImportUpload]:
        """Return upload URLs for those of ``paths`` (1 to 100) that are missing."""
        path = routes.eval_import_uploads(session_id)
        asked = ImportUploadsRequest(paths=list(paths))
        return self._client.post(path, asked, model=ImportUploads, retry=SIGNING).files

    def complete(self, session_id: str, path: str, parts: Sequence[CompletedPart] | None) -> None:
        """Report that all bytes of a file are stored; ``parts`` if it was sent in parts."""
        request = ImportUploadComplete(path=path)
        if parts is not None:
            request.parts = [ImportPart(part_number=part.PartNumber, etag=part.ETag) for part in parts]
        self._client.post(
            routes.eval_import_complete(session_id),
            request,
            model=WireModel,
            timeout_s=PARTS_TIMEOUT_S,
            retry=COMPLETING,
        )

    def finalize(self, session_id: str) -> EvalImportSession:
        """Create a run from the uploaded files."""
        return self._client.post(
            routes.eval_import_finalize(session_id),
            None,
            model=EvalImportSession,
            timeout_s=FINALIZE_TIMEOUT_S,
            retry=COMPLETING,
        )


class TrainingRuns(Runs[TrainingRunSubmit]):
    path = routes.TRAINING_RUNS

    def list(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> TrainingRunList:
        """Return one page, newest first."""
        return self._page(self.path, model=TrainingRunList, limit=limit, offset=offset)

    def get(self, name_or_id: str) -> TrainingRunDetail:
        return self._client.get(routes.run(self.path, name_or_id), model=TrainingRunDetail)

    def metrics(self, name_or_id: str) -> TrainingMetrics:
        """Return every point of every metric so far."""
        return self._client.get(routes.run_metrics(self.path, name_or_id), model=TrainingMetrics)

    def resume(self, name_or_id: str) -> ResumeReply:
        """Resume a run that failed or was stopped from its last checkpoint."""
        return self._client.post(routes.training_run_resume(name_or_id), None, model=ResumeReply)

    def checkpoints(self, name_or_id: str) -> CheckpointList:
        """Return a run's saved adapters, oldest first."""
        return self._client.get(routes.training_run_checkpoints(name_or_id), model=CheckpointList)

    def validation(self, name_or_id: str, *, cursor: str | None = None) -> ValidationPage:
        """Return attempts of the newest validation: those without a score first, then by ascending reward."""
        path = routes.training_run_validation(name_or_id)
        return self._client.get(path, model=ValidationPage, params={"cursor": cursor})

    def validation_conversation(self, name_or_id: str, row: int, attempt: int) -> ValidationConversation:
        """Return the conversation of one of these attempts."""
        path = routes.training_run_conversation(name_or_id, row, attempt)
        return self._client.get(path, model=ValidationConversation)


class BenchmarkRuns(RunsWithFiles[Any]):
    path = routes.BENCHMARK_RUNS
    files = "outputs"
